"""The lab as its queue sees it: gangs that wait or have hosts, and where policies put them.

A pass of the queue runs in a thread, on what was looked at just before: nothing here waits or
touches a device. What it starts and preempts is noted, and carried out after the pass.
"""

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from patchlight.controller.jobs.cluster_view import alone_s
from patchlight.controller.jobs.discipline.contract import JobFate, UserAccounts
from patchlight.controller.jobs.gangs import Gang
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.placement import LabSnapshot, Placed, Placement
from patchlight.controller.policies.contract import Frozen, Progress, RingOfJob, Running
from patchlight.controller.prediction.completion import RingWork, units_s
from patchlight.controller.prediction.network import LabNetwork
from patchlight.testbed.errors import PatchlightError, in_words
from patchlight.testbed.jobs import JobState, JobStatus
from patchlight.testbed.lab.rules import Waiting, WaitReason
from patchlight.testbed.lab.wiring import trace_links

_RETURNING = Waiting(WaitReason.NO_GPUS, "it was preempted, and still gives back its hosts")


@dataclass(eq=False)
class GangEntry:
    """A gang in the queue, or with hosts. ``statuses`` are its jobs as of the last look.

    ``nic_bps`` is the rate of the slowest NIC that it may get. ``returning``: it was preempted, and
    keeps its place in line while it still gives back its hosts.
    """

    index: int
    gang: Gang
    statuses: Sequence[JobStatus]
    nic_bps: float
    gpus: int = 0
    began_s: float = 0.0
    held: bool = False
    returning: bool = False

    @property
    def name(self) -> str:
        """What people call it."""
        return ", ".join(status.id for status in self.statuses)

    @property
    def user(self) -> str:
        """Whose it is."""
        return self.statuses[0].by

    @property
    def workers(self) -> int:
        """How many GPUs it wants in all; of a job whose number a policy says, the least."""
        return sum(map(_least, self.statuses))

    @property
    def wants(self) -> str:
        """The same in words."""
        models = sorted({m for s in self.statuses for m in s.spec.gpu_models or s.spec.compute_s})
        count = f"{self.workers} GPU{'s' if self.workers > 1 else ''}"
        return f"{count} of {', '.join(models)}" if models else count

    @property
    def priority(self) -> int:
        """The highest of its jobs'."""
        return max(status.spec.priority for status in self.statuses)

    @property
    def preemptible(self) -> bool:
        """Whether its GPUs may be taken from it while it runs."""
        return all(status.spec.preemptible for status in self.statuses)

    @property
    def after(self) -> Sequence[str]:
        """The ids of the jobs that have to be done before."""
        return tuple(dict.fromkeys(name for s in self.statuses for name in s.spec.after))

    def progress(self, now_s: float, known: bool) -> Progress:
        """GPU-seconds had, and seconds left of the job with the most, on links of its own."""
        had = sum(status.gpu_seconds(now_s) for status in self.statuses)
        left_s = (alone_s(status, self.nic_bps) for status in self.statuses)
        return Progress(had, max(left_s) if known else math.nan)


def _least(status: JobStatus) -> int:
    """How many GPUs a job wants; where a policy says that, the least."""
    return status.spec.size or min(status.spec.degrees, default=1)


class Hosts(NamedTuple):
    """Where a gang's jobs go, by job id, and all their GPUs as a set."""

    by_job: Mapping[str, Placed]
    gpus: int


class Started(NamedTuple):
    """A gang that starts there once these others have given back their hosts."""

    entry: GangEntry
    hosts: Hosts
    preempted: tuple[GangEntry, ...]


@dataclass
class _Occupancy:
    occupied: int
    broken: int
    everything: int

    @property
    def free(self) -> int:
        return (self.everything & ~self.occupied).bit_count()


