"""The gangs that wait or have hosts: jobs that start together, each gang in one state."""

import asyncio
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from patchlight.controller.jobs.cluster_view import WiredLab, alone_s
from patchlight.controller.jobs.discipline.contract import admission
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.lives import GANG_MOVES, GangState, check_move
from patchlight.controller.jobs.running_job import RunningJob
from patchlight.controller.policies.contract import Progress
from patchlight.controller.prediction.network import slowest_nic_bps
from patchlight.testbed.jobs import JobSpec, JobStatus
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.rules import Discipline


@dataclass(eq=False)
class Gang:
    """Jobs that start together, by id; their life is in ``task``. ``ending``: it is to end, and
    with ``again`` it is then queued again; ``stopping``: without."""

    ids: tuple[str, ...]
    topology: str
    task: asyncio.Task[None] | None = None
    ends_because: str = ""
    again: bool = False
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, why: str, *, again: bool = False) -> None:
        """Order its end. A restart or preemption does not undo a stop."""
        if self.ending.is_set() and (again or not self.again):
            return
        self.ends_because = why
        self.again = again
        self.ending.set()
        if not again:
            self.stopping.set()


@dataclass(eq=False)
class GangEntry:
    """A gang in the queue; ``nic_bps`` is the rate of the slowest NIC that it may get.

    ``gpus`` are those that it has by the last pass, ``gpus_of`` those that each of its jobs has
    now. ``why``: what it waited for in the last pass.
    """

    index: int
    gang: Gang
    statuses: Sequence[JobStatus]
    nic_bps: float
    state: GangState = GangState.OUT
    why: str = ""
    gpus: int = 0
    gpus_of: dict[str, int] = field(default_factory=dict)
    began_s: float = 0.0
    held: bool = False

    def move(self, state: GangState) -> None:
        """Change its state; ``IllegalMove`` if ``GANG_MOVES`` does not have this move."""
        check_move(
            f"gang {self.name}",
            GANG_MOVES,
            self.state,
            state,
        )
        self.state = state

    @property
    def gpus_now(self) -> int:
        """The GPUs of its jobs now, as a set."""
        gpus = 0
        for each in self.gpus_of.values():
            gpus |= each
        return gpus

    @property
    def name(self) -> str:
        """The ids of its jobs."""
        return ", ".join(status.id for status in self.statuses)

    @property
    def user(self) -> str:
        """Who submitted it."""
        return self.statuses[0].by

    @property
    def workers(self) -> int:
        """How many GPUs it wants in total; the minimum if a policy decides."""
        return sum(status.spec.least_workers for status in self.statuses)

    @property
    def wants(self) -> str:
        """The same as text."""
        models = sorted(
            {
                m
                for s in self.statuses
                for m in s.spec.gpu_models or s.spec.compute_s
            }
        )
        count = f"{self.workers} GPU{'s' if self.workers > 1 else ''}"
        return f"{count} of {', '.join(models)}" if models else count

    @property
    def priority(self) -> int:
        """The highest priority of its jobs."""
        return max(status.spec.priority for status in self.statuses)

    @property
    def preemptible(self) -> bool:
        """Whether it may be preempted."""
        return all(status.spec.preemptible for status in self.statuses)

    @property
    def after(self) -> Sequence[str]:
        """The ids of the jobs that must be done first."""
        return tuple(
            dict.fromkeys(name for s in self.statuses for name in s.spec.after)
        )

    def progress(self, now_s: float, known: bool) -> Progress:
        """GPU-seconds used, and the longest remaining time of its jobs on links of their own."""
        had = sum(status.gpu_seconds(now_s) for status in self.statuses)
        left_s = (alone_s(status, self.nic_bps) for status in self.statuses)
        return Progress(had, max(left_s) if known else math.nan)


