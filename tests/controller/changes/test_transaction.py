"""Changes as transactions, against an emulated Calient: the old map or the new one, known."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from patchlight.controller.changes.record import wanted_maps
from patchlight.controller.packet_switches.openflow.forwarding import (
    flow_tables,
)
from patchlight.controller.policies.topology import regroup
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Endpoint
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import Links, trace_links
from tests.support.change_bench import (
    JOBS,
    LAB,
    START,
    ChangeBench,
    CircuitsOf,
    joined,
)


async def test_a_change_drains_switches_verifies_and_lets_go(
    bench: ChangeBench,
) -> None:
    record = await bench.regroup()
    assert record.state == "committed", record
    stages = (
        "read plan check drain break make verify flows announce undrain commit"
    )
    assert list(record.stages_s) == stages.split()
    now = await bench.driver.read_map()
    assert now == regroup(LAB, LAB.initial_maps, JOBS)["ocs1"]
    # Seven links (six NICs and the ToRs' own), of which three move: their new ones are set first.
    calls = bench.network.calls
    assert [call[0] for call in calls] == [
        "drain",
        "follow",
        "follow",
        "undrain",
    ]
    assert calls[1:3] == [("follow", 7), ("follow", 7)]
    assert calls[0][1] >= {"server2.nic2", "server4.nic5", "server1.nic1"}
    assert not [note for note in record.notes if "unverified" in note]


async def test_a_change_to_what_is_there_touches_nothing(
    bench: ChangeBench,
) -> None:
    record = await bench.change(lambda maps: maps, "test")
    assert record.state == "committed"
    assert record.changes == {}
    assert not {"drain", "break", "make"} & record.stages_s.keys()


async def test_a_refused_cross_connect_rolls_back_and_shows_the_devices_own_words(
    bench: ChangeBench,
) -> None:
    before = await bench.driver.read_map()
    await bench.parts.port_states.of("ocs1")  # before the port is locked
    bench.device.fault(refuse_ports=[9])
    record = await bench.regroup()
    assert record.state == "rolled-back"
    assert "ocs1 refused to make" in record.message
    refusal = await bench.driver.connect([*PortMap.of([(20, 9)])])
    assert refusal.refused[0].words in record.message
    assert await bench.driver.read_map() == before
    assert bench.network.calls[-2:] == [("follow", 7), ("undrain",)]


async def test_a_mirror_that_does_not_settle_rolls_back(
    bench: ChangeBench,
) -> None:
    before = await bench.driver.read_map()
    await bench.parts.port_states.of("ocs1")  # before the mirror sticks
    bench.device.fault(fail_ports=[9])
    record = await bench.regroup()
    assert record.state == "rolled-back", record
    assert await bench.driver.read_map() == before
    assert bench.store.baselines("ocs1") == {}, "no reading of it is kept"


async def test_a_circuit_that_is_reported_and_passes_nothing_rolls_back(
    bench: ChangeBench,
) -> None:
    before = await bench.driver.read_map()
    bench.device.fault(dark_ports=[9])
    record = await bench.regroup()
    assert record.state == "rolled-back", record
    assert await bench.driver.read_map() == before


async def test_a_map_changed_by_somebody_else_stops_the_change_before_it_writes(
    bench: ChangeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def meddle(moved: frozenset[Endpoint]) -> list[str]:
        await bench.driver.connect([*PortMap.of([(100, 101)])])
        return []

    monkeypatch.setattr(bench.network, "drain", meddle)
    record = await bench.regroup()
    assert record.state == "refused"
    assert "100>101 is new" in record.message
    assert await bench.driver.read_map() == START.joined(
        PortMap.of([(100, 101)])
    )


@pytest.mark.parametrize("meddled", ["100>101", "1>8,200>201"])
async def test_the_map_before_is_claimed_only_where_the_whole_map_is_so(
    bench: ChangeBench, meddled: str
) -> None:
    """Another client makes and breaks circuits of its own while the change is written."""
    await bench.change(
        joined((100, 101)), "so that there is something to break"
    )
    before = await bench.driver.read_map()
    theirs = PortMap.parse(meddled.split(","))
    bench.device.fault(meddle=meddled)
    record = await bench.change(joined((300, 301)), "test")
    now = await bench.driver.read_map()
    assert now != before
    assert not set(PortMap.duplex([(300, 301)])) & set(now)
    assert record.state == "rolled-back"
    assert "the map before stands" not in record.message
    for c in theirs:
        if (c in before) != (c in now):
            assert (
                f"{c} is {'gone' if c in before else 'new'}" in record.message
            )
    # The history says the same, and the flow tables follow the light that there is.
    assert bench.store.reconfigurations()[-1].message == record.message
    assert bench.network.tables == flow_tables(
        LAB, trace_links(LAB, {"ocs1": now})
    )
    (drift,) = (await bench.transactions.drift()).values()
    assert drift


async def test_memory_of_the_map_saves_a_read_and_never_decides(
    bench: ChangeBench,
) -> None:
    await bench.change(joined((100, 101)), "first")
    await bench.driver.connect([*PortMap.of([(50, 51)])])
    record = await bench.change(joined((60, 61)), "second")
    assert record.state == "committed"
    assert "50>51 is new" in "".join(record.notes)
    assert (50, 51) in (await bench.driver.read_map()).out_of.items()
    # What is there from memory and lost on the device is made again.
    await bench.driver.disconnect([*PortMap.duplex([(60, 61)])])
    record = await bench.change(joined((60, 61)), "third")
    assert record.changes["ocs1"]["makes"] == ["60>61", "61>60"]


async def test_a_cancelled_caller_does_not_cut_a_change_short(
    bench: ChangeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    draining = asyncio.Event()
    follow = bench.network.follow

    async def follow_and_tell(links: Links) -> list[str]:
        draining.set()
        return await follow(links)

    monkeypatch.setattr(bench.network, "follow", follow_and_tell)
    change = asyncio.create_task(bench.regroup())
    await draining.wait()
    change.cancel()
    with pytest.raises(asyncio.CancelledError):
        await change
    await bench.transactions.close()
    assert bench.store.reconfigurations()[-1].state == "committed"
    assert bench.network.calls[-1] == ("undrain",)


async def test_a_change_names_the_hosts_that_lose_their_link(
    bench: ChangeBench,
) -> None:
    kept = PortMap.of(c for c in START if 1 not in (c.inp, c.out))
    record = await bench.change(lambda _: {"ocs1": kept}, "test")
    assert record.state == "committed"
    words = "1 host has no link after this change: server1.gpu0: no circuit at ocs1 port 1"
    assert words in record.notes


def test_a_port_without_a_circuit_is_not_disconnected() -> None:
    with pytest.raises(BadInput, match="ocs1 port 100 has no circuit"):
        wanted_maps(LAB, {"ocs1": START}, {}, {"ocs1": [100]}, only=False)
    assert (
        wanted_maps(LAB, {"ocs1": START}, {}, {"ocs1": [1, 100]}, only=False)[
            "ocs1"
        ]
        != START
    )


async def test_a_loop_through_switches_that_learn_is_refused_with_its_links(
    bench: ChangeBench,
) -> None:
    def learning(**more: Any) -> CircuitsOf:
        switches = tuple(
            replace(s, driver="learning", **more) for s in LAB.packet_switches
        )
        return CircuitsOf(
            LAB.with_changes(packet_switches=switches),
            bench.drivers,
            bench.store,
        )

    second = joined((9, 13))  # tor1.3 and tor2.1, beside the trunk of port 7
    record = await learning().change(second, "test")
    assert record.state == "refused"
    assert "tor1.3 – tor2.1, tor1.7 – tor2.7" in record.message
    assert await bench.driver.read_map() == START
    # OpenFlow floods nothing.
    assert (await bench.change(second, "test")).state == "committed"
    # The loop is there now: what does not close one is allowed, and so is taking it away.
    assert (
        await learning().change(joined((20, 21)), "test")
    ).state == "committed"
    assert (
        await learning(spanning_tree=True).change(second, "test")
    ).state == "committed"
    without = {"ocs1": START}
    assert (
        await learning().change(lambda _: without, "test")
    ).state == "committed"
