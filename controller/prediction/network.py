"""The links of a lab, which rings share, and what jobs have to do on them.

All edges of a job's ring have the rate of the slowest, because a ring all-reduce moves in step; a
job with several edges on a link gets as many shares of it. Rates of all jobs rise together until a
link is full; its jobs stay there and the others continue (progressive filling, Bertsekas and
Gallager, *Data Networks*, 1992, §6.5.2, with a job's edges as one session).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from copy import copy
from typing import NamedTuple

from patchlight.controller.packet_switches.openflow.forwarding import Ways
from patchlight.controller.prediction.framing import (
    EMULATED_BYTES,
    ETHERNET_BYTES,
    tcp,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Endpoint, Host, Lab
from patchlight.testbed.lab.wiring import Links

UNLIMITED_BPS = 1e15
"""The rate of a link without a limit in the lab file."""
_MTU = 1500
MACHINE = "machine"
"""The emulating machine, which all packet switches of an emulated lab share."""

Demand = Mapping[Hashable, int]
"""How many edges of a ring use each directed link."""


class Training(NamedTuple):
    """Synchronous data-parallel training, as in the lab's ``JobSpec``.

    ``compute_s`` are the seconds of one iteration by GPU model; the slowest GPU sets the pace. If
    an iteration's work is ``split``, each of n workers computes for an n-th of that.
    """

    iterations: float
    gradient_bytes: float
    compute_s: Mapping[str, float]
    split: bool = False

    def slowest_s(self, workers: int, models: Collection[str]) -> float:
        """The compute time of an iteration with that many workers on these GPU models."""
        slowest_s = max(self.compute_s[model] for model in models)
        return slowest_s / workers if self.split else slowest_s


class Load(NamedTuple):
    """A placed job's work: a number of units, each with computing and bits per edge."""

    units: float
    compute_s: float
    ring_bits: float

    def unit_s(self, rate_bps: float) -> float:
        """Seconds of a unit, computing first, at this edge rate: T = C + V/B; infinity at 0."""
        if not self.ring_bits:
            return self.compute_s
        return (
            self.compute_s + self.ring_bits / rate_bps
            if rate_bps
            else math.inf
        )

    def mean_bps(self, rate_bps: float) -> float:
        """The mean rate of an edge over a unit, if it has this rate while it sends."""
        return (
            self.ring_bits / self.unit_s(rate_bps) if self.ring_bits else 0.0
        )


def ring_bits(workers: int, gradient_bytes: float) -> float:
    """Bits over each edge of a ring all-reduce: V = 2(n−1)/n · 8 · bytes (Patarasuk and Yuan, JPDC
    2009)."""
    return 2 * (workers - 1) / workers * 8 * gradient_bytes


def training_load(
    name: str,
    training: Training,
    workers: int,
    models: Collection[str],
) -> Load:
    """The work of a training on GPUs of these models, which it must know, per iteration."""
    compute_s = training.compute_s
    unknown = sorted({model for model in models if model not in compute_s})
    if unknown:
        raise BadInput(
            f"job {name}: the compute time on {', '.join(unknown)} is unknown; known: "
            f"{', '.join(compute_s)}"
        )
    slowest_s = training.slowest_s(workers, models)
    if not 0 < slowest_s < math.inf:
        raise BadInput(
            f"job {name}: a compute time of {slowest_s} s per iteration is not possible"
        )
    return Load(
        training.iterations,
        slowest_s,
        ring_bits(workers, training.gradient_bytes),
    )


def fair_rates(
    demands: Sequence[Demand],
    capacity_bps: Mapping[Hashable, float],
    most_bps: float = math.inf,
) -> list[float]:
    """The rate in bit/s of an edge of each ring, ``most_bps`` if no link limits it."""
    rates = [most_bps] * len(demands)
    settled = [False] * len(demands)
    left = {link: capacity_bps[link] for demand in demands for link in demand}
    weight = dict.fromkeys(left, 0)
    rings_on: dict[Hashable, list[int]] = {link: [] for link in left}
    for ring, demand in enumerate(demands):
        for link, edges in demand.items():
            weight[link] += edges
            rings_on[link].append(ring)
    while weight:
        full = min(weight, key=lambda link: left[link] / weight[link])
        rate = left[full] / weight[full]
        if rate >= most_bps:
            break
        for ring in rings_on[full]:
            if settled[ring]:
                continue
            rates[ring] = rate
            settled[ring] = True
            for link, edges in demands[ring].items():
                left[link] = max(0.0, left[link] - edges * rate)
                weight[link] -= edges
                if not weight[link]:
                    del weight[link]
    return rates


def slowest_nic_bps(lab: Lab) -> float:
    """The rate of the slowest NIC with a GPU, or of its fibre if that is
    slower: the maximum of any ring's edge."""
    fibre_bps = {
        end: fibre.rate_bps
        for fibre in lab.fibres
        for end in (fibre.a, fibre.b)
    }
    limits = [
        limit
        for host in lab.hosts
        if host.gpu is not None
        for limit in (host.nic.rate_bps, fibre_bps.get(host.endpoint))
        if limit
    ]
    return float(min(limits, default=UNLIMITED_BPS))


