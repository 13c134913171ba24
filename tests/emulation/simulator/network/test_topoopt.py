"""TopoOpt's circuits against brute force on small jobs, and jobs on them against closed forms."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import networkx
import numpy as np
import pytest

from patchlight.controller.prediction.framing import tcp
from patchlight.emulation.simulator.network.contract import (
    NO_LINK,
    Round,
    collective,
    goes_round,
    ring_part,
)
from patchlight.emulation.simulator.network.jobs import PlacedJob, run_jobs
from patchlight.emulation.simulator.network.sharing import Floats
from patchlight.emulation.simulator.network.specs import network_of
from patchlight.emulation.simulator.network.topologies.direct import (
    MOST_MATCHED,
    TopoOpt,
)

# Loops are compiled once, where nothing is on the disk yet.
pytestmark = pytest.mark.xdist_group("networks")

S = 1e9
B = 100e9


def topoopt(nodes: int, degree: int) -> TopoOpt:
    found = network_of(
        f"topoopt:nodes={nodes},degree={degree},latency=0ns,switching=0ns"
    )
    assert isinstance(found, TopoOpt)
    return found


def seconds(network: TopoOpt, rounds: Sequence[Round], members: int) -> float:
    job = PlacedJob(np.arange(members), 0.0, rounds)
    return float(run_jobs(network, [job]).ends_s[0])


def flows_of(demand: Floats) -> list[Round]:
    pairs = zip(*np.nonzero(demand), strict=True)
    return [
        Round(np.array([a]), np.array([b]), float(demand[a, b]))
        for a, b in pairs
    ]


def matchings(ranks: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """All ways to join an even number of ranks in pairs."""
    if not ranks:
        yield []
        return
    first, *others = ranks
    for partner in others:
        for rest in matchings([each for each in others if each != partner]):
            yield [(first, partner), *rest]


@pytest.mark.parametrize("seed", range(4))
def test_each_matching_has_the_most_traffic_that_any_has(seed: int) -> None:
    """One ring of six, two matchings: the second with half of what the first has joined."""
    random = np.random.default_rng(seed)
    demand = random.integers(1, 1000, (6, 6)).astype(float)
    np.fill_diagonal(demand, 0.0)
    lit = topoopt(6, 3).lit_for(6, flows_of(demand))
    assert (lit.rings, lit.matched.shape) == (1, (6, 2))
    both = demand + demand.T
    joined = np.zeros((6, 6))
    best = 0.0
    for _ in range(2):
        weights = both / (joined + 1)
        options = list(matchings(range(6)))
        values = [sum(weights[pair] for pair in pairs) for pairs in options]
        best += max(values)
        for a, b in options[int(np.argmax(values))]:
            joined[a, b] += 1
            joined[b, a] += 1
    # What a pair's k-th circuit weighs is 1/k of its traffic, in whatever order they are counted.
    circuits = [(a, int(b)) for a in range(6) for b in lit.matched[a]]
    counts = {
        pair: circuits.count(pair) for pair in circuits if pair[0] < pair[1]
    }
    weighs = sum(
        both[pair] / k
        for pair, count in counts.items()
        for k in range(1, count + 1)
    )
    assert weighs == pytest.approx(best)
    assert all((b, a) in circuits for a, b in circuits)


@pytest.mark.parametrize("seed", range(3))
def test_what_has_no_circuit_is_relayed_over_the_fewest(seed: int) -> None:
    random = np.random.default_rng(seed)
    members = 12
    degree = 3
    demand = random.random((members, members)) * (
        random.random((members, members)) < 0.2
    )
    np.fill_diagonal(demand, 0.0)
    network = topoopt(16, degree)
    lit = network.lit_for(members, flows_of(demand))
    group = random.permutation(16)[:members]
    circuits: Any = networkx.MultiDiGraph()
    ends: dict[int, tuple[int, int]] = {}
    for rank in range(members):
        to = [(rank + 1) % members, *lit.matched[rank].tolist()]
        for port, other in enumerate(to):
            if other != NO_LINK:
                circuits.add_edge(rank, other)
                ends[int(group[rank]) * degree + port] = rank, other
    source, destination = (
        side.ravel() for side in np.indices((members, members))
    )
    apart = source != destination
    source = source[apart]
    destination = destination[apart]
    paths = lit.paths(
        group[source], group[destination], np.arange(len(source)), group
    )
    shortest = dict(networkx.all_pairs_shortest_path_length(circuits))
    for here, there, path in zip(
        source.tolist(), destination.tolist(), paths, strict=True
    ):
        hops = [ends[link] for link in path[path != NO_LINK].tolist()]
        assert [hops[0][0], hops[-1][1]] == [here, there]
        assert all(a[1] == b[0] for a, b in pairwise(hops))
        assert len(hops) == shortest[here][there]


def test_rings_get_ports_by_their_part_of_the_bits() -> None:
    members = 8
    network = topoopt(8, 4)
    ranks = np.arange(members)
    rings = collective("ring", members, S)
    sent = 2 * (members - 1) / members * 8 * S
    for part, ports in (
        (1.0, 4),
        (0.9, 4),
        (0.8, 3),
        (0.5, 2),
        (0.2, 1),
        (0.0, 1),
    ):
        exchange = Round(
            ranks, ranks ^ 4, (1 - part) / part * sent if part else 1.0
        )
        rounds = [*(rings if part else []), *([exchange] if part < 1 else [])]
        assert ring_part(rounds, members) == pytest.approx(part)
        assert network.lit_for(members, rounds).rings == ports
        assert len(network.strides(members, part)) == ports
    # Jobs that are too large for matchings have rings on all ports.
    many = MOST_MATCHED + 1
    exchange = Round(np.arange(many), (np.arange(many) + 7) % many, 1.0)
    assert not len(network.lit_for(many, [exchange]).matched)
    assert len(network.strides(many, 0.2)) == 4


def test_only_all_reduces_round_all_ranks_are_rings() -> None:
    found = {
        name: all(goes_round(each, 8) for each in collective(name, 8, S))
        for name in (
            "ring",
            "two-rings",
            "hierarchical",
            "halving-doubling",
            "all-to-all",
            "tree",
        )
    }
    assert [name for name, is_ring in found.items() if is_ring] == [
        "ring",
        "two-rings",
        "hierarchical",
    ]


def test_an_exchange_beside_a_ring_has_circuits_of_its_own() -> None:
    """Ring and exchange of as many bits: two ports of four for each, so half of the rate."""
    members = 8
    network = topoopt(8, 4)
    ranks = np.arange(members)
    sent = 2 * (members - 1) / members * 8 * S
    exchange = Round(ranks, ranks ^ 4, sent)
    rings = collective("ring", members, S, network.strides(members, 0.5))
    assert seconds(network, [*rings, exchange], members) == pytest.approx(
        2 * sent / (B / 2)
    )


def test_a_job_of_two_has_all_ports_for_each_other() -> None:
    network = topoopt(4, 4)
    rounds = collective("ring", 2, S, network.strides(2))
    assert seconds(network, rounds, 2) == pytest.approx(8 * S / B)
    framed = replace(network, framing=tcp(1500))
    assert seconds(framed, rounds, 2) == pytest.approx(
        8 * S / B * sum(framed.framing)
    )
