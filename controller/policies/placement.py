"""Placement policies: which GPUs a job gets.

All let the job wait where it finds too few free GPUs of its models. GPUs that are dark, under no
packet switch, are taken last.
"""

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from patchlight.controller.policies.contract import ClusterView, JobView
from patchlight.controller.policies.ring_order import ring_order
from patchlight.controller.policies.sets import (
    FreeByPlace,
    FreeGroups,
    Taken,
    lowest,
    members,
    pack,
)
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.wiring import circuit_ports


class FirstFit:
    """The free GPUs that come first in the cluster's order."""

    def place(self, cluster: ClusterView, job: JobView, workers: int) -> Sequence[int] | None:
        found = lowest(cluster.free_for(job), workers)
        return found if len(found) == workers else None


class _ByGroup:
    """Takes GPUs by server or rack: of the group with the least room left over, else of few."""

    by: Literal["server", "rack"]

    def __init__(self) -> None:
        self._groups = FreeByPlace(self.by)

    def place(self, cluster: ClusterView, job: JobView, workers: int) -> Sequence[int] | None:
        free = cluster.free_for(job)
        if free.bit_count() < workers:
            return None
        return self._take(cluster, free, self._groups.look(cluster.shape, job, free), workers)

    def _take(self, cluster: ClusterView, free: int, groups: FreeGroups, workers: int) -> list[int]:
        return groups.lowest(groups.packed(workers))


class BestFit(_ByGroup):
    """The server that holds the job with the least room left over, else as few as possible."""

    by = "server"


class Consolidated(_ByGroup):
    """The packet switch that holds the job with the least room left over, else as few as possible.

    So a job's traffic passes few links between packet switches; its ring takes those in turn that
    are near each other.
    """

    by = "rack"

    def _take(self, cluster: ClusterView, free: int, groups: FreeGroups, workers: int) -> list[int]:
        return _as_ring(cluster, free, groups.lowest(groups.packed(workers)), workers)


class RackAware(_ByGroup):
    """As few packet switches as possible, and under each as few servers as possible."""

    by = "rack"

    def _take(self, cluster: ClusterView, free: int, groups: FreeGroups, workers: int) -> list[int]:
        sites, found = cluster.shape.gpus, list[int]()
        for rack, count in groups.packed(workers):
            gpus, servers = groups.gpus[rack], dict[int, int]()
            for place in members(groups.free[rack]):
                server = sites[gpus[place]].server
                servers[server] = servers.get(server, 0) | 1 << place
            parts = [servers[server] for server in sorted(servers)]
            found += [gpus[place] for place in pack(parts, count)]
        return _as_ring(cluster, free, found, workers)


def _as_ring(cluster: ClusterView, free: int, found: list[int], workers: int) -> list[int]:
    """What racks give, and dark GPUs where that is too little."""
    if len(found) < workers:
        for rack in cluster.shape.rack_gpus:
            free &= ~rack
        found = found + lowest(free, workers - len(found))
    # They come rack by rack: the order of racks matters only where some are nearer than others.
    return found if cluster.lab is None else ring_order(cluster, found)


class RandomPlacement:
    """Any free GPUs, each set as likely; the seed fixes the choices."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def place(self, cluster: ClusterView, job: JobView, workers: int) -> Sequence[int] | None:
        free = members(cluster.free_for(job))
        return self._random.sample(free, workers) if len(free) >= workers else None


class FragmentationAware(_ByGroup):
    """The server on which the job makes fragments grow least; large jobs take whole servers first.

    Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
    Gradient Descent", USENIX ATC 2023, for jobs that take whole GPUs: a server's free GPUs are a
    fragment for a job that wants more than there are. How much of a server is fragment is the mean
    over the jobs that came lately. A job that wants more GPUs than a server has counts as one that
    wants a whole server, as that is what it takes first.
    """

    by = "server"

    def _take(self, cluster: ClusterView, free: int, groups: FreeGroups, workers: int) -> list[int]:
        wanted = [each.workers for each in cluster.recent] or [workers]
        fragment = _fragments(wanted, groups.most)
        taken, fitting = groups.whole(workers)

        def grows(each: Taken) -> tuple[float, int]:
            size = groups.free[each.group].bit_count()
            # Of equals the fullest server, as in the paper's simulator.
            return fragment[size - each.size] - fragment[size], size

        if fitting:
            taken.append(min(fitting, key=grows))
        return groups.lowest(taken)


def _fragments(wanted: Sequence[int], most: int) -> list[float]:
    """For each number of free GPUs of a server: how many of them are fragment, in the mean."""
    sizes = Counter(min(each, most) for each in wanted if each > 0)
    total = max(1, sum(sizes.values()))
    return [
        free * sum(count for size, count in sizes.items() if size > free) / total
        for free in range(most + 1)
    ]


class _Wiring(NamedTuple):
    """What never changes: each GPU's NIC port at its OCS, and the ports facing each switch."""

    lab: Lab
    nics: Mapping[int, tuple[str, int]]
    facing: Mapping[tuple[str, str], frozenset[int]]


class UnderOneSwitch(NamedTuple):
    """GPUs under one switch after so many moves; sorted, the best one is the first."""

    moves: int
    left_over: int
    rack: int
    gpus: list[int]


