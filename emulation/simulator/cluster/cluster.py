"""Clusters: racks of servers of GPUs, and labs whose OCSs rewire them; how rings share links."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from patchlight.controller.policies.contract import ClusterShape, Frozen, GpuSite
from patchlight.controller.policies.sets import members
from patchlight.controller.prediction.completion import PhasedJob, groups, set_paces_of
from patchlight.controller.prediction.network import Demand, LabNetwork, Load, fair_rates
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links

MAX_GPUS = 1 << 20


class Rewiring(NamedTuple):
    """A change of circuits: how long it is dark, what changed, and whose NICs were dark.

    ``relit`` are the GPUs whose links may be others now, those among them.
    """

    dark_s: float
    cross_connects: int
    gpus: int
    relit: int


class Pacing(Protocol):
    """Says how fast the running jobs of a cluster go; they are a simulation's own."""

    def route(self, job: Any, demand: Demand | None) -> bool:
        """A job is on these links; whether to share them again. Otherwise it has its pace."""

    def remove(self, job: Any) -> bool:
        """A job is gone; whether to share links again."""

    def new_paces(self) -> Iterator[tuple[Any, float]]:
        """The jobs whose pace changes, each with its seconds for a unit."""


class Cluster(Protocol):
    """GPUs and the network between them, as wired now."""

    @property
    def shape(self) -> ClusterShape:
        """Which GPUs there are, and where."""

    @property
    def nic_bps(self) -> float:
        """The rate at which a job communicates whose links are its own."""

    @property
    def edge_bps(self) -> float:
        """The most that an edge of a ring can have on any links."""

    @property
    def capacity_bps(self) -> Mapping[Hashable, float]:
        """The rate of each directed link that rings share."""

    @property
    def lab(self) -> Lab | None:
        """The lab behind it, where there is one to rewire."""

    @property
    def circuits(self) -> Mapping[str, PortMap]:
        """The present map of each OCS."""

    def demand(self, ring: Sequence[int]) -> Demand | None:
        """The links that a ring over these GPUs uses; ``None`` if it cannot be closed."""

    def ports_of(self, gpus: int) -> Mapping[str, frozenset[int]]:
        """The OCS ports that carry these GPUs' light."""

    def rewire(self, maps: Mapping[str, PortMap]) -> Rewiring:
        """Light these circuits; those of other OCSs stay as they are."""

    def renewed(self) -> Cluster:
        """The same cluster as it was wired at first."""

    def pacing(self) -> Pacing:
        """What says how fast jobs go on it, none of them begun."""


class RingShare(Protocol):
    """A running job: its number, what it has to do, its links, and its seconds for a unit.

    ``remaining`` units are left, as last counted.
    """

    index: int
    load: Load
    remaining: float
    demand: Demand
    unit_s: float


class RingNetwork:
    """The pace of running jobs whose rings share links all the time, max-min fair.

    ``wire`` bits are on a link for each bit of a ring.
    """

    def __init__(self, network: Cluster, wire: float = 1.0) -> None:
        self._network, self._wire = network, wire
        self._sharing: dict[int, RingShare] = {}
        self._rings_on: dict[Hashable, int] = {}

    def route(self, job: RingShare, demand: Demand | None) -> bool:
        """Put a job's ring on these links; whether it shares them, or those that it had.

        A job that shares links stands still until ``new_paces``, one without a circuit (``None``)
        until its next route.
        """
        shared = self.remove(job)
        job.demand = demand or {}
        if not demand or not job.load.ring_bits:
            dark = demand is None
            job.unit_s = math.inf if dark else job.load.unit_s(self._network.edge_bps / self._wire)
            return shared
        self._sharing[job.index] = job
        shares, rings_on = False, self._rings_on
        for link in demand:
            before = rings_on.get(link, 0)
            rings_on[link] = before + 1
            shares = shares or before > 0
        if shares or shared:
            job.unit_s = math.inf
            return True
        # What ``fair_rates`` says of a ring that has all its links to itself.
        capacity_bps, rate_bps = self._network.capacity_bps, self._network.edge_bps
        for link, edges in demand.items():
            rate_bps = min(rate_bps, capacity_bps[link] / edges)
        job.unit_s = job.load.unit_s(rate_bps / self._wire)
        return False

    def remove(self, job: RingShare) -> bool:
        """Take a job's ring off its links; whether it shared any."""
        if self._sharing.pop(job.index, None) is None:
            return False
        shared, rings_on = False, self._rings_on
        for link in job.demand:
            left = rings_on[link] - 1
            if left:
                rings_on[link], shared = left, True
            else:
                del rings_on[link]
        return shared

    def new_paces(self) -> Iterator[tuple[RingShare, float]]:
        """Share the links; the jobs whose pace changes, each with its seconds for a unit."""
        jobs, network = list(self._sharing.values()), self._network
        rates = fair_rates([job.demand for job in jobs], network.capacity_bps, network.edge_bps)
        for job, rate_bps in zip(jobs, rates, strict=True):
            unit_s = job.load.unit_s(rate_bps / self._wire)
            if unit_s != job.unit_s:
                yield job, unit_s


