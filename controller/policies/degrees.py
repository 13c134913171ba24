"""Decides how many workers jobs get, at their start and while they run.

The partition policies are the baselines of PAC-ML's experiments (Parsonson et al., arXiv
2301.13799): they refuse a job only if no other degree is legal. An elasticity policy that need not
be called until a job arrives, starts or ends is ``stable``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from patchlight.controller.policies.contract import (
    ClusterView,
    ElasticJob,
    JobView,
    QueuedJob,
)
from patchlight.controller.policies.sets import joined, lowest
from patchlight.testbed.errors import BadInput

if TYPE_CHECKING:
    import numpy as np

_LOOKED_AT = 8
_EPSILON_S = 1e-7
# How much better a constant degree has to be than the one in use, as in ``is_beaten``.
_CERTAINTY = 0.6
_FIRST = 16  # jobs, before the load is known


class Rigid:
    """Every job keeps its initial number of workers."""

    stable: ClassVar[bool] = True

    def resize(
        self,
        cluster: ClusterView,
        jobs: Sequence[ElasticJob],
        queue: Sequence[QueuedJob],
    ) -> Mapping[str, int]:
        return {}


class GiveAndTake:
    """Jobs take unused GPUs, and give some up for a waiting job.

    Without waiting jobs, the job that gains most per further GPU grows. Otherwise jobs shrink for
    the first of the next eight that then fits. Each change must gain more than it costs, including
    stopping and starting.
    """

    stable: ClassVar[bool] = True

    def resize(
        self,
        cluster: ClusterView,
        jobs: Sequence[ElasticJob],
        queue: Sequence[QueuedJob],
    ) -> Mapping[str, int]:
        if not queue:
            return _grow(cluster, jobs)
        found = (
            _make_room(cluster, jobs, waits) for waits in queue[:_LOOKED_AT]
        )
        return next(filter(None, found), {})


def _grow(cluster: ClusterView, jobs: Sequence[ElasticJob]) -> dict[str, int]:
    wanted: dict[str, int] = {}
    free = cluster.free.bit_count()
    while True:
        steps = [
            (
                _gain_s(job, now, degree) / (degree - now),
                -number,
                degree - now,
                job.name,
            )
            for number, job in enumerate(jobs)
            for now in (wanted.get(job.name, job.degree),)
            for degree in job.iteration_s
            if 0 < degree - now <= free and _gain_s(job, now, degree) > 0
        ]
        if not steps:
            return wanted
        _, minus_number, more, name = max(steps)
        wanted[name] = wanted.get(name, jobs[-minus_number].degree) + more
        free -= more


def _gain_s(
    job: ElasticJob,
    now: int,
    degree: int,
) -> float:
    faster_s = job.iteration_s[now] - job.iteration_s[degree]
    return (
        job.left * faster_s - job.cost_s * (now == job.degree)
        if faster_s > 0
        else -math.inf
    )


class ShrinkStep(NamedTuple):
    """A job that shrinks: how much later it ends, and how many GPUs it frees."""

    lost_s: float
    freed: int
    number: int
    job: ElasticJob
    degree: int


def _make_room(
    cluster: ClusterView,
    jobs: Sequence[ElasticJob],
    waits: QueuedJob,
) -> dict[str, int]:
    """The degrees of shrinking jobs so that a waiting one can start; empty if that does not pay."""
    taken = shrink_for(cluster, jobs, waits)
    if not taken:
        return {}
    able = cluster.gpus_of_models(waits.gpu_models)
    begins_s = cluster.now_s + max(step.job.cost_s for step in taken)
    gained_s = _free_at_s(cluster, waits.workers, able) - begins_s
    pays = gained_s > sum(step.lost_s for step in taken)
    return {step.job.name: step.degree for step in taken} if pays else {}


def shrink_for(
    cluster: ClusterView,
    jobs: Sequence[ElasticJob],
    waits: QueuedJob,
) -> Sequence[ShrinkStep]:
    """Which jobs shrink so that a waiting one can start; empty if none need to, or can."""
    able = cluster.gpus_of_models(waits.gpu_models)
    gpus = {running.name: running.gpus for running in cluster.running}
    useless = {
        job.name: (gpus.get(job.name, 0) & ~able).bit_count() for job in jobs
    }
    short = waits.workers - (cluster.free & able).bit_count()
    taken: dict[str, ShrinkStep] = {}
    while short > 0:
        steps = [
            ShrinkStep(
                lost_s(job, degree, waits.lasts_s),
                freed,
                number,
                job,
                degree,
            )
            for number, job in enumerate(jobs)
            for degree in job.iteration_s
            if job.name not in taken
            # At least as many as are useful: the job may give up the others first.
            and (freed := job.degree - degree - useless[job.name]) > 0
        ]
        if not steps:
            return ()
        enough = [step for step in steps if step.freed >= short]
        best = (
            min(enough)
            if enough
            else min(steps, key=lambda step: step.lost_s / step.freed)
        )
        taken[best.job.name] = best
        short -= best.freed
    return tuple(taken.values())


def _free_at_s(
    cluster: ClusterView,
    workers: int,
    able: int,
) -> float:
    """When that many suitable GPUs are free if all jobs keep theirs."""
    free = cluster.free & able
    for running in sorted(cluster.running):
        if running.ends_s == math.inf:
            break
        free |= running.gpus & able
        if free.bit_count() >= workers:
            return running.ends_s
    return math.inf


def lost_s(
    job: ElasticJob,
    degree: int,
    lasts_s: float,
) -> float:
    """How much later a job ends with fewer workers, if it may grow again after ``lasts_s``."""
    now_s = job.iteration_s[job.degree]
    then_s = job.iteration_s[degree]
    if then_s <= now_s:
        return job.cost_s
    for_good_s = job.cost_s + job.left * (then_s - now_s)
    for_now_s = 2 * job.cost_s + lasts_s * (1 - now_s / then_s)
    return min(for_good_s, for_now_s)


class Constant:
    """Always this degree, or the largest legal one below it."""

    def __init__(self, degree: int) -> None:
        if degree < 1:
            raise BadInput(
                f"cannot split a job into {degree} parts: expected 1 or more"
            )
        self._wanted = degree

    def __repr__(self) -> str:
        return f"Constant({self._wanted})"

    def degree(
        self,
        cluster: ClusterView,
        job: JobView,
        legal: tuple[int, ...],
    ) -> int:
        return min(self._wanted, legal[-1])


class _Played:
    """What a constant degree would have done with the jobs so far, on a cluster of its own."""

    def __init__(self, degree: int) -> None:
        self._degree = degree
        self.blocked = 0
        self._occupied = 0
        self._ends = list[tuple[float, int]]()

    def meet(self, cluster: ClusterView, job: JobView) -> None:
        """Place or block a job that has just come."""
        while self._ends and self._ends[0][0] <= cluster.now_s + _EPSILON_S:
            self._occupied ^= heappop(self._ends)[1]
        free = len(cluster.shape.gpus) - self._occupied.bit_count()
        fitting = [
            each for each in job.expected_s if each <= min(self._degree, free)
        ]
        degree = max(fitting, default=0)
        gpus = 0
        if degree and (lasts_s := job.expected_s[degree]) <= job.limit_s:
            place = cluster.if_occupied or _lowest
            gpus = place(self._occupied, job, degree) or 0
            self._occupied |= gpus
            heappush(self._ends, (cluster.now_s + lasts_s, gpus))
        self.blocked += not gpus


def _lowest(
    occupied: int,
    job: JobView,
    degree: int,
) -> int:
    return joined(lowest(~occupied, degree))


class BestConstant:
    """The constant degree that would have blocked the fewest of the jobs so far.

    It plays each degree that divides the cluster, and begins with the largest. Before it changes
    the degree it lets the cluster become empty, because jobs of different degrees leave gaps.
    """

    def __init__(self) -> None:
        self._played: dict[int, _Played] = {}
        self._wanted = self._met = 0
        self._first_s = self._work_s = 0.0
        self.used = 0
        """The degree of the running jobs; -1 if they have several."""
        self.load = 0.0
        """Arrived work over the servers' capacity, of the first 16, 32, 64 … jobs."""

    def meet(self, cluster: ClusterView, job: JobView) -> int:
        """Play a job that has just come; how many jobs the best degree has blocked."""
        size = len(cluster.shape.gpus)
        if not self._played:
            divisors = [
                degree for degree in job.expected_s if not size % degree
            ]
            self._played = {degree: _Played(degree) for degree in divisors}
            self._wanted = max(divisors, default=0)
            self._first_s = cluster.now_s
        if self._met >= _FIRST and not self._met & (self._met - 1):
            self.load = self._work_s / max(
                (cluster.now_s - self._first_s) * size, 1e-9
            )
        self._met = self._met + 1
        self._work_s = self._work_s + job.sequential_s
        for each in self._played.values():
            each.meet(cluster, job)
        blocked = {
            degree: each.blocked for degree, each in self._played.items()
        }
        best = min(
            blocked,
            key=lambda degree: (blocked[degree], -degree),
            default=0,
        )
        if best and is_beaten(
            blocked[self._wanted], blocked[best], _CERTAINTY
        ):
            self._wanted = best
        return blocked.get(best, 0)

    def follow(
        self,
        cluster: ClusterView,
        job: JobView,
        legal: tuple[int, ...],
    ) -> int:
        """Use the best degree, from an empty cluster on; until then whatever ends earlier."""
        if self.used in (0, self._wanted) or not cluster.running:
            self.used = self._wanted
            return min(self.used or legal[-1], legal[-1])
        most_s = min(
            job.limit_s,
            max(each.ends_s for each in cluster.running) - cluster.now_s,
        )
        return next(
            (
                d
                for d in legal[1:]
                if self._ends_in(
                    most_s,
                    cluster,
                    job,
                    d,
                )
            ),
            0,
        )

    @staticmethod
    def _ends_in(
        most_s: float,
        cluster: ClusterView,
        job: JobView,
        degree: int,
    ) -> bool:
        lasts_s = job.expected_s.get(degree, math.inf)
        return (
            lasts_s <= most_s < math.inf
            and cluster.preview(job, degree) is not None
        )

    def degree(
        self,
        cluster: ClusterView,
        job: JobView,
        legal: tuple[int, ...],
    ) -> int:
        self.meet(cluster, job)
        return self.follow(cluster, job, legal)


