"""Light paths over one OCS or several: what is lit, what stays, and how little changes."""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from patchlight.controller.policies.engineering.paths import (
    NoLight,
    Wish,
    plan_paths,
)
from patchlight.controller.policies.topology import CannotRegroup, regroup
from patchlight.testbed.lab.model import (
    CircuitSwitch,
    Endpoint,
    Fibre,
    Lab,
    PacketSwitch,
)
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import load_lab

Maps = Mapping[str, PortMap]


def small_lab() -> Lab:
    """Two OCSs of five ports with two trunks; three packet switches: a and b at both, c at one."""
    switches = tuple(
        PacketSwitch(name, n, 2) for n, name in enumerate("abc", 1)
    )
    ocs = tuple(
        CircuitSwitch(name, "dry-run", name, 5) for name in ("o1", "o2")
    )
    ends = [("a", 1, "o1", 1), ("b", 1, "o1", 2), ("c", 1, "o1", 3)]
    ends += [("a", 2, "o2", 1), ("b", 2, "o2", 2)]
    ends += [("o1", 4, "o2", 4), ("o1", 5, "o2", 5)]
    fibres = tuple(
        Fibre(Endpoint(a, str(p)), Endpoint(b, str(q))) for a, p, b, q in ends
    )
    return Lab(
        "small", packet_switches=switches, circuit_switches=ocs, fibres=fibres
    )


SMALL = small_lab()


