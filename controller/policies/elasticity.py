"""Elasticity policies: which running jobs get other numbers of workers.

A policy that need not be asked again until a job comes, starts or ends says so by ``stable``.

The live form of PAC-ML's question (Parsonson et al., arXiv 2301.13799): there a job's degree is
chosen once, when it comes; here again while it runs.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from patchlight.controller.policies.contract import ClusterView, ElasticJob, QueuedJob

_LOOKED_AT = 8


class Rigid:
    """Every job keeps the workers that it began with."""

    stable: ClassVar[bool] = True

    def resize(
        self, cluster: ClusterView, jobs: Sequence[ElasticJob], queue: Sequence[QueuedJob]
    ) -> Mapping[str, int]:
        """None."""
        return {}


class GiveAndTake:
    """Jobs take GPUs that nobody wants, and give up some for one that waits.

    While nobody waits, the job that ends sooner by the most for each further GPU grows. While
    somebody waits, jobs shrink for the first of the next eight that there is room for then. Each
    only where the predicted gain is more than it costs, stopping and starting included.
    """

    stable: ClassVar[bool] = True

    def resize(
        self, cluster: ClusterView, jobs: Sequence[ElasticJob], queue: Sequence[QueuedJob]
    ) -> Mapping[str, int]:
        """As the contract says."""
        if not queue:
            return _grow(cluster, jobs)
        found = (_make_room(cluster, jobs, waits) for waits in queue[:_LOOKED_AT])
        return next(filter(None, found), {})


def _grow(cluster: ClusterView, jobs: Sequence[ElasticJob]) -> dict[str, int]:
    """Step by step the degrees of those that grow."""
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
    """How much sooner a job ends with so many workers; what it costs to change counts once."""
    faster_s = job.iteration_s[now] - job.iteration_s[degree]
    return job.left * faster_s - job.cost_s * (now == job.degree) if faster_s > 0 else -math.inf


class ShrinkStep(NamedTuple):
    """A job that shrinks: how much later it ends, and how many GPUs somebody gets of it."""

    lost_s: float
    freed: int
    number: int
    job: ElasticJob
    degree: int


def _make_room(
    cluster: ClusterView, jobs: Sequence[ElasticJob], waits: QueuedJob
) -> dict[str, int]:
    """The degrees of those that shrink, so that one that waits can start; none if it pays not."""
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
    """Which jobs shrink so that one that waits can start; empty if none have to, or cannot."""
    able = cluster.gpus_of_models(waits.gpu_models)
    gpus = {running.name: running.gpus for running in cluster.running}
    short = waits.workers - (cluster.free & able).bit_count()
    taken: dict[str, ShrinkStep] = {}
    while short > 0:
        steps = [
            ShrinkStep(lost_s(job, degree, waits.lasts_s), freed, number, job, degree)
            for number, job in enumerate(jobs)
            for degree in job.iteration_s
            if job.name not in taken
            and (freed := _freed(gpus.get(job.name, 0), able, job.degree - degree)) > 0
        ]
        if not steps:
            return ()
        enough = [step for step in steps if step.freed >= short]
        best = min(enough) if enough else min(steps, key=lambda step: step.lost_s / step.freed)
        taken[best.job.name] = best
        short -= best.freed
    return tuple(taken.values())


def _freed(gpus: int, able: int, fewer: int) -> int:
    """How many of these GPUs are free for somebody once a job has so many fewer, at the least."""
    return max(0, fewer - (gpus & ~able).bit_count())


def _free_at_s(cluster: ClusterView, workers: int, able: int) -> float:
    """When so many of the able GPUs are free if everybody keeps theirs."""
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
