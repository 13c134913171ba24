"""Whatever hangs on the ports, the rounds of light find it, and nothing that is not so."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from patchlight.controller.discovery.search import (
    Findings,
    Heard,
    Light,
    OcsPort,
    likely_rounds,
    search,
)

Frames = Callable[[int], bool]


@dataclass
class World:
    """What really hangs on the ports: transmitters by input, receivers by output, trunks by output
    (the input at their far end), and who is joined besides."""

    ports: dict[str, list[int]]
    inputs: dict[OcsPort, str]
    outputs: dict[OcsPort, str]
    trunks: dict[OcsPort, OcsPort]
    beside: Heard = frozenset()

    def heard(self, light: Light) -> Heard:
        found = set(self.beside)
        for at, source in self.inputs.items():
            seen = {at}
            while (out := light.get(at)) is not None and (
                beyond := self.trunks.get(out)
            ):
                at = beyond
                if at in seen:
                    break
                seen.add(at)
            if out is not None and out in self.outputs:
                found.add((source, self.outputs[out]))
        return frozenset(found)

    def explored(
        self,
        expected: dict[OcsPort, str],
        ends: set[str],
        *,
        every_port: bool = False,
        lost: Frames = lambda _: False,
    ) -> tuple[Findings, int]:
        """What the search finds, and in how many rounds; some frames may be ``lost``."""
        rounds = search(
            self.ports, expected, ends, self.heard({}), every_port=every_port
        )
        count = 0
        frames = itertools.count(1)
        try:
            asked = next(rounds)
            while True:
                for inp, out in asked.light.items():
                    assert inp.ocs == out.ocs
                    assert {inp.number, out.number} <= set(self.ports[inp.ocs])
                assert len(set(asked.light.values())) == len(asked.light)
                count += 1
                pairs = sorted(self.heard(asked.light))
                asked = rounds.send(
                    frozenset(p for p in pairs if not lost(next(frames)))
                )
        except StopIteration as end:
            found: Findings = end.value
        return found, count


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, dict[OcsPort, str], set[str]]:
    """A world with two ends at least that are plugged in as usual, what a lab file may say of it,
    and the ends in it."""
    count = draw(st.integers(3, 24))
    numbers = list(range(1, count + 1))
    names = [f"e{n}" for n in range(1, draw(st.integers(2, count)) + 1)]
    plugged = draw(st.permutations(numbers))
    outputs = {
        OcsPort("o", n): name for n, name in zip(plugged, names, strict=False)
    }
    swapped = draw(st.permutations(names[2:]))
    crossed = dict(zip(names, [*names[:2], *swapped], strict=True))
    inputs = {port: crossed[name] for port, name in outputs.items()}
    believed = draw(st.permutations(numbers))
    right = {
        port: name for port, name in outputs.items() if draw(st.booleans())
    }
    rest = [
        name
        for name in names
        if name not in right.values() and draw(st.booleans())
    ]
    free = [OcsPort("o", n) for n in believed if OcsPort("o", n) not in right]
    expected = right | dict(zip(free, rest, strict=False))
    beside = (
        frozenset({("d1", "d2"), ("d2", "d1")})
        if draw(st.booleans())
        else frozenset()
    )
    world = World({"o": numbers}, inputs, outputs, {}, beside)
    return (
        world,
        expected,
        {*names, *(name for pair in beside for name in pair)},
    )


@given(worlds())
def test_every_end_is_found_where_it_is(
    drawn: tuple[World, dict[OcsPort, str], set[str]],
) -> None:
    world, expected, ends = drawn
    found, _ = world.explored(expected, ends)
    assert {
        port: name for port, name in found.inputs.items() if name
    } == world.inputs
    assert {
        port: name for port, name in found.outputs.items() if name
    } == world.outputs
    assert found.doubts == []


@given(worlds(), st.sets(st.integers(1, 200), max_size=60))
def test_frames_that_are_lost_lead_to_no_wrong_finding(
    drawn: tuple[World, dict[OcsPort, str], set[str]], lost: set[int]
) -> None:
    world, expected, ends = drawn
    found, _ = world.explored(expected, ends, lost=lost.__contains__)
    for port, name in found.inputs.items():
        assert name is None or name == world.inputs[port]
    for port, name in found.outputs.items():
        assert name is None or name == world.outputs[port]


@given(worlds(), st.data())
def test_ends_that_say_nothing_are_not_found_and_all_others_are(
    drawn: tuple[World, dict[OcsPort, str], set[str]], data: st.DataObject
) -> None:
    world, expected, ends = drawn
    silent = data.draw(
        st.sets(st.sampled_from(sorted(ends - {"e1", "e2"}) or ["none"]))
    )
    world.inputs = {
        port: name for port, name in world.inputs.items() if name not in silent
    }
    world.outputs = {
        port: name
        for port, name in world.outputs.items()
        if name not in silent
    }
    found, _ = world.explored(expected, ends)
    assert {
        port: name for port, name in found.inputs.items() if name
    } == world.inputs
    assert {
        port: name for port, name in found.outputs.items() if name
    } == world.outputs


def _duplex(
    ports: list[int], names: list[str], ocs: str = "o"
) -> dict[OcsPort, str]:
    return {
        OcsPort(ocs, n): name for n, name in zip(ports, names, strict=True)
    }


def test_two_swapped_fibres_of_a_large_switch_take_no_more_rounds_than_none() -> (
    None
):
    names = [f"e{n}" for n in range(18)]
    expected = _duplex(list(range(1, 19)), names)
    real = expected | {OcsPort("o", 3): names[4], OcsPort("o", 5): names[2]}
    world = World({"o": list(range(1, 321))}, real, real, {})
    found, rounds = world.explored(expected, set(names))
    assert found.inputs == found.outputs == real
    assert (
        rounds
        == likely_rounds([OcsPort("o", n) for n in world.ports["o"]], expected)
        == 11
    )


def test_a_fibre_in_a_port_that_the_lab_file_does_not_name_is_looked_for_everywhere() -> (
    None
):
    names = [f"e{n}" for n in range(18)]
    expected = _duplex(list(range(1, 19)), names)
    real = {port: name for port, name in expected.items() if port.number != 9}
    real[OcsPort("o", 200)] = names[8]
    found, rounds = World({"o": list(range(1, 321))}, real, real, {}).explored(
        expected, set(names)
    )
    assert (
        found.inputs[OcsPort("o", 200)]
        == found.outputs[OcsPort("o", 200)]
        == names[8]
    )
    assert found.inputs[OcsPort("o", 9)] is None
    assert rounds < 12 + 320 / 17 + 1


def test_with_every_port_no_port_is_left_out() -> None:
    names = [f"e{n}" for n in range(4)]
    expected = _duplex([1, 2, 3, 4], names)
    found, _ = World(
        {"o": list(range(1, 33))}, expected, expected, {}
    ).explored(expected, set(names), every_port=True)
    assert {port.number for port in found.inputs} == set(range(1, 33))
    assert {port.number for port in found.outputs} == set(range(1, 33))


def test_who_only_sends_lldp_is_found_at_an_input() -> None:
    names = [f"e{n}" for n in range(4)]
    ends = _duplex([1, 2, 3, 4], names)
    inputs = ends | {OcsPort("o", 6): "spine7 port Ethernet3"}
    found, _ = World({"o": list(range(1, 9))}, inputs, ends, {}).explored(
        ends, set(names), every_port=True
    )
    assert found.inputs[OcsPort("o", 6)] == "spine7 port Ethernet3"
    assert found.outputs[OcsPort("o", 6)] is None


def test_a_device_that_sends_lldp_besides_probes_is_one_device() -> None:
    names = ["a", "b", "c"]
    ends = _duplex([1, 2, 3], names)

    class Both(World):
        def heard(self, light: Light) -> Heard:
            plain = super().heard(light)
            return plain | {
                ("tor1 port 3", by) for who, by in plain if who == "c"
            }

    found, _ = Both({"o": [1, 2, 3, 4]}, ends, ends, {}).explored(
        ends, set(names)
    )
    assert found.inputs == ends
    assert found.doubts == []


def test_a_fibre_between_circuit_switches_is_found_from_both_ends() -> None:
    names = ["a", "b", "c", "d", "e", "f"]
    ends = _duplex([1, 2, 3], names[:3], "o1") | _duplex(
        [1, 2, 3], names[3:], "o2"
    )
    real = {
        OcsPort("o1", 5): OcsPort("o2", 6),
        OcsPort("o2", 6): OcsPort("o1", 5),
    }
    ports = {"o1": list(range(1, 9)), "o2": list(range(1, 9))}
    said = ends | {OcsPort("o1", 5): "o2.5", OcsPort("o2", 5): "o1.5"}
    world = World(ports, ends, ends, real)
    found, _ = world.explored(said, set(names), every_port=True)
    assert found.outputs[OcsPort("o1", 5)] == "o2.6"
    assert found.inputs[OcsPort("o2", 6)] == "o1.5"
    assert found.outputs[OcsPort("o2", 6)] == "o1.5"
    assert found.inputs[OcsPort("o1", 5)] == "o2.6"
    said = ends | {OcsPort("o1", 5): "o2.6", OcsPort("o2", 6): "o1.5"}
    found, _ = world.explored(said, set(names))
    assert found.inputs[OcsPort("o2", 6)] == "o1.5"


def test_without_ends_nothing_is_lit() -> None:
    found, rounds = World({"o": [1, 2, 3]}, {}, {}, {}).explored({}, set())
    assert (rounds, found.inputs, found.outputs) == (0, {}, {})
