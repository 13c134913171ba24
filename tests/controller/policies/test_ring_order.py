"""Rings that cross few links between packet switches, beside all the rings that there are."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from patchlight.controller.jobs.cluster_view import WiredLab
from patchlight.controller.policies.contract import ClusterView, JobView
from patchlight.controller.policies.placement import (
    Consolidated,
    RackAware,
    ring_order,
)
from patchlight.controller.prediction.network import LabNetwork
from patchlight.testbed.generate import generate
from patchlight.testbed.generate.builder import LabBuilder
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import load_lab


def wired(
    trunks: list[tuple[int, int]], places: list[int], switches: int
) -> Lab:
    """Packet switches joined so, and a host with a GPU under each of ``places``."""
    build = LabBuilder("wired")
    for number in range(switches):
        build.switch(f"s{number}")
    for a, b in trunks:
        build.fibre(f"s{a}", f"s{b}")
    for number, place in enumerate(places):
        build.fibre(build.server(f"host{number}", gpus=["A100"]), f"s{place}")
    return build.lab()


def view_of(lab: Lab) -> ClusterView:
    return WiredLab(lab, lab.initial_maps).view(0.0, {})


def crossings(network: LabNetwork, ring: list[int] | tuple[int, ...]) -> int:
    """How many links between packet switches the edges of a ring are on."""
    demand = network.demand(ring)
    assert demand is not None
    trunks = [
        link
        for link in demand
        if network.words(link).startswith("the link from")
    ]
    return sum(demand[link] for link in trunks)


@st.composite
def labs(draw: st.DrawFn) -> Lab:
    """Switches joined in one piece, some of them in loops, and up to seven hosts."""
    switches = draw(st.integers(1, 8))
    tree = [(draw(st.integers(0, n - 1)), n) for n in range(1, switches)]
    index = st.integers(0, switches - 1)
    more = draw(
        st.lists(
            st.tuples(index, index).filter(lambda ab: ab[0] != ab[1]),
            max_size=4,
        )
    )
    places = draw(st.lists(index, min_size=2, max_size=7))
    return wired(tree + more, places, switches)


@given(labs(), st.data())
@settings(max_examples=60, deadline=None)
def test_no_ring_crosses_fewer_links(lab: Lab, data: st.DataObject) -> None:
    gpus = data.draw(st.permutations(range(len(lab.hosts))))
    network = LabNetwork(lab, trace_links(lab, {}))
    found = ring_order(view_of(lab), gpus)
    assert sorted(found) == sorted(gpus)
    rings = ((gpus[0], *rest) for rest in itertools.permutations(gpus[1:]))
    assert crossings(network, found) == min(
        crossings(network, ring) for ring in rings
    )


@given(st.integers(9, 20), st.data())
@settings(max_examples=30, deadline=None)
def test_on_a_tree_of_many_switches_each_link_is_crossed_once_each_way(
    switches: int, data: st.DataObject
) -> None:
    tree = [(data.draw(st.integers(0, n - 1)), n) for n in range(1, switches)]
    places = data.draw(st.permutations(range(switches)))
    lab = wired(tree, list(places), switches)
    found = ring_order(view_of(lab), range(switches))
    assert crossings(LabNetwork(lab, trace_links(lab, {})), found) == 2 * len(
        tree
    )


def test_placements_give_rings_that_follow_the_wiring() -> None:
    lab = generate.linear(96)  # Six switches in a line.
    network = LabNetwork(lab, trace_links(lab, {}))
    view = view_of(lab)
    # Five GPUs are free under each switch, and one more the further back it is.
    taken = sum(
        1 << gpu
        for gpu, site in enumerate(view.shape.gpus)
        if gpu % 16 >= 5 + (site.rack * 5) % 6
    )
    busy = view._replace(occupied=taken)
    for policy in (Consolidated(), RackAware()):
        ring = policy.place(busy, JobView("j"), 40)
        assert ring is not None
        racks = {view.shape.gpus[gpu].rack for gpu in ring}
        assert crossings(network, list(ring)) == 2 * (max(racks) - min(racks))


def test_dark_gpus_are_last_and_two_racks_are_two_groups() -> None:
    lab = load_lab("ofc2022")
    lit = PortMap.of(
        c for c in lab.initial_maps["ocs1"] if c.inp not in (2, 8)
    )
    dark = WiredLab(lab, {"ocs1": lit}).view(0.0, {})
    assert ring_order(dark, [1, 0, 2, 4, 3, 5]) == [0, 4, 2, 3, 5, 1]
