"""Any lab as a network of flows: its GPUs with NICs, and its links as its file lights them."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np

from patchlight.controller.prediction.network import LabNetwork
from patchlight.emulation.simulator.network.contract import NO_LINK, Network, checked_nodes
from patchlight.emulation.simulator.network.sharing import Ints
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import load_lab


@dataclass(frozen=True, eq=False)
class LabPaths(Network):
    """Paths are those that the lab's flow tables have."""

    lit: LabNetwork = field(kw_only=True)
    numbers: Mapping[Hashable, int] = field(kw_only=True)

    def _paths(self, source: Ints, destination: Ints, flow: Ints, group: Ints) -> Ints:
        found = []
        for here, there in zip(source.tolist(), destination.tolist(), strict=True):
            way = self.lit.way(here, there)
            if way is None:
                names = [self.lit.hosts[node].name for node in (here, there)]
                raise BadInput(f"{self.spec}: no light leads from {names[0]} to {names[1]}")
            found.append([self.numbers[link] for link in way])
        longest = max(map(len, found), default=0)
        return np.array([[*way, *[NO_LINK] * (longest - len(way))] for way in found], np.int64)


def lab(spec: str, file: str) -> LabPaths:
    """A lab file or a built-in lab, its circuits as in the file; rates are not scaled.

    Its links have no latency: lab files say nothing of it.
    """
    loaded = load_lab(file)
    return lab_network(loaded, loaded.initial_maps, spec)


def lab_network(lab: Lab, maps: Mapping[str, PortMap], spec: str = "") -> LabPaths:
    """A lab under these maps of its OCSs; ``spec`` is its name in messages."""
    lit = LabNetwork(lab, trace_links(lab, maps))
    checked_nodes(spec or lab.name, len(lit.hosts))
    switches = [switch.name for switch in lab.packet_switches]
    known = [switch or "" for switch in lit.switches]
    racks = [switches.index(name) if name in switches else len(switches) for name in known]
    return LabPaths(
        spec or lab.name,
        lit.nic_bps,
        np.array(racks, np.int64),
        np.array([float(bps) for bps in lit.capacity_bps.values()]),
        np.zeros(len(lit.capacity_bps)),
        lit=lit,
        numbers={link: number for number, link in enumerate(lit.capacity_bps)},
    )