class RegroupPlacement:
    """GPUs that can be lit onto one packet switch with the fewest moves, else *consolidated*.

    The placement that goes with the topology policy *regroup*, which can light them onto one switch
    without taking a running job's ports. Without an OCS it is *consolidated*.
    """

    def __init__(self) -> None:
        self._wiring: _Wiring | None = None
        # The last view, its tables of circuits, and the ports that busy GPUs are lit to.
        self._last: (
            tuple[ClusterView, Mapping[str, Mapping[int, int]], set[tuple[str, int]]] | None
        ) = None
        self._otherwise = Consolidated()

    def place(self, cluster: ClusterView, job: JobView, workers: int) -> Sequence[int] | None:
        if cluster.free_for(job).bit_count() < workers:
            return None
        if possible := self.choices(cluster, job, workers):
            return min(possible).gpus
        return self._otherwise.place(cluster, job, workers)

    def choices(self, cluster: ClusterView, job: JobView, workers: int) -> list[UnderOneSwitch]:
        """For each packet switch the GPUs that can be lit onto it; none without an OCS."""
        if cluster.lab is None or not cluster.lab.circuit_switches:
            return []
        wiring = self._look(cluster, cluster.lab)
        if self._last is None or self._last[0] is not cluster:
            # Once for all: a port map makes its table anew each time.
            tables: Mapping[str, Mapping[int, int]] = {
                ocs: present.out_of for ocs, present in cluster.circuits.items()
            }
            held = _Site(cluster, wiring, tables, 0).held(cluster.occupied)
            self._last = cluster, tables, held
        _, tables, held = self._last
        site = _Site(cluster, wiring, tables, cluster.free_for(job))
        racks, movable = range(len(cluster.shape.racks)), site.movable()
        choices = [site.under(rack, held, movable, workers) for rack in racks]
        return [choice for choice in choices if choice is not None]

    def _look(self, cluster: ClusterView, lab: Lab) -> _Wiring:
        if self._wiring is None or self._wiring.lab is not lab:
            numbers = {gpu.name: number for number, gpu in enumerate(cluster.shape.gpus)}
            ends = {host.endpoint: host.name for host in lab.hosts if host.name in numbers}
            at = circuit_ports(lab, ends)
            switches = {switch.name for switch in lab.packet_switches}
            facing: dict[tuple[str, str], set[int]] = {}
            plugged = circuit_ports(lab, [e for e in lab.fibre_ends if e.device in switches])
            for end, (ocs, port) in plugged.items():
                facing.setdefault((ocs, end.device), set()).add(port)
            self._wiring = _Wiring(
                lab,
                {numbers[ends[end]]: port for end, port in at.items()},
                {uplinks: frozenset(ports) for uplinks, ports in facing.items()},
            )
        return self._wiring


class _Site(NamedTuple):
    """The lab now: each OCS's output by input, and the GPUs that the job can have."""

    cluster: ClusterView
    wiring: _Wiring
    tables: Mapping[str, Mapping[int, int]]
    free: int

    def held(self, gpus: int) -> set[tuple[str, int]]:
        """The OCS ports that these GPUs are lit to."""
        places = (self.wiring.nics[gpu] for gpu in members(gpus) if gpu in self.wiring.nics)
        lit = ((ocs, self.tables.get(ocs, {}).get(port)) for ocs, port in places)
        return {(ocs, out) for ocs, out in lit if out is not None}

    def under(
        self,
        rack: int,
        held: set[tuple[str, int]],
        movable: Mapping[str, Sequence[int]],
        workers: int,
    ) -> UnderOneSwitch | None:
        """``workers`` free GPUs under one packet switch; ``None`` if it cannot hold them.

        ``held`` are the OCS ports that busy GPUs are lit to, ``movable`` is what ``movable`` gives.
        """
        here = self.free & self.cluster.shape.rack_gpus[rack]
        room = here.bit_count() - workers
        if room >= 0:
            return UnderOneSwitch(0, room, rack, lowest(here, workers))
        missing, taken = -room, held | self.held(here)
        movers: list[int] = []
        room = 0
        for (ocs, switch), ports in self.wiring.facing.items():
            if switch == self.cluster.shape.racks[rack] and ocs in self.tables:
                barred = self.cluster.barred.get(ocs, frozenset())
                spare = sum((ocs, port) not in taken and port not in barred for port in ports)
                room += spare
                elsewhere = (gpu for gpu in movable.get(ocs, ()) if not here >> gpu & 1)
                movers += itertools.islice(elsewhere, spare)
        if len(movers) < missing:
            return None
        return UnderOneSwitch(missing, room - missing, rack, members(here) + movers[:missing])

    def movable(self) -> dict[str, list[int]]:
        """The free GPUs whose circuits may change, by OCS; the dark ones first."""
        movable: dict[str, list[int]] = {}
        shape = self.cluster.shape
        for gpu in sorted(members(self.free), key=lambda number: shape.gpus[number].rack >= 0):
            ocs, port = self.wiring.nics.get(gpu, ("", 0))
            barred = self.cluster.barred.get(ocs, frozenset())
            lit_to = self.tables.get(ocs, {}).get(port)
            if ocs and port not in barred and lit_to not in barred:
                movable.setdefault(ocs, []).append(gpu)
        return movable
