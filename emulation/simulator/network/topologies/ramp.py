"""RAMP: nodes that pick receiver and channel for each time slot, over passive couplers."""

from dataclasses import dataclass

import numpy as np

from patchlight.emulation.simulator.network.contract import (
    Network,
    Switching,
    checked_nodes,
    links,
    rows,
)
from patchlight.emulation.simulator.network.sharing import Ints
from patchlight.testbed.errors import BadInput


@dataclass(frozen=True, eq=False)
class Ramp(Network):
    """Links: a node's transmitter for each group, then a node's receiver for each group."""

    groups: int = 0

    def _paths(self, source: Ints, destination: Ints, flow: Ints, group: Ints) -> Ints:
        in_group = self.nodes // self.groups
        sending = source * self.groups + destination // in_group
        receiving = (self.nodes + destination) * self.groups + source // in_group
        return rows(sending, receiving)


def ramp(
    spec: str,
    groups: int = 4,
    racks: int = 4,
    channels: int = 4,
    rate: float = 400e9,
    slot: float = 20e-9,
    switching: float = 1e-9,
    latency: float = 100e-9,
) -> Ramp:
    """RAMP (Ottino, Benjamin, Zervas, 2022): groups × racks × channels nodes, 65,536 at most.

    A node has one transceiver of ``rate`` for each communication group; in a rack each node
    receives on a channel of its own. So two nodes have ``rate`` between them, and a node all
    of its rate only when it talks to all groups at once. Of each time ``slot``, ``switching`` is
    lost to tuning. Racks of a group beyond the number of groups would not be free of contention.
    """
    if racks > groups:
        raise BadInput(
            f"{spec}: {racks} racks in {groups} groups: expected no more racks than groups"
        )
    if switching >= slot:
        raise BadInput(f"{spec}: a slot of {slot:g} s is all tuning: expected switching < slot")
    nodes = groups * racks * channels
    checked_nodes(spec, nodes)
    usable = rate * (1 - switching / slot)
    return Ramp(
        spec,
        usable * groups,
        np.arange(nodes) // channels,
        links((2 * nodes * groups, usable)),
        np.full(2 * nodes * groups, latency / 2),
        {
            "tunable-transceiver-100g": nodes * groups * rate / 100e9,
            "coupler-port": 2 * nodes * groups,
        },
        Switching(slot, 0),
        groups=groups,
    )
