"""However a change ends, by a bug or a full disk too: the journal says how, flows are right."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from patchlight.controller.changes.record import Refused
from patchlight.controller.circuits.contract import Outcome
from patchlight.controller.packet_switches.openflow.forwarding import (
    flow_tables,
)
from patchlight.controller.storage.database import JournalError
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from patchlight.testbed.lab.wiring import trace_links
from tests.support.change_bench import LAB, ChangeBench, joined


async def test_a_bug_before_the_first_write_leaves_no_intent_behind(
    bench: ChangeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nonsense(*_: Any) -> None:
        raise KeyError("no such column")

    monkeypatch.setattr(bench.driver, "power", nonsense)
    with pytest.raises(KeyError):
        await bench.change(joined((100, 101)), "test")
    [row] = bench.store.reconfigurations()
    assert row.state == "refused"
    assert "unexpected KeyError" in row.message
    assert not await bench.transactions.resume()


async def test_a_bug_while_rolling_back_locks_the_ports_and_is_told(
    bench: ChangeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.parts.port_states.of("ocs1")

    async def nonsense(*_: Any) -> None:
        raise ValueError("what is this")

    monkeypatch.setattr(bench.driver, "connect", nonsense)
    monkeypatch.setattr(bench.driver, "disconnect", nonsense)
    record = await bench.change(joined((100, 101)), "test")
    assert record.state == "unknown"
    assert "unexpected ValueError: what is this" in record.message
    assert [lock.port for lock in bench.parts.locks.all()] == [100, 101]


async def test_a_change_that_cannot_be_undone_locks_its_ports(
    bench: ChangeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.parts.port_states.of("ocs1")
    connect = bench.driver.connect

    async def dying(pairs: Sequence[CrossConnect]) -> Outcome[CrossConnect]:
        bench.device.kill()
        return await connect(pairs)

    monkeypatch.setattr(bench.driver, "connect", dying)
    record = await bench.change(joined((1, 100)), "test")
    assert record.state == "unknown"
    locked = {lock.port: lock.kind for lock in bench.parts.locks.all()}
    assert locked == {1: "bad", 7: "bad", 100: "bad"}
    assert bench.store.reconfigurations()[-1].state == "unknown"


async def test_a_plan_from_old_maps_that_is_then_refused_leaves_the_flows_as_they_were(
    bench: ChangeBench,
) -> None:
    tables = flow_tables(LAB, trace_links(LAB, await bench.parts.maps.read()))
    await bench.transactions.settle_flows()
    assert bench.network.tables == tables
    # Somebody else takes a port, of which the memory knows nothing yet.
    await bench.driver.connect([*PortMap.of([(50, 51)])])

    def decide(maps: Mapping[str, PortMap]) -> dict[str, PortMap]:
        if 50 in maps["ocs1"].out_of:
            raise Refused("not now")
        return {"ocs1": PortMap()}

    with pytest.raises(Refused):
        await bench.change(decide, "test")
    assert ("follow", 1) in bench.network.calls
    assert bench.network.tables == tables
    assert bench.store.reconfigurations()[-1].state == "refused"


async def test_a_committed_change_is_one_whoever_fails_on_hearing_of_it(
    bench: ChangeBench,
) -> None:
    def full(_: object) -> None:
        raise JournalError("the disk is full")

    bench.transactions.on_end.append(full)
    assert (
        await bench.change(joined((100, 101)), "test")
    ).state == "committed"


async def test_a_flood_of_alarms_does_not_fill_the_journal(
    bench: ChangeBench,
) -> None:
    bench.device.fault(flood=300)
    await bench.driver.read_map()
    assert len(await bench.driver.alarms()) >= 300
    await bench.watch.report_alarms("ocs1")
    alarms = [
        event for event in bench.store.events() if event["kind"] == "alarm"
    ]
    assert len(alarms) == 21
    assert "280 more" in alarms[-1]["words"]
