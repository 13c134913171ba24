"""What other numbers of workers would lead to: for the jobs that change, and for those that wait.

Who waits begins in turn as soon as enough GPUs are free, as running jobs end. Played once as things
are and once with a change, that says what the change does to all of them. What it leaves out:
which GPUs a placement policy would choose, and that jobs slow each other down on links.
"""

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence

from patchlight.controller.policies.contract import ClusterView, ElasticJob, QueuedJob
from patchlight.controller.policies.elasticity import lost_s
from patchlight.controller.policies.options.outlook import HORIZON_S, Prospect
from patchlight.controller.policies.sets import joined, lowest

_LOOKED_AT = 16  # of those that wait


class Resizing:
    """A cluster's running jobs and who waits for GPUs, at one moment; ``queue`` in its order."""

    def __init__(
        self, cluster: ClusterView, jobs: Sequence[ElasticJob], queue: Sequence[QueuedJob]
    ) -> None:
        self._cluster, self._queue = cluster, queue[:_LOOKED_AT]
        self._jobs = {job.name: _known(job) for job in jobs}
        self._gpus = {running.name: running.gpus for running in cluster.running}
        self._present_s = self._begin_s(cluster.free, {}, {})

    def single(self, most: int) -> Iterator[dict[str, int]]:
        """Another number of workers for one job: the ``most`` more, and fewer, that cost it least.

        More only where so many GPUs are free.
        """
        free = self._cluster.free.bit_count()
        grow: list[tuple[float, str, int]] = []
        shrink: list[tuple[float, str, int]] = []
        for job in self._jobs.values():
            for degree in job.iteration_s:
                if degree != job.degree and degree - job.degree <= free:
                    found = shrink if degree < job.degree else grow
                    found.append((_for_good_s(job, degree), job.name, degree))
        for found in (grow, shrink):
            for _, name, degree in sorted(found, key=lambda each: each[0])[:most]:
                yield {name: degree}

    def of(self, answer: Mapping[str, int]) -> Prospect:
        """What these degrees would lead to.

        The jobs that change end later by ``delays_s`` in all, and those that wait begin later by
        ``queue_s``. The latter counts the next one that comes, too: by the part of the cluster that
        is held for longer, as more workers have more to tell each other, times how long. A job that
        gives up GPUs may have them again once those have ended that begin at once.
        """
        free, gpus = self._after(answer)
        at_once = [job.lasts_s for job, begins_s in self._turns(free, []) if not begins_s]
        again_s = max(at_once, default=math.inf)
        later_s, held_gpu_s = {}, 0.0
        for name, degree in answer.items():
            job = self._jobs[name]
            later_s[name] = _for_good_s(job, degree)
            if degree < job.degree and later_s[name] > job.cost_s:
                later_s[name] = lost_s(job, degree, again_s)
            left_s = job.left * job.iteration_s[job.degree]
            held_gpu_s += degree * (left_s + later_s[name]) - job.degree * left_s
        queue_s = self._begin_s(free, gpus, later_s) - self._present_s
        queue_s += held_gpu_s / max(1, len(self._cluster.shape.gpus))
        return Prospect(0.0, 0.0, math.fsum(later_s.values()), queue_s=queue_s)

    def _after(self, answer: Mapping[str, int]) -> tuple[int, dict[str, int]]:
        """Which GPUs are free then, and which those that change have; who shrinks comes first."""
        free, gpus = self._cluster.free, {}
        more = {name: degree - self._jobs[name].degree for name, degree in answer.items()}
        for name in sorted(more, key=more.__getitem__):
            held = self._gpus.get(name, 0)
            kept = held & joined(lowest(held, answer[name]))
            taken = joined(lowest(free, more[name]))
            free = (free | held) & ~(kept | taken)
            gpus[name] = kept | taken
        return free, gpus

    def _begin_s(self, free: int, gpus: Mapping[str, int], later_s: Mapping[str, float]) -> float:
        """In how long those that wait begin, all together; jobs end so much later than expected."""
        if not self._queue:
            return 0.0
        ends = []
        for running in self._cluster.running:
            left_s = running.ends_s - self._cluster.now_s
            left_s = (left_s if left_s < math.inf else HORIZON_S) + later_s.get(running.name, 0.0)
            ends.append((max(0.0, left_s), gpus.get(running.name, running.gpus)))
        return math.fsum(begins_s for _, begins_s in self._turns(free, ends))

    def _turns(self, free: int, ends: list[tuple[float, int]]) -> Iterator[tuple[QueuedJob, float]]:
        """Who waits, and in how long each begins if GPUs come free then; not who never does."""
        heapq.heapify(ends)
        now_s = 0.0
        for job in self._queue:
            able = self._cluster.gpus_of_models(job.gpu_models)
            while (free & able).bit_count() < job.workers and ends:
                end_s, gpus = heapq.heappop(ends)
                now_s, free = max(now_s, end_s), free | gpus
            if (free & able).bit_count() >= job.workers:
                gpus = joined(lowest(free & able, job.workers))
                free &= ~gpus
                lasts_s = job.lasts_s if job.lasts_s < math.inf else HORIZON_S
                heapq.heappush(ends, (now_s + lasts_s, gpus))
                yield job, now_s


def _known(job: ElasticJob) -> ElasticJob:
    """The job, if nobody knows what is left of it with as much as it does until the horizon."""
    known = job.left < math.inf
    return job if known else job._replace(left=HORIZON_S / job.iteration_s[job.degree])


def _for_good_s(job: ElasticJob, degree: int) -> float:
    """How much later a job ends with so many workers from now on."""
    return job.cost_s + job.left * (job.iteration_s[degree] - job.iteration_s[job.degree])
