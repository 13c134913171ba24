"""The cluster as a graph: GPUs, servers, packet switches and OCSs, and what joins them.

What stays while the circuits stay is made once; what changes with each decision is filled in.
Rates, times and counts are squeezed, so that one scale serves small labs and large ones.
"""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from patchlight.controller.policies.contract import ClusterShape, Frozen, JobView
from patchlight.controller.policies.options.outlook import Outlook
from patchlight.controller.policies.sets import members
from patchlight.controller.prediction.network import LabNetwork
from patchlight.testbed.portmap import PortMap
from patchlight.testbed.wiring import circuit_ports

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

NODE_FEATURES = 14
"""Of a node: whether it is a GPU, server, packet switch, OCS; of its GPUs the part that is free,
broken, free for this job; how long they are still busy; how fast they are for this job; how many
there are; the rate of its NICs; the part without light; of an OCS the switching time; the part of
its ports towards packet switches that carry no light."""
EDGE_FEATURES = 6
"""Of an edge, each way: whether it is within a server, a packet link, a circuit through an OCS, a
fibre to an OCS; its rate; the part of it that rings want, or of a circuit the optical loss."""
_FREE, _BROKEN, _USABLE, _LEFT, _SPEED, _SIZE, _RATE, _DARK, _SWITCHING, _SPARE = range(4, 14)
_INSIDE, _PACKETS, _CIRCUIT, _PLUGGED, _EDGE_RATE, _WANTED = range(EDGE_FEATURES)


def squeezed(value: float, unit: float) -> float:
    """0 for 0, a half for ``unit``, 1 for infinity or what is no number."""
    return value / (value + unit) if 0 <= value < math.inf else (0.0 if value < 0 else 1.0)


def rate_feature(rate_bps: float) -> float:
    """A rate as a number of about 0 to 1."""
    return math.log1p(rate_bps / 1e9) / 10