def is_beaten(
    blocked: int,
    other: int,
    certainty: float,
) -> bool:
    """Whether one that blocked so many jobs is worse than another, by so many standard deviations
    and a job."""
    return blocked - other > 1 + certainty * math.sqrt(blocked)


@dataclass(
    frozen=True,
    slots=True,
)
class Maximum:
    """The largest legal degree: SiP-ML's rule, and PAC-ML's ``Para_max``.

    Khani et al., "SiP-ML: High-Bandwidth Optical Network Interconnects for Machine Learning
    Training", SIGCOMM 2021.
    """

    def degree(
        self,
        cluster: ClusterView,
        job: JobView,
        legal: tuple[int, ...],
    ) -> int:
        return legal[-1]


@dataclass(
    frozen=True,
    slots=True,
)
class Minimum:
    """The smallest legal degree of at least 1/β, else the largest: PAC-ML's ``Para_min``.

    β is the part of its time on one GPU that a job may take. The rule takes speed-up for
    proportional to the degree, so it just misses β = 1/2, 1/4, 1/8.
    """

    def degree(
        self,
        cluster: ClusterView,
        job: JobView,
        legal: tuple[int, ...],
    ) -> int:
        return _least(legal, math.ceil(_speed_up(job)))


@dataclass(
    frozen=True,
    slots=True,
)
class Sufficient:
    """The smallest legal degree above 1/β and of at least 2, else the largest."""

    def degree(
        self,
        cluster: ClusterView,
        job: JobView,
        legal: tuple[int, ...],
    ) -> int:
        return _least(legal, max(2, math.floor(_speed_up(job)) + 1))


@dataclass
class RandomDegree:
    """Any legal degree but 0, each as likely; the seed fixes the choices."""

    seed: int = 0
    _rng: np.random.Generator = field(
        init=False,
        repr=False,
        compare=False,
    )

    def __post_init__(self) -> None:
        # Not above: a controller starts without NumPy.
        import numpy as np

        self._rng = np.random.default_rng(self.seed)

    def degree(
        self,
        cluster: ClusterView,
        job: JobView,
        legal: tuple[int, ...],
    ) -> int:
        if len(legal) == 1:
            return 0
        return legal[1 + int(self._rng.integers(len(legal) - 1))]


def _speed_up(job: JobView) -> float:
    """How much faster than on one GPU the job has to be: 1/β, 1 where it may take its time."""
    ratio = job.sequential_s / job.limit_s
    return ratio if ratio > 1.0 else 1.0


def _least(legal: tuple[int, ...], wanted: int) -> int:
    return next((degree for degree in legal if degree >= wanted), legal[-1])
