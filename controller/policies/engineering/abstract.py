"""Abstract topologies: how many circuits join which sites, whatever the ports.

A topology is a symmetric matrix of whole numbers: entry (i, j) counts the duplex circuits between
sites i and j; a row sums up to the ports that the site needs.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import rustworkx
from numpy.typing import ArrayLike, NDArray

from patchlight.controller.policies.engineering.traffic import Matrix, checked
from patchlight.testbed.errors import BadInput

_STEPS = 1 << 40
"""Edmonds' algorithm counts in whole numbers: the heaviest pair has so many."""

Topology = NDArray[np.int64]


def assignment(weights: ArrayLike) -> NDArray[np.intp]:
    """For each sender its receiver, each once, with the most weight in all; none is its own.

    The Hungarian method (Kuhn, 1955) as SciPy has it (Crouse, 2016): O(n³). Of fewer than two
    ports, nobody has a receiver.
    """
    # Not above: see paths.py.
    from scipy.optimize import linear_sum_assignment

    found = checked(weights).copy()
    if len(found) < 2:
        return np.zeros(0, np.intp)
    # Light that comes back to who sent it carries nothing: any other permutation is better.
    np.fill_diagonal(found, -(found.max() * len(found) + 1))
    _, columns = linear_sum_assignment(found, maximize=True)
    return np.asarray(columns, np.intp)


def pairs(weights: ArrayLike) -> list[tuple[int, int]]:
    """Pairs of ports to be joined both ways, with the most weight in all.

    A pair weighs what both send to each other; pairs of weight 0 are left apart. Edmonds (1965) in
    the O(n³) form of Galil (ACM Computing Surveys, 1986), as rustworkx has it.
    """
    directed = checked(weights)
    both = np.triu(directed + directed.T, 1)
    heaviest = both.max(initial=0.0)
    if not heaviest:
        return []
    graph: rustworkx.PyGraph[None, int] = rustworkx.PyGraph()
    graph.add_nodes_from([None] * len(both))
    rows, columns = np.nonzero(both)
    whole = np.maximum(1, np.rint(both[rows, columns] / heaviest * _STEPS)).astype(np.int64)
    edges = zip(rows.tolist(), columns.tolist(), whole.tolist(), strict=True)
    graph.add_edges_from(list(edges))
    found = rustworkx.max_weight_matching(graph, weight_fn=int)
    return sorted((min(pair), max(pair)) for pair in found)


def ring_of(order: Sequence[int], count: int, step: int = 1) -> Topology:
    """A job's ring closed through the OCS: each site of ``order`` joined to the ``step``-th after
    it; two sites by one circuit, one by none."""
    found = np.zeros((count, count), np.int64)
    ends = zip(order, (order[(at + step) % len(order)] for at in range(len(order))), strict=True)
    for a, b in {(min(pair), max(pair)) for pair in ends}:
        if a != b:
            found[a, b] = found[b, a] = 1
    return found


def degree_constrained(traffic: ArrayLike, degrees: Sequence[int]) -> Topology:
    """Circuits for the heaviest traffic, as many at each site as it has ports.

    Round after round, the maximum-weight matching of the sites that have a port left; a pair that
    has k circuits counts with 1/(k+1) of its traffic, what one more would carry of it. The
    diminishing weights are TopoOpt's (Wang et al., NSDI 2023), the matchings Helios' (Farrington et
    al., SIGCOMM 2010). ``BadInput`` where there is not one degree of 0 or more for each site.
    """
    directed = checked(traffic)
    demand = directed + directed.T
    np.fill_diagonal(demand, 0.0)
    left = np.asarray(degrees, np.int64).copy()
    if left.shape != (len(demand),) or (left < 0).any():
        raise BadInput(f"{list(degrees)} ports of {len(demand)} sites: expected 0 or more for each")
    found = np.zeros(demand.shape, np.int64)
    while True:
        able = left > 0
        joined = pairs(np.triu(np.where(np.outer(able, able), demand / (found + 1), 0.0)))
        if not joined:
            return found
        for a, b in joined:
            found[a, b] += 1
            found[b, a] += 1
            left[a] -= 1
            left[b] -= 1