@dataclass
class LabSite:
    """The lab during one pass after the other; ``look`` says how it is before each.

    ``started`` and ``preempted`` are what the last pass decided, ``refused`` the gangs that
    can never run, and why.
    """

    table: JobTable
    placement: Placement
    books: UserAccounts
    joined: list[GangEntry] = field(default_factory=list)
    running: dict[int, GangEntry] = field(default_factory=dict)
    started: list[Started] = field(default_factory=list)
    preempted: list[GangEntry] = field(default_factory=list)
    refused: dict[GangEntry, Exception] = field(default_factory=dict)
    now_s: float = 0.0
    released: int = 0
    layout: int = 0
    wake_s: float = math.inf
    _shown: object = None
    _network: tuple[int, LabNetwork] | None = None

    def look(self, lab: LabSnapshot, now_s: float) -> None:
        """Begin a pass with the lab as it is now."""
        view = lab.view._replace(usage=Frozen(self.books.shares(now_s)))
        shown = (view.broken, dict(view.circuits), view.failed)
        if shown != self._shown:
            self.layout += 1
            self.released += 1
        self._shown = shown
        self._lab = lab._replace(view=view)
        self.now_s, self.wake_s = now_s, math.inf
        self.started.clear()
        self.preempted.clear()
        self.refused.clear()
        self._failures: dict[GangEntry, Exception] = {}
        self._freed: list[tuple[int, GangEntry]] = []
        self.occupancy = _Occupancy(view.occupied, view.broken, view.shape.everything)

    @property
    def accounts(self) -> UserAccounts | None:
        """What users have and had."""
        return self.books

    # -- what is known

    def rank(self, entry: GangEntry) -> float:
        """What the order policy says of a gang: the least of its jobs'."""
        view = self._view()
        return min(
            self.placement.priority(
                view,
                status,
                Progress(status.gpu_seconds(self.now_s), alone_s(status, entry.nic_bps)),
            )
            for status in entry.statuses
        )

    def ends(self) -> Sequence[Running]:
        """The ends of what runs at its present pace, as links are shared now."""
        cluster, hosts = self._lab.cluster, self._hosts_started()
        rings = {
            entry: [
                cluster.ring(status.id, hosts.get(status.id, status.hosts), status)
                for status in entry.statuses
                if not status.state.is_final
            ]
            for entry in self.running.values()
        }
        works = {
            ring.name: RingWork(ring.ring, ring.load)
            for each in rings.values()
            for ring in each
            if ring.load is not None
        }
        paces = units_s(self._network_now(), list(works.values()))
        unit_s = dict(zip(works, paces, strict=True))
        return sorted(
            Running(
                max((self._end_s(ring, entry, unit_s) for ring in each), default=self.now_s),
                entry.gpus,
                entry.name,
            )
            for entry, each in rings.items()
        )

    def _hosts_started(self) -> dict[str, tuple[str, ...]]:
        """The hosts that jobs got in this pass."""
        return {job: at.hosts for each in self.started for job, at in each.hosts.by_job.items()}

    def _end_s(self, ring: RingOfJob, entry: GangEntry, unit_s: Mapping[str, float]) -> float:
        """The end of a running job; of one whose light is still to come, as on links of its own."""
        if ring.load is None:
            return math.inf
        pace_s = unit_s[ring.name]
        pace_s = ring.load.unit_s(entry.nic_bps) if pace_s == math.inf else pace_s
        return self.now_s + max(0.0, ring.load.units) * pace_s

    def _network_now(self) -> LabNetwork:
        if self._network is None or self._network[0] != self.layout:
            cluster = self._lab.cluster
            network = LabNetwork(cluster.lab, trace_links(cluster.lab, cluster.maps))
            self._network = self.layout, network
        return self._network[1]

    def would_end_s(self, entry: GangEntry) -> float:
        """When a gang that waits would end if it started now, on links of its own."""
        left_s = entry.progress(self.now_s, known=True).remaining_s
        return math.inf if math.isnan(left_s) else self.now_s + left_s

    def fate(self, name: str) -> JobFate:
        """What has become of a job, by its id."""
        status = self.table.find(name)
        if status is None or status.state in (JobState.FAILED, JobState.STOPPED):
            return JobFate.FAILED
        return JobFate.DONE if status.state is JobState.DONE else JobFate.PENDING

    def free_for(self, entry: GangEntry) -> int:
        """How many free GPUs the gang can run on."""
        return self.placement.free_for(self._view(), entry.statuses)

    def out_of_reach(self, entry: GangEntry) -> Waiting | None:
        """Why too few hosts for the gang can be reached, if that is so."""
        return self.placement.out_of_reach(self._lab, entry.statuses)

    def _view(self) -> LabSnapshot:
        view = self._lab.view._replace(occupied=self.occupancy.occupied)
        return self._lab._replace(view=view)

    # -- what can be done

    def place(self, entry: GangEntry, occupied: int | None = None) -> Hosts | Waiting:
        """Where the policies put a gang, or why nowhere."""
        if entry.returning:
            return _RETURNING
        taken = self.occupancy.occupied if occupied is None else occupied
        by_job: dict[str, Placed] = {}
        gpus, room = 0, self.books.room(entry.user) - entry.workers
        named = self.placement.gpus_named(self._lab, entry.statuses)
        try:
            for status in entry.statuses:
                # Hosts that another job of the gang names are not for this one.
                others = functools.reduce(
                    operator.or_, (g for job, g in named.items() if job != status.id), 0
                )
                # What the others of the gang need at least is left to them.
                most, busy = room + _least(status), taken | others | gpus
                found = self.placement.place(self._lab, status, busy, most=most)
                if isinstance(found, Waiting):
                    return found
                room = most - len(found.hosts)
                by_job[status.id] = found
                gpus |= self._lab.cluster.as_set(found.hosts)
        except Exception as error:
            self._failures[entry] = error
            said = str(error) if isinstance(error, PatchlightError) else in_words(error)
            return Waiting(WaitReason.UNREACHABLE, said, is_blocked=True)
        return Hosts(by_job, gpus)

    def gpus_of(self, placement: Hosts) -> int:
        """The GPUs of a placement, as a set."""
        return placement.gpus

    def can_start(self, entry: GangEntry, placement: Hosts, without: Sequence[GangEntry]) -> bool:
        """It is noted, wherever it is."""
        return True

    def start(self, entry: GangEntry, placement: Hosts) -> bool:
        """Note that a gang starts there."""
        preempted = [each for gpus, each in self._freed if gpus & placement.gpus]
        self.started.append(Started(entry, placement, tuple(preempted)))
        entry.gpus, entry.began_s = placement.gpus, self.now_s
        self.running[entry.index] = entry
        self.occupancy.occupied |= placement.gpus
        self.books.took(entry.user, placement.gpus.bit_count(), self.now_s)
        return True

    def preempt(self, entry: GangEntry) -> None:
        """Note that a gang has to give back its hosts; it waits again, and starts once it has."""
        self.preempted.append(entry)
        self.occupancy.occupied &= ~entry.gpus
        self._freed.append((entry.gpus, entry))
        self.gone(entry, self.now_s, entry.gpus)
        entry.returning = True
        self.joined.append(entry)

    def refuse(self, entry: GangEntry, why: Waiting) -> bool:
        """Whether a gang is off the queue for good."""
        if entry in self._failures:
            self.refused[entry] = self._failures[entry]
        return entry in self._failures

    def wake_at(self, at_s: float) -> None:
        """There has to be a pass by then."""
        self.wake_s = min(self.wake_s, at_s)

    def gone(self, entry: GangEntry, now_s: float, gpus: int) -> None:
        """A gang, or some of its jobs, have given back these GPUs."""
        back = entry.gpus & gpus
        if entry.index in self.running and back:
            entry.gpus &= ~back
            self.books.gave_back(entry.user, back.bit_count(), now_s)
            self.released += 1
            if not entry.gpus:
                del self.running[entry.index]