class Entries:
    """The gangs of a lab by job, with their states; ``changed`` is set when another pass may start
    more. Passes run in a thread and see these changes only when the next one begins."""

    def __init__(
        self,
        lab: Lab,
        table: JobTable,
        settings: Discipline,
    ) -> None:
        self.changed = asyncio.Event()
        self._table = table
        self._settings = settings
        self._lab = WiredLab(lab, {})
        self._nic_bps = slowest_nic_bps(lab)
        self._numbers = itertools.count()
        # Of jobs that wait or have hosts.
        self._of: dict[str, GangEntry] = {}
        # Also of gangs that are only in line. One that is queued again keeps its entry and number:
        # in a tie the older one is first.
        self._known: WeakValueDictionary[tuple[str, ...], GangEntry] = (
            WeakValueDictionary()
        )

    def __iter__(self) -> Iterator[GangEntry]:
        return iter(list(self._known.values()))

    def of(self, job_id: str) -> GangEntry | None:
        """The gang with which a job waits or has its hosts."""
        return self._of.get(job_id)

    def waiting_with(self, job_id: str) -> GangEntry | None:
        """The gang with which a job waits."""
        entry = self._of.get(job_id)
        return entry if entry is not None and entry.state.is_waiting else None

    @property
    def waiting(self) -> list[GangEntry]:
        """The gangs that wait."""
        return [entry for entry in self if entry.state.is_waiting]

    def provisional(
        self,
        statuses: Sequence[JobStatus],
    ) -> GangEntry:
        """An entry that is not in the queue, of jobs that were not submitted."""
        gang = Gang(tuple(status.id for status in statuses), "")
        return GangEntry(
            -1,
            gang,
            statuses,
            self._nic_bps,
        )

    def refresh(self) -> None:
        """Read the status of each job that has not ended."""
        for entry in dict.fromkeys(self._of.values()):
            entry.statuses = [
                status
                if status.state.is_final
                else self._table.find(status.id) or status
                for status in entry.statuses
                # One that begins again alone has an entry of its own.
                if self._of.get(status.id, entry) is entry
            ]

    def not_admitted(
        self,
        user: str,
        specs: Sequence[JobSpec],
        beside: int = 0,
    ) -> str | None:
        """Why the jobs of a gang may not even wait, with ``beside`` other jobs of the user."""
        jobs = len(specs) - 1 + beside
        if self._settings.allowance(user).jobs is not None:
            jobs += sum(entry.user == user for entry in self._of.values())
        gpus = sum(spec.least_workers for spec in specs)
        waiting = admission(
            self._settings,
            user,
            gpus,
            jobs,
        )
        return None if waiting is None else waiting.words

    def join(self, gang: Gang) -> None:
        """A gang waits from now on. Idempotent."""
        if self.waiting_with(gang.ids[0]) is not None:
            return
        entry = self._entry(gang)
        entry.move(
            GangState.REJOINING
            if entry.state is GangState.LEAVING
            else GangState.ARRIVING
        )
        entry.why = ""
        self.changed.set()

    def follow(self, gang: Gang) -> None:
        """A gang already has its hosts."""
        entry = self._entry(gang)
        self.place(
            entry,
            {status.id: status.hosts for status in entry.statuses},
        )
        entry.began_s = min(
            s.runs_since or s.submitted_at for s in entry.statuses
        )

    def _entry(self, gang: Gang) -> GangEntry:
        statuses = [self._table[job_id] for job_id in gang.ids]
        entry = self._known.get(gang.ids)
        if entry is None:
            entry = GangEntry(
                next(self._numbers),
                gang,
                statuses,
                self._nic_bps,
            )
            self._known[gang.ids] = entry
        entry.gang = gang
        entry.statuses = statuses
        self._of |= dict.fromkeys(gang.ids, entry)
        return entry

    def place(
        self, entry: GangEntry, hosts: Mapping[str, Sequence[str]]
    ) -> None:
        """A gang has these hosts, by job."""
        entry.move(GangState.PLACED)
        entry.statuses = [self._table[job_id] for job_id in hosts]
        entry.gpus_of = {
            job_id: self._lab.as_set(names) for job_id, names in hosts.items()
        }

    def leave(self, entry: GangEntry) -> None:
        """A gang that waits was stopped, or is refused."""
        entry.move(
            GangState.OUT
            if entry.state is GangState.ARRIVING
            else GangState.LEAVING
        )
        for job_id in entry.gang.ids:
            del self._of[job_id]

    def freed(self, job: RunningJob) -> None:
        """A job has given back its hosts."""
        self.changed.set()
        entry = self._of.pop(job.id, None)
        if entry is None:
            return
        del entry.gpus_of[job.id]
        if not entry.gpus_of:
            entry.move(
                GangState.LEAVING
                if entry.state is GangState.PREEMPTED
                else GangState.OUT
            )

    def settled(self, job: RunningJob) -> None:
        """A job is on its hosts, and none are reserved for it."""
        self.note_hosts(job)
        if job.spec.is_split:  # the elasticity policy may decide again
            self.changed.set()

    def note_hosts(self, job: RunningJob) -> None:
        """A job has other hosts, or others are reserved for it."""
        names = [host.name for host in job.all_hosts]
        self._of[job.id].gpus_of[job.id] = self._lab.as_set(names)
