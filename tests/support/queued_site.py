"""A site for a queue: entries of known lengths on GPUs without a network, played forward."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from patchlight.controller.jobs.discipline.contract import (
    JobFate,
    OrderTraits,
    UserAccounts,
)
from patchlight.controller.jobs.discipline.queue import JobQueue
from patchlight.controller.policies.contract import Progress, Running
from patchlight.controller.policies.order import Fifo
from patchlight.controller.policies.sets import lowest
from patchlight.testbed.lab.rules import Discipline, Waiting, WaitReason

FIFO = OrderTraits.of(Fifo())
FAIR = OrderTraits(by_user=True)
GPUS = 8


@dataclass(eq=False)
class Job:
    """An entry that runs for ``lasts_s``; ``placeable``: the placement policy finds it a place."""

    index: int
    workers: int
    lasts_s: float
    arrived_s: float = 0.0
    user: str = ""
    priority: int = 0
    preemptible: bool = True
    held: bool = False
    after: Sequence[str] = ()
    placeable: bool = True
    gpus: int = 0
    began_s: float = math.nan
    had_s: float = 0.0
    spans: list[tuple[float, float, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"job{self.index}"

    @property
    def wants(self) -> str:
        return f"{self.workers} GPUs"

    def progress(self, now_s: float, known: bool) -> Progress:
        had_s = self.had_s + (now_s - self.began_s if self.gpus else 0.0)
        return Progress(had_s * self.workers, self.lasts_s - had_s)


@dataclass
class Now:
    free: int
    occupied: int
    broken: int = 0


class Cluster:
    """A site that keeps what it is told, and plays it forward."""

    def __init__(
        self,
        jobs: Sequence[Job],
        discipline: Discipline,
        order: OrderTraits = FIFO,
    ) -> None:
        self.jobs = list(jobs)
        self.discipline = discipline
        self.by_user = order.by_user
        self._coming = sorted(jobs, key=lambda job: (job.arrived_s, job.index))
        self.now_s = 0.0
        self.joined: list[Job] = []
        self.running: dict[int, Job] = {}
        self.accounts: UserAccounts | None = UserAccounts(discipline)
        self.occupancy = Now(GPUS, 0)
        self.released = self.layout = 0
        self.done: set[str] = set()
        self.failed: set[str] = set()
        self.wakes_s = math.inf
        self.known = True
        self.started: list[Job] = []
        self.queue: JobQueue[Job, list[int]] = JobQueue(
            self, discipline, order
        )

    def rank(self, entry: Job) -> float:
        if not self.by_user:
            return entry.arrived_s
        assert self.accounts is not None
        return self.accounts.shares(self.now_s).get(entry.user, 0.0)

    def ends(self) -> Sequence[Running]:
        return sorted(
            Running(
                self.would_end_s(job) - (self.now_s - job.began_s),
                job.gpus,
                job.name,
            )
            for job in self.running.values()
        )

    def out_of_reach(self, entry: Job) -> None:
        """All its GPUs are well."""

    def would_end_s(self, entry: Job) -> float:
        return (
            self.now_s + entry.lasts_s - entry.had_s
            if self.known
            else math.inf
        )

    def fate(self, name: str) -> JobFate:
        if name in self.failed:
            return JobFate.FAILED
        return JobFate.DONE if name in self.done else JobFate.PENDING

    def free_for(self, entry: Job) -> int:
        return self.occupancy.free

    def place(
        self, entry: Job, occupied: int | None = None
    ) -> list[int] | Waiting:
        taken = self.occupancy.occupied if occupied is None else occupied
        free = ~taken & (1 << GPUS) - 1
        if not entry.placeable or free.bit_count() < entry.workers:
            return Waiting(WaitReason.NO_PLACE, "no place")
        return lowest(free, entry.workers)

    def gpus_of(self, placement: list[int]) -> int:
        return sum(1 << gpu for gpu in placement)

    def can_start(
        self, entry: Job, placement: list[int], without: Sequence[Job]
    ) -> bool:
        return True

    def start(self, entry: Job, placement: list[int]) -> bool:
        gpus = self.gpus_of(placement)
        assert not gpus & self.occupancy.occupied
        entry.gpus = gpus
        entry.began_s = self.now_s
        self.running[entry.index] = entry
        self.started.append(entry)
        self._took(entry, 1)
        return True

    def preempt(self, entry: Job) -> None:
        assert entry.preemptible
        self._stop(entry)
        self.joined.append(entry)

    def refuse(self, entry: Job, why: Waiting) -> bool:
        return False

    def wake_at(self, at_s: float) -> None:
        self.wakes_s = min(self.wakes_s, at_s)

    def _took(self, job: Job, sign: int) -> None:
        self.occupancy.occupied ^= job.gpus
        self.occupancy.free -= sign * job.workers
        assert self.accounts is not None
        account = self.accounts.took if sign > 0 else self.accounts.gave_back
        account(job.user, job.workers, self.now_s)

    def _stop(self, job: Job) -> None:
        job.had_s += self.now_s - job.began_s
        job.spans.append((job.began_s, self.now_s, job.gpus))
        del self.running[job.index]
        self._took(job, -1)
        job.gpus = 0
        self.released += 1

    def play(self, until_s: float = math.inf) -> None:
        """On to the next moments, with a pass at each."""
        coming = self._coming
        while True:
            while coming and coming[0].arrived_s <= self.now_s:
                self.joined.append(coming.pop(0))
            self.queue.decide()
            self.after_pass()
            nexts_s = [job.arrived_s for job in coming[:1]]
            nexts_s += [
                self.now_s + job.lasts_s - self.had_s(job)
                for job in self.running.values()
            ]
            if self.wakes_s < math.inf and (
                self.running or self.queue.first() is None
            ):
                nexts_s.append(self.wakes_s)
            if (
                not nexts_s
                or min(nexts_s) > until_s
                or not (coming or self.running)
            ):
                return
            self.now_s = min(nexts_s)
            self.wakes_s = (
                math.inf if self.wakes_s <= self.now_s else self.wakes_s
            )
            for job in list(self.running.values()):
                if self.had_s(job) >= job.lasts_s - 1e-9:
                    self._stop(job)
                    self.done.add(job.name)

    def had_s(self, job: Job) -> float:
        return job.had_s + self.now_s - job.began_s

    def after_pass(self) -> None:
        """What is to hold after each pass."""

    def why(self) -> dict[str, Waiting]:
        return {entry.name: why for entry, why in self.queue.reasons()}
