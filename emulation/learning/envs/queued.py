"""``patchlight/Schedule-v0``: which waiting job starts next; with the base of all queue
environments."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from itertools import islice
from typing import Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from patchlight.controller.policies.contract import PlacementPolicy
from patchlight.controller.policies.placement import FirstFit
from patchlight.controller.policies.sets import members
from patchlight.emulation.learning.envs.registry import (
    Heuristic,
    first_allowed,
)
from patchlight.emulation.simulator.cluster import (
    QueueJob,
    Settings,
    Simulation,
    TwoLevel,
)
from patchlight.emulation.simulator.cluster.cluster import Cluster
from patchlight.emulation.simulator.cluster.jobs import SyntheticJobs
from patchlight.emulation.simulator.cluster.simulated_job import (
    Cause,
    SimulatedJob,
    State,
)

Floats = npt.NDArray[Any]
Observation = dict[str, Any]

JOB_FEATURES = 5
"""GPUs wanted, duration, time waited, time it communicates, time its deadline is away."""

SHORT_MEAN_S = 2663.0
"""The mean duration of jobs with the median of Philly's whose logarithm spreads by 1.3, as in the
training for labs. Philly's own mean is five times as much: a few jobs are most of the work."""


class MaskedEnv(gymnasium.Env[Observation, np.int64]):
    """An environment in which a mask says what is allowed now."""

    metadata = {"render_modes": []}  # noqa: RUF012 - so Gymnasium's environments declare it
    _mask: npt.NDArray[np.int8]

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which actions are allowed now."""
        return self._mask.astype(bool)


class QueuedEnv(MaskedEnv):
    """An episode is a cluster and so many jobs, from the first arrival to the last end.

    The reward of a step is −∫ jobs in the system dt until the next decision, in units of the
    jobs' mean duration: over an episode it adds up to the sum of their completion times (Mao et
    al., SIGCOMM 2019). Times are seen as t/(t + mean duration), so they lie in 0…1. The last
    action waits until something happens; so does one that the mask forbids, and ``info`` says
    ``illegal``. Where nothing else will happen, waiting is not allowed, and the first legal
    action is taken instead.
    """

    figure: ClassVar[str] = "jct_mean_s"

    def __init__(
        self,
        actions: int,
        cluster: Cluster | None,
        jobs: SyntheticJobs | None,
        settings: Settings | None,
        extra: Mapping[str, spaces.Space[Any]],
    ) -> None:
        self.cluster = cluster or default_cluster()
        self.jobs = jobs or SyntheticJobs()
        self.settings = settings or Settings()
        self.size = len(self.cluster.shape.gpus)
        self.wait = actions - 1
        self.action_space = spaces.Discrete(actions)
        seen = {
            "occupied": unit(self.size),
            "remaining": unit(self.size),
            "queue": unit(1),
        }
        mask = spaces.MultiBinary(actions)
        self.observation_space = spaces.Dict(
            {**seen, "action_mask": mask, **extra}
        )
        self.simulation: Simulation | None = None
        self._mask = np.zeros(actions, np.int8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """New jobs; ``options`` may have ``jobs``, a list of ``QueueJob`` to take instead."""
        super().reset(seed=seed)
        jobs: list[QueueJob] = (options or {}).get("jobs") or self.jobs.draw(
            self.np_random, self.size
        )
        self._mean_s = max(
            1e-9, sum(job.duration_s for job in jobs) / len(jobs)
        )
        self.simulation = Simulation(self.cluster, jobs, self.settings)
        self._begin()
        self._next_decision()
        return self._observe(), {}

    def step(
        self, action: np.int64
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One decision; ``reward`` counts until the next."""
        simulation = self._running()
        chosen = int(action)
        illegal = not self._mask[chosen]
        if illegal:
            chosen = (
                self.wait
                if self._mask[self.wait]
                else int(self._mask.argmax())
            )
        jobs_s = 0.0
        if chosen == self.wait or not self._act(chosen):
            passed = self._advance()
            if passed is not None:
                jobs_s += passed
            elif (
                simulation.waiting
            ):  # Not even an empty cluster has a place for it.
                simulation.block(
                    next(iter(simulation.waiting.values())), Cause.UNPLACEABLE
                )
        jobs_s += self._next_decision()
        over = simulation.ended == len(simulation.jobs)
        info: dict[str, Any] = {"illegal": illegal} if illegal else {}
        if over:
            done = [job for job in simulation.jobs if job.state is State.DONE]
            times_s = [job.ended_s - job.spec.view.arrived_s for job in done]
            info["jct_mean_s"] = sum(times_s) / max(1, len(times_s))
        return self._observe(), -jobs_s / self._mean_s, over, False, info

    # -- what the kinds of environment differ in

    @abstractmethod
    def _begin(self) -> None:
        """A new episode."""

    @abstractmethod
    def _choices(self) -> bool:
        """Write the mask of what can be chosen, without waiting; whether there is anything."""

    @abstractmethod
    def _act(self, action: int) -> bool:
        """Do what an allowed action says; ``False`` if it turns out that it cannot be done."""

    @abstractmethod
    def _features(self) -> Observation:
        """Extra observations, beside the cluster."""

    # -- time

    def _running(self) -> Simulation:
        if self.simulation is None:
            raise gymnasium.error.ResetNeeded(
                "call reset() before the first step()"
            )
        return self.simulation

    def _next_decision(self) -> float:
        """Go on until there is something to choose; how long jobs were in the system meanwhile."""
        simulation = self._running()
        jobs_s = 0.0
        while True:
            self._mask[:] = 0
            if self._choices():
                self._mask[self.wait] = simulation.goes_on
                return jobs_s
            passed = self._advance()
            if passed is None:
                self._mask[self.wait] = 1
                return jobs_s
            jobs_s += passed

    def _advance(self) -> float | None:
        """Go on to the next moment; how long jobs were in the system, ``None`` if none is left."""
        simulation = self._running()
        before_s = simulation.now_s
        jobs = len(simulation.waiting) + len(simulation.running)
        if not simulation.advance():
            return None
        simulation.joined.clear()
        return (simulation.now_s - before_s) * jobs

    # -- observations

    def _observe(self) -> Observation:
        simulation = self._running()
        occupied = [0.0] * self.size
        remaining = [0.0] * self.size
        now_s = simulation.now_s
        mean_s = self._mean_s
        for job in simulation.running.values():
            left_s = job.ends_s - now_s
            left = left_s / (left_s + mean_s) if left_s < math.inf else 1.0
            for gpu in job.ring:
                occupied[gpu] = 1.0
                remaining[gpu] = left
        if simulation.occupancy.broken:
            for gpu in members(simulation.occupancy.broken):
                occupied[gpu] = remaining[gpu] = 1.0
        queue = len(simulation.waiting)
        return {
            "occupied": np.array(occupied, np.float32),
            "remaining": np.array(remaining, np.float32),
            "queue": np.array([queue / (queue + 10)], np.float32),
            "action_mask": self._mask.copy(),
            **self._features(),
        }

    def _job(self, job: SimulatedJob) -> list[float]:
        """A job's ``JOB_FEATURES``."""
        now_s = self._running().now_s
        mean_s = self._mean_s
        spec = job.spec
        view = spec.view
        left_s = (
            job.remaining / job.units * spec.duration_s if job.units else 0.0
        )
        waited_s = now_s - job.waits_since_s
        slack_s = max(0.0, view.arrived_s + view.limit_s - now_s)
        return [
            view.workers / self.size,
            left_s / (left_s + mean_s),
            waited_s / (waited_s + mean_s),
            spec.communication,
            slack_s / (slack_s + mean_s) if slack_s < math.inf else 1.0,
        ]


