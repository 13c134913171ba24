"""A placement policy: a job's GPUs on as many servers as possible.

$ patchlight policy show examples/spread.py:Spread
examples/spread.py:Spread: placement policy, file examples/spread.py
source: …/examples/spread.py:15
…
"""

from itertools import zip_longest

from patchlight.controller.policies.contract import ClusterView, JobView
from patchlight.controller.policies.sets import members


class Spread:
    """One GPU of each server in turn, the emptiest servers first."""

    def place(self, cluster: ClusterView, job: JobView, workers: int) -> list[int] | None:
        """The GPUs in the ring's order, or ``None`` to wait."""
        free = cluster.free_for(job)
        servers = [list(members(free & gpus)) for gpus in cluster.shape.server_gpus]
        servers.sort(key=len, reverse=True)
        turns = [gpu for turn in zip_longest(*servers) for gpu in turn if gpu is not None]
        return turns[:workers] if len(turns) >= workers else None
