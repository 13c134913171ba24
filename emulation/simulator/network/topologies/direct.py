"""Networks without switches between nodes: torus, and circuits chosen for each job (TopoOpt)."""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from patchlight.emulation.simulator.network.contract import (
    NO_LINK,
    Network,
    Switching,
    checked_nodes,
    links,
)
from patchlight.emulation.simulator.network.sharing import Ints
from patchlight.emulation.simulator.network.topologies.packet import LATENCY, RATE
from patchlight.testbed.errors import BadInput


def _steps(hops: Ints, moves: list[Ints]) -> Ints:
    """Rows of ``moves`` side by side, without gaps in front of links."""
    return np.stack(moves, axis=1) if moves else np.full((len(hops), 0), NO_LINK)


@dataclass(frozen=True, eq=False)
class Torus(Network):
    """Link ``(node · dimensions + dimension) · 2 + direction`` leaves a node in that direction."""

    dims: tuple[int, ...] = ()

    def _paths(self, source: Ints, destination: Ints, flow: Ints, group: Ints) -> Ints:
        at, moves = source.copy(), []
        stride = 1
        for dimension, size in enumerate(self.dims):
            here, there = at // stride % size, destination // stride % size
            ahead = (there - here) % size
            forward = ahead <= size - ahead  # The shorter way round; of two equal ones the first.
            left = np.where(forward, ahead, size - ahead)
            for _ in range(size // 2):
                goes = left > 0
                link = (at * len(self.dims) + dimension) * 2 + np.where(forward, 0, 1)
                moves.append(np.where(goes, link, NO_LINK))
                now = at // stride % size
                following = (now + np.where(forward, 1, -1)) % size
                at = np.where(goes, at + (following - now) * stride, at)
                left = left - goes
            stride *= size
        return _steps(source, moves)


def torus(
    spec: str, dims: tuple[int, ...] = (4, 4, 4), rate: float = RATE, latency: float = LATENCY
) -> Torus:
    """A torus of so many nodes each way, routed dimension by dimension (Dally and Seitz, 1987).

    ``rate`` is a node's: each of its links, two for each dimension, has an equal part of it.
    """
    nodes = math.prod(dims)
    checked_nodes(spec, nodes)
    if min(dims) < 2:
        raise BadInput(f"{spec}: expected at least 2 nodes in each dimension")
    count = 2 * len(dims) * nodes
    return Torus(
        spec,
        rate,
        np.arange(nodes) // dims[0],
        links((count, rate / (2 * len(dims)))),
        np.full(count, latency),
        {"transceiver-100g": nodes * rate / 100e9, "nic-100g": nodes * rate / 100e9},
        dims=dims,
    )


@dataclass(frozen=True, eq=False)
class TopoOpt(Network):
    """Link ``node · degree + i`` is the circuit of a node's i-th port, to whoever that is."""

    degree: int = 0

    def strides(self, members: int) -> tuple[int, ...]:
        """Those of its ports."""
        return _strides(members, self.degree)

    def _paths(self, source: Ints, destination: Ints, flow: Ints, group: Ints) -> Ints:
        members = len(group)
        steps = _strides(members, self.degree)
        ranks = np.full(self.nodes, NO_LINK, np.int64)
        ranks[group] = np.arange(members)
        at, apart = ranks[source], (ranks[destination] - ranks[source]) % members
        if len(at) and min(at.min(), ranks[destination].min()) < 0:
            raise BadInput(f"{self.spec}: a flow leaves its job, whose circuits join nobody else")
        chains = _chains(members, steps)
        longest = int((chains[apart] != NO_LINK).sum(axis=1).max(initial=0))
        moves = []
        for hop in range(longest):
            port = chains[apart, hop]
            moves.append(np.where(port == NO_LINK, NO_LINK, group[at] * self.degree + port))
            at = (at + np.where(port == NO_LINK, 0, np.array(steps)[port])) % members
        return _steps(source, moves)


def topoopt(
    spec: str,
    nodes: int = 64,
    degree: int = 4,
    rate: float = RATE,
    latency: float = LATENCY,
    switching: float = 10e-3,
) -> TopoOpt:
    """Circuits that each job has to itself (Wang et al., *TopoOpt*, NSDI 2023), on an OCS.

    Port i of rank r is joined to rank r + pᵢ, the pᵢ being prime to the job's size and about
    geometric, so each gives a ring through all; flows to others are relayed over the fewest
    circuits. Circuits are made once, before a job begins. A node's ``rate`` is divided evenly
    over its ports. Their matching of what is left over to a job's other traffic is not in this.
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