class PhasedRings(RingNetwork):
    """The pace of jobs that share links only while they communicate, over a lab's circuits.

    Only jobs that share links with one that comes, goes or moves get another pace.
    """

    def __init__(self, network: LabCluster) -> None:
        super().__init__(network, network.wire)
        self._together: set[frozenset[tuple[int, frozenset[tuple[Hashable, int]]]]] = set()

    def new_paces(self) -> Iterator[tuple[RingShare, float]]:
        """The jobs whose pace changes, each with its seconds for a unit."""
        wire, capacity_bps = self._wire, self._network.capacity_bps
        phased = {
            PhasedJob(job.demand, job.load.compute_s, job.load.ring_bits * wire, job.remaining): job
            for job in self._sharing.values()
        }
        known, self._together = self._together, set()
        for group, capacities in groups(list(phased), capacity_bps):
            key = frozenset((phased[each].index, frozenset(each.demand.items())) for each in group)
            self._together.add(key)
            if key in known and all(phased[each].unit_s < math.inf for each in group):
                continue
            set_paces_of(group, capacities)
            for each in group:
                if each.pace_s != phased[each].unit_s:
                    yield phased[each], each.pace_s


@dataclass(frozen=True)
class TwoLevel:
    """Racks of servers of GPUs; each GPU has a NIC, each rack one uplink.

    A rack's uplink has the rate of all its NICs divided by ``oversubscription``, each way;
    above the racks nothing is short. Within a rack every NIC has its rate.
    """

    racks: int
    servers: int
    gpus: int
    nic_bps: float = 100e9
    oversubscription: float = 1.0

    def __post_init__(self) -> None:
        size = self.racks * self.servers * self.gpus
        if min(self.racks, self.servers, self.gpus) < 1 or size > MAX_GPUS:
            raise BadInput(
                f"a cluster of {self.racks} racks × {self.servers} servers × {self.gpus} GPUs: "
                f"expected at least 1 of each, and at most {MAX_GPUS} GPUs in all"
            )
        if not (math.isfinite(self.oversubscription) and self.oversubscription >= 1):
            raise BadInput(
                f"racks cannot be oversubscribed {self.oversubscription} times: expected 1 or more"
            )
        if not (math.isfinite(self.nic_bps) and self.nic_bps > 0):
            raise BadInput(f"NICs cannot have {self.nic_bps} bit/s: expected more than 0")

    @classmethod
    def parse(cls, text: str) -> TwoLevel:
        """``"16x16x8,taper=2"``: racks × servers per rack × GPUs per server; else ``BadInput``."""
        form = r"(\d{1,7})[x×](\d{1,7})[x×](\d{1,7})(?:,taper=([\d.]+))?"
        match = re.fullmatch(form, text.strip())
        try:
            *sizes, taper = match.groups("1") if match else ()
            racks, servers, gpus = map(int, sizes)
            return cls(racks, servers, gpus, oversubscription=float(taper))
        except ValueError as error:
            raise BadInput(
                f"{text!r} is not a cluster: expected racks x servers x GPUs, like 16x16x8 or "
                "16x16x8,taper=2"
            ) from error

    @cached_property
    def shape(self) -> ClusterShape:
        """Server by server, rack by rack."""
        names = [(r, s) for r in range(self.racks) for s in range(self.servers)]
        return ClusterShape(
            gpus=tuple(
                GpuSite(f"rack{rack + 1}.server{server + 1}.gpu{gpu}", number, rack)
                for number, (rack, server) in enumerate(names)
                for gpu in range(self.gpus)
            ),
            servers=tuple(f"rack{rack + 1}.server{server + 1}" for rack, server in names),
            racks=tuple(f"rack{rack + 1}" for rack in range(self.racks)),
        )

    @property
    def edge_bps(self) -> float:
        """A NIC's rate."""
        return self.nic_bps

    @cached_property
    def capacity_bps(self) -> Mapping[Hashable, float]:
        """Each rack's uplink. A ring leaves a rack as often as it enters it: one way is enough."""
        uplink_bps = self.servers * self.gpus * self.nic_bps / self.oversubscription
        return dict.fromkeys(range(self.racks), uplink_bps)

    @property
    def lab(self) -> None:
        """There is nothing to rewire."""
        return None

    @property
    def circuits(self) -> Mapping[str, PortMap]:
        """There is no OCS."""
        return {}

    def demand(self, ring: Sequence[int]) -> Demand:
        """How often the ring leaves each rack."""
        in_rack = self.servers * self.gpus
        first = rack = ring[0] // in_rack
        found: dict[Hashable, int] = {}
        for gpu in ring[1:]:
            following = gpu // in_rack
            if following != rack:
                found[rack] = found.get(rack, 0) + 1
                rack = following
        if rack != first:
            found[rack] = found.get(rack, 0) + 1
        return found

    def ports_of(self, gpus: int) -> Mapping[str, frozenset[int]]:
        """None."""
        return {}

    def rewire(self, maps: Mapping[str, PortMap]) -> Rewiring:
        """``BadInput``: there are no circuits."""
        raise BadInput(
            f"cannot light circuits of {', '.join(maps)}: this cluster has no OCS",
            hint="choose topology 'keep', or a lab with an OCS",
        )

    def renewed(self) -> TwoLevel:
        """Itself: nothing in it changes."""
        return self

    def pacing(self) -> RingNetwork:
        """Rings that communicate all the time."""
        return RingNetwork(self)


