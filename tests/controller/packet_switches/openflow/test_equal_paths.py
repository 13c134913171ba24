"""Flows are hashed over equal paths: loop-free for every hash, evenly, and kept in the switches."""

import re
from collections import Counter
from pathlib import Path

import pytest

from patchlight.controller.packet_switches.openflow.client import Speaker
from patchlight.controller.packet_switches.openflow.flow_sync import FlowSync
from patchlight.controller.packet_switches.openflow.flowtable import (
    FlowEntry,
    FlowTable,
    Match,
    SpeakerOptions,
)
from patchlight.controller.packet_switches.openflow.forwarding import (
    TABLE_MISS,
    flow_tables,
)
from patchlight.testbed.generate import generate
from patchlight.testbed.lab.model import Endpoint
from patchlight.testbed.lab.wiring import trace_links
from tests.support.emulated_devices import lab_file, running
from tests.support.fake_network import FakeNetwork, arp_request, unicast
from tests.support.openflow_bench import OpenFlowBench
from tests.support.waiting import eventually

HASHES = range(64)
LAB = generate.fat_tree(16).with_changes(ecmp=True)


def test_a_flow_of_any_hash_arrives_by_a_shortest_path_and_all_uplinks_get_the_same() -> (
    None
):
    links = trace_links(LAB, {})
    network = FakeNetwork(LAB, links, flow_tables(LAB, links))
    passed = Counter[tuple[str, str]]()
    for sender in LAB.hosts:
        for receiver in LAB.hosts:
            if sender == receiver:
                continue
            for flow_hash in HASHES:
                walk = network.send(sender, unicast(receiver), flow_hash)
                assert walk.arrived == (receiver.endpoint,)
                assert len(walk.switches) in (1, 3, 5)
                assert len(set(walk.switches)) == len(walk.switches)
                passed.update(
                    zip(walk.switches, walk.switches[1:], strict=False)
                )
            walk = network.send(sender, arp_request(receiver), flow_hash)
            assert walk.arrived == (receiver.endpoint,)
    for switch, table in flow_tables(LAB, links).items():
        for ports in {
            frozenset(entry.outputs) for entry in table if entry.spread
        }:
            peers = [links.peer(Endpoint(switch, str(port))) for port in ports]
            counts = {passed[switch, peer.device] for peer in peers if peer}
            assert len(counts) == 1, (switch, ports, counts)
            assert counts != {0}


def test_a_switch_without_groups_gets_the_paths_of_a_lab_without_ecmp() -> (
    None
):
    links = trace_links(LAB, {})
    hashed, fixed = (
        flow_tables(LAB.with_changes(ecmp=on), links) for on in (True, False)
    )
    assert hashed != fixed
    assert {
        name: table.on_fixed_paths for name, table in hashed.items()
    } == fixed


SPREAD = FlowEntry.ours(
    Match(eth_dst="02:00:00:00:00:01"), (1, 1, 2, 2), priority=100, fixed=2
)
OTHER = FlowEntry.ours(
    Match(eth_dst="02:00:00:00:00:02"), (2, 3), priority=100, fixed=3
)


def groups(bench: OpenFlowBench, name: str) -> list[list[int]]:
    """The output ports of each of the bridge's groups, in the order of buckets."""
    lines = bench.ovs.ofctl("dump-groups", name).splitlines()
    ports = [
        re.findall(r"actions=output:(\d+)", line)
        for line in lines
        if "type=select" in line
    ]
    return sorted([int(port) for port in each] for each in ports)


@pytest.mark.root
@pytest.mark.ovs
async def test_groups_are_made_kept_and_removed_with_the_entries(
    bench: OpenFlowBench,
) -> None:
    async with bench.connected() as (speaker, _, name):
        flows = FlowSync(speaker)
        bench.ovs.ofctl(
            "add-group", name, "group_id=7,type=select,bucket=output:9"
        )
        table = FlowTable.of([TABLE_MISS, SPREAD, OTHER])
        assert (await flows.set_table(1, table)).added == 3
        assert groups(bench, name) == [[1, 1, 2, 2], [2, 3], [9]]
        assert await flows.read(1) == table
        assert not (await flows.set_table(1, table)).changed

        # Its buckets are another's now: found when the switch is read, and put right.
        (number,) = (
            line.split(",")[0].strip()
            for line in bench.ovs.ofctl("dump-groups", name).splitlines()
            if "output:3" in line
        )
        bench.ovs.ofctl(
            "mod-group", name, f"{number},type=select,bucket=output:4"
        )
        assert (await flows.set_table(1, table)).added == 1
        assert groups(bench, name) == [[1, 1, 2, 2], [2, 3], [9]]

        # A removed group takes its entries with it.
        bench.ovs.ofctl(
            "del-groups",
            name,
            next(
                line.split(",")[0].strip()
                for line in bench.ovs.ofctl("dump-groups", name).splitlines()
                if "output:3" in line
            ),
        )
        await eventually(
            lambda: [2, 3] in groups(bench, name), "the group to be made again"
        )

        fewer = FlowTable.of([TABLE_MISS, SPREAD, OTHER.on_fixed_path])
        assert (await flows.set_table(1, fewer)).added == 1
        assert groups(bench, name) == [[1, 1, 2, 2], [9]]
        await flows.set_table(1, FlowTable.of([TABLE_MISS]))
        assert groups(bench, name) == [[9]]
        await flows.close()


@pytest.mark.root
@pytest.mark.ovs
async def test_a_refused_group_is_an_entry_that_the_switch_lacks(
    bench: OpenFlowBench,
) -> None:
    reserved = 0xFFFFFF10  # of no port
    bad = FlowEntry.ours(OTHER.match, (2, reserved), priority=100, fixed=2)
    async with bench.connected() as (speaker, _, name):
        flows = FlowSync(speaker)
        applied = await flows.set_table(
            1, FlowTable.of([TABLE_MISS, SPREAD, bad])
        )
        assert [each.entry for each in applied.failed] == [bad]
        assert applied.failed[0].reason == "bad out port"
        assert flows.refused[1] == applied.failed
        assert groups(bench, name) == [[1, 1, 2, 2]]
        await flows.close()


@pytest.mark.xdist_group("an OCS that dials in")
async def test_a_switch_without_groups_gets_the_fixed_port(
    tmp_path: Path,
) -> None:
    # The emulated OCS speaks OpenFlow without groups; its entries match ports.
    entry = FlowEntry.ours(Match(in_port=3), (10, 12), priority=100, fixed=12)
    lab = lab_file(tmp_path, driver="openflow", extra=", datapath_id: 0x51")
    with running(tmp_path, lab, "--no-fabric") as device:
        options = SpeakerOptions(
            tmp_path / "speaker.sock", (0x51,), device.switch.address
        )
        async with Speaker(options) as speaker:
            flows = FlowSync(speaker)
            await flows.set_table(0x51, FlowTable.of([entry]))
            await eventually(
                lambda: flows.without_groups == {0x51}, "the switch to say so"
            )
            assert not flows.refused
            assert await flows.read(0x51) == FlowTable.of(
                [entry.on_fixed_path]
            )
            assert not (
                await flows.set_table(0x51, FlowTable.of([entry]))
            ).changed
            await flows.close()
