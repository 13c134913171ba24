"""Networks without switches between nodes: the torus."""

import math
from dataclasses import dataclass

import numpy as np

from patchlight.emulation.simulator.network.contract import NO_LINK, Network, checked_nodes, links
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
