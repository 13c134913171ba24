"""SiP-Ring: nodes on a ring of fibre that add and drop wavelengths with microrings."""

from dataclasses import dataclass

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

_MOST_NODES = 4096


@dataclass(frozen=True, eq=False)
class SipRing(Network):
    """Links: what nodes add, what they drop, and the segments of the fibre behind each node."""

    def _paths(self, source: Ints, destination: Ints, flow: Ints, group: Ints) -> Ints:
        nodes = self.nodes
        apart = (destination - source) % nodes
        hops = np.arange(int(apart.max(initial=0)))
        segments = 2 * nodes + (source[:, None] + hops) % nodes
        inside = np.where(hops < apart[:, None], segments, NO_LINK)
        return np.column_stack([source, inside, nodes + destination])


def sip_ring(
    spec: str,
    nodes: int = 64,
    wavelengths: int = 64,
    microrings: int = 64,
    channel_rate: float = RATE / 64,
    latency: float = LATENCY,
    switching: float = 25e-6,
) -> SipRing:
    """Light goes one way round (Khani et al., *SiP-ML*, SIGCOMM 2021).

    A segment of the fibre carries ``wavelengths``, and each of them again behind the node that
    drops it; a node adds and drops as many as it has ``microrings``. A ring of neighbours closes
    all the way round: J jobs beside each other cross each segment J times.
    """
    checked_nodes(spec, nodes)
    if nodes > _MOST_NODES:
        # A path has as many links as nodes lie between: memory would grow with the square.
        checked_nodes(f"{spec} (at most {_MOST_NODES})", 0)
    mine = min(microrings, wavelengths) * channel_rate
    return SipRing(
        spec,
        mine,
        np.zeros(nodes, np.int64),
        links((2 * nodes, mine), (nodes, wavelengths * channel_rate)),
        np.concatenate([np.full(2 * nodes, latency / 2), np.zeros(nodes)]),
        {"microring": 2 * nodes * microrings, "transceiver-100g": nodes * mine / 100e9},
        Switching(switching, wavelengths),
    )
