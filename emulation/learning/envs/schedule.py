"""``patchlight/Schedule-v0``: which waiting job is next?"""

from collections.abc import Mapping
from itertools import islice
from typing import ClassVar

import numpy as np

from patchlight.controller.policies.contract import PlacementPolicy
from patchlight.controller.policies.placement import FirstFit
from patchlight.emulation.learning.envs.queued import (
    JOB_FEATURES,
    SHORT_MEAN_S,
    Floats,
    Observation,
    QueuedEnv,
    unit,
)
from patchlight.emulation.learning.envs.registry import Heuristic, first_allowed
from patchlight.emulation.simulator.cluster import Settings
from patchlight.emulation.simulator.cluster.cluster import Cluster
from patchlight.emulation.simulator.cluster.jobs import SyntheticJobs
from patchlight.emulation.simulator.cluster.simulated_job import SimulatedJob


def fifo(env: "ScheduleEnv", seen: Observation) -> int:
    """The job that came first, and nobody before it."""
    mask = seen["action_mask"]
    return 0 if mask[0] or not mask[env.wait] else env.wait


def shortest(env: "ScheduleEnv", seen: Observation) -> int:
    """Of the jobs that fit, the one with the least time left."""
    return _least(env, seen, seen["jobs"][:, 1])


def smallest(env: "ScheduleEnv", seen: Observation) -> int:
    """Of the jobs that fit, the one with the least time left on the fewest GPUs."""
    left = seen["jobs"][:, 1].astype(float)
    return _least(env, seen, seen["jobs"][:, 0] * left / np.maximum(1e-9, 1 - left))


def _least(env: "ScheduleEnv", seen: Observation, costs: Floats) -> int:
    allowed = seen["action_mask"][:-1] > 0
    return int(np.where(allowed, costs, np.inf).argmin()) if allowed.any() else env.wait


class ScheduleEnv(QueuedEnv):
    """The action is one of the first ``shown`` jobs in the queue; the last one waits.

    A placement policy says where the job goes; where it finds no place, that is waiting. A job
    is allowed if as many GPUs are free as it wants.
    """

    per_action: ClassVar[tuple[str, ...]] = ("jobs",)

    heuristics: ClassVar[Mapping[str, Heuristic]] = {
        "fifo": fifo,
        "first-that-fits": first_allowed,
        "shortest": shortest,
        "smallest": smallest,
    }

    def __init__(
        self,
        cluster: Cluster | None = None,
        jobs: SyntheticJobs | None = None,
        settings: Settings | None = None,
        placement: PlacementPolicy | None = None,
        shown: int = 16,
    ) -> None:
        # More than the cluster can take, so that there is a queue to choose from.
        jobs = jobs or SyntheticJobs(load=1.5, mean_s=SHORT_MEAN_S)
        super().__init__(shown + 1, cluster, jobs, settings, {"jobs": unit(shown, JOB_FEATURES)})
        self._placement, self._shown = placement or FirstFit(), shown

    def _begin(self) -> None:
        self._jobs: list[SimulatedJob] = []

    def _choices(self) -> bool:
        simulation = self._running()
        self._jobs = list(islice(simulation.waiting.values(), self._shown))
        free = simulation.occupancy.free
        fits = [job.workers <= free for job in self._jobs]
        self._mask[: len(fits)] = fits
        return any(fits)

    def _act(self, action: int) -> bool:
        simulation, job = self._running(), self._jobs[action]
        ring = self._placement.place(simulation.view(), job.spec.view, job.workers)
        return ring is not None and simulation.start(job, ring)

    def _features(self) -> Observation:
        jobs = np.zeros((self._shown, JOB_FEATURES), np.float32)
        if self._jobs:
            jobs[: len(self._jobs)] = [self._job(job) for job in self._jobs]
        return {"jobs": jobs}
