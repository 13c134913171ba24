"""A lab as a network of links that rings share: which there are, their rates, who uses which."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from copy import copy

from patchlight.controller.openflow.forwarding import Ways
from patchlight.controller.prediction.sharing import UNLIMITED_BPS as UNLIMITED_BPS
from patchlight.controller.prediction.sharing import Demand
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Endpoint, Host, Lab
from patchlight.testbed.lab.wiring import Links


def slowest_nic_bps(lab: Lab) -> float:
    """The rate of the slowest NIC that has a GPU: what an edge of any ring has at best."""
    rates = [host.nic.rate_bps for host in lab.hosts if host.gpu is not None]
    return float(min((rate for rate in rates if rate), default=UNLIMITED_BPS))


class LabNetwork:
    """The directed links between the NICs of a lab's GPUs, as lit.

    A ring's edge goes from one NIC over packet switches to the other, the way that the flow
    tables have; where light joins the two NICs themselves, over nothing else. GPUs are numbered as
    ``hosts``, in the order of the lab file. A link is
    ``(number, "up" | "down")`` at a NIC, ``(switch, switch)`` between switches, and
    ``(switch, switch, port)`` for one of several fibres between the same two. Rates are those of
    the lab file, not divided by its scale. ``BadInput`` for a lab without GPUs that have a NIC.
    """

    edge_bps = float("inf")  # NICs are among the links.

    def __init__(self, lab: Lab, links: Links) -> None:
        self.lab, self.links = lab, links
        self.hosts: tuple[Host, ...] = tuple(host for host in lab.hosts if host.gpu is not None)
        if not self.hosts:
            raise BadInput(f"lab {lab.name} has no GPU with a NIC: there is nothing to run jobs on")
        self.ends = [host.endpoint for host in self.hosts]
        self._numbers = {host.name: number for number, host in enumerate(self.hosts)}
        self.nic_bps = slowest_nic_bps(lab)
        self.switches: list[str | None] = [None] * len(self.hosts)
        self.capacity_bps: dict[Hashable, float] = {}
        for number in range(len(self.hosts)):
            self._light(number)
        self._ways = Ways(lab, links)
        self._link_at: dict[Endpoint, tuple[str, str] | tuple[str, str, int]] = {}
        for switch, trunks in self._ways.trunks.items():
            beside = [neighbour for _, neighbour in trunks]
            for port, neighbour in trunks:
                end = Endpoint(switch, str(port))
                alone = beside.count(neighbour) == 1
                link = (switch, neighbour) if alone else (switch, neighbour, port)
                self._link_at[end] = link
                self.capacity_bps[link] = float(links.paths[end].rate_bps or UNLIMITED_BPS)
        self._edges: dict[tuple[int, int], tuple[Hashable, ...] | None] = {}
        self.relit = (1 << len(self.hosts)) - 1

    def after(self, links: Links, moved: Collection[Endpoint]) -> LabNetwork:
        """The network under other links, as ``Links.after`` gives them with what ``moved``.

        Only what is lit another way is looked at; all of it where links between switches are. The
        new one's ``relit`` are the GPUs whose links may be others, as a set.
        """
        switches, touched = self._ways.trunks, set(moved)
        for source in moved:
            for path in (self.links.paths.get(source), links.paths.get(source)):
                if path is not None:
                    touched.add(path.sink)
                    if source.device in switches and path.sink.device in switches:
                        return LabNetwork(self.lab, links)
        found = copy(self)
        found.links, found._edges, found.relit = links, {}, 0
        found.switches, found.capacity_bps = self.switches.copy(), self.capacity_bps.copy()
        for number, end in enumerate(self.ends):
            if end in touched:
                found._light(number)
                found.relit |= 1 << number
        return found

    @property
    def trunks(self) -> tuple[tuple[str, str] | tuple[str, str, int], ...]:
        """The directed links between packet switches."""
        return tuple(self._link_at.values())

    def _light(self, number: int) -> None:
        """Under which switch a GPU's NIC is, and at which rate it sends and receives."""
        end = self.ends[number]
        self.switches[number] = self.links.switch_of(self.lab, end)
        path = self.links.paths.get(end)
        limits = [self.hosts[number].nic.rate_bps, None if path is None else path.rate_bps]
        rate_bps = float(min((limit for limit in limits if limit), default=UNLIMITED_BPS))
        self.capacity_bps[number, "up"] = self.capacity_bps[number, "down"] = rate_bps

    def demand(self, ring: Sequence[int]) -> Demand | None:
        """The links of all edges; ``None`` if a NIC is dark or no way leads to the next one."""
        found: dict[Hashable, int] = {}
        if len(ring) == 1:
            return found
        for gpu, following in zip(ring, [*ring[1:], ring[0]], strict=True):
            links = self.way(gpu, following)
            if links is None:
                return None
            for link in links:
                found[link] = found.get(link, 0) + 1
        return found

    def way(self, gpu: int, following: int) -> tuple[Hashable, ...] | None:
        """The links from one GPU's NIC to another's; ``None`` if there is no light."""
        edge = gpu, following
        if edge not in self._edges:
            self._edges[edge] = self._edge(gpu, following)
        return self._edges[edge]

    def number(self, name: str) -> int:
        """The number of a host; ``BadInput`` if there is none of that name with a GPU."""
        host = self.lab.host(name)
        if host.name not in self._numbers:
            raise BadInput(f"{host.name} has no GPU: no worker runs there")
        return self._numbers[host.name]

    def words(self, link: Hashable) -> str:
        """A link for people: ``the NIC of server1.gpu0``, ``the link from tor1 to tor2``."""
        match link:
            case (int(number), str(way)):
                return f"the NIC of {self.hosts[number].name} ({way})"
            case (str(here), str(there)):
                return f"the link from {here} to {there}"
            case (str(here), str(there), int(port)):
                return f"the link from {here}.{port} to {there}"
        return str(link)

    def _edge(self, gpu: int, following: int) -> tuple[Hashable, ...] | None:
        if self.links.peer(self.ends[gpu]) == self.ends[following]:
            return (gpu, "up"), (following, "down")
        here, there = self.switches[gpu], self.switches[following]
        if here is None or there is None:
            return None
        if here == there:
            return (gpu, "up"), (following, "down")
        way = self._ways.to_nic(here, self.hosts[following], there)
        if way is None:
            return None
        return ((gpu, "up"), *(self._link_at[end] for end in way), (following, "down"))
