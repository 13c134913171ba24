"""Models clusters: racks of GPU servers, or labs with OCSs, and how rings share their links."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from patchlight.controller.policies.contract import (
    ClusterShape,
    Frozen,
    GpuSite,
)
from patchlight.controller.policies.sets import members
from patchlight.controller.prediction.completion import (
    PhasedJob,
    groups,
    set_paces_of,
)
from patchlight.controller.prediction.interleaving import set_slots_of
from patchlight.controller.prediction.network import (
    Demand,
    LabNetwork,
    Load,
    fair_rates,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.lab.ocs_drivers import outage_s
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links

MAX_GPUS = 1 << 20


class Rewiring(NamedTuple):
    """The result of a change of circuits.

    ``dark_s`` is the outage, ``relit`` the GPUs whose links may differ now. These include
    the GPUs whose NICs were dark.
    """

    dark_s: float
    cross_connects: int
    gpus: int
    relit: int


class Pacing(Protocol):
    """The pace of the running jobs of a cluster, for one simulation."""

    def route(self, job: Any, demand: Demand | None) -> bool:
        """Put a job on these links; returns whether links have to be shared again."""

    def remove(self, job: Any) -> bool:
        """Remove a job; returns whether links have to be shared again."""

    def new_paces(self) -> Iterator[tuple[Any, float]]:
        """The jobs whose pace changes, each with its seconds per unit."""


class Cluster(Protocol):
    """GPUs and the network between them, as wired now."""

    @property
    def shape(self) -> ClusterShape:
        """The GPUs and their locations."""

    @property
    def nic_bps(self) -> float:
        """The rate at which a job communicates if it shares no link."""

    @property
    def edge_bps(self) -> float:
        """The highest rate that an edge of a ring can have on any links."""

    @property
    def capacity_bps(self) -> Mapping[Hashable, float]:
        """The rate of each directed link that rings share."""

    @property
    def lab(self) -> Lab | None:
        """The lab of the cluster, if it can be rewired."""

    @property
    def circuits(self) -> Mapping[str, PortMap]:
        """The present map of each OCS."""

    def demand(self, ring: Sequence[int]) -> Demand | None:
        """The links that a ring over these GPUs uses; ``None`` if it cannot be closed."""

    def ports_of(self, gpus: int) -> Mapping[str, frozenset[int]]:
        """The OCS ports on the optical paths of these GPUs."""

    def rewire(self, maps: Mapping[str, PortMap]) -> Rewiring:
        """Set these maps; other OCSs keep theirs."""

    def renewed(self) -> Cluster:
        """The same cluster with its initial wiring."""

    def pacing(self) -> Pacing:
        """A pace model for this cluster, without jobs."""


class RingShare(Protocol):
    """A running job: its number, its work, its links, and its seconds per unit.

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
        self._network = network
        self._wire = wire
        self._sharing: dict[int, RingShare] = {}
        self._rings_on: dict[Hashable, int] = {}

    def route(self, job: RingShare, demand: Demand | None) -> bool:
        """Put a job's ring on these links; returns whether it shares them or shared its last ones.

        A job that shares links stands still until ``new_paces``; one without a circuit (``None``)
        stands still until its next route.
        """
        shared = self.remove(job)
        job.demand = demand or {}
        if not demand or not job.load.ring_bits:
            dark = demand is None
            job.unit_s = (
                math.inf
                if dark
                else job.load.unit_s(self._network.edge_bps / self._wire)
            )
            return shared
        self._sharing[job.index] = job
        shares = False
        rings_on = self._rings_on
        for link in demand:
            before = rings_on.get(link, 0)
            rings_on[link] = before + 1
            shares = shares or before > 0
        if shares or shared:
            job.unit_s = math.inf
            return True
        # The result of ``fair_rates`` for a ring that shares no link.
        capacity_bps = self._network.capacity_bps
        rate_bps = self._network.edge_bps
        for link, edges in demand.items():
            rate_bps = min(rate_bps, capacity_bps[link] / edges)
        job.unit_s = job.load.unit_s(rate_bps / self._wire)
        return False

    def remove(self, job: RingShare) -> bool:
        """Take a job's ring off its links; returns whether it shared any."""
        if self._sharing.pop(job.index, None) is None:
            return False
        shared = False
        rings_on = self._rings_on
        for link in job.demand:
            left = rings_on[link] - 1
            if left:
                rings_on[link] = left
                shared = True
            else:
                del rings_on[link]
        return shared

    def new_paces(self) -> Iterator[tuple[RingShare, float]]:
        """Share the links; returns the jobs whose pace changes, each with its seconds per unit."""
        jobs = list(self._sharing.values())
        network = self._network
        rates = fair_rates(
            [job.demand for job in jobs],
            network.capacity_bps,
            network.edge_bps,
        )
        for job, rate_bps in zip(jobs, rates, strict=True):
            unit_s = job.load.unit_s(rate_bps / self._wire)
            if unit_s != job.unit_s:
                yield job, unit_s


