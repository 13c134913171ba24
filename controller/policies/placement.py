"""Decides which GPUs a job gets, and in which order they form its ring.

A job waits if too few suitable GPUs are free. GPUs without a packet switch are taken last. A ring
that visits each packet switch once crosses two links per switch, the minimum; from four switches
on, their order matters.
"""

import itertools
import math
import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from patchlight.controller.packet_switches.openflow.forwarding import (
    Trunks,
    hops_to,
    trunks_of,
)
from patchlight.controller.policies.contract import (
    ClusterShape,
    ClusterView,
    JobView,
)
from patchlight.controller.policies.sets import (
    FreeGroups,
    Taken,
    lowest,
    members,
    pack,
)
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links

# Up to this many switches the shortest round is computed exactly; beyond, along a tree.
_TRIED_RACKS = 8
_KEPT = 4
_MOST_ROUNDS = 10_000
_MOST_KNOWN = 8


class _Rounds(NamedTuple):
    lab: Lab
    circuits: Mapping[str, PortMap]
    trunks: Trunks
    found: dict[tuple[int, ...], list[int]]


# The last few: placements need many rings at one moment.
_rounds: list[_Rounds] = []


def ring_order(cluster: ClusterView, gpus: Sequence[int]) -> list[int]:
    """These GPUs as a ring that crosses as few links between packet switches as possible.

    GPUs of one switch stay together in order; those without a switch come last. Up to eight
    switches it is the shortest round, on trees also beyond. Without a lab all racks are equally
    distant.
    """
    if len(gpus) < 3:
        return list(gpus)  # All rings are equal.
    under: dict[int, list[int]] = {}
    for gpu in gpus:
        under.setdefault(cluster.shape.gpus[gpu].rack, []).append(gpu)
    dark = under.pop(-1, [])
    racks = list(under)
    if len(racks) > 3 and cluster.lab is not None:
        racks = _round(cluster, cluster.lab, racks)
    return [gpu for rack in racks for gpu in under[rack]] + dark


def _round(
    cluster: ClusterView,
    lab: Lab,
    racks: Sequence[int],
) -> list[int]:
    global _rounds
    circuits = dict(cluster.circuits)
    known = next(
        (r for r in _rounds if r.lab is lab and r.circuits == circuits), None
    )
    if known is None:
        trunks = trunks_of(cluster.shape.racks, trace_links(lab, circuits))
        known = _Rounds(
            lab,
            circuits,
            trunks,
            {},
        )
        _rounds = [known, *_rounds[: _KEPT - 1]]
    key = tuple(racks)
    if len(known.found) >= _MOST_ROUNDS:
        known.found.clear()
    if key not in known.found:
        names = [cluster.shape.racks[rack] for rack in racks]
        round_trip = _shortest if len(names) <= _TRIED_RACKS else _along_a_tree
        known.found[key] = [
            racks[names.index(name)]
            for name in round_trip(names, known.trunks)
        ]
    return known.found[key]


def _shortest(names: Sequence[str], trunks: Trunks) -> list[str]:
    """The shortest round from the first through all (Held and Karp, 1962); the first in a tie."""
    hops = [
        [hops_to(trunks, a).get(b, math.inf) for b in names] for a in names
    ]
    others = range(1, len(names))
    # By the set of visited ones and the last of them: the distance and the order.
    best: Mapping[tuple[frozenset[int], int], tuple[float, tuple[int, ...]]]
    best = {
        (frozenset([each]), each): (hops[0][each], (each,)) for each in others
    }
    for _ in others[1:]:
        longer: dict[
            tuple[frozenset[int], int], tuple[float, tuple[int, ...]]
        ] = {}
        for ((visited, last), (far, way)), following in itertools.product(
            best.items(), others
        ):
            if following in visited:
                continue
            key = visited | {following}, following
            found = far + hops[last][following], (*way, following)
            longer[key] = min(longer.get(key, found), found)
        best = longer
    _, way = min(
        (far + hops[last][0], way) for (_, last), (far, way) in best.items()
    )
    return [names[number] for number in (0, *way)]


def _along_a_tree(names: Sequence[str], trunks: Trunks) -> list[str]:
    """All in the order of a walk around a tree of shortest paths from the first."""
    found: list[str] = []
    seen = set(names[:1])
    children: dict[str, list[str]] = {}
    waiting = deque(names[:1])
    while waiting:
        here = waiting.popleft()
        for _, neighbour in trunks[here]:
            if neighbour not in seen:
                seen.add(neighbour)
                children.setdefault(here, []).append(neighbour)
                waiting.append(neighbour)
    stack = list(names[:1])
    while stack:
        here = stack.pop()
        found.append(here)
        stack += reversed(children.get(here, []))
    wanted = set(names)
    met = [name for name in found if name in wanted]
    return [*met, *(name for name in names if name not in seen)]


_Port = tuple[str, int]  # OCS, port number


class FirstFit:
    """The free GPUs that come first in the cluster's order."""

    def place(
        self,
        cluster: ClusterView,
        job: JobView,
        workers: int,
    ) -> Sequence[int] | None:
        found = lowest(cluster.free_for(job), workers)
        return found if len(found) == workers else None


