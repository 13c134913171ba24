"""The speaker with real switches, on each engine."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from patchlight.controller.packet_switches.openflow.client import (
    SpeakerRefused,
)
from patchlight.controller.packet_switches.openflow.flow_sync import FlowSync
from patchlight.controller.packet_switches.openflow.flowtable import (
    VERSION,
    FlowEntry,
    FlowTable,
    Match,
    Message,
)
from patchlight.controller.packet_switches.openflow.forwarding import (
    TABLE_MISS,
    entry_to,
    flow_tables,
)
from patchlight.testbed.errors import OutcomeUnknown
from patchlight.testbed.lab.wiring import trace_links
from tests.support.fake_network import make_lab
from tests.support.openflow_bench import OpenFlowBench
from tests.support.private_ovs import in_namespace
from tests.support.waiting import eventually

pytestmark = [pytest.mark.root, pytest.mark.ovs]

MAC = "02:00:00:00:00:01"


async def test_switches_and_ports_come_and_go(bench: OpenFlowBench) -> None:
    async with bench.speaker(1, 2) as (speaker, events):
        assert speaker.info["engine"] == bench.engine
        name = bench.bridge(1)
        up = await events.wait("switch-up", datapath_id=1)
        assert up["ports"] == []
        bench.ovs.add_host(name, 5, "10.9.0.1/24", MAC)
        added = await events.wait("port", datapath_id=1, port=5, up=True)
        assert added["name"] == f"{name}-5"
        seen = len(events.events)
        in_namespace(
            bench.ovs.namespace, "ip", "link", "set", f"{name}-5", "down"
        )
        await events.wait("port", after=seen, datapath_id=1, port=5, up=False)
        (described,) = await speaker.request("switches")
        assert (described["datapath_id"], len(described["ports"])) == (1, 1)
        bench.ovs.vsctl("del-br", name)
        await events.wait("switch-down", datapath_id=1)
        assert await speaker.request("switches") == []


async def test_an_unknown_datapath_is_left_alone(
    bench: OpenFlowBench, tmp_path: Path
) -> None:
    """Not even a user's application, which would set up every switch, gets through to it."""
    app = tmp_path / "eager.py"
    app.write_text(EAGER_APP)

    async with bench.speaker(1, apps=(f"{app}:Eager",)) as (speaker, events):
        stranger = bench.bridge(0x99)
        ours = bench.bridge(1)
        await events.wait("unknown-switch", datapath_id=0x99)
        await events.wait("switch-up", datapath_id=1)
        flows = FlowSync(speaker)
        refused = await flows.set_table(0x99, FlowTable.of([TABLE_MISS]))
        assert not refused.ok
        assert "not one of the lab's packet switches" in str(refused.error)
        # The application's entry is in ours, and was sent to both at one time.
        await eventually(
            lambda: bench.ovs.flows(ours), "the application's entry"
        )
        seen = len(events.of("counters"))
        await eventually(
            lambda: len(events.of("counters")) > seen + 1, "more counters"
        )
        assert bench.ovs.flows(stranger) == []
        assert not events.of("switch-up", datapath_id=0x99)
        # Left alone, not thrown out: it connected once.
        assert len(events.of("unknown-switch")) == 1


EAGER_APP = """
from ryu.base import app_manager
from ryu.controller import ofp_event
from ryu.controller.handler import CONFIG_DISPATCHER, set_ev_cls

class Eager(app_manager.RyuApp):
    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def features(self, ev):
        dp = ev.msg.datapath
        match = dp.ofproto_parser.OFPMatch(in_port=9)
        dp.send_msg(dp.ofproto_parser.OFPFlowMod(dp, cookie=7, priority=3, match=match))
"""


