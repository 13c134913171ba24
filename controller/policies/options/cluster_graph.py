"""Encodes the cluster as a graph: GPUs, servers, packet switches, OCSs and their connections.

The part that depends only on circuits is made once; each decision adds the rest. Rates, times and
counts are compressed, so that one scale fits small and large labs.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from patchlight.controller.policies.contract import (
    ClusterShape,
    Frozen,
    JobView,
)
from patchlight.controller.policies.options.outlook import Outlook
from patchlight.controller.policies.sets import members
from patchlight.controller.prediction.network import LabNetwork
from patchlight.testbed.lab.portmap import PortMap

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
_Row = NDArray[np.floating]
_Edges = tuple[Ints, Floats]  # from and to; features

NODE_FEATURES = 14
"""Of a node: whether it is a GPU, server, packet switch, OCS; of its GPUs the part that is free,
broken, free for this job; how long they are still busy; how fast they are for this job; how many
there are; the rate of its NICs; the part without a circuit; of an OCS the switching time; the part
of its ports towards packet switches without a circuit."""
EDGE_FEATURES = 6
"""Of an edge, each way: whether it is within a server, a packet link, a circuit through an OCS, a
fibre to an OCS; its rate; the part of it that rings use, or for a circuit the optical loss."""
(
    _FREE,
    _BROKEN,
    _USABLE,
    _LEFT,
    _SPEED,
    _SIZE,
    _RATE,
    _DARK,
    _SWITCHING,
    _SPARE,
) = range(4, 14)
_INSIDE, _PACKETS, _CIRCUIT, _PLUGGED, _EDGE_RATE, _WANTED = range(
    EDGE_FEATURES
)


def squeezed(value: float, unit: float) -> float:
    """0 for 0, a half for ``unit``, 1 for infinity or NaN."""
    return (
        value / (value + unit)
        if 0 <= value < math.inf
        else (0.0 if value < 0 else 1.0)
    )


def rate_feature(rate_bps: float) -> float:
    """A rate as a number of about 0 to 1."""
    return math.log1p(rate_bps / 1e9) / 10


class FixedFibres:
    """The circuit-independent part of a lab's graph: what is plugged into its OCSs."""

    def __init__(self, network: LabNetwork, racks: Sequence[str]) -> None:
        lab = network.lab
        ocses = lab.circuit_switches
        rack = {name: n for n, name in enumerate(racks)}
        number = {ocs.name: n for n, ocs in enumerate(ocses)}
        plugs = lab.circuit_plugs
        self.switching = np.array(
            [squeezed(ocs.switching_time_s, 1.0) for ocs in ocses]
        )
        nics = [
            (gpu, number[plugs[end][0]])
            for gpu, end in enumerate(network.ends)
            if end in plugs
        ]
        self.nics = np.array(nics, np.int64).reshape(-1, 2)  # GPU, OCS
        facing: dict[tuple[int, int], list[int]] = {}
        self._ports: dict[str, dict[int, int]] = {
            ocs.name: {} for ocs in ocses
        }
        ends = [
            end
            for end in lab.fibre_ends
            if end.device in rack and end in plugs
        ]
        for place, end in enumerate(ends):
            ocs, port = plugs[end]
            self._ports[ocs][port] = place
            facing.setdefault((number[ocs], rack[end.device]), []).append(
                place
            )
        # OCS, packet switch.
        self.facing = np.array(list(facing), np.int64).reshape(-1, 2)
        self._row_of = np.zeros(len(ends), np.int64)
        for row, places in enumerate(facing.values()):
            self._row_of[places] = row
        self.counts = np.bincount(self._row_of, minlength=len(facing))

    def spare(self, circuits: Mapping[str, PortMap]) -> Ints:
        """How many ports of each row of ``facing`` have no circuit."""
        lit = np.zeros(len(self._row_of), bool)
        for ocs, present in circuits.items():
            ports = self._ports.get(ocs, {})
            lit[
                [
                    ports[p]
                    for p in (*present.out_of, *present.in_of)
                    if p in ports
                ]
            ] = True
        return self.counts - np.bincount(
            self._row_of[lit], minlength=len(self.counts)
        )