class _ByGroup:
    """Takes GPUs by server or rack: from the group with the least room left, else from few groups.

    Free GPUs are tracked between decisions, for each requested set of GPU models.
    """

    by_rack = True

    def __init__(self) -> None:
        self._shape: ClusterShape | None = None
        self._known: dict[frozenset[str], FreeGroups] = {}

    def place(
        self,
        cluster: ClusterView,
        job: JobView,
        workers: int,
    ) -> Sequence[int] | None:
        free = cluster.free_for(job)
        if free.bit_count() < workers:
            return None
        shape = cluster.shape
        if self._shape is not shape or len(self._known) > _MOST_KNOWN:
            self._shape = shape
            self._known = {}
        groups = self._known.get(job.gpu_models)
        if groups is None:
            places = [
                gpu.rack if self.by_rack else gpu.server for gpu in shape.gpus
            ]
            groups = FreeGroups(
                places, len(shape.racks if self.by_rack else shape.servers)
            )
            self._known[job.gpu_models] = groups
        groups.look(free)
        return self._take(
            cluster,
            free,
            groups,
            workers,
        )

    def _take(
        self,
        cluster: ClusterView,
        free: int,
        groups: FreeGroups,
        workers: int,
    ) -> list[int]:
        return groups.lowest(groups.packed(workers))


class BestFit(_ByGroup):
    """The server that holds the job with the least room left, else as few as possible."""

    by_rack = False


class Consolidated(_ByGroup):
    """The packet switch that holds the job with the least room left, else as few as possible.

    So a job's traffic crosses few links between packet switches; its ring visits near ones in turn.
    """

    def _take(
        self,
        cluster: ClusterView,
        free: int,
        groups: FreeGroups,
        workers: int,
    ) -> list[int]:
        return _as_ring(
            cluster,
            free,
            groups.lowest(groups.packed(workers)),
            workers,
        )


class RackAware(_ByGroup):
    """As few packet switches as possible, and under each as few servers as possible."""

    def _take(
        self,
        cluster: ClusterView,
        free: int,
        groups: FreeGroups,
        workers: int,
    ) -> list[int]:
        sites = cluster.shape.gpus
        found = list[int]()
        for rack, count in groups.packed(workers):
            gpus = groups.gpus[rack]
            servers = dict[int, int]()
            for place in members(groups.free[rack]):
                server = sites[gpus[place]].server
                servers[server] = servers.get(server, 0) | 1 << place
            parts = [servers[server] for server in sorted(servers)]
            found += [gpus[place] for place in pack(parts, count)]
        return _as_ring(
            cluster,
            free,
            found,
            workers,
        )


def _as_ring(
    cluster: ClusterView,
    free: int,
    found: list[int],
    workers: int,
) -> list[int]:
    if len(found) < workers:
        for rack in cluster.shape.rack_gpus:
            free &= ~rack
        found = found + lowest(free, workers - len(found))
    # They are in rack order, which matters only if some racks are nearer than others.
    return found if cluster.lab is None else ring_order(cluster, found)


