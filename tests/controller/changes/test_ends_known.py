"""However a change ends, by a bug or a full disk too: the journal says how, flows are right."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from patchlight.controller.changes.record import Refused
from patchlight.controller.circuits.contract import Outcome
from patchlight.controller.circuits.registry import open_driver
from patchlight.controller.packet_switches.openflow.forwarding import (
    flow_tables,
)
from patchlight.controller.storage.database import JournalError
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import OutcomeUnknown, PatchlightError
from patchlight.testbed.lab.model import CircuitSwitch, Endpoint, Fibre
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from patchlight.testbed.lab.wiring import Links, trace_links
from tests.support.change_bench import LAB, ChangeBench, CircuitsOf, joined
from tests.support.full_disk import limit_size


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


async def test_a_change_whose_end_the_journal_does_not_take_is_unknown_and_closes_its_switch(
    bench: ChangeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.change(joined((100, 101)), "test")
    follow = bench.network.follow
    calls = []

    async def then_full(links: Links) -> list[str]:
        calls.append(links)
        if len(calls) == 2:  # after the last write to the device
            limit_size(bench.store)
        return await follow(links)

    monkeypatch.setattr(bench.network, "follow", then_full)
    with pytest.raises(
        OutcomeUnknown, match=r"is not in the journal: .* full"
    ):
        await bench.change(
            joined(*((n, n + 100) for n in range(110, 200))), "test"
        )
    monkeypatch.undo()
    with pytest.raises(JournalError):
        await bench.change(joined((300, 301)), "test")
    assert [row.state for row in bench.store.reconfigurations()] == [
        "committed",
        "intent",
    ]
    limit_size(bench.store, 100000)
    await bench.transactions.settle()
    assert [row.state for row in bench.store.reconfigurations()] == [
        "committed",
        "committed",
    ]
    assert (
        await bench.change(joined((300, 301)), "test")
    ).state == "committed"


async def test_a_new_start_finds_a_change_whole_whose_end_the_journal_did_not_take(
    bench: ChangeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_in_journal = bench.parts.journal_end

    def full(*_: object) -> None:
        raise JournalError("the disk is full")

    monkeypatch.setattr(bench.parts, "journal_end", full)
    with pytest.raises(OutcomeUnknown):
        await bench.change(joined((100, 101)), "test")
    monkeypatch.setattr(bench.parts, "journal_end", end_in_journal)
    [ended] = await bench.transactions.resume()
    assert (ended.id, ended.state) == (1, "committed")
    assert (
        await bench.change(joined((300, 301)), "test")
    ).state == "committed"


async def test_a_committed_change_is_one_whoever_fails_on_hearing_of_it(
    bench: ChangeBench,
) -> None:
    def full(_: object) -> None:
        raise JournalError("the disk is full")

    bench.transactions.on_end.append(full)
    assert (
        await bench.change(joined((100, 101)), "test")
    ).state == "committed"


async def test_nothing_is_written_to_a_device_when_the_journal_takes_nothing(
    bench: ChangeBench,
) -> None:
    before = await bench.driver.read_map()
    limit_size(bench.store)
    with pytest.raises(PatchlightError, match="full"):
        await bench.change(
            joined(*((n, n + 100) for n in range(100, 200))), "test"
        )
    assert await bench.driver.read_map() == before


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


@pytest.mark.parametrize("on_fire", [False, True])
async def test_several_devices_change_one_after_the_other_and_go_back_together(
    monkeypatch: pytest.MonkeyPatch, *, on_fire: bool
) -> None:
    """server1.nic0 – o1.1, o1.2 – o2.1, o2.2 – tor1.1: the path passes two devices."""
    switches = tuple(
        CircuitSwitch(name, "dry-run", "127.0.0.1:1", 8)
        for name in ("o1", "o2")
    )
    ends = [("server1.nic0", "o1.1"), ("o1.2", "o2.1"), ("o2.2", "tor1.1")]
    fibres = tuple(
        Fibre(Endpoint.parse(a), Endpoint.parse(b)) for a, b in ends
    )
    lab = replace(LAB, circuit_switches=switches, fibres=fibres)
    drivers = {switch.name: open_driver(switch) for switch in switches}
    order = []
    connect_o1 = drivers["o1"].connect
    connect_o2 = drivers["o2"].connect

    async def first(pairs: Sequence[CrossConnect]) -> Outcome[CrossConnect]:
        order.append("o1")
        return await connect_o1(pairs)

    async def second(pairs: Sequence[CrossConnect]) -> Outcome[CrossConnect]:
        order.append("o2")
        if on_fire:
            raise PatchlightError("o2 is on fire")
        return await connect_o2(pairs)

    monkeypatch.setattr(drivers["o1"], "connect", first)
    monkeypatch.setattr(drivers["o2"], "connect", second)
    circuits = CircuitsOf(lab, drivers, Store(":memory:"))
    wanted = {name: PortMap.duplex([(1, 2)]) for name in drivers}
    record = await circuits.change(lambda _: wanted, "test")
    maps = await circuits.parts.maps.read()
    pairs = circuits.parts.maps.links(maps).pairs()
    assert order == ["o1", "o2"]
    if not on_fire:
        assert record.state == "committed"
        assert [(str(a), str(b)) for a, b in pairs] == [
            ("server1.nic0", "tor1.1")
        ]
        return
    assert record.state == "rolled-back"
    assert "on fire" in record.message
    assert not pairs
    assert maps == {"o1": PortMap(), "o2": PortMap()}
