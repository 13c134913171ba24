from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from patchlight.controller.openflow.flow_sync import removals_first
from patchlight.controller.openflow.flowtable import (
    COOKIE_MARK,
    FlowEntry,
    FlowTable,
    Match,
    diff,
    held_by_others,
)
from patchlight.controller.openflow.forwarding import entry_to
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
    return FlowEntry(0, priority, match, tuple(ports), cookie=draw(st.integers(0, 9)))


def tables(ours: bool | None = None) -> st.SearchStrategy[FlowTable]:
    unique = st.lists(entries(ours), max_size=12, unique_by=lambda entry: entry.key)
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
    assert {e for e in result if e.is_ours} == set(want) - set(held_by_others(have, want))
    assert diff(result, want) == ((), ())


@given(entries())
@example(FlowEntry.ours(Match(ipv4_dst=("10.0.0.0", "255.0.0.0")), [1], priority=5))
def test_entries_go_through_json(entry: FlowEntry) -> None:
    assert FlowEntry.from_json(json.loads(json.dumps(entry.to_json()))) == entry


def test_a_changed_output_is_one_replacement_and_no_removal() -> None:
    old = FlowEntry.ours(Match(eth_dst=MACS[0]), [1], priority=100)
    new = FlowEntry.ours(Match(eth_dst=MACS[0]), [2], priority=100)
    assert diff(FlowTable.of([old]), FlowTable.of([new])) == ((), (new,))


def test_cookies_carry_the_mark_and_differ_with_what_the_entry_says() -> None:
    one = FlowEntry.ours(Match(eth_dst=MACS[0]), [1], priority=100)
    two = FlowEntry.ours(Match(eth_dst=MACS[0]), [2], priority=100)
    assert one.is_ours
    assert one.cookie >> 40 == COOKIE_MARK >> 40
    assert one.cookie != two.cookie
    assert one == FlowEntry.ours(Match({"eth_dst": MACS[0]}), (1,), priority=100)


def test_two_entries_for_the_same_packets_are_refused() -> None:
    pair = [FlowEntry.ours(Match(eth_dst=MACS[0]), [port], priority=1) for port in (1, 2)]
    with pytest.raises(BadInput, match=r"same packets.*output 1.*output 2"):
        FlowTable.of(pair)


@pytest.mark.parametrize("value", [{}, {"match": 3}, 7, {"priority": 1, "match": {}}])
def test_what_is_not_an_entry_is_refused(value: object) -> None:
    with pytest.raises(BadInput, match="not a flow entry"):
        FlowEntry.from_json(value)  # type: ignore[arg-type]


def test_old_ways_go_first_where_they_change_on_two_switches() -> None:
    old, new = entry_to(MACS[0], 1), entry_to(MACS[0], 2)
    have = {i: FlowTable.of([old, entry_to(MACS[1], 5)]) for i in (1, 2)}
    one = {1: diff(have[1], FlowTable.of([new, entry_to(MACS[1], 5)]))}
    assert removals_first(have, one) == {}
    both = {i: diff(have[i], FlowTable.of([new])) for i in (1, 2)}
    first = removals_first(have, both)
    assert {i: set(entries) for i, entries in first.items()} == {
        i: {old, entry_to(MACS[1], 5)} for i in (1, 2)
    }