def pairings(ports: Sequence[int]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Every way to join some of these ports in pairs."""
    if len(ports) < 2:
        yield ()
        return
    first, *others = ports
    yield from pairings(others)
    for other in others:
        rest = [port for port in others if port != other]
        yield from (((first, other), *more) for more in pairings(rest))


EVERY_MAP = [PortMap.duplex(pairs) for pairs in pairings(range(1, 6))]


def joined(lab: Lab, maps: Maps) -> Counter[tuple[str, str]]:
    """How many links there are between each two packet switches."""
    pairs = trace_links(lab, maps).pairs()
    return Counter(
        (min(a.device, b.device), max(a.device, b.device)) for a, b in pairs
    )


def made(before: Maps, after: Maps) -> int:
    return (
        sum(
            len(before[ocs].diff(wanted).makes)
            for ocs, wanted in after.items()
        )
        // 2
    )


JOINED = {
    (first, second): joined(SMALL, {"o1": first, "o2": second})
    for first, second in itertools.product(EVERY_MAP, EVERY_MAP)
}
WISHES = [
    Wish("a", ("b",)),
    Wish("a", ("c",)),
    Wish("b", ("c",)),
    Wish("c", ("a", "b")),
]


def satisfies(
    links: Counter[tuple[str, str]], wanted: Sequence[tuple[str, str]]
) -> bool:
    return all(links[pair] >= count for pair, count in Counter(wanted).items())


# Of two trunks, the one that is lit on its far side.
@example(
    PortMap.parse(["1-2", "3-5"]),
    PortMap.parse(["4-5"]),
    [("a", "c"), ("a", "b")],
)
@example(
    PortMap.parse(["1-2", "3-4"]),
    PortMap.parse(["3-4"]),
    [("a", "b"), ("a", "c")],
)
@settings(max_examples=60)
@given(
    st.sampled_from(EVERY_MAP),
    st.sampled_from(EVERY_MAP),
    st.lists(
        st.sampled_from([("a", "b"), ("a", "c"), ("b", "c")]),
        min_size=1,
        max_size=3,
    ),
)
def test_no_other_maps_with_these_light_paths_are_nearer(
    first: PortMap, second: PortMap, wanted: list[tuple[str, str]]
) -> None:
    maps = {"o1": first, "o2": second}
    there = [key for key, links in JOINED.items() if satisfies(links, wanted)]
    wishes = [Wish(a, (b,)) for a, b in wanted]
    if not there:
        with pytest.raises(NoLight, match="too few usable ports, or trunks"):
            plan_paths(SMALL, maps, wishes, locked={}, failed={})
        return
    found = plan_paths(SMALL, maps, wishes, locked={}, failed={})
    assert satisfies(joined(SMALL, {**maps, **found}), wanted)
    fewest = min(made(maps, {"o1": o1, "o2": o2}) for o1, o2 in there)
    assert made(maps, found) == fewest


@given(
    st.sampled_from(EVERY_MAP),
    st.sampled_from(EVERY_MAP),
    st.sets(st.integers(1, 5), max_size=2),
    st.sets(st.integers(1, 5), max_size=2),
)
def test_locked_circuits_stay_and_failed_ports_get_none(
    first: PortMap, second: PortMap, locked: set[int], failed: set[int]
) -> None:
    maps = {"o1": first, "o2": second}
    wishes = [Wish("a", ("b",)), Wish("b", ("c",))]
    try:
        found = plan_paths(
            SMALL, maps, wishes, locked={"o1": locked}, failed={"o2": failed}
        )
    except NoLight:
        return
    assert not first.diff(found.get("o1", first)).ports & locked
    lit = {
        port for c in second.diff(found.get("o2", second)).makes for port in c
    }
    assert not lit & failed


def test_of_two_ways_the_one_that_loses_less_is_taken() -> None:
    found = plan_paths(
        SMALL,
        {"o1": PortMap(), "o2": PortMap()},
        WISHES[:1],
        locked={},
        failed={},
    )
    assert [len(port_map) for port_map in found.values()] == [2]


def test_who_is_not_at_an_ocs_is_named() -> None:
    with pytest.raises(
        NoLight, match="from nobody: it has no fibre to a circuit switch"
    ):
        plan_paths(
            SMALL,
            {"o1": PortMap()},
            [Wish("nobody", ("a",))],
            locked={},
            failed={},
        )
    with pytest.raises(
        NoLight, match="no optical path from a to c: no usable ports or trunks"
    ):
        plan_paths(
            SMALL, {"o2": PortMap()}, [Wish("a", ("c",))], locked={}, failed={}
        )


# -- the built-in lab of four small OCSs

FOUR = load_lab("four-ocs")


def switches_of(maps: Maps, names: Sequence[str]) -> set[str | None]:
    links = trace_links(FOUR, maps)
    return {links.switch_of(FOUR, FOUR.host(name).endpoint) for name in names}


def test_a_job_behind_two_circuit_switches_comes_under_one_tor() -> None:
    group = ["server1", "server2", "server13", "server14"]
    assert switches_of(FOUR.initial_maps, group) == {"tor1", "tor2"}
    maps = regroup(FOUR, FOUR.initial_maps, [group])
    assert len(switches_of(maps, group)) == 1
    # Two NICs move over trunks, and two make room for them: two circuits each.
    assert made(FOUR.initial_maps, maps) == 8
    links = trace_links(FOUR, maps)
    assert {len(links.paths[host.endpoint].hops) for host in FOUR.hosts} == {
        1,
        2,
    }
    assert None not in switches_of(maps, [host.name for host in FOUR.hosts])
    # Once there, nothing is to be changed; and back is as short.
    assert regroup(FOUR, maps, [group]) == maps
    back = regroup(FOUR, maps, [[f"server{n}" for n in (1, 2, 3, 4)]])
    assert switches_of(back, ["server3"]) == switches_of(back, ["server1"])


def test_locked_trunks_are_planned_around() -> None:
    group = ["server1", "server16"]
    maps = regroup(
        FOUR, FOUR.initial_maps, [group], locked={"ocs4": range(9, 13)}
    )
    assert len(switches_of(maps, group)) == 1
    assert not any(
        FOUR.initial_maps["ocs4"].diff(maps["ocs4"]).ports & set(range(9, 13))
    )
    closed = {ocs: range(9, 17) for ocs in FOUR.initial_maps}
    with pytest.raises(
        CannotRegroup, match="cannot regroup: there are too few usable ports"
    ):
        regroup(FOUR, FOUR.initial_maps, [group], locked=closed)


def test_a_ring_over_four_circuit_switches_has_light_everywhere() -> None:
    order = ["server1.nic0", "server5.nic0"]
    found = plan_paths(
        FOUR,
        FOUR.initial_maps,
        [Wish(order[0], (order[1],))],
        locked={},
        failed={},
    )
    links = trace_links(FOUR, {**FOUR.initial_maps, **found})
    assert links.peer(Endpoint("server1", "nic0")) == Endpoint(
        "server5", "nic0"
    )
    assert len(links.paths[Endpoint("server1", "nic0")].hops) == 2
