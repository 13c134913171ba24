"""A lab file's cluster, rewired by its OCSs: the disaggregated lab of OFC 2022, or any other."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Hashable, Mapping, Sequence

from patchlight.controller.policies.contract import ClusterShape, GpuSite
from patchlight.emulation.simulator.cluster.cluster import Demand, Rewiring
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab import Host, Lab
from patchlight.testbed.portmap import PortMap
from patchlight.testbed.wiring import trace_links

# A link for which the lab file sets no limit.
_UNLIMITED_BPS = 1e15


class LabCluster:
    """The hosts of a lab that have a GPU, and its links as lit now.

    A ring's edge goes from one NIC over packet switches to the other NIC, the way of fewest
    switches; parallel fibres between two switches count as one link of their joint rate.
    """

    def __init__(self, lab: Lab, circuits: Mapping[str, PortMap] | None = None) -> None:
        self.lab = lab
        self.hosts: tuple[Host, ...] = tuple(host for host in lab.hosts if host.gpu is not None)
        if not self.hosts:
            raise BadInput(f"lab {lab.name} has no GPU with a NIC: there is nothing to run jobs on")
        rates = [host.nic.rate_bps for host in self.hosts]
        self.nic_bps = float(min((rate for rate in rates if rate), default=_UNLIMITED_BPS))
        self.edge_bps = math.inf  # NICs are among the links.
        self.circuits: Mapping[str, PortMap] = dict(circuits or lab.initial_maps)
        self._look()

    def renewed(self) -> LabCluster:
        """The same lab with the cross-connects of its file."""
        return LabCluster(self.lab)

    def _look(self) -> None:
        """Follow the light and write down which links there are."""
        lab, links = self.lab, trace_links(self.lab, self.circuits)
        self.links = links
        racks = tuple(switch.name for switch in lab.packet_switches)
        servers = tuple(server.name for server in lab.servers)
        self._switch = [links.switch_of(lab, host.endpoint) for host in self.hosts]
        self.shape = ClusterShape(
            gpus=tuple(
                GpuSite(
                    host.name,
                    servers.index(host.server.name),
                    -1 if switch is None else racks.index(switch),
                    host.gpu.model if host.gpu else "",
                )
                for host, switch in zip(self.hosts, self._switch, strict=True)
            ),
            servers=servers,
            racks=racks,
        )
        self.capacity_bps: dict[Hashable, float] = {}
        for number, host in enumerate(self.hosts):
            path = links.paths.get(host.endpoint)
            limits = [host.nic.rate_bps, None if path is None else path.rate_bps]
            rate_bps = float(min((limit for limit in limits if limit), default=_UNLIMITED_BPS))
            # What it sends and what it receives.
            self.capacity_bps[number, "up"] = self.capacity_bps[number, "down"] = rate_bps
        self._beside: dict[str, list[str]] = {rack: [] for rack in racks}
        for end, path in links.paths.items():
            if end.device in self._beside and path.sink.device in self._beside:
                link = (end.device, path.sink.device)
                if path.sink.device not in self._beside[end.device]:
                    self._beside[end.device].append(path.sink.device)
                rate = float(path.rate_bps or _UNLIMITED_BPS)
                self.capacity_bps[link] = self.capacity_bps.get(link, 0.0) + rate
        self._ways: dict[tuple[str, str], tuple[str, ...] | None] = {}

    def demand(self, ring: Sequence[int]) -> Demand | None:
        """The links of all edges; ``None`` if a NIC is dark or no way leads to the next one."""
        found: dict[Hashable, int] = {}
        if len(ring) == 1:
            return found
        for gpu, following in zip(ring, [*ring[1:], ring[0]], strict=True):
            here, there = self._switch[gpu], self._switch[following]
            way = None if here is None or there is None else self._way(here, there)
            if way is None:
                return None
            hops = [(gpu, "up"), *itertools.pairwise(way), (following, "down")]
            for link in hops:
                found[link] = found.get(link, 0) + 1
        return found

    def _way(self, start: str, end: str) -> tuple[str, ...] | None:
        """The packet switches from one to another, fewest first."""
        if (start, end) not in self._ways:
            came_from: dict[str, str] = {start: start}
            reached = deque([start])
            while reached and end not in came_from:
                here = reached.popleft()
                for beside in self._beside[here]:
                    if beside not in came_from:
                        came_from[beside] = here
                        reached.append(beside)
            way: list[str] | None = [end] if end in came_from else None
            while way is not None and way[-1] != start:
                way.append(came_from[way[-1]])
            self._ways[start, end] = None if way is None else tuple(reversed(way))
        return self._ways[start, end]

    def ports_of(self, gpus: int) -> Mapping[str, frozenset[int]]:
        """The OCS ports on the light paths of these GPUs' NICs, there and back."""
        found: dict[str, set[int]] = {}
        for number, host in enumerate(self.hosts):
            path = self.links.paths.get(host.endpoint) if gpus >> number & 1 else None
            back = None if path is None else self.links.paths.get(path.sink)
            for each in (path, back):
                for ocs, hop in each.hops if each is not None else ():
                    found.setdefault(ocs, set()).update((hop.inp, hop.out))
        return {ocs: frozenset(ports) for ocs, ports in found.items()}

    def rewire(self, maps: Mapping[str, PortMap]) -> Rewiring:
        """All OCSs switch at once; dark is every NIC whose light goes another way than before.

        ``BadInput`` for an OCS that the lab does not have.
        """
        dark_s, changed, before = 0.0, 0, self.links
        circuits = dict(self.circuits)
        for name, wanted in maps.items():
            ocs = self.lab.circuit_switch(name)
            now = set(circuits.get(name, PortMap()))
            different = now ^ set(wanted)
            if different:
                changed += len(different)
                dark_s = max(dark_s, ocs.switching_time_s)
                circuits[name] = wanted
        if not changed:
            return Rewiring(0.0, 0, 0)
        self.circuits = circuits
        self._look()
        moved = 0
        for number, host in enumerate(self.hosts):
            paths = [links.paths.get(host.endpoint) for links in (before, self.links)]
            if (paths[0] and paths[0].hops) != (paths[1] and paths[1].hops):
                moved |= 1 << number
        return Rewiring(dark_s, changed, moved)
