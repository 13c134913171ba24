"""The laws of port maps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import (
    CrossConnect,
    PortMap,
    PortMapChange,
    parse_cross_connects,
)

PORTS = 12


@st.composite
def port_maps(draw: st.DrawFn) -> PortMap:
    inputs = draw(st.sets(st.integers(1, PORTS)))
    outputs = draw(st.permutations(range(1, PORTS + 1)))
    return PortMap.of(zip(sorted(inputs), outputs, strict=False))


@given(port_maps(), port_maps())
def test_a_diff_applied_gives_the_wanted_map(
    have: PortMap, wanted: PortMap
) -> None:
    assert have.apply(have.diff(wanted)) == wanted


@given(port_maps(), port_maps())
def test_the_inverse_of_a_change_undoes_it(
    have: PortMap, wanted: PortMap
) -> None:
    change = have.diff(wanted)
    assert wanted.apply(change.inverse) == have
    assert change.inverse.inverse == change


@given(port_maps(), port_maps())
def test_a_diff_is_the_smallest(have: PortMap, wanted: PortMap) -> None:
    change = have.diff(wanted)
    assert set(change.breaks) == set(have) - set(wanted)
    assert set(change.makes) == set(wanted) - set(have)
    assert bool(change) == (have != wanted)


@given(port_maps(), port_maps())
def test_joining_keeps_what_is_not_in_the_way(
    have: PortMap, added: PortMap
) -> None:
    joined = have.joined(added)
    assert set(added) <= set(joined)
    lost = set(have) - set(joined)
    used_in = set(added.out_of)
    used_out = set(added.in_of)
    assert all(one.inp in used_in or one.out in used_out for one in lost)


@given(port_maps())
def test_the_written_map_reads_back_equal(found: PortMap) -> None:
    assert PortMap.parse(found.texts) == found


def test_duplex_circuits_are_written_once() -> None:
    found = PortMap.of([(1, 7), (7, 1), (2, 8), (9, 9)])
    assert found.texts == ("1-7", "2>8", "9>9")
    assert PortMap.duplex([(1, 7)]).texts == ("1-7",)


def test_an_input_or_an_output_cannot_be_used_twice() -> None:
    with pytest.raises(
        BadInput, match="input port 1 is used twice: 1>2 and 1>3"
    ):
        PortMap.of([(1, 2), (1, 3)])
    with pytest.raises(
        BadInput, match="output port 3 is used twice: 1>3 and 2>3"
    ):
        PortMap.of([(1, 3), (2, 3)])


def test_what_is_not_there_cannot_be_broken() -> None:
    with pytest.raises(BadInput, match="cannot break 1>2"):
        PortMap().apply(PortMapChange(breaks=(CrossConnect(1, 2),)))


def test_ports_outside_the_switch_are_refused() -> None:
    PortMap.of([(1, 8)]).check(8)
    with pytest.raises(BadInput, match="port 9 is outside 1–8"):
        PortMap.of([(1, 9)]).check(8)
    with pytest.raises(BadInput, match="port 0 is outside"):
        PortMap.of([(0, 1)]).check(8)


def test_a_change_knows_the_ports_it_touches() -> None:
    change = PortMap.of([(1, 2)]).diff(PortMap.of([(1, 3)]))
    assert change.ports == {1, 2, 3}
    assert not PortMapChange()


def test_cross_connects_in_text() -> None:
    assert parse_cross_connects("1-7") == (
        CrossConnect(1, 7),
        CrossConnect(7, 1),
    )
    assert parse_cross_connects(" 2 > 8 ") == (CrossConnect(2, 8),)
    assert str(CrossConnect(2, 8)) == "2>8"


@pytest.mark.parametrize(
    "text", ["", "1", "1-", "-1-2", "1--2", "a-b", "1<2", "1-2-3", "٣-4"]
)
def test_other_text_is_no_cross_connect(text: str) -> None:
    with pytest.raises(
        BadInput, match="is not a cross-connect: expected two ports"
    ):
        parse_cross_connects(text)
