"""Users' own Ryu applications beside Patchlight's, unchanged on each engine."""

import asyncio
from pathlib import Path

import pytest

from patchlight.controller.packet_switches.openflow.client import (
    Speaker,
    SpeakerFailed,
)
from patchlight.controller.packet_switches.openflow.flow_sync import FlowSync
from patchlight.controller.packet_switches.openflow.flowtable import FlowTable
from patchlight.controller.packet_switches.openflow.forwarding import (
    TABLE_MISS,
    entry_to,
)
from tests.support.openflow_bench import OpenFlowBench
from tests.support.private_ovs import in_namespace
from tests.support.waiting import eventually

pytestmark = [pytest.mark.root, pytest.mark.ovs]

# A learning switch in small, as Ryu's own tutorial has it: its own table-miss entry, and an entry
# for each source that it hears.
LEARNING_APP = """
from ryu.base import app_manager
from ryu.controller import ofp_event
from ryu.controller.handler import CONFIG_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from ryu.lib.packet import ethernet, packet
from ryu.ofproto import ofproto_v1_3


class Learning(app_manager.RyuApp):
    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]

    def add(self, dp, priority, match, port):
        parser, ofproto = dp.ofproto_parser, dp.ofproto
        actions = [parser.OFPActionOutput(port, ofproto.OFPCML_NO_BUFFER)]
        inst = [parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, actions)]
        dp.send_msg(parser.OFPFlowMod(
            dp, cookie=0xABC, priority=priority, match=match, instructions=inst))

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def features(self, ev):
        dp = ev.msg.datapath
        self.add(dp, 0, dp.ofproto_parser.OFPMatch(), dp.ofproto.OFPP_CONTROLLER)

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def packet_in(self, ev):
        dp = ev.msg.datapath
        source = packet.Packet(ev.msg.data).get_protocol(ethernet.ethernet).src
        self.add(dp, 1, dp.ofproto_parser.OFPMatch(eth_dst=source), ev.msg.match["in_port"])
"""


async def test_a_learning_app_works_beside_ours(
    bench: OpenFlowBench, tmp_path: Path
) -> None:
    app = tmp_path / "learning_app.py"
    app.write_text(LEARNING_APP)
    mac = "02:00:00:00:77:01"
    address = "10.9.7.1"
    table = FlowTable.of([TABLE_MISS, entry_to("02:00:00:00:00:01", 4)])
    theirs_at_first = "cookie=0xabc, priority=0 actions=CONTROLLER:65535"

    async with bench.connected(apps=(f"{app}:Learning",)) as (
        speaker,
        _,
        name,
    ):
        await eventually(
            lambda: theirs_at_first in bench.ovs.flows(name), "its first entry"
        )
        flows = FlowSync(speaker)
        done = await flows.set_table(1, table)
        assert (done.ok, done.added, done.held) == (True, 1, (TABLE_MISS,))
        host = bench.ovs.add_host(name, 3, f"{address}/24", mac)
        # A frame no entry of ours takes: the application hears it and learns.
        in_namespace(host, "sh", "-c", "ping -c 1 -W 0.1 10.9.7.9 || true")
        await eventually(
            lambda: [
                f
                for f in bench.ovs.flows(name)
                if f"dl_dst={mac}" in f and "0xabc" in f
            ],
            "the application to learn",
        )
        theirs = [f for f in bench.ovs.flows(name) if "cookie=0xabc" in f]
        done = await flows.set_table(
            1, FlowTable.of([entry_to("02:00:00:00:00:02", 4)])
        )
        assert (done.ok, done.added, done.removed) == (True, 1, 1)
        await flows.set_table(1, FlowTable())
        assert bench.ovs.flows(name) == sorted(theirs)
        await flows.close()


@pytest.mark.parametrize(
    ("text", "named", "expected"),
    [
        (
            "import nothing_of_this_name",
            "App",
            r"ModuleNotFoundError.*broken_app\.py:1",
        ),
        ("x = 1", "App", "no OpenFlow application 'App'"),
        ("class App: pass", "App", "no OpenFlow application 'App'"),
        (
            "from ryu.base.app_manager import RyuApp\n\n\nclass App(RyuApp):\n"
            "    def __init__(self, *a, **k):\n        raise RuntimeError('out of coffee')\n",
            "App",
            r"RuntimeError: out of coffee \(.*broken_app\.py:6\)",
        ),
        (
            "from ryu.base.app_manager import RyuApp\nclass App(RyuApp):\n    OFP_VERSIONS = [1]\n",
            "App",
            "No OpenFlow version",
        ),
    ],
)
def test_an_app_that_cannot_be_loaded_says_why(
    bench: OpenFlowBench, tmp_path: Path, text: str, named: str, expected: str
) -> None:
    app = tmp_path / "broken_app.py"
    app.write_text(text)
    speaker = Speaker(bench.options(1, apps=(f"{app}:{named}",)))
    with pytest.raises(SpeakerFailed, match=expected) as caught:
        asyncio.run(speaker.start())
    assert caught.value.exit_code == 2
    assert "broken_app.py" in str(caught.value)
