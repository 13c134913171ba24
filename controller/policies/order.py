"""Orders waiting jobs: the lowest is next, in a tie the one that arrived first.

``stable``: the answer depends only on the job and its progress; it is computed once while the job
waits. ``rises_at``: for a running job it rises only when its GPU-seconds pass these amounts,
ascending. ``by_user``: it depends only on the user and their usage; it is computed once per user.
"""

import math
import sys
from bisect import bisect_right
from collections.abc import Sequence
from typing import ClassVar

from patchlight.controller.policies.contract import (
    ClusterView,
    JobView,
    Progress,
)
from patchlight.testbed.errors import BadInput

LAST = sys.float_info.max
"""For jobs without the value that the policy needs."""


class _Stable:
    stable: ClassVar[bool] = True
    rises_at: ClassVar[Sequence[float]] = ()


class Fifo(_Stable):
    """First in, first out."""

    def priority(
        self,
        cluster: ClusterView,
        job: JobView,
        progress: Progress,
    ) -> float:
        return job.arrived_s


class Srpt(_Stable):
    """Shortest remaining processing time; jobs with unknown time come last.

    Optimal for the mean time in the system on one machine (Schrage, 1968).
    """

    def priority(
        self,
        cluster: ClusterView,
        job: JobView,
        progress: Progress,
    ) -> float:
        return min(_left_s(job, progress), LAST)


class LeastDelay(_Stable):
    """The job that holds the fewest GPU-seconds; jobs with unknown ones come last.

    So jobs behind it wait the least for it. If a job could use all GPUs at once, they would be one
    machine, on which that is optimal for the mean time in the system (Smith, 1956). Use it with the
    placement and topology policies *least-delay*.
    """

    def priority(
        self,
        cluster: ClusterView,
        job: JobView,
        progress: Progress,
    ) -> float:
        return min(_left_s(job, progress) * max(1, job.workers), LAST)


def _left_s(job: JobView, progress: Progress) -> float:
    left_s = progress.remaining_s
    return (
        job.expected_s.get(job.workers, LAST) if math.isnan(left_s) else left_s
    )


class LeastAttainedService:
    """Least attained service in GPU-seconds, in queues: Tiresias' discretised 2D-LAS.

    A job leaves the first queue after ``first_gpu_s`` GPU-seconds, and each next one after
    ``factor`` times as much; within a queue the first comes first. Gu et al., "Tiresias: A GPU
    Cluster Manager for Distributed Deep Learning", NSDI 2019.
    """

    stable: ClassVar[bool] = True

    def __init__(
        self,
        queues: int = 2,
        first_gpu_s: float = 3600.0,
        factor: float = 10.0,
    ) -> None:
        if queues < 1 or not first_gpu_s > 0 or not factor > 1:
            raise BadInput(
                f"cannot have {queues} queues, the first up to {first_gpu_s} GPU-seconds, each "
                f"next {factor} times as much: expected 1 or more, more than 0, more than 1"
            )
        self.rises_at = [
            first_gpu_s * factor**place for place in range(queues - 1)
        ]

    def priority(
        self,
        cluster: ClusterView,
        job: JobView,
        progress: Progress,
    ) -> float:
        return float(bisect_right(self.rises_at, progress.attained_gpu_s))


class Deadline(_Stable):
    """Earliest deadline first; jobs without one come last."""

    def priority(
        self,
        cluster: ClusterView,
        job: JobView,
        progress: Progress,
    ) -> float:
        return min(job.arrived_s + job.limit_s, LAST)


class FairShare:
    """Jobs of the user with the fewest GPU-seconds per share; within a user, the first.

    Past usage counts half after each half-life, as in the fair-share factor of Slurm's multifactor
    priority plugin. Half-life and shares are the queue's.
    """

    by_user: ClassVar[bool] = True

    def priority(
        self,
        cluster: ClusterView,
        job: JobView,
        progress: Progress,
    ) -> float:
        return cluster.usage.get(job.user, 0.0)