class LabNetwork:
    """The directed links between the NICs of a lab's GPUs, over the present circuits.

    A ring's edge takes the route of the flow tables from one NIC to the other; between two NICs
    of one circuit it uses no other link. GPUs are numbered as ``hosts``, in the order of the lab
    file. A link is ``(number, "up" | "down")`` at a NIC, ``(switch, switch)`` between switches,
    and ``(switch, switch, port)`` for one of several fibres between the same two. Rates are those
    of the lab file, not divided by its scale; predictions of an emulated lab also share
    the ``MACHINE``, decisions do not. ``wire`` is the number of bits on a link, headers and
    acknowledgements included, for each bit of a ring. ``BadInput`` for a lab without GPUs that have
    a NIC.
    """

    edge_bps = float("inf")  # NICs are among the links.

    def __init__(self, lab: Lab, links: Links) -> None:
        self.lab = lab
        self.links = links
        self.hosts: tuple[Host, ...] = tuple(
            host for host in lab.hosts if host.gpu is not None
        )
        if not self.hosts:
            raise BadInput(
                f"lab {lab.name} has no GPU with a NIC, so jobs cannot run"
            )
        self.ends = [host.endpoint for host in self.hosts]
        self._numbers = {
            host.name: number for number, host in enumerate(self.hosts)
        }
        mtu = min(host.nic.mtu or _MTU for host in self.hosts)
        emulated = lab.scale != 1 or lab.machine_rate_bps is not None
        framing = tcp(mtu, EMULATED_BYTES if emulated else ETHERNET_BYTES)
        # A ring's edges leave a part of the lab as often as they enter it.
        self.wire = framing.there + framing.back
        self.nic_bps = slowest_nic_bps(lab) / self.wire
        self.switches: list[str | None] = [None] * len(self.hosts)
        self.capacity_bps: dict[Hashable, float] = {}
        if lab.machine_rate_bps is not None:
            self.capacity_bps[MACHINE] = lab.machine_rate_bps * lab.scale
        for number in range(len(self.hosts)):
            self._light(number)
        self._ways = Ways(lab, links)
        self._link_at: dict[
            Endpoint, tuple[str, str] | tuple[str, str, int]
        ] = {}
        for switch, trunks in self._ways.trunks.items():
            beside = [neighbour for _, neighbour in trunks]
            for port, neighbour in trunks:
                end = Endpoint(switch, str(port))
                alone = beside.count(neighbour) == 1
                link = (
                    (switch, neighbour) if alone else (switch, neighbour, port)
                )
                self._link_at[end] = link
                self.capacity_bps[link] = float(
                    links.paths[end].rate_bps or UNLIMITED_BPS
                )
        self._edges: dict[tuple[int, int], tuple[Hashable, ...] | None] = {}
        self.relit = (1 << len(self.hosts)) - 1

    def after(self, links: Links, moved: Collection[Endpoint]) -> LabNetwork:
        """The network with the ``Links.after`` of the ends that ``moved``; rebuilt if links between
        switches differ. Its ``relit`` are the GPUs whose links may differ, as a set."""
        switches = self._ways.trunks
        touched = set(moved)
        for source in moved:
            for path in (
                self.links.paths.get(source),
                links.paths.get(source),
            ):
                if path is not None:
                    touched.add(path.sink)
                    if (
                        source.device in switches
                        and path.sink.device in switches
                    ):
                        return LabNetwork(self.lab, links)
        found = copy(self)
        found.links = links
        found._edges = {}
        found.relit = 0
        found.switches = self.switches.copy()
        found.capacity_bps = self.capacity_bps.copy()
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
        end = self.ends[number]
        self.switches[number] = self.links.switch_of(self.lab, end)
        path = self.links.paths.get(end)
        limits = [
            self.hosts[number].nic.rate_bps,
            None if path is None else path.rate_bps,
        ]
        rate_bps = float(
            min((limit for limit in limits if limit), default=UNLIMITED_BPS)
        )
        self.capacity_bps[number, "up"] = self.capacity_bps[number, "down"] = (
            rate_bps
        )

    def demand(self, ring: Sequence[int]) -> Demand | None:
        """The links of all edges; ``None`` if a NIC has no circuit or no route to the next one."""
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
        """The links from one GPU's NIC to another's; ``None`` without a route."""
        edge = gpu, following
        if edge not in self._edges:
            self._edges[edge] = self._edge(gpu, following)
        return self._edges[edge]

    def number(self, name: str) -> int:
        """The number of a host; ``BadInput`` if there is none of that name with a GPU."""
        host = self.lab.host(name)
        if host.name not in self._numbers:
            raise BadInput(
                f"{host.name} has no GPU, so workers cannot run there"
            )
        return self._numbers[host.name]

    def words(self, link: Hashable) -> str:
        """A link as text: ``the NIC of server1.gpu0``, ``the link from tor1 to tor2``."""
        match link:
            case (int(number), str(way)):
                return f"the NIC of {self.hosts[number].name} ({way})"
            case (str(here), str(there)):
                return f"the link from {here} to {there}"
            case (str(here), str(there), int(port)):
                return f"the link from {here}.{port} to {there}"
        return str(link)

    def _edge(self, gpu: int, following: int) -> tuple[Hashable, ...] | None:
        here = self.switches[gpu]
        there = self.switches[following]
        joined = self.links.peer(self.ends[gpu]) == self.ends[following]
        if joined or (here is not None and here == there):
            return (gpu, "up"), (following, "down")
        if here is None or there is None:
            return None
        way = self._ways.to_nic(here, self.hosts[following], there)
        if way is None:
            return None
        return (
            (gpu, "up"),
            *(self._link_at[end] for end in way),
            (following, "down"),
        )
