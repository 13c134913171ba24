import json
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from patchlight.controller.packet_switches.openflow.flowtable import (
    COOKIE_MARK,
    FlowEntry,
    FlowTable,
    Match,
    diff,
    removals_first,
)
from patchlight.controller.packet_switches.openflow.forwarding import entry_to
from patchlight.testbed.errors import BadInput

MACS = [f"02:00:00:00:00:{i:02x}" for i in range(6)]


@st.composite
def entries(draw: st.DrawFn, ours: bool | None = None) -> FlowEntry:
    match = draw(
        st.one_of(
            st.just(Match()),
            st.sampled_from(MACS).map(lambda mac: Match(eth_dst=mac)),
            st.integers(1, 3).map(lambda port: Match(in_port=port)),
        )
    )
    ports = draw(st.lists(st.integers(1, 4), max_size=2))
    priority = draw(st.sampled_from([0, 100]))
    if draw(st.booleans()) if ours is None else ours:
        return FlowEntry.ours(match, ports, priority=priority)
    return FlowEntry(
        0, priority, match, tuple(ports), cookie=draw(st.integers(0, 9))
    )


def tables(ours: bool | None = None) -> st.SearchStrategy[FlowTable]:
    unique = st.lists(
        entries(ours), max_size=12, unique_by=lambda entry: entry.key
    )
    return unique.map(FlowTable.of)


def after(have: FlowTable, want: FlowTable) -> FlowTable:
    """What a switch holds once the change is made: adds replace what has their key."""
    change = diff(have, want)
    kept = have.by_key()
    for entry in change.removes:
        del kept[entry.key]
    kept.update({entry.key: entry for entry in change.adds})
    return FlowTable.of(kept.values())


@given(tables(), tables(ours=True))
def test_diff_gives_the_wanted_table_and_leaves_others_alone(
    have: FlowTable, want: FlowTable
) -> None:
    result = after(have, want)
    foreign = {e for e in have if not e.is_ours}
    assert {e for e in result if not e.is_ours} == foreign
    assert {e for e in result if e.is_ours} == set(want) - set(
        diff(have, want).held
    )
    assert diff(result, want)[:2] == ((), ())


@given(entries())
@example(
    FlowEntry.ours(Match(ipv4_dst=("10.0.0.0", "255.0.0.0")), [1], priority=5)
)
def test_entries_go_through_json(entry: FlowEntry) -> None:
    assert (
        FlowEntry.from_json(json.loads(json.dumps(entry.to_json()))) == entry
    )


def test_a_changed_output_is_one_replacement_and_no_removal() -> None:
    old = FlowEntry.ours(Match(eth_dst=MACS[0]), [1], priority=100)
    new = FlowEntry.ours(Match(eth_dst=MACS[0]), [2], priority=100)
    assert diff(FlowTable.of([old]), FlowTable.of([new])) == ((), (new,), ())


def test_changes_have_the_same_order_wherever_the_entries_lie_in_memory() -> (
    None
):
    ports = range(1, 40)
    entries = [
        FlowEntry.ours(Match(in_port=p), (p,), priority=p % 3) for p in ports
    ]
    table = FlowTable.of(entries)
    empty = FlowTable()
    added = [(-e.priority, e.cookie) for e in diff(empty, table).adds]
    removed = [(-e.priority, e.cookie) for e in diff(table, empty).removes]
    assert added == sorted(added) == removed


def test_cookies_carry_the_mark_and_differ_with_what_the_entry_says() -> None:
    one = FlowEntry.ours(Match(eth_dst=MACS[0]), [1], priority=100)
    two = FlowEntry.ours(Match(eth_dst=MACS[0]), [2], priority=100)
    assert one.is_ours
    assert one.cookie >> 40 == COOKIE_MARK >> 40
    assert one.cookie != two.cookie
    assert one == FlowEntry.ours(
        Match({"eth_dst": MACS[0]}), (1,), priority=100
    )


def test_two_entries_for_the_same_packets_are_refused() -> None:
    pair = [
        FlowEntry.ours(Match(eth_dst=MACS[0]), [port], priority=1)
        for port in (1, 2)
    ]
    with pytest.raises(BadInput, match=r"same packets.*output 1.*output 2"):
        FlowTable.of(pair)


@pytest.mark.parametrize(
    "value", [{}, {"match": 3}, 7, {"priority": 1, "match": {}}]
)
def test_what_is_not_an_entry_is_refused(value: object) -> None:
    with pytest.raises(BadInput, match="not a flow entry"):
        FlowEntry.from_json(value)  # type: ignore[arg-type]


def test_old_ways_go_first_where_they_change_on_two_switches() -> None:
    old = entry_to(MACS[0], 1)
    new = entry_to(MACS[0], 2)
    have = {i: FlowTable.of([old, entry_to(MACS[1], 5)]) for i in (1, 2)}
    one = {1: diff(have[1], FlowTable.of([new, entry_to(MACS[1], 5)]))}
    assert removals_first(have, one) == {}
    both = {i: diff(have[i], FlowTable.of([new])) for i in (1, 2)}
    first = removals_first(have, both)
    assert {i: set(entries) for i, entries in first.items()} == {
        i: {old, entry_to(MACS[1], 5)} for i in (1, 2)
    }


# The flow-mods that we put together are those that the engine itself would have made. In a
# process of its own: choosing an engine patches the process that does it.
COMPARE_MESSAGES = """
import sys
from patchlight.controller.packet_switches.openflow.speaker.__main__ import choose
choose(sys.argv[1])
from ryu.ofproto import ofproto_protocol
from ryu.ofproto import ofproto_v1_3 as ofp, ofproto_v1_3_parser as parser
from patchlight.controller.packet_switches.openflow.speaker import messages
from patchlight.controller.packet_switches.openflow.flowtable import (
    COOKIE_MARK, COOKIE_MASK, FlowEntry, Match)

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
        [sys.executable, "-c", COMPARE_MESSAGES, engine],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "same\n", done.stderr