class LabCluster:
    """The hosts of a lab that have a GPU, and its links as lit now.

    A ring's edge goes from one NIC over packet switches to the other NIC, the way that the flow
    tables of the lab have.
    """

    def __init__(self, lab: Lab, circuits: Mapping[str, PortMap] | None = None) -> None:
        self.lab = lab
        self.circuits: Mapping[str, PortMap] = Frozen(circuits or lab.initial_maps)
        network = LabNetwork(lab, trace_links(lab, self.circuits))
        self.hosts: tuple[Host, ...] = network.hosts
        self.nic_bps, self.edge_bps = network.nic_bps, network.edge_bps
        servers = {server.name: number for number, server in enumerate(lab.servers)}
        self._racks = {switch.name: number for number, switch in enumerate(lab.packet_switches)}
        self._ports: dict[int, Mapping[str, Set[int]]] = {}
        self._first: LabCluster | None = None
        self.shape = ClusterShape(
            gpus=tuple(
                GpuSite(
                    host.name, servers[host.server.name], -1, host.gpu.model if host.gpu else ""
                )
                for host in network.hosts
            ),
            servers=tuple(servers),
            racks=tuple(self._racks),
        )
        self._show(network)

    def renewed(self) -> LabCluster:
        """The same lab with the cross-connects of its file."""
        if self._first is None:
            self._first = LabCluster(self.lab)
        found = copy(self._first)
        found._first = self._first
        return found

    def pacing(self) -> RingNetwork:
        """Rings that compute and communicate in turns, over the links as they are lit."""
        return PhasedRings(self)

    def _show(self, network: LabNetwork) -> None:
        """Write down which links there are, and where each GPU with a new circuit is."""
        self._network, self.links, self.wire = network, network.links, network.wire
        self.capacity_bps: Mapping[Hashable, float] = network.capacity_bps
        relit = members(network.relit)
        self._asked: tuple[int, Mapping[str, frozenset[int]]] | None = None
        self._ports = {
            gpu: ports for gpu, ports in self._ports.items() if not network.relit >> gpu & 1
        }
        racks = {}
        for number in relit:
            switch = network.switches[number]
            racks[number] = -1 if switch is None else self._racks[switch]
        self.shape = self.shape.relit(racks)

    def demand(self, ring: Sequence[int]) -> Demand | None:
        """The links of all edges; ``None`` if a NIC is dark or no way leads to the next one."""
        return self._network.demand(ring)

    def ports_of(self, gpus: int) -> Mapping[str, frozenset[int]]:
        """The OCS ports on the light paths of these GPUs' NICs, there and back."""
        if self._asked is None or self._asked[0] != gpus:
            found: dict[str, list[Set[int]]] = {}
            for number in members(gpus):
                for ocs, ports in self._ports_at(number).items():
                    found.setdefault(ocs, []).append(ports)
            joined = {ocs: frozenset[int]().union(*ports) for ocs, ports in found.items()}
            self._asked = gpus, Frozen(joined)  # Asked again until a job comes or goes.
        return self._asked[1]

    def _ports_at(self, gpu: int) -> Mapping[str, Set[int]]:
        """Those of one GPU's NIC."""
        if (known := self._ports.get(gpu)) is not None:
            return known
        found: dict[str, set[int]] = {}
        path = self.links.paths.get(self._network.ends[gpu])
        back = None if path is None else self.links.paths.get(path.sink)
        for each in (path, back):
            for ocs, hop in each.hops if each is not None else ():
                found.setdefault(ocs, set()).update((hop.inp, hop.out))
        self._ports[gpu] = found
        return found

    def rewire(self, maps: Mapping[str, PortMap]) -> Rewiring:
        """All OCSs switch at once; dark is every NIC whose light goes another way than before.

        ``BadInput`` for an OCS that the lab does not have.
        """
        dark_s, changed = 0.0, 0
        circuits = dict(self.circuits)
        for name, wanted in maps.items():
            ocs = self.lab.circuit_switch(name)
            if change := circuits.get(name, PortMap()).diff(wanted):
                changed += len(change.breaks) + len(change.makes)
                dark_s = max(dark_s, ocs.switching_time_s)
                circuits[name] = wanted
        if not changed:
            return Rewiring(0.0, 0, 0, 0)
        self.circuits, before = Frozen(circuits), self.links.paths
        links, ends = self.links.after(circuits)
        self._show(self._network.after(links, ends))
        moved = 0
        for number in members(self._network.relit):
            if (end := self._network.ends[number]) in ends:
                paths = [before.get(end), links.paths.get(end)]
                # In labs with wavelengths light may also go the same way and end elsewhere.
                if (paths[0] and paths[0].hops) != (paths[1] and paths[1].hops):
                    moved |= 1 << number
        return Rewiring(dark_s, changed, moved, self._network.relit)
