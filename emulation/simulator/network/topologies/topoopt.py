"""TopoOpt: circuits that each job has to itself, rings for its all-reduces, matchings for the rest.

Wang et al., *TopoOpt: Co-optimizing Network Topology and Parallelization Strategy for Distributed
Training Jobs*, NSDI 2023: TopologyFinder with TotientPerms and SelectPermutations. How ports are
divided, and how a circuit counts that is there, is as in the authors' simulator (FlexNet).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from patchlight.controller.policies.engineering.traffic import degree_constrained
from patchlight.emulation.simulator.network.contract import (
    NO_LINK,
    Network,
    Round,
    Switching,
    checked_nodes,
    goes_round,
    links,
    ring_part,
)
from patchlight.emulation.simulator.network.sharing import Floats, Ints
from patchlight.emulation.simulator.network.topologies.packet import LATENCY, RATE
from patchlight.testbed.errors import BadInput

MOST_MATCHED = 2048
"""Larger jobs have rings only: a matching takes O(n³), its table of ways n²."""


@dataclass(frozen=True, eq=False)
class TopoOpt(Network):
    """Link ``node · degree + i`` is the circuit of a node's i-th port, to whoever that is.

    ``rings`` of the ports are those of rings; ``matched`` has, for each rank, the ranks that its
    other ports are joined to.
    """

    degree: int = 0
    rings: int = 0
    matched: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    def strides(self, members: int, ring_part: float = 1.0) -> tuple[int, ...]:
        """Those of as many ports as its rings get."""
        part = ring_part if members <= MOST_MATCHED else 1.0
        return _strides(members, _ring_ports(self.degree, part))

    def lit_for(self, members: int, rounds: Sequence[Round]) -> "TopoOpt":
        """Ports for rings by their part of the bits, one at least; the others by matchings."""
        if members > MOST_MATCHED:
            return self
        rings = _ring_ports(self.degree, ring_part(rounds, members))
        demand = np.zeros((members, members))
        for each in rounds:
            if not goes_round(each, members):
                np.add.at(demand, (each.source, each.destination), each.bits)
        spare = self.degree - rings
        if not spare or not demand.any():
            return replace(self, rings=rings)
        circuits = degree_constrained(demand, [spare] * members)
        matched = np.full((members, spare), NO_LINK, np.int64)
        for rank, row in enumerate(circuits):
            partners = np.repeat(np.arange(members), row)
            matched[rank, : len(partners)] = partners
        return replace(self, rings=rings, matched=matched)

    def _paths(self, source: Ints, destination: Ints, flow: Ints, group: Ints) -> Ints:
        ranks = self._ranks(group)
        here, there = ranks[source], ranks[destination]
        if len(here) and min(here.min(), there.min()) < 0:
            raise BadInput(f"{self.spec}: a flow leaves its job, whose circuits join nobody else")
        if not len(self.matched):
            return self._over_rings(here, there, group)
        moves = []
        at = here
        while (at != there).any():
            following = np.where(at == there, at, self._following[there, at])
            link = group[at] * self.degree + self._port[at, following]
            moves.append(np.where(at == there, NO_LINK, link))
            at = following
        return _side_by_side(moves, len(here))

    def _over_rings(self, here: Ints, there: Ints, group: Ints) -> Ints:
        members, at, moves = len(group), here, []
        steps = self._steps(members)
        chains = _chains(members, steps)
        apart = (there - here) % members
        for hop in range(int((chains[apart] != NO_LINK).sum(axis=1).max(initial=0))):
            port = chains[apart, hop]
            moves.append(np.where(port == NO_LINK, NO_LINK, group[at] * self.degree + port))
            at = (at + np.where(port == NO_LINK, 0, np.array(steps)[port])) % members
        return _side_by_side(moves, len(here))

    def _spread(self, paths: Ints, group: Ints) -> tuple[Ints, Floats]:
        """Where several circuits join the same two nodes, each has an equal part."""
        to = self._circuits(len(group))
        same = to[:, :, None] == to[:, None, :]
        if (same.sum(axis=2) == 1).all():
            return super()._spread(paths, group)
        node = np.where(paths == NO_LINK, 0, paths // self.degree)
        beside = same[self._ranks(group)[node], paths % self.degree]
        beside &= (paths != NO_LINK)[:, :, None]
        every = node[:, :, None] * self.degree + np.arange(self.degree)
        parts = 1 / np.maximum(1, beside.sum(axis=2, keepdims=True))
        shape = len(paths), -1
        return (
            np.where(beside, every, NO_LINK).reshape(shape),
            np.broadcast_to(parts, every.shape).reshape(shape),
        )

    def _ranks(self, group: Ints) -> Ints:
        found = np.full(self.nodes, NO_LINK, np.int64)
        found[group] = np.arange(len(group))
        return found

    def _steps(self, members: int) -> tuple[int, ...]:
        return _strides(members, self.rings or self.degree)

    def _circuits(self, members: int) -> Ints:
        """The rank that each port of each rank is joined to."""
        ranks = np.arange(members)[:, None]
        around = (ranks + np.array(self._steps(members))) % members
        return np.hstack([around, self.matched]) if len(self.matched) else around

    @cached_property
    def _port(self) -> Ints:
        """The first port of each rank that is joined to another one; ``NO_LINK``: none is."""
        to = self._circuits(len(self.matched))
        found = np.full((len(to), len(to)), NO_LINK, np.int64)
        for port in reversed(range(self.degree)):
            (ranks,) = np.nonzero(to[:, port] != NO_LINK)
            found[ranks, to[ranks, port]] = port
        return found

    @cached_property
    def _following(self) -> npt.NDArray[np.int32]:
        """The rank behind the second of two on a way over the fewest circuits to the first."""
        backwards = csr_array((self._port != NO_LINK).T.astype(np.int8))
        return np.asarray(
            shortest_path(backwards, unweighted=True, return_predecessors=True)[1], np.int32
        )


def topoopt(
    spec: str,
    nodes: int = 64,
    degree: int = 4,
    rate: float = RATE,
    latency: float = LATENCY,
    switching: float = 10e-3,
) -> TopoOpt:
    """A node's ``rate`` is divided evenly over ``degree`` ports at an OCS; circuits are made once,
    before a job begins.

    Of the ports as many get rings as all-reduces over a ring of all ranks have of the job's bits,
    and one at least: ring i joins rank r to rank r + pᵢ, the pᵢ being prime to the job's size and
    about geometric (TotientPerms, SelectPermutations). The others are joined by matchings of the
    most traffic of all other kinds, where a circuit between the same two nodes counts less with
    each that is there. What has no circuit is relayed over the fewest. Theirs, too, is the search
    for a split of the model: here it is given.
    """
    checked_nodes(spec, nodes)
    return TopoOpt(
        spec,
        rate,
        np.zeros(nodes, np.int64),
        links((nodes * degree, rate / degree)),
        np.full(nodes * degree, latency),
        {
            "nic-100g": nodes * rate / 100e9,
            "transceiver-100g": nodes * rate / 100e9,
            "ocs-port": nodes * degree,
        },
        Switching(switching, once=True),
        degree=degree,
    )


def _side_by_side(moves: list[Ints], flows: int) -> Ints:
    return np.stack(moves, axis=1) if moves else np.full((flows, 0), NO_LINK)


def _ring_ports(degree: int, ring_part: float) -> int:
    return max(1, math.floor(degree * ring_part + 0.5))


@cache
def _strides(members: int, degree: int) -> tuple[int, ...]:
    """About geometric strides that are prime to the job's size; the same again if too few are."""
    prime = [p for p in range(1, max(2, members)) if math.gcd(p, members) == 1]
    wanted = [members ** (i / degree) for i in range(degree)]
    found: list[int] = []
    for near in wanted:
        left = [p for p in prime if p not in found] or prime
        found.append(min(left, key=lambda p: (abs(math.log(p / near)), p)))
    return tuple(found)


@cache
def _chains(members: int, steps: tuple[int, ...]) -> Ints:
    """For each distance in ranks, the ports of the fewest circuits that cover it."""
    before: dict[int, tuple[int, int]] = {0: (0, NO_LINK)}
    edge = [0]
    depth = 0
    while edge:
        reached = []
        for port, step in enumerate(steps):
            for at in edge:
                there = (at + step) % members
                if there not in before:
                    before[there] = at, port
                    reached.append(there)
        edge, depth = reached, depth + 1
    found = np.full((members, depth), NO_LINK, np.int64)
    for apart in range(members):
        at, hop = apart, 0
        while at:
            at, found[apart, hop] = before[at]
            hop += 1
    return found