def totient_steps(sites: int) -> list[int]:
    """The steps p of the rings i → i + p mod n that visit all n sites: those coprime to n, up to
    n/2 (the others are the same rings the other way round).

    TotientPerms of TopoOpt (Wang et al., NSDI 2023).
    """
    return [step for step in range(1, sites // 2 + 1) if math.gcd(step, sites) == 1]


def spread_steps(sites: int, rings: int) -> list[int]:
    """``rings`` of the totient steps, near a geometric sequence from 1, so that every site is few
    hops from every other (SelectPermutations of TopoOpt); fewer where there are not so many."""
    left = totient_steps(sites)
    ratio = sites ** (1 / max(1, rings))
    found: list[int] = []
    for exponent in range(min(rings, len(left))):
        nearest = min(left, key=lambda step: (abs(step - ratio**exponent), step))
        left.remove(nearest)
        found.append(nearest)
    return found


def totient(
    order: Sequence[int], traffic: ArrayLike, degrees: Sequence[int], rings: int = 1
) -> Topology:
    """TopoOpt's topology for a job on the sites of ``order``, in its ring's order.

    As many as ``rings`` totient rings, two ports of each site for each; the other ports by
    ``degree_constrained`` for what of the ``traffic`` no ring joins directly. Two sites need one
    port each. ``BadInput`` where the ports do not do for one ring.
    """
    count, members = len(degrees), list(order)
    found = np.zeros((count, count), np.int64)
    if len(members) > 1:
        needed = 1 if len(members) == 2 else 2
        fewest = min(degrees[site] for site in members)
        if fewest < needed:
            raise BadInput(
                f"a ring over {len(members)} sites needs {needed} OCS ports of each: one has "
                f"{fewest}"
            )
        for step in spread_steps(len(members), min(rings, fewest // needed)):
            found += ring_of(members, count, step)
    left = np.asarray(degrees, np.int64) - found.sum(axis=1)
    apart = np.where(found > 0, 0.0, checked(traffic))
    inside = np.zeros(count, bool)
    inside[members] = True
    more = degree_constrained(np.where(np.outer(inside, inside), apart, 0.0), left.tolist())
    return found + more


class Segment(NamedTuple):
    """Phases ``first`` up to ``last`` (not included) under one topology."""

    first: int
    last: int
    topology: Topology


def in_job(
    phases: Sequence[Matrix],
    delay_s: float,
    engineer: Callable[[Matrix], Topology],
    time_s: Callable[[Matrix, Topology], float],
    *,
    one_shot: bool = False,
) -> tuple[list[Segment], float]:
    """When to reconfigure within an iteration of some phases, and how long that takes in all.

    Each segment has the topology that ``engineer`` gives for the sum of its phases, which take
    ``time_s`` of it; a change between two segments, the first after the last included, takes
    ``delay_s``. Best over all cuts by dynamic programming (Bellman, 1957), O(phases²) topologies.
    ``one_shot`` has one topology for all: TopoOpt's way, where the delay is long.
    """
    count = len(phases)
    if not count:
        return [], 0.0
    best: list[tuple[float, list[Segment]]] = [(0.0, [])]
    for last in range(1, count + 1):
        choices = []
        for first in (0,) if one_shot and last == count else range(last):
            topology = engineer(np.sum(phases[first:last], axis=0))
            spent_s = sum(time_s(phase, topology) for phase in phases[first:last])
            # One segment alone needs no change: its topology stays from iteration to iteration.
            change_s = 0.0 if (first, last) == (0, count) else delay_s
            before_s, segments = best[first]
            total_s = before_s + change_s + spent_s
            choices.append((total_s, [*segments, Segment(first, last, topology)]))
        best.append(min(choices, key=lambda choice: choice[0]))
    return best[count][1], best[count][0]
