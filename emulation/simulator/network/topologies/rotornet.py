"""RotorNet: racks that an optical switch joins to all others in turn, whatever the traffic."""

from dataclasses import dataclass

import numpy as np

from patchlight.emulation.simulator.network.contract import (
    NO_LINK,
    Network,
    checked_nodes,
    draw,
    links,
    rows,
)
from patchlight.emulation.simulator.network.sharing import Ints
from patchlight.emulation.simulator.network.topologies.packet import LATENCY, RATE
from patchlight.testbed.errors import BadInput


@dataclass(frozen=True, eq=False)
class RotorNet(Network):
    """Links: NICs up and down, then ``from_rack · racks + to_rack`` between racks."""

    hosts: int = 0
    relayed: bool = True

    def _paths(self, source: Ints, destination: Ints, flow: Ints, group: Ints) -> Ints:
        racks, first = self.nodes // self.hosts, 2 * self.nodes
        here, there = source // self.hosts, destination // self.hosts
        # Valiant's detour over some rack; over the two themselves it is none.
        over = draw(racks, source, destination, flow) if self.relayed else there
        direct = (over == here) | (over == there)
        apart = here != there
        return rows(
            source,
            np.where(apart, first + here * racks + np.where(direct, there, over), NO_LINK),
            np.where(apart & ~direct, first + over * racks + there, NO_LINK),
            self.nodes + destination,
        )


def rotornet(
    spec: str,
    racks: int = 8,
    hosts: int = 8,
    uplinks: int = 8,
    slot: float = 100e-6,
    switching: float = 10e-6,
    relayed: int = 1,
    rate: float = RATE,
    latency: float = LATENCY,
) -> RotorNet:
    """Rotor switches (Mellette et al., SIGCOMM 2017), averaged over their cycle.

    Each of ``uplinks`` circuits of a rack is for a ``slot`` with each other rack in turn and dark
    for ``switching`` in it, so two racks have uplinks · rate · (1 − switching/slot) / (racks − 1)
    on average, and wait half a cycle for it. ``relayed=1`` spreads flows over other racks
    (Valiant), 2 sends them straight. Flows shorter than a cycle are not well described; Opera's
    always-on paths for them are not in this.
    """
    if racks < 2 or switching >= slot or relayed > 2:
        raise BadInput(
            f"{spec}: expected 2 racks or more, switching < slot, and relayed=1 or relayed=2"
        )
    nodes = racks * hosts
    checked_nodes(spec, nodes)
    usable = uplinks * rate * (1 - switching / slot) / (racks - 1)
    waits = slot * -(-(racks - 1) // uplinks) / 2
    return RotorNet(
        spec,
        rate,
        np.arange(nodes) // hosts,
        links((2 * nodes, rate), (racks * racks, usable)),
        np.concatenate([np.full(2 * nodes, latency), np.full(racks * racks, latency + waits)]),
        {
            "nic-100g": nodes * rate / 100e9,
            "switch-port-100g": (nodes + racks * uplinks) * rate / 100e9,
            "transceiver-100g": racks * uplinks * rate / 100e9,
            "copper-100g": nodes * rate / 100e9,
            "ocs-port": racks * uplinks,
        },
        hosts=hosts,
        relayed=relayed == 1,
    )
