"""The option that delays all jobs least, by rule: degrees, places, circuits, numbers of workers.

Places and circuits belong together. All weigh the same options by the same predicted costs that a
learned policy starts from, and need no model.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from patchlight.controller.policies.contract import ClusterView, ElasticJob, JobView, QueuedJob
from patchlight.controller.policies.options.learned import explained
from patchlight.controller.policies.options.listing import Listing, Option
from patchlight.controller.policies.options.outlook import Networks, Outlook
from patchlight.testbed.lab.portmap import PortMap


class _Weighs:
    def __init__(self) -> None:
        self._networks, self._listing = Networks(), Listing()
        self.explanation: Mapping[str, Any] | None = None

    def _outlook(self, cluster: ClusterView) -> Outlook:
        return Outlook(cluster, self._networks.of(cluster))

    def _best(self, outlook: Outlook, options: Sequence[Option]) -> Any:
        """The answer of the lowest cost, of equals the first; ``None`` if there are none."""
        self.explanation = None
        if not options:
            return None
        best = min(options, key=rule_cost)
        scores = [-min(rule_cost(option)[1], 1e12) for option in options]
        self.explanation = explained(outlook, options, scores, best)
        return best.answer


def rule_cost(option: Option) -> tuple[bool, float]:
    """What the rule goes by: whether there is no way, and by how much all jobs end later."""
    cost_s = option.prospect.cost_s
    return option.prospect.stuck, 0.0 if math.isnan(cost_s) else cost_s


class LeastDelayPartition(_Weighs):
    """The number of workers with which this job and those that wait are delayed least together.

    Looked at are those that it can have now. Each costs the time that the job takes where
    *consolidated* would put it, what it slows down others that share its links, and what the GPU
    time that it takes keeps from jobs that wait: more workers end sooner, and hold more GPUs while
    they move the gradient. Of a job that has to end in time, those count that do, if any do. Where
    nobody knows what the job has to do, it is the least number.
    """

    def degree(self, cluster: ClusterView, job: JobView, legal: tuple[int, ...]) -> int | None:
        """As the contract says; it refuses none."""
        outlook = self._outlook(cluster)
        options = self._listing.degrees(outlook, job, legal)
        return cast(int | None, self._best(outlook, options))


class LeastDelayPlacement(_Weighs):
    """GPUs where this job, those that run and those that wait are delayed least, all together.

    Goes with the topology policy *least-delay*. Looked at are the places that the other placements
    would take, each packet switch with room, several ways to spread the job, GPUs of one model
    alone, and GPUs that light can bring under one switch. Each costs the time that the job takes
    there, what it slows down others that share its links, and what the GPU time that all of this
    takes keeps from jobs that wait; GPU time counts by how fast the GPU's model is. Where nobody
    knows what the job has to do, it is *consolidated*.

    Without ``circuits`` light is taken to stay: for another topology policy.
    """

    def __init__(self, circuits: bool = True) -> None:
        super().__init__()
        self._circuits = circuits

    def place(self, cluster: ClusterView, job: JobView, workers: int) -> Sequence[int] | None:
        """As the contract says."""
        outlook = self._outlook(cluster)
        circuits = self._circuits and bool(cluster.lab and cluster.lab.circuit_switches)
        options = self._listing.placements(outlook, job, workers, with_circuits=circuits)
        return cast(Sequence[int] | None, self._best(outlook, options))


class LeastDelayTopology(_Weighs):
    """The circuits as they are, or the new jobs under one switch each: what delays all jobs less.

    Goes with the placement policy *least-delay*. Circuits of running jobs stay.
    """

    def circuits(
        self, cluster: ClusterView, groups: Sequence[Sequence[int]]
    ) -> Mapping[str, PortMap]:
        """The maps that change; empty where they are to stay."""
        outlook = self._outlook(cluster)
        options = self._listing.circuits(outlook, groups)
        return cast(Mapping[str, PortMap], self._best(outlook, options) or {})


class LeastDelayElasticity(_Weighs):
    """The change after which those that run end, and those that wait begin, soonest all together.

    Looked at are each other number of workers of each job, what makes room for one of the next four
    that wait, and what *give-and-take* would do. A change costs, or gains, the time that the jobs
    that change take longer, the time by which those that wait begin later, and for the next that
    comes the part of the cluster that is held, times how long. One of these is taken at a time.
    """

    stable: ClassVar[bool] = True

    def resize(
        self, cluster: ClusterView, jobs: Sequence[ElasticJob], queue: Sequence[QueuedJob]
    ) -> Mapping[str, int]:
        """As the contract says."""
        outlook = self._outlook(cluster)
        options = self._listing.sizes(outlook, jobs, queue)
        return cast(Mapping[str, int], self._best(outlook, options))