class PhasedRings(RingNetwork):
    """The pace of jobs that share links only while they communicate, over a lab's circuits.

    Only jobs that share links with one that comes, goes or moves get another pace. They send in
    turns if the lab's file says so.
    """

    def __init__(self, network: LabCluster) -> None:
        super().__init__(network, network.wire)
        self._set_paces_of = (
            set_slots_of if network.lab.policies.interleave else set_paces_of
        )
        self._together: set[
            frozenset[tuple[int, frozenset[tuple[Hashable, int]]]]
        ] = set()

    def new_paces(self) -> Iterator[tuple[RingShare, float]]:
        """The jobs whose pace changes, each with its seconds for a unit."""
        wire = self._wire
        capacity_bps = self._network.capacity_bps
        phased = {
            PhasedJob(
                job.demand,
                job.load.compute_s,
                job.load.ring_bits * wire,
                job.remaining,
            ): job
            for job in self._sharing.values()
        }
        known = self._together
        self._together = set()
        for group, capacities in groups(list(phased), capacity_bps):
            key = frozenset(
                (phased[each].index, frozenset(each.demand.items()))
                for each in group
            )
            self._together.add(key)
            if key in known and all(
                phased[each].unit_s < math.inf for each in group
            ):
                continue
            self._set_paces_of(group, capacities)
            for each in group:
                if each.pace_s != phased[each].unit_s:
                    yield phased[each], each.pace_s


@dataclass(frozen=True)
class TwoLevel:
    """Racks of servers with GPUs; each GPU has a NIC, each rack one uplink.

    A rack's uplink has the rate of all its NICs divided by ``oversubscription``, in each
    direction. The network above the racks is not blocking. Within a rack every NIC has its rate.
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
                f"expected at least 1 of each, and at most {MAX_GPUS} GPUs in total"
            )
        if not (
            math.isfinite(self.oversubscription) and self.oversubscription >= 1
        ):
            raise BadInput(
                f"racks cannot be oversubscribed {self.oversubscription} times: expected 1 or more"
            )
        if not (math.isfinite(self.nic_bps) and self.nic_bps > 0):
            raise BadInput(
                f"NICs cannot have {self.nic_bps} bit/s: expected more than 0"
            )

    @classmethod
    def parse(cls, text: str) -> TwoLevel:
        """``"16x16x8,taper=2"``: racks × servers per rack × GPUs per server; else ``BadInput``."""
        form = r"(\d{1,7})[x×](\d{1,7})[x×](\d{1,7})(?:,taper=([\d.]+))?"
        match = re.fullmatch(form, text.strip())
        try:
            *sizes, taper = match.groups("1") if match else ()
            racks, servers, gpus = map(int, sizes)
            return cls(
                racks,
                servers,
                gpus,
                oversubscription=float(taper),
            )
        except ValueError as error:
            raise BadInput(
                f"{text!r} is not a cluster: expected racks x servers x GPUs, like 16x16x8 or "
                "16x16x8,taper=2"
            ) from error

    @cached_property
    def shape(self) -> ClusterShape:
        """Server by server, rack by rack."""
        names = [
            (r, s) for r in range(self.racks) for s in range(self.servers)
        ]
        return ClusterShape(
            gpus=tuple(
                GpuSite(
                    f"rack{rack + 1}.server{server + 1}.gpu{gpu}", number, rack
                )
                for number, (rack, server) in enumerate(names)
                for gpu in range(self.gpus)
            ),
            servers=tuple(
                f"rack{rack + 1}.server{server + 1}" for rack, server in names
            ),
            racks=tuple(f"rack{rack + 1}" for rack in range(self.racks)),
        )

    @property
    def edge_bps(self) -> float:
        """A NIC's rate."""
        return self.nic_bps

    @cached_property
    def capacity_bps(self) -> Mapping[Hashable, float]:
        """The uplinks. A ring leaves a rack as often as it enters it: one direction is enough."""
        uplink_bps = (
            self.servers * self.gpus * self.nic_bps / self.oversubscription
        )
        return dict.fromkeys(range(self.racks), uplink_bps)

    @property
    def lab(self) -> None:
        """``None``: it cannot be rewired."""
        return None

    @property
    def circuits(self) -> Mapping[str, PortMap]:
        """Empty: no OCS."""
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
        """Empty: no OCS."""
        return {}

    def rewire(self, maps: Mapping[str, PortMap]) -> Rewiring:
        """``BadInput``: it has no circuits."""
        raise BadInput(
            f"cannot make circuits of {', '.join(maps)}: this cluster has no OCS",
            hint="choose topology 'keep', or a lab with an OCS",
        )

    def renewed(self) -> TwoLevel:
        """Itself: its wiring never changes."""
        return self

    def pacing(self) -> RingNetwork:
        """Rings that communicate all the time."""
        return RingNetwork(self)


