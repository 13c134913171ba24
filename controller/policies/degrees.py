"""Decides how many workers jobs get, at their start and while they run.

The partition policies are the baselines of PAC-ML's experiments (Parsonson et al., arXiv
2301.13799): they refuse a job only if no other degree is legal. An elasticity policy that need not
be called until a job arrives, starts or ends is ``stable``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from patchlight.controller.policies.contract import ClusterView, ElasticJob, JobView, QueuedJob
from patchlight.testbed.errors import BadInput

if TYPE_CHECKING:
    import numpy as np

_LOOKED_AT = 8
# Of the best constant degree: jobs before its first choice, kept, watched, and replayed.
_FIRST, _KEPT, _WATCHED, _REPLAYED = 16, 256, 64, 192
_BETTER = 0.02  # accepts so many more jobs, as a share, that changing to it pays


class Rigid:
    """Every job keeps its initial number of workers."""

    stable: ClassVar[bool] = True

    def resize(
        self, cluster: ClusterView, jobs: Sequence[ElasticJob], queue: Sequence[QueuedJob]
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
        self, cluster: ClusterView, jobs: Sequence[ElasticJob], queue: Sequence[QueuedJob]
    ) -> Mapping[str, int]:
        if not queue:
            return _grow(cluster, jobs)
        found = (_make_room(cluster, jobs, waits) for waits in queue[:_LOOKED_AT])
        return next(filter(None, found), {})


def _grow(cluster: ClusterView, jobs: Sequence[ElasticJob]) -> dict[str, int]:
    wanted: dict[str, int] = {}
    free = cluster.free.bit_count()
    while True:
        steps = [
            (_gain_s(job, now, degree) / (degree - now), -number, degree - now, job.name)
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


def _gain_s(job: ElasticJob, now: int, degree: int) -> float:
    faster_s = job.iteration_s[now] - job.iteration_s[degree]
    return job.left * faster_s - job.cost_s * (now == job.degree) if faster_s > 0 else -math.inf


class ShrinkStep(NamedTuple):
    """A job that shrinks: how much later it ends, and how many GPUs it frees."""

    lost_s: float
    freed: int
    number: int
    job: ElasticJob
    degree: int


def _make_room(
    cluster: ClusterView, jobs: Sequence[ElasticJob], waits: QueuedJob
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
    cluster: ClusterView, jobs: Sequence[ElasticJob], waits: QueuedJob
) -> Sequence[ShrinkStep]:
    """Which jobs shrink so that a waiting one can start; empty if none need to, or can."""
    able = cluster.gpus_of_models(waits.gpu_models)
    gpus = {running.name: running.gpus for running in cluster.running}
    useless = {job.name: (gpus.get(job.name, 0) & ~able).bit_count() for job in jobs}
    short = waits.workers - (cluster.free & able).bit_count()
    taken: dict[str, ShrinkStep] = {}
    while short > 0:
        steps = [
            ShrinkStep(lost_s(job, degree, waits.lasts_s), freed, number, job, degree)
            for number, job in enumerate(jobs)
            for degree in job.iteration_s
            if job.name not in taken
            # At least as many as are useful: the job may give up the others first.
            and (freed := job.degree - degree - useless[job.name]) > 0
        ]
        if not steps:
            return ()
        enough = [step for step in steps if step.freed >= short]
        best = min(enough) if enough else min(steps, key=lambda step: step.lost_s / step.freed)
        taken[best.job.name] = best
        short -= best.freed
    return tuple(taken.values())


def _free_at_s(cluster: ClusterView, workers: int, able: int) -> float:
    """When that many suitable GPUs are free if all jobs keep theirs."""
    free = cluster.free & able
    for running in sorted(cluster.running):
        if running.ends_s == math.inf:
            break
        free |= running.gpus & able
        if free.bit_count() >= workers:
            return running.ends_s
    return math.inf


def lost_s(job: ElasticJob, degree: int, lasts_s: float) -> float:
    """How much later a job ends with fewer workers, if it may grow again after ``lasts_s``."""
    now_s, then_s = job.iteration_s[job.degree], job.iteration_s[degree]
    if then_s <= now_s:
        return job.cost_s
    for_good_s = job.cost_s + job.left * (then_s - now_s)
    for_now_s = 2 * job.cost_s + lasts_s * (1 - now_s / then_s)
    return min(for_good_s, for_now_s)


class Constant:
    """Always this degree, or the largest legal one below it."""

    def __init__(self, degree: int) -> None:
        if degree < 1:
            raise BadInput(f"cannot split a job into {degree} parts: expected 1 or more")
        self._wanted = degree

    def __repr__(self) -> str:
        return f"Constant({self._wanted})"

    def degree(self, cluster: ClusterView, job: JobView, legal: tuple[int, ...]) -> int:
        return min(self._wanted, legal[-1])


class BestConstant:
    """The constant degree that would have accepted most of the jobs so far.

    It replays the last 256 jobs under each degree that divides the cluster, counting servers. It
    begins with the largest, and chooses after 16 jobs, 32, 64, …. Before it changes the degree it
    lets the cluster become empty, because jobs of different degrees leave gaps.
    """

    def __init__(self) -> None:
        self._jobs: deque[JobView] = deque(maxlen=_KEPT)
        self._seen, self._wanted = 0, 0
        self.used = 0
        """The degree of the running jobs; -1 if they have several."""
        self.load, self.largest_accepts = 0.0, 0.0
        """Work that comes over what the servers do meanwhile, and what the largest degree accepts
        of it, when last chosen."""
        # Of a sequential time and a degree: the fewest servers taken, how often it had a place.
        self._taken: dict[tuple[float, int], tuple[int, int, int]] = {}

    def degree(self, cluster: ClusterView, job: JobView, legal: tuple[int, ...]) -> int:
        size = len(cluster.shape.gpus)
        degrees = [d for d, time_s in job.expected_s.items() if not size % d and time_s > 0]
        if not degrees:
            return legal[-1]
        self._wanted = self._wanted or max(degrees)
        self._jobs.append(job)
        self._seen += 1
        if self._seen <= _WATCHED:
            self._watch(cluster, job, [degree for degree in degrees if degree in legal])
        if self._seen >= _FIRST and not self._seen & (self._seen - 1):
            self._choose(degrees, size)
        if self.used not in (0, self._wanted) and cluster.running:
            return 0
        self.used = self._wanted
        return min(self.used, legal[-1])

    def _watch(self, cluster: ClusterView, job: JobView, degrees: Sequence[int]) -> None:
        for degree in degrees:
            key = (job.sequential_s, degree)
            least, placed, tried = self._taken.get(key, (0, 0, 0))
            if gpus := cluster.preview(job, degree):
                least, placed = min(least or gpus.bit_count(), gpus.bit_count()), placed + 1
            self._taken[key] = (least, placed, tried + 1)

    def _choose(self, degrees: Sequence[int], size: int) -> None:
        span_s = self._jobs[-1].arrived_s - self._jobs[0].arrived_s
        gap_s = max(span_s / (len(self._jobs) - 1), 1e-9)
        accepts = {degree: self._accepts(degree, size, span_s + gap_s) for degree in degrees}
        work_s = math.fsum(job.sequential_s for job in self._jobs) / len(self._jobs)
        self.load, self.largest_accepts = work_s / (gap_s * size), accepts[max(degrees)]
        best = max(degrees, key=lambda degree: (accepts[degree], degree))
        if accepts[best] > accepts.get(self._wanted, 0.0) + _BETTER:
            self._wanted = best

    def _accepts(self, degree: int, size: int, round_s: float) -> float:
        """The share of jobs accepted in the second half of a replay."""
        free, ends, accepted = float(size), list[tuple[float, float]](), 0.0
        half = -(-_REPLAYED // len(self._jobs))
        for number in range(2 * half):
            for job in self._jobs:
                now_s = job.arrived_s + number * round_s
                while ends and ends[0][0] <= now_s + 1e-6:
                    free += heappop(ends)[1]
                least, placed, tried = self._taken.get((job.sequential_s, degree), (0, 0, 0))
                lasts_s = job.expected_s.get(degree, math.inf)
                if lasts_s <= job.limit_s and (least or degree) <= free:
                    chance = (placed + 1) / (tried + 1)
                    free -= chance * (least or degree)
                    heappush(ends, (now_s + lasts_s, chance * (least or degree)))
                    accepted += chance * (number >= half)
        return accepted / (half * len(self._jobs))


@dataclass(frozen=True, slots=True)
class Maximum:
    """The largest legal degree: SiP-ML's rule, and PAC-ML's ``Para_max``.

    Khani et al., "SiP-ML: High-Bandwidth Optical Network Interconnects for Machine Learning
    Training", SIGCOMM 2021.
    """

    def degree(self, cluster: ClusterView, job: JobView, legal: tuple[int, ...]) -> int:
        return legal[-1]


@dataclass(frozen=True, slots=True)
class Minimum:
    """The smallest legal degree of at least 1/β, else the largest: PAC-ML's ``Para_min``.

    β is the part of its time on one GPU that a job may take. The rule takes speed-up for
    proportional to the degree, so it just misses β = 1/2, 1/4, 1/8.
    """

    def degree(self, cluster: ClusterView, job: JobView, legal: tuple[int, ...]) -> int:
        return _least(legal, math.ceil(_speed_up(job)))


@dataclass(frozen=True, slots=True)
class Sufficient:
    """The smallest legal degree above 1/β and of at least 2, else the largest."""

    def degree(self, cluster: ClusterView, job: JobView, legal: tuple[int, ...]) -> int:
        return _least(legal, max(2, math.floor(_speed_up(job)) + 1))


@dataclass
class RandomDegree:
    """Any legal degree but 0, each as likely; the seed fixes the choices."""

    seed: int = 0
    _rng: np.random.Generator = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Not above: a controller starts without NumPy.
        import numpy as np

        self._rng = np.random.default_rng(self.seed)

    def degree(self, cluster: ClusterView, job: JobView, legal: tuple[int, ...]) -> int:
        if len(legal) == 1:
            return 0
        return legal[1 + int(self._rng.integers(len(legal) - 1))]


def _speed_up(job: JobView) -> float:
    """How much faster than on one GPU the job has to be: 1/β, 1 where it may take its time."""
    ratio = job.sequential_s / job.limit_s
    return ratio if ratio > 1.0 else 1.0


def _least(legal: tuple[int, ...], wanted: int) -> int:
    return next((degree for degree in legal if degree >= wanted), legal[-1])
