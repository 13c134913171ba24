"""Placement policy *fragmentation-aware*: keep free GPUs where the jobs that come can use them.

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
Gradient Descent", USENIX ATC 2023, for jobs that take whole GPUs: a server's free GPUs are a
fragment for a job that wants more than there are. How much of a server is fragment is the mean
over the jobs that came lately, and a job goes where it makes fragments grow least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from patchlight.controller.policies.contract import ClusterView, JobView
from patchlight.controller.policies.sets import lowest, members


class FragmentationAware:
    """The server on which the job makes fragments grow least; large jobs take whole servers first.

    A job that wants more GPUs than a server has counts as one that wants a whole server, as that
    is what it takes first.
    """

    def place(self, cluster: ClusterView, job: JobView, workers: int) -> Sequence[int] | None:
        """Free GPUs of whole servers first, then of the best server for the rest."""
        free = cluster.free_for(job)
        if free.bit_count() < workers:
            return None
        shape = cluster.shape
        counted = [(part.bit_count(), part) for s in shape.server_gpus if (part := free & s)]
        most = max((server.bit_count() for server in shape.server_gpus), default=1)
        fragment = _fragments([each.workers for each in cluster.recent] or [workers], most)
        # The fullest first, for what no server holds; the order of servers among equals.
        counted.sort(key=lambda each: -each[0])
        found: list[int] = []
        while counted and counted[0][0] < workers - len(found):
            found += members(counted.pop(0)[1])
        left = workers - len(found)
        if not left:
            return found
        fitting = [each for each in counted if each[0] >= left]
        # Of equals the fullest server, as in the paper's simulator.
        best = min(
            fitting, key=lambda each: (fragment[each[0] - left] - fragment[each[0]], each[0])
        )
        return found + lowest(best[1], left)


def _fragments(wanted: Sequence[int], most: int) -> list[float]:
    """For each number of free GPUs of a server: how many of them are fragment, in the mean."""
    sizes = Counter(min(each, most) for each in wanted if each > 0)
    total = max(1, sum(sizes.values()))
    return [
        free * sum(count for size, count in sizes.items() if size > free) / total
        for free in range(most + 1)
    ]