class LabCluster:
    """The hosts of a lab that have a GPU, and its links as wired now.

    An edge of a ring goes from one NIC over packet switches to the other NIC, on the path of the
    lab's flow tables.
    """

    def __init__(
        self, lab: Lab, circuits: Mapping[str, PortMap] | None = None
    ) -> None:
        self.lab = lab
        self.circuits: Mapping[str, PortMap] = Frozen(
            circuits or lab.initial_maps
        )
        network = LabNetwork(lab, trace_links(lab, self.circuits))
        self.hosts: tuple[Host, ...] = network.hosts
        self.nic_bps = network.nic_bps
        self.edge_bps = network.edge_bps
        servers = {
            server.name: number for number, server in enumerate(lab.servers)
        }
        self._racks = {
            switch.name: number
            for number, switch in enumerate(lab.packet_switches)
        }
        self._ports: dict[int, Mapping[str, Set[int]]] = {}
        self._first: LabCluster | None = None
        self.shape = ClusterShape(
            gpus=tuple(
                GpuSite(
                    host.name,
                    servers[host.server.name],
                    -1,
                    host.gpu.model if host.gpu else "",
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
        """Rings that compute and communicate in turns, over the present links."""
        return PhasedRings(self)

    def _show(self, network: LabNetwork) -> None:
        """Store the present links, and the location of each GPU with a new circuit."""
        self._network = network
        self.links = network.links
        self.wire = network.wire
        self.capacity_bps: Mapping[Hashable, float] = network.capacity_bps
        relit = members(network.relit)
        self._asked: tuple[int, Mapping[str, frozenset[int]]] | None = None
        self._ports = {
            gpu: ports
            for gpu, ports in self._ports.items()
            if not network.relit >> gpu & 1
        }
        racks = {}
        for number in relit:
            switch = network.switches[number]
            racks[number] = -1 if switch is None else self._racks[switch]
        self.shape = self.shape.relit(racks)

    def demand(self, ring: Sequence[int]) -> Demand | None:
        """The links of all edges; ``None`` if a NIC is dark or has no path to the next one."""
        return self._network.demand(ring)

    def ports_of(self, gpus: int) -> Mapping[str, frozenset[int]]:
        """The OCS ports on the optical paths of these GPUs' NICs, in both directions."""
        if self._asked is None or self._asked[0] != gpus:
            found: dict[str, list[Set[int]]] = {}
            for number in members(gpus):
                for ocs, ports in self._ports_at(number).items():
                    found.setdefault(ocs, []).append(ports)
            joined = {
                ocs: frozenset[int]().union(*ports)
                for ocs, ports in found.items()
            }
            # Asked again until a job comes or goes.
            self._asked = (
                gpus,
                Frozen(joined),
            )
        return self._asked[1]

    def _ports_at(self, gpu: int) -> Mapping[str, Set[int]]:
        """The OCS ports of one GPU's NIC."""
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
        """Switch all OCSs at once; each NIC whose optical path changes is dark meanwhile.

        ``BadInput`` for an OCS that the lab does not have.
        """
        changed = 0
        makes: dict[str, int] = {}
        circuits = dict(self.circuits)
        for name, wanted in maps.items():
            self.lab.circuit_switch(name)  # raises if there is none
            if change := circuits.get(name, PortMap()).diff(wanted):
                changed += len(change.breaks) + len(change.makes)
                makes[name] = len(change.makes)
                circuits[name] = wanted
        if not changed:
            return Rewiring(
                0.0,
                0,
                0,
                0,
            )
        self.circuits = Frozen(circuits)
        before = self.links.paths
        links, ends = self.links.after(circuits)
        self._show(self._network.after(links, ends))
        moved = 0
        for number in members(self._network.relit):
            if (end := self._network.ends[number]) in ends:
                paths = [before.get(end), links.paths.get(end)]
                # In labs with wavelengths a signal may take the same path and end elsewhere.
                if (paths[0] and paths[0].hops) != (
                    paths[1] and paths[1].hops
                ):
                    moved |= 1 << number
        return Rewiring(
            outage_s(self.lab, makes),
            changed,
            moved,
            self._network.relit,
        )