class RandomPlacement:
    """Random free GPUs, every set equally likely; the seed makes it reproducible."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def place(
        self,
        cluster: ClusterView,
        job: JobView,
        workers: int,
    ) -> Sequence[int] | None:
        free = members(cluster.free_for(job))
        return (
            self._random.sample(free, workers)
            if len(free) >= workers
            else None
        )


class FragmentationAware(_ByGroup):
    """The server on which the job causes least fragmentation; large jobs take whole servers first.

    Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
    Gradient Descent", USENIX ATC 2023, for jobs that take whole GPUs: a server's free GPUs are a
    fragment for a job that wants more than there are. The fragmentation of a server is the mean
    over recent jobs. A job that wants more GPUs than a server has counts as one that wants a whole
    server, which it takes first.
    """

    by_rack = False

    def _take(
        self,
        cluster: ClusterView,
        free: int,
        groups: FreeGroups,
        workers: int,
    ) -> list[int]:
        wanted = [each.workers for each in cluster.recent] or [workers]
        fragment = _fragments(wanted, groups.most)
        taken, fitting = groups.whole(workers)

        def grows(each: Taken) -> tuple[float, int]:
            size = groups.free[each.group].bit_count()
            # In a tie the fullest server, as in the paper's simulator.
            return fragment[size - each.size] - fragment[size], size

        if fitting:
            taken.append(min(fitting, key=grows))
        return groups.lowest(taken)


def _fragments(wanted: Sequence[int], most: int) -> list[float]:
    """For each number of free GPUs of a server: the mean number that are a fragment."""
    sizes = Counter(min(each, most) for each in wanted if each > 0)
    total = max(1, sum(sizes.values()))
    return [
        free
        * sum(count for size, count in sizes.items() if size > free)
        / total
        for free in range(most + 1)
    ]


class UnderOneSwitch(NamedTuple):
    """GPUs under one switch after that many moves; sorted, best first."""

    moves: int
    left_over: int
    rack: int
    gpus: list[int]


class RegroupPlacement:
    """GPUs that can be connected to one packet switch with the fewest moves, else *consolidated*.

    Use it with the topology policy *regroup*, which connects them to one switch without taking a
    running job's ports. Without an OCS it is *consolidated*.
    """

    def __init__(self) -> None:
        # The last lab, and each GPU's NIC port at its OCS.
        self._nics: tuple[Lab, Mapping[int, _Port]] | None = None
        # The last view, its tables of circuits, and the ports used by busy GPUs.
        self._last: (
            tuple[ClusterView, Mapping[str, Mapping[int, int]], set[_Port]]
            | None
        ) = None
        self._otherwise = Consolidated()

    def place(
        self,
        cluster: ClusterView,
        job: JobView,
        workers: int,
    ) -> Sequence[int] | None:
        if cluster.free_for(job).bit_count() < workers:
            return None
        if possible := self.choices(cluster, job, workers):
            return min(possible).gpus
        return self._otherwise.place(cluster, job, workers)

    def choices(
        self,
        cluster: ClusterView,
        job: JobView,
        workers: int,
    ) -> list[UnderOneSwitch]:
        """For each packet switch the GPUs that can be connected to it; none without an OCS."""
        lab = cluster.lab
        if lab is None or not lab.circuit_switches:
            return []
        if self._nics is None or self._nics[0] is not lab:
            numbers = {
                gpu.name: number
                for number, gpu in enumerate(cluster.shape.gpus)
            }
            ends = {
                host.endpoint: host.name
                for host in lab.hosts
                if host.name in numbers
            }
            plugs = lab.host_plugs.items()
            self._nics = (
                lab,
                {numbers[ends[end]]: at for end, at in plugs if end in ends},
            )
        nics = self._nics[1]
        if self._last is None or self._last[0] is not cluster:
            # Cached: a port map rebuilds its table each time.
            tables: Mapping[str, Mapping[int, int]] = {
                ocs: present.out_of
                for ocs, present in cluster.circuits.items()
            }
            held = _Site(
                cluster,
                lab,
                nics,
                tables,
                0,
            ).held(cluster.occupied)
            self._last = cluster, tables, held
        _, tables, held = self._last
        site = _Site(
            cluster,
            lab,
            nics,
            tables,
            cluster.free_for(job),
        )
        racks = range(len(cluster.shape.racks))
        movable = site.movable()
        choices = [
            site.under(
                rack,
                held,
                movable,
                workers,
            )
            for rack in racks
        ]
        return [choice for choice in choices if choice is not None]


class _Site(NamedTuple):
    """The present lab: each OCS's output by input, and the job's available GPUs."""

    cluster: ClusterView
    lab: Lab
    nics: Mapping[int, _Port]
    tables: Mapping[str, Mapping[int, int]]
    free: int

    def held(self, gpus: int) -> set[_Port]:
        places = (self.nics[gpu] for gpu in members(gpus) if gpu in self.nics)
        lit = (
            (ocs, self.tables.get(ocs, {}).get(port)) for ocs, port in places
        )
        return {(ocs, out) for ocs, out in lit if out is not None}

    def under(
        self,
        rack: int,
        held: set[_Port],
        movable: Mapping[str, Sequence[int]],
        workers: int,
    ) -> UnderOneSwitch | None:
        """``workers`` free GPUs under one packet switch; ``None`` if it cannot hold them.

        ``held`` are the OCS ports of busy GPUs' circuits, ``movable`` is the result of ``movable``.
        """
        here = self.free & self.cluster.shape.rack_gpus[rack]
        room = here.bit_count() - workers
        if room >= 0:
            return UnderOneSwitch(
                0,
                room,
                rack,
                lowest(here, workers),
            )
        missing = -room
        taken = held | self.held(here)
        movers: list[int] = []
        room = 0
        for ocs, ports_of in self.lab.facing_ports.items():
            if (
                ports := ports_of.get(self.cluster.shape.racks[rack])
            ) and ocs in self.tables:
                barred = self.cluster.barred.get(ocs, frozenset())
                spare = sum(
                    (ocs, port) not in taken and port not in barred
                    for port in ports
                )
                room += spare
                elsewhere = (
                    gpu for gpu in movable.get(ocs, ()) if not here >> gpu & 1
                )
                movers += itertools.islice(elsewhere, spare)
        if len(movers) < missing:
            return None
        return UnderOneSwitch(
            missing,
            room - missing,
            rack,
            members(here) + movers[:missing],
        )

    def movable(self) -> dict[str, list[int]]:
        movable: dict[str, list[int]] = {}
        shape = self.cluster.shape
        for gpu in sorted(
            members(self.free), key=lambda number: shape.gpus[number].rack >= 0
        ):
            ocs, port = self.nics.get(gpu, ("", 0))
            barred = self.cluster.barred.get(ocs, frozenset())
            lit_to = self.tables.get(ocs, {}).get(port)
            if ocs and port not in barred and lit_to not in barred:
                movable.setdefault(ocs, []).append(gpu)
        return movable
