"""Frames out of a switch's port, and those that come to a port, with real switches."""

import asyncio

import pytest

from patchlight.controller.packet_switches.switches import PacketSwitches
from patchlight.testbed.lab.model import Endpoint
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.wire.probe_frames import probe_frame, probe_source
from tests.support.fake_network import make_lab
from tests.support.openflow_bench import OpenFlowBench
from tests.support.waiting import eventually

pytestmark = [pytest.mark.root, pytest.mark.ovs]


async def test_a_probe_out_of_a_port_is_heard_where_its_fibre_ends(
    bench: OpenFlowBench,
) -> None:
    lab = make_lab([(0, 1)], [0, 1])
    links = trace_links(lab, {})
    frame = {"port": 1, "frame": probe_frame("sw0.1", "t1").hex()}
    async with bench.speaker(1, 2) as (speaker, events):
        one = bench.bridge(1)
        two = bench.bridge(2)
        for name, peer in ((one, two), (two, one)):
            bench.ovs.vsctl(
                "add-port", name, f"{name}-t", "--", "set", "Interface", f"{name}-t",
                "type=patch", f"options:peer={peer}-t", "ofport_request=1",
            )  # fmt: skip
        await events.wait("switch-up", datapath_id=1)
        await events.wait("switch-up", datapath_id=2)
        switches = PacketSwitches(lab, speaker)
        assert await switches.follow(links) == []
        without = bench.ovs.flows(two)
        switches.hand_over_probes = True
        assert await switches.follow(links) == []

        async def keep_sending() -> None:
            while True:
                assert await speaker.request(
                    "send", datapath_id=1, frames=[frame]
                ) == {"sent": 1}
                await asyncio.sleep(0.1)  # frames are lost: it is sent again

        sending = asyncio.create_task(keep_sending())
        try:
            heard = await events.wait("frame", datapath_id=2)
        finally:
            sending.cancel()
        assert probe_source(bytes.fromhex(heard["frame"]), "t1") == "sw0.1"
        assert switches.endpoint(2, heard["port"]) == Endpoint("sw1", "1")
        switches.hand_over_probes = False
        assert await switches.follow(links) == []
        await eventually(
            lambda: bench.ovs.flows(two) == without, "the tables as they were"
        )
        await switches.close()
