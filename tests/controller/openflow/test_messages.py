"""The flow-mods that we put together are those that the engine itself would have made."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own: choosing an engine patches the process that does it.
PROGRAM = """
import sys
from patchlight.controller.openflow.speaker import engine
engine.choose(sys.argv[1])
from ryu.ofproto import ofproto_protocol
from ryu.ofproto import ofproto_v1_3 as ofp, ofproto_v1_3_parser as parser
from patchlight.controller.openflow.speaker import messages
from patchlight.controller.openflow.flowtable import COOKIE_MARK, COOKIE_MASK, FlowEntry, Match

datapath = ofproto_protocol.ProtocolDesc(version=ofp.OFP_VERSION)

MATCHES = [
    {},
    {"eth_dst": "02:4c:c0:a8:0a:0b"},
    {"arp_tpa": "192.168.10.11", "arp_op": 1, "eth_type": 0x0806},
    {"in_port": 3, "eth_src": ("02:00:00:00:00:07", "ff:00:00:00:00:0f")},
    {"ipv4_dst": ("10.1.2.3", "255.255.0.0"), "eth_type": 0x0800, "ip_proto": 6, "tcp_dst": 80},
    {"vlan_vid": 0x1003, "metadata": 7},
    {"ipv6_dst": "2001:db8::1", "eth_type": 0x86DD},
]
for fields in MATCHES:
    for outputs in ((), (4,), (1, 2, 3)):
        entry = FlowEntry.ours(Match(fields), outputs, priority=77, table=2)
        actions = [parser.OFPActionOutput(port, 0) for port in outputs]
        inst = [parser.OFPInstructionActions(ofp.OFPIT_APPLY_ACTIONS, actions)] if outputs else []
        shared = dict(table_id=2, priority=77, out_port=ofp.OFPP_ANY, out_group=ofp.OFPG_ANY,
                      match=parser.OFPMatch(**fields))
        add = parser.OFPFlowMod(datapath, cookie=entry.cookie, instructions=inst, **shared)
        remove = parser.OFPFlowMod(datapath, cookie=COOKIE_MARK, cookie_mask=COOKIE_MASK,
                                   command=ofp.OFPFC_DELETE_STRICT, **shared)
        for theirs, ours in ((add, messages.add_message), (remove, messages.remove_message)):
            theirs.set_xid(99)
            theirs.serialize()
            assert bytes(theirs.buf) == ours(entry, 99), (fields, outputs)
        # What a switch would say of the entry reads as the entry.
        stats = parser.OFPFlowStats(
            table_id=2, priority=77, cookie=entry.cookie, idle_timeout=0, hard_timeout=0,
            match=parser.OFPMatch.parser(messages._match_bytes(entry.match), 0), instructions=inst)
        if not any(isinstance(value, tuple) for value in fields.values()):
            assert messages.entry_of(stats) == entry, (fields, outputs)
stats.instructions = [parser.OFPInstructionGotoTable(3)]
assert messages.entry_of(stats).cookie == COOKIE_MARK
print("same")
"""


def test_messages_are_those_of_the_engine(engine: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, engine], capture_output=True, text=True, check=False
    )
    assert done.stdout == "same\n", done.stderr