@dataclass
class ClusterGraph:
    """A cluster under its present circuits. Nodes: GPUs, then servers, packet switches, OCSs."""

    shape: ClusterShape
    network: LabNetwork | None = None
    circuits: Mapping[str, PortMap] = field(default_factory=Frozen)

    def __post_init__(self) -> None:
        shape, network = self.shape, self.network
        self.gpus, self.servers, self.racks = (
            len(shape.gpus),
            len(shape.servers),
            len(shape.racks),
        )
        lab = None if network is None else network.lab
        ocses = [] if lab is None else [ocs.name for ocs in lab.circuit_switches]
        self.first_server, self.first_rack = self.gpus, self.gpus + self.servers
        self.first_ocs = self.first_rack + self.racks
        self.size = self.first_ocs + len(ocses)
        self.server_of = np.array([gpu.server for gpu in shape.gpus], np.int64)
        self.rack_of = np.array([gpu.rack for gpu in shape.gpus], np.int64)
        self.ocs_of = np.full(self.gpus, -1, np.int64)
        self._models = sorted(shape.model_gpus)
        self._model_of = np.array([self._models.index(g.model) for g in shape.gpus], np.int64)
        self._groups = [
            (self.server_of, self.first_server, self.servers),
            (self.rack_of, self.first_rack, self.racks),
            (self.ocs_of, self.first_ocs, len(ocses)),
        ]
        nodes = np.zeros((self.size, NODE_FEATURES), np.float32)
        bounds = (0, self.first_server, self.first_rack, self.first_ocs, self.size)
        for kind in range(4):
            nodes[bounds[kind] : bounds[kind + 1], kind] = 1.0
        self._static = nodes
        self._rows: list[tuple[float, ...]] = [*self._inside(), *self._dark_or_lit()]
        self._trunks: list[tuple[int, Hashable]] = []
        if network is not None:
            self._look(network, {name: self.first_ocs + n for n, name in enumerate(ocses)})
        self.edges: Ints = np.array([[a, b] for a, b, *_ in self._rows] or [[0, 0]], np.int64)
        links = [list(row[2:]) for row in self._rows] or [[0.0] * EDGE_FEATURES]
        self._links: Floats = np.array(links, np.float32)
        self._sum_up(nodes, (_RATE, _DARK))
        ones = np.ones(self.gpus)
        nodes[: self.gpus, _SIZE] = math.log1p(1) / 5
        for of, first, count in self._groups:
            held = np.bincount(of[of >= 0], ones[of >= 0], count) if count else np.zeros(0)
            nodes[first : first + count, _SIZE] = np.log1p(held) / 5

    def _inside(self) -> list[tuple[float, ...]]:
        found: list[tuple[float, ...]] = []
        for gpu, server in enumerate(self.server_of.tolist()):
            found += _both(gpu, self.first_server + server, _INSIDE, 0.0, 0.0)
        return found

    def _dark_or_lit(self) -> list[tuple[float, ...]]:
        """GPUs and the switches that their NICs are lit to; with a lab also rate and loss."""
        found: list[tuple[float, ...]] = []
        network = self.network
        for gpu, rack in enumerate(self.rack_of.tolist()):
            if rack < 0:
                self._static[gpu, _DARK] = 1.0
                continue
            kind, rate, loss = _PACKETS, 0.0, 0.0
            if network is not None:
                path = network.links.paths.get(network.hosts[gpu].endpoint)
                rate = rate_feature(network.capacity_bps[gpu, "up"])
                if path is not None and path.hops:
                    kind, loss = _CIRCUIT, (path.loss_db or 0.0) / 10
            self._static[gpu, _RATE] = rate
            found += _both(gpu, self.first_rack + rack, kind, rate, loss)
        return found

    def _look(self, network: LabNetwork, ocses: Mapping[str, int]) -> None:
        """Links between packet switches, and what is plugged into OCSs."""
        lab = network.lab
        rack = {name: self.first_rack + n for n, name in enumerate(self.shape.racks)}
        for link, rate_bps in network.capacity_bps.items():
            if isinstance(link, tuple) and isinstance(link[0], str):
                self._trunks.append((len(self._rows), link))
                row = [0.0] * EDGE_FEATURES
                row[_PACKETS], row[_EDGE_RATE] = 1.0, rate_feature(rate_bps)
                self._rows.append((rack[link[0]], rack[link[1]], *row))
        if not ocses:
            return
        nics = {host.endpoint: gpu for gpu, host in enumerate(network.hosts)}
        for end, (ocs, _) in circuit_ports(lab, nics).items():
            gpu = nics[end]
            self.ocs_of[gpu] = ocses[ocs] - self.first_ocs
            self._rows += _both(gpu, ocses[ocs], _PLUGGED, self._static[gpu, _RATE], 0.0)
        lit = {
            (ocs, port)
            for ocs, circuits in self.circuits.items()
            for each in circuits
            for port in (each.inp, each.out)
        }
        facing: dict[tuple[str, str], list[bool]] = {}
        ends = [end for end in lab.fibre_ends if end.device in rack]
        for end, (ocs, port) in circuit_ports(lab, ends).items():
            facing.setdefault((ocs, end.device), []).append((ocs, port) in lit)
        spare: dict[int, list[bool]] = {}
        for (ocs, switch), ports in facing.items():
            part = ports.count(False) / len(ports)
            self._rows += _both(
                ocses[ocs], rack[switch], _PLUGGED, math.log1p(len(ports)) / 5, part
            )
            spare.setdefault(ocses[ocs], []).extend(ports)
            spare.setdefault(rack[switch], []).extend(ports)
        for node, ports in spare.items():
            self._static[node, _SPARE] = ports.count(False) / len(ports)
        for each in lab.circuit_switches:
            self._static[ocses[each.name], _SWITCHING] = squeezed(each.switching_time_s, 1.0)

    def _sum_up(self, nodes: Floats, features: tuple[int, ...]) -> None:
        """Servers, switches and OCSs have the means of their GPUs."""
        for of, first, count in self._groups:
            if not count:
                continue
            there = of >= 0
            held = np.maximum(np.bincount(of[there], minlength=count), 1)
            for feature in features:
                summed = np.bincount(of[there], nodes[: self.gpus, feature][there], count)
                nodes[first : first + count, feature] = summed / held

    def nodes(self, outlook: Outlook, job: JobView | None, unit_s: float) -> Floats:
        """The nodes' features now, for a decision about ``job``; times are in ``unit_s``."""
        cluster, count = outlook.cluster, self.gpus
        found = self._static.copy()
        free = cluster.free if job is None else cluster.free_for(job)
        found[:count, _FREE] = bits(cluster.free, count)
        found[:count, _BROKEN] = bits(cluster.broken, count)
        found[:count, _USABLE] = bits(free, count)
        for running in cluster.running:
            left = squeezed(outlook.left_by_job.get(running.name, math.inf), unit_s)
            found[members(running.gpus), _LEFT] = left
        speeds = {} if job is None or job.training is None else job.training.compute_s
        quickest_s = min(speeds.values(), default=1.0)
        each = [quickest_s / speeds.get(model, quickest_s) for model in self._models]
        found[:count, _SPEED] = np.array(each, np.float32)[self._model_of]
        self._sum_up(found, (_FREE, _BROKEN, _USABLE, _LEFT, _SPEED))
        return found

    def links(self, outlook: Outlook) -> Floats:
        """The edges' features now."""
        network = self.network
        if network is None or not self._trunks:
            return self._links
        found = self._links.copy()
        for row, link in self._trunks:
            wanted_bps = outlook.edges.get(link, 0) * network.nic_bps
            found[row, _WANTED] = squeezed(wanted_bps, network.capacity_bps[link])
        return found


def bits(gpus: int, count: int) -> NDArray[np.uint8]:
    """A set as an array of ``count`` zeros and ones."""
    packed = np.frombuffer(gpus.to_bytes((count + 7) // 8, "little"), np.uint8)
    return np.unpackbits(packed, count=count, bitorder="little")


def _both(a: int, b: int, kind: int, rate: float, last: float) -> list[tuple[float, ...]]:
    row = [0.0] * EDGE_FEATURES
    row[kind], row[_EDGE_RATE], row[_WANTED] = 1.0, rate, last
    return [(a, b, *row), (b, a, *row)]
