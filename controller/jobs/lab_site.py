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

from patchlight.controller.jobs.discipline.accounts import UserAccounts
from patchlight.controller.jobs.discipline.contract import Fate
from patchlight.controller.jobs.gangs import Gang
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.placement import LabView, Placed, Placement
from patchlight.controller.policies.contract import Progress, Running
from patchlight.testbed.errors import PatchlightError, in_words
from patchlight.testbed.jobs import JobState, JobStatus
from patchlight.testbed.queueing import Waiting, WaitReason


@dataclass(eq=False)
class GangEntry:
    """A gang in the queue, or with hosts. ``statuses`` are its jobs as of the last look."""

    index: int
    gang: Gang
    statuses: Sequence[JobStatus]
    gpus: int = 0
    began_s: float = 0.0
    held: bool = False

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
        specs = [status.spec for status in self.statuses]
        return sum(spec.size or min(spec.degrees, default=1) for spec in specs)

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
        """GPU-seconds had, and seconds of computing left of the job with the most."""
        had = sum(status.gpu_seconds(now_s) for status in self.statuses)
        return Progress(had, max(map(remaining_s, self.statuses)) if known else math.nan)


def remaining_s(status: JobStatus) -> float:
    """How long a job has to compute yet, NaN where that is not known."""
    spec = status.spec
    if not spec.iterations or not spec.compute_s:
        return math.nan
    share = max(1, len(status.hosts)) if spec.is_split else 1
    return max(spec.compute_s.values()) / share * max(0, spec.iterations - status.iterations_done)


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

    def look(self, lab: LabView, now_s: float) -> None:
        """Begin a pass with the lab as it is now."""
        view = lab.view
        shown = (view.broken, dict(view.circuits), view.failed)
        if shown != self._shown:
            self.layout += 1
            self.released += 1
        self._shown = shown
        self._lab = lab
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
                view, status, Progress(status.gpu_seconds(self.now_s), remaining_s(status))
            )
            for status in entry.statuses
        )

    def ends(self) -> Sequence[Running]:
        """The ends of what runs, as far as computing alone tells."""
        ends = [
            Running(self._end_s(entry), entry.gpus, entry.name) for entry in self.running.values()
        ]
        return sorted(ends)

    def would_end_s(self, entry: GangEntry) -> float:
        """When a gang that waits would end if it started now."""
        return self._end_s(entry)

    def _end_s(self, entry: GangEntry) -> float:
        left_s = entry.progress(self.now_s, known=True).remaining_s
        return math.inf if math.isnan(left_s) else self.now_s + left_s

    def fate(self, name: str) -> Fate:
        """What has become of a job, by its id."""
        status = self.table.find(name)
        if status is None or status.state in (JobState.FAILED, JobState.STOPPED):
            return Fate.FAILED
        return Fate.DONE if status.state is JobState.DONE else Fate.PENDING

    def free_for(self, entry: GangEntry) -> int:
        """How many free GPUs the gang can run on."""
        return self.placement.free_for(self._view(), entry.statuses)

    def out_of_reach(self, entry: GangEntry) -> Waiting | None:
        """Why too few hosts for the gang can be reached, if that is so."""
        return self.placement.out_of_reach(self._lab, entry.statuses)

    def _view(self) -> LabView:
        view = self._lab.view._replace(occupied=self.occupancy.occupied)
        return self._lab._replace(view=view)

    # -- what can be done

    def place(self, entry: GangEntry, occupied: int | None = None) -> Hosts | Waiting:
        """Where the policies put a gang, or why nowhere."""
        taken = self.occupancy.occupied if occupied is None else occupied
        by_job: dict[str, Placed] = {}
        gpus = 0
        named = self.placement.named(self._lab, entry.statuses)
        try:
            for status in entry.statuses:
                # Hosts that another job of the gang names are not for this one.
                others = functools.reduce(
                    operator.or_, (g for job, g in named.items() if job != status.id), 0
                )
                found = self.placement.place(self._lab, status, taken | others | gpus)
                if isinstance(found, Waiting):
                    return found
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
        """Note that a gang has to give back its hosts; it waits again once it has."""
        self.preempted.append(entry)
        self.occupancy.occupied &= ~entry.gpus
        self._freed.append((entry.gpus, entry))
        self.gone(entry, self.now_s, entry.gpus)

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
