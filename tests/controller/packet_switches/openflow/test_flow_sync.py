"""Wanted tables are kept: over a killed speaker, a meddler, and beside users' applications."""

import asyncio
import os
import signal
from ipaddress import IPv4Address

import pytest

from patchlight.controller.packet_switches import keeping
from patchlight.controller.packet_switches.openflow.flow_sync import FlowSync
from patchlight.controller.packet_switches.openflow.flowtable import (
    FlowTable,
    Match,
)
from patchlight.controller.packet_switches.openflow.forwarding import (
    TABLE_MISS,
    entry_to,
    leads_to,
)
from patchlight.controller.packet_switches.switches import PacketSwitches
from patchlight.testbed.errors import OutcomeUnknown, PatchlightError
from patchlight.testbed.lab.reach import Reach
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import load_lab
from tests.support.openflow_bench import OpenFlowBench
from tests.support.waiting import eventually

pytestmark = [pytest.mark.root, pytest.mark.ovs]

MACS = [f"02:00:00:00:00:{i:02x}" for i in range(4)]
TABLE = FlowTable.of(
    [TABLE_MISS, *(entry_to(mac, 1 + i) for i, mac in enumerate(MACS))]
)


async def test_a_killed_speaker_comes_back_and_mends(
    bench: OpenFlowBench, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench.connected() as (speaker, events, name):
        flows = FlowSync(speaker)
        assert (await flows.set_table(1, TABLE)).added == len(TABLE)
        before = bench.ovs.flows(name)
        first = speaker.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await events.wait("speaker-down")
        assert bench.ovs.flows(name) == before
        with pytest.raises(PatchlightError):
            await speaker.request("switches")
        # Somebody meddles while nobody looks.
        bench.ovs.ofctl("del-flows", name, f"dl_dst={MACS[2]}")
        bench.ovs.ofctl(
            "add-flow", name, "cookie=0x9,priority=7,in_port=4,actions=drop"
        )
        await events.wait("speaker-up")
        await eventually(
            lambda: "was repaired" in caplog.text, "the switch to be mended"
        )
        told = [
            each.message
            for each in caplog.records
            if "was repaired" in each.message
        ]
        assert told == [
            "switch 0x1 was repaired: 1 flow entries added, 0 removed, 0 refused"
        ]
        after = bench.ovs.flows(name)
        assert set(before) < set(after)
        assert [line for line in after if "cookie=0x9," in line] == [
            line for line in after if line not in before
        ]
        assert (speaker.restarts, speaker.pid == first) == (1, False)
        await flows.close()


async def test_what_waits_for_a_speaker_that_dies_gets_an_error(
    bench: OpenFlowBench,
) -> None:
    async with bench.connected() as (speaker, _, _):
        assert speaker.pid is not None
        os.kill(speaker.pid, signal.SIGSTOP)
        asked = asyncio.create_task(speaker.request("switches"))
        await asyncio.sleep(0)
        os.kill(speaker.pid, signal.SIGKILL)
        with pytest.raises(
            OutcomeUnknown, match="no answer: the OpenFlow speaker ended"
        ):
            await asked


async def test_an_entry_that_goes_missing_is_put_back(
    bench: OpenFlowBench, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench.connected() as (speaker, _, name):
        flows = FlowSync(speaker)
        await flows.set_table(1, TABLE)
        before = bench.ovs.flows(name)
        bench.ovs.ofctl("del-flows", name, f"dl_dst={MACS[0]}")
        assert bench.ovs.flows(name) != before
        await eventually(
            lambda: "was repaired" in caplog.text, "the switch to be mended"
        )
        assert bench.ovs.flows(name) == before
        await flows.close()


async def test_a_table_for_an_absent_switch_is_set_when_it_comes(
    bench: OpenFlowBench,
) -> None:
    async with bench.speaker(1) as (speaker, _):
        flows = FlowSync(speaker)
        absent = await flows.set_table(1, TABLE)
        assert "0x1 is not connected" in str(absent.error)
        name = bench.bridge(1)
        await eventually(
            lambda: len(bench.ovs.flows(name)) == len(TABLE), "the table"
        )
        await flows.close()


async def test_only_what_changes_is_changed(bench: OpenFlowBench) -> None:
    moved = FlowTable.of(
        [TABLE_MISS, entry_to(MACS[0], 9), entry_to(MACS[1], 2)]
    )

    async with bench.speaker(1, 2) as (speaker, events):
        names = bench.bridge(1), bench.bridge(2)
        await events.wait("switch-up", datapath_id=1)
        await events.wait("switch-up", datapath_id=2)
        flows = FlowSync(speaker)
        await flows.set_tables({1: TABLE, 2: TABLE})
        done = await flows.set_tables({1: moved, 2: TABLE})
        assert (done[1].added, done[1].removed, done[2].changed) == (
            1,
            2,
            False,
        )
        done = await flows.set_tables({1: moved, 2: moved})
        assert (done[1].changed, done[2].added, done[2].removed) == (
            False,
            1,
            2,
        )
        done = await flows.set_tables({1: TABLE, 2: TABLE})
        # Both ways to MACS[0] change: the old entries went first.
        assert all(
            (a.added, a.removed, a.ok) == (3, 1, True) for a in done.values()
        )
        assert bench.ovs.flows(names[0]) == bench.ovs.flows(names[1])
        await flows.close()


async def test_a_full_table_is_told_and_filled_once_there_is_room(
    bench: OpenFlowBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "TRY_AGAIN_S", (0.2,))
    lab = load_lab("ofc2022")
    datapath_id = lab.packet_switches[0].datapath_id
    assert datapath_id is not None
    async with bench.speaker(datapath_id) as (speaker, events):
        name = bench.bridge(datapath_id)
        await events.wait("switch-up", datapath_id=datapath_id)
        # Room for one entry: each host has two, for frames and for ARP.
        table = [
            "--id=@t",
            "create",
            "Flow_Table",
            "flow_limit=1",
            "overflow_policy=refuse",
        ]
        bench.ovs.vsctl(
            *table, "--", "set", "Bridge", name, "flow_tables:0=@t"
        )
        switches = PacketSwitches(lab, speaker)
        notes = await switches.follow(trace_links(lab, lab.initial_maps))
        wanted = len(switches._flows.wanted[datapath_id])
        lacks = f"lacks {wanted - 1} flow entries: table full"
        assert switches.lacking() == {"tor1": lacks}
        assert [
            note
            for note in notes
            if note.startswith(f"tor1 {lacks}; the first: ")
        ]
        cut = {host.name: f"tor1 {lacks}" for host in lab.hosts}
        assert switches.unserved() == cut
        assert (
            Reach(
                lab, trace_links(lab, lab.initial_maps), switches.unserved()
            ).without_link
            == cut
        )
        bench.ovs.vsctl("set", "Flow_Table", ".", "flow_limit=100")
        await eventually(
            lambda: not switches.lacking(), "the entries to be added"
        )
        assert len(bench.ovs.flows(name)) == wanted
        assert switches.unserved() == {}
        await switches.close()


@pytest.mark.parametrize(
    "kinds", [("switch-up", "port"), ("switch-up", "counters")]
)
async def test_a_port_that_goes_or_is_renumbered_is_told_by_events_or_else_by_counters(
    bench: OpenFlowBench, kinds: tuple[str, str]
) -> None:
    """Not every switch reports changes of its ports."""
    lab = load_lab("ofc2022")
    datapath_id = lab.packet_switches[0].datapath_id
    assert datapath_id is not None
    async with bench.speaker(datapath_id) as (speaker, events):
        switches = PacketSwitches(lab, speaker)
        speaker.subscribe(
            lambda e: (
                switches.on_event(e, 0.0) if e["event"] in kinds else None
            )
        )
        name = bench.bridge(datapath_id)
        for port in range(1, 8):
            kind = [
                "--",
                "set",
                "Interface",
                f"{name}-{port}",
                "type=internal",
            ]
            bench.ovs.vsctl(
                "add-port",
                name,
                f"{name}-{port}",
                *kind,
                f"ofport_request={port}",
            )
        await events.wait("switch-up", datapath_id=datapath_id)
        await switches.follow(trace_links(lab, lab.initial_maps))
        await eventually(lambda: not switches.missing_ports(), "all ports")
        host = switches._host_at["tor1", 1]
        bench.ovs.vsctl("del-port", f"{name}-1")
        await eventually(lambda: switches.missing_ports(), "a missing port")
        assert switches.missing_by_switch()["tor1"] == ["tor1 has no port 1"]
        assert switches.unserved() == {host: "tor1 has no port 1"}
        again = [
            "--",
            "set",
            "Interface",
            f"{name}-1",
            "type=internal",
            "ofport_request=17",
        ]
        bench.ovs.vsctl("add-port", name, f"{name}-1", *again)
        words = f"tor1 has no port 1: {name}-1 has number 17 now"
        await eventually(
            lambda: switches.unserved() == {host: words}, "its new number"
        )
        bench.ovs.vsctl("set", "Interface", f"{name}-1", "ofport_request=1")
        await eventually(
            lambda: not switches.missing_ports(), "the port to be back"
        )
        assert switches.unserved() == {}
        await switches.close()


def test_a_block_of_addresses_leads_to_each_of_them() -> None:
    address = IPv4Address("10.0.0.5")
    for match, yes in (
        (Match(eth_dst=MACS[1]), True),
        (Match(eth_dst=MACS[2]), False),
        (Match(eth_dst=(MACS[0], "ff:ff:ff:ff:ff:fe")), True),
        (Match(eth_dst=(MACS[2], "ff:ff:ff:ff:ff:fe")), False),
        (Match(eth_type=0x0806, arp_tpa="10.0.0.5"), True),
        (
            Match(eth_type=0x0806, arp_tpa=("10.0.0.4", "255.255.255.252")),
            True,
        ),
        (
            Match(eth_type=0x0806, arp_tpa=("10.0.0.8", "255.255.255.252")),
            False,
        ),
        (Match(), False),
    ):
        assert leads_to(match, MACS[1], address) is yes, match