def unit(*shape: int) -> spaces.Box:
    """A space of numbers from 0 to 1."""
    return spaces.Box(
        0.0,
        1.0,
        shape,
        np.float32,
    )


def default_cluster() -> Cluster:
    """64 GPUs: 4 racks of 4 servers of 4, whose uplinks have a quarter of the NICs' rate."""
    return TwoLevel(
        4,
        4,
        4,
        oversubscription=4.0,
    )


def fifo(env: "ScheduleEnv", seen: Observation) -> int:
    """The job that came first, and no other before it."""
    mask = seen["action_mask"]
    return 0 if mask[0] or not mask[env.wait] else env.wait


def shortest(env: "ScheduleEnv", seen: Observation) -> int:
    """The job that fits with the least time left."""
    return _least(env, seen, seen["jobs"][:, 1])


def smallest(env: "ScheduleEnv", seen: Observation) -> int:
    """The job that fits with the least time left on the fewest GPUs."""
    left = seen["jobs"][:, 1].astype(float)
    return _least(
        env, seen, seen["jobs"][:, 0] * left / np.maximum(1e-9, 1 - left)
    )


def _least(
    env: "ScheduleEnv",
    seen: Observation,
    costs: Floats,
) -> int:
    allowed = seen["action_mask"][:-1] > 0
    return (
        int(np.where(allowed, costs, np.inf).argmin())
        if allowed.any()
        else env.wait
    )


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
        jobs = jobs or SyntheticJobs(
            load=1.5,
            mean_s=SHORT_MEAN_S,
        )
        super().__init__(
            shown + 1,
            cluster,
            jobs,
            settings,
            {"jobs": unit(shown, JOB_FEATURES)},
        )
        self._placement = placement or FirstFit()
        self._shown = shown

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
        simulation = self._running()
        job = self._jobs[action]
        ring = self._placement.place(
            simulation.view(), job.spec.view, job.workers
        )
        return ring is not None and simulation.start(job, ring)

    def _features(self) -> Observation:
        jobs = np.zeros((self._shown, JOB_FEATURES), np.float32)
        if self._jobs:
            jobs[: len(self._jobs)] = [self._job(job) for job in self._jobs]
        return {"jobs": jobs}