@dataclass
class ClusterGraph:
    """A cluster with its present circuits. Nodes: GPUs, then servers, packet switches, OCSs.

    ``plugs`` are those of the network's lab; by default they are made.
    """

    shape: ClusterShape
    network: LabNetwork | None = None
    circuits: Mapping[str, PortMap] = field(default_factory=Frozen)
    plugs: FixedFibres | None = None

    def __post_init__(self) -> None:
        shape = self.shape
        network = self.network
        self.gpus = len(shape.gpus)
        self.servers = len(shape.servers)
        self.racks = len(shape.racks)
        if self.plugs is None and network is not None:
            self.plugs = FixedFibres(network, shape.racks)
        ocses = 0 if self.plugs is None else len(self.plugs.switching)
        self.first_server = self.gpus
        self.first_rack = self.gpus + self.servers
        self.first_ocs = self.first_rack + self.racks
        self.size = self.first_ocs + ocses
        self.server_of = np.array([gpu.server for gpu in shape.gpus], np.int64)
        self.rack_of = np.array([gpu.rack for gpu in shape.gpus], np.int64)
        self.ocs_of = np.full(self.gpus, -1, np.int64)
        self._models = sorted(shape.model_gpus)
        self._model_of = np.array(
            [self._models.index(g.model) for g in shape.gpus], np.int64
        )
        self._groups = [
            (self.server_of, self.first_server, self.servers),
            (self.rack_of, self.first_rack, self.racks),
            (self.ocs_of, self.first_ocs, ocses),
        ]
        nodes = np.zeros((self.size, NODE_FEATURES), np.float32)
        bounds = (
            0,
            self.first_server,
            self.first_rack,
            self.first_ocs,
            self.size,
        )
        for kind in range(4):
            nodes[bounds[kind] : bounds[kind + 1], kind] = 1.0
        self._static = nodes
        every = np.arange(self.gpus)
        rows = [
            _edges(every, self.first_server + self.server_of, _INSIDE),
            self._lit_or_dark(),
        ]
        self._trunks: list[Hashable] = []
        self._first_trunk = len(rows[0][0]) + len(rows[1][0])
        if network is not None:
            rows.append(self._between_switches(network))
        if self.plugs is not None and ocses:
            rows += self._plugged(self.plugs)
        if not any(len(ends) for ends, _ in rows):
            rows = [
                (
                    np.zeros((1, 2), np.int64),
                    np.zeros((1, EDGE_FEATURES), np.float32),
                )
            ]
        self.edges: Ints = np.concatenate([ends for ends, _ in rows])
        self._links: Floats = np.concatenate([links for _, links in rows])
        self._sum_up(nodes, (_RATE, _DARK))
        ones = np.ones(self.gpus)
        nodes[: self.gpus, _SIZE] = math.log1p(1) / 5
        for of, first, count in self._groups:
            held = (
                np.bincount(of[of >= 0], ones[of >= 0], count)
                if count
                else np.zeros(0)
            )
            nodes[first : first + count, _SIZE] = np.log1p(held) / 5

    def _lit_or_dark(self) -> _Edges:
        """GPUs and the switches that their NICs are connected to; with a lab also rate and loss."""
        network = self.network
        self._static[: self.gpus, _DARK] = self.rack_of < 0
        lit = np.flatnonzero(self.rack_of >= 0)
        kind = np.full(len(lit), _PACKETS)
        rate = np.zeros(len(lit))
        loss = np.zeros(len(lit))
        if network is not None:
            gpus = lit.tolist()
            capacity_bps = [network.capacity_bps[gpu, "up"] for gpu in gpus]
            rate = np.log1p(np.array(capacity_bps, float) / 1e9) / 10
            ends = network.ends
            paths = network.links.paths
            for row, path in enumerate([paths.get(ends[gpu]) for gpu in gpus]):
                if path is not None and path.hops:
                    kind[row] = _CIRCUIT
                    loss[row] = (path.loss_db or 0.0) / 10
        self._static[lit, _RATE] = rate
        return _edges(
            lit,
            self.first_rack + self.rack_of[lit],
            kind,
            rate,
            loss,
        )

    def _between_switches(self, network: LabNetwork) -> _Edges:
        rack = {
            name: self.first_rack + n
            for n, name in enumerate(self.shape.racks)
        }
        self._trunks += network.trunks
        ends = [(rack[link[0]], rack[link[1]]) for link in network.trunks]
        links = np.zeros((len(ends), EDGE_FEATURES), np.float32)
        links[:, _PACKETS] = 1.0
        links[:, _EDGE_RATE] = [
            rate_feature(network.capacity_bps[link]) for link in self._trunks
        ]
        return np.array(ends, np.int64).reshape(-1, 2), links

    def _plugged(self, plugs: FixedFibres) -> list[_Edges]:
        nodes = self._static
        gpu, ocs = plugs.nics.T
        self.ocs_of[gpu] = ocs
        nics = _edges(
            gpu,
            self.first_ocs + ocs,
            _PLUGGED,
            nodes[gpu, _RATE],
        )
        ocs, rack = plugs.facing.T
        ocs = self.first_ocs + ocs
        rack = self.first_rack + rack
        spare = plugs.spare(self.circuits)
        counts = plugs.counts
        for node in (ocs, rack):
            there = np.bincount(node, counts, self.size)
            free = np.bincount(node, spare, self.size)
            nodes[there > 0, _SPARE] = free[there > 0] / there[there > 0]
        nodes[self.first_ocs :, _SWITCHING] = plugs.switching
        rate = np.log1p(counts) / 5
        return [
            nics,
            _edges(
                ocs,
                rack,
                _PLUGGED,
                rate,
                spare / np.maximum(counts, 1),
            ),
        ]

    def _sum_up(self, nodes: Floats, features: tuple[int, ...]) -> None:
        for of, first, count in self._groups:
            if not count:
                continue
            there = of >= 0
            held = np.maximum(np.bincount(of[there], minlength=count), 1)
            for feature in features:
                summed = np.bincount(
                    of[there], nodes[: self.gpus, feature][there], count
                )
                nodes[first : first + count, feature] = summed / held

    def nodes(
        self,
        outlook: Outlook,
        job: JobView | None,
        unit_s: float,
    ) -> Floats:
        """The nodes' features for a decision about ``job``; times are in ``unit_s``."""
        cluster = outlook.cluster
        count = self.gpus
        found = self._static.copy()
        free = cluster.free if job is None else cluster.free_for(job)
        found[:count, _FREE] = bits(cluster.free, count)
        found[:count, _BROKEN] = bits(cluster.broken, count)
        found[:count, _USABLE] = bits(free, count)
        for running in cluster.running:
            left = squeezed(
                outlook.left_by_job.get(running.name, math.inf), unit_s
            )
            found[members(running.gpus), _LEFT] = left
        speeds = (
            {}
            if job is None or job.training is None
            else job.training.compute_s
        )
        quickest_s = min(speeds.values(), default=1.0)
        each = [
            quickest_s / speeds.get(model, quickest_s)
            for model in self._models
        ]
        found[:count, _SPEED] = np.array(each, np.float32)[self._model_of]
        self._sum_up(found, (_FREE, _BROKEN, _USABLE, _LEFT, _SPEED))
        return found

    def links(self, outlook: Outlook) -> Floats:
        """The edges' features now."""
        network = self.network
        if network is None or not self._trunks:
            return self._links
        found = self._links.copy()
        for row, link in enumerate(self._trunks, self._first_trunk):
            wanted_bps = outlook.edges.get(link, 0) * network.nic_bps
            found[row, _WANTED] = squeezed(
                wanted_bps, network.capacity_bps[link]
            )
        return found


def bits(gpus: int, count: int) -> NDArray[np.uint8]:
    """A set as an array of ``count`` zeros and ones."""
    packed = np.frombuffer(gpus.to_bytes((count + 7) // 8, "little"), np.uint8)
    return np.unpackbits(
        packed,
        count=count,
        bitorder="little",
    )


def _edges(
    a: Ints,
    b: Ints,
    kind: Ints | int,
    rate: _Row | float = 0.0,
    last: _Row | float = 0.0,
) -> _Edges:
    rows = np.arange(len(a))
    links = np.zeros((len(a), EDGE_FEATURES), np.float32)
    links[rows, kind] = 1.0
    links[:, _EDGE_RATE] = rate
    links[:, _WANTED] = last
    return np.stack(
        [
            a,
            b,
            b,
            a,
        ],
        1,
    ).reshape(-1, 2), links.repeat(2, axis=0)