async def test_hosts_talk_over_two_switches_and_are_counted(
    bench: OpenFlowBench,
) -> None:
    # Port 1 of each switch is the link between them, port 2 its host.
    lab = make_lab([(0, 1)], [0, 1])
    tables = flow_tables(lab, trace_links(lab, {}))

    async with bench.speaker(1, 2) as (speaker, events):
        one = bench.bridge(1)
        two = bench.bridge(2)
        for name, peer in ((one, two), (two, one)):
            bench.ovs.vsctl(
                "add-port", name, f"{name}-t", "--", "set", "Interface", f"{name}-t",
                "type=patch", f"options:peer={peer}-t", "ofport_request=1",
            )  # fmt: skip
        hosts = [
            bench.ovs.add_host(name, 2, f"{host.nic.address}/16", host.nic.mac)
            for name, host in zip((one, two), lab.hosts, strict=True)
        ]
        await events.wait("switch-up", datapath_id=1)
        await events.wait("switch-up", datapath_id=2)
        flows = FlowSync(speaker)
        done = await flows.set_tables({1: tables["sw0"], 2: tables["sw1"]})
        assert {i: (a.ok, a.added, a.removed) for i, a in done.items()} == {
            1: (True, 6, 0),
            2: (True, 6, 0),
        }
        _, far = lab.hosts
        assert any(
            # One masked entry has its MAC and the multicast MAC of its neighbour solicitations.
            f":{far.nic.mac[-8:]}/" in line
            and line.endswith("actions=output:1")
            for line in bench.ovs.flows(one)
        )
        # ARP, too, is asked and answered over these entries alone. A switch in user space may drop
        # a packet on a busy machine: not in each of three times.
        options = ("-c", "20", "-i", "0.02", "-s", "1000", "-W", "2")
        said = [
            in_namespace(hosts[0], "ping", *options, str(far.nic.address))
            for _ in range(3)
        ]
        assert any(" 0% packet loss" in each for each in said), said
        (to_far,) = [
            entry.cookie
            for entry in tables["sw0"]
            if entry.outputs == (1,) and "eth_dst" in entry.match
        ]
        sent = 20 * (1000 + 8 + 20 + 14)

        def counted() -> bool:
            if not (
                seen := [
                    e
                    for e in events.of("counters", datapath_id=1)
                    if "flows" in e
                ]
            ):
                return False
            ports = {p["port"]: p for p in seen[-1]["ports"]}
            by_cookie = {f["cookie"]: f["bytes"] for f in seen[-1]["flows"]}
            return (
                2 in ports
                and ports[2]["rx_bytes"] >= sent
                and by_cookie.get(to_far, 0) >= sent
            )

        await eventually(counted, "the counters to show the pings")
        # On a busy machine not each reading has the entries' counters.
        flows = [
            e["flows"]
            for e in events.of("counters", datapath_id=1)
            if "flows" in e
        ][-1]
        assert {f["cookie"] for f in flows} == {
            e.cookie for e in tables["sw0"]
        }
        (latest,) = [
            c
            for c in await speaker.request("counters")
            if c["datapath_id"] == 1
        ]
        assert {p["port"] for p in latest["ports"]} >= {1, 2}


async def test_what_a_switch_refuses_is_reported_and_the_rest_is_in_place(
    bench: OpenFlowBench,
) -> None:
    good = entry_to(MAC, 3)
    # No EtherType: OpenFlow does not let ARP's fields stand alone.
    bad = FlowEntry.ours(Match(arp_tpa="10.0.0.1"), [1], priority=110)
    nonsense = FlowEntry.ours(
        Match(favourite_colour="blue"), [1], priority=110
    )
    too_big = FlowEntry.ours(Match(eth_dst=MAC), [1], priority=70000)

    async with bench.connected() as (speaker, events, name):
        flows = FlowSync(speaker)
        done = await flows.set_table(
            1, FlowTable.of([good, bad, nonsense, too_big])
        )
        assert not done.ok
        errors = {refused.entry: refused.error for refused in done.failed}
        assert errors.keys() == {bad, nonsense, too_big}
        assert "OFPBMC_BAD_PREREQ" in errors[bad]
        assert "favourite_colour" in errors[nonsense]
        assert "out of range" in errors[too_big]
        assert done.added == 1
        (line,) = bench.ovs.flows(name)
        assert f"dl_dst={MAC}" in line
        # What was refused is not tried again every second.
        await events.wait("counters", after=len(events.events))
        await events.wait("counters", after=len(events.events))
        assert (
            await flows.set_table(1, FlowTable.of([good]))
        ).changed is False


async def test_a_switch_that_says_nothing_is_an_unknown_outcome(
    bench: OpenFlowBench,
) -> None:
    async with bench.connected() as (speaker, _, _):
        vswitchd = bench.ovs.pid
        os.kill(vswitchd, signal.SIGSTOP)
        try:
            with pytest.raises(OutcomeUnknown, match=r"0\.5 s"):
                await speaker.request(
                    "apply",
                    datapath_id=1,
                    adds=[TABLE_MISS.to_json()],
                    deadline_s=0.5,
                )
        finally:
            os.kill(vswitchd, signal.SIGCONT)
        assert (
            await FlowSync(speaker).set_table(1, FlowTable.of([TABLE_MISS]))
        ).ok


async def test_the_protocol_refuses_what_it_does_not_know(
    bench: OpenFlowBench,
) -> None:
    async with bench.speaker(1) as (speaker, events):
        with pytest.raises(
            SpeakerRefused,
            match=r"unknown operation 'dance': expected hello, ",
        ):
            await speaker.request("dance")
        with pytest.raises(SpeakerRefused, match="0x1 is not connected"):
            await speaker.request("read_flows", datapath_id=1)
        foreign = {**TABLE_MISS.to_json(), "cookie": 5}
        bench.bridge(1)
        await events.wait("switch-up", datapath_id=1)
        with pytest.raises(
            SpeakerRefused,
            match="the entry of another application was not changed",
        ):
            await speaker.request("apply", datapath_id=1, removes=[foreign])
        # A second client, which speaks another version, and then no JSON at all.
        reader, writer = await asyncio.open_unix_connection(
            speaker.options.socket
        )
        for line, expected in (
            (
                json.dumps({"v": VERSION + 1, "id": 3, "op": "hello"}),
                "protocol version",
            ),
            ("no json", "not a JSON message"),
        ):
            writer.write(line.encode() + b"\n")
            reply: Message = {"event": "any"}
            while "event" in reply:
                reply = json.loads(await reader.readline())
            assert reply["ok"] is False
            assert expected in reply["error"]
        writer.close()
        assert (await speaker.request("hello"))["protocol"] == VERSION
