"""``patchlight/Elasticity-v0``: which running job gets another number of GPUs?"""

import math
from collections.abc import Mapping
from itertools import islice
from typing import ClassVar

import numpy as np

from patchlight.controller.policies.contract import ElasticJob, PlacementPolicy
from patchlight.controller.policies.degrees import GiveAndTake
from patchlight.controller.policies.order import Fifo
from patchlight.controller.policies.placement import FirstFit
from patchlight.emulation.learning.envs.queued import JOB_FEATURES, Observation, QueuedEnv, unit
from patchlight.emulation.learning.envs.registry import Heuristic, first_allowed
from patchlight.emulation.simulator.cluster import Policies, Settings
from patchlight.emulation.simulator.cluster.cluster import Cluster
from patchlight.emulation.simulator.cluster.jobs import SyntheticJobs
from patchlight.emulation.simulator.cluster.simulated_job import SimulatedJob
from patchlight.emulation.simulator.cluster.site import SimulatedSite

CHANGE_FEATURES = JOB_FEATURES + 3
_RULE = GiveAndTake()


def rigid(env: "ElasticityEnv", seen: Observation) -> int:
    """Every job keeps the GPUs that it began with."""
    mask = seen["action_mask"]
    return env.wait if mask[env.wait] else int(mask.argmax())


def give_and_take(env: "ElasticityEnv", seen: Observation) -> int:
    """The policy of that name, its changes one after the other, shrinking first."""
    wanted = env.answer(_RULE)
    mask = seen["action_mask"]
    allowed = [action for action in wanted if mask[action]]
    return allowed[0] if allowed else rigid(env, seen)


class ElasticityEnv(QueuedEnv):
    """Jobs run on half, as many or twice the GPUs that they asked for; the action changes one.

    Of the first ``shown`` running jobs that may change, action i has the i-th shrink to the next
    lower number, action ``shown`` + i has it grow to the next higher one, and the last leaves all
    until something happens. Jobs begin first in, first out, with what they asked for, where a
    placement policy says. A job that changes needs ``restart_s`` of the settings to go on, and is
    not asked about until it has. ``changes`` are for each action but the last the job, the part of
    the cluster that it has and would have, and its time for a unit then (t′ over t + t′); ``waits``
    is the job that is next.
    """

    per_action: ClassVar[tuple[str, ...]] = ("changes",)
    heuristics: ClassVar[Mapping[str, Heuristic]] = {
        "rigid": rigid,
        "give-and-take": give_and_take,
        "shrink-first": first_allowed,
    }

    def __init__(
        self,
        cluster: Cluster | None = None,
        jobs: SyntheticJobs | None = None,
        settings: Settings | None = None,
        placement: PlacementPolicy | None = None,
        shown: int = 8,
    ) -> None:
        extra = {"changes": unit(2 * shown, CHANGE_FEATURES), "waits": unit(JOB_FEATURES)}
        jobs = jobs or SyntheticJobs(elastic=True)
        super().__init__(2 * shown + 1, cluster, jobs, settings, extra)
        self._shown, self._placement = shown, placement or FirstFit()

    def answer(self, policy: GiveAndTake) -> list[int]:
        """The actions for what an elasticity policy wants of the jobs shown, shrinking first."""
        simulation, site = self._running(), self._site
        queue = [site.queued(job) for job in islice(simulation.waiting.values(), self._shown)]
        wanted = policy.resize(simulation.view(), [each for _, each in self._elastic], queue)
        found = []
        for number, (_, job) in enumerate(self._elastic):
            more = wanted.get(job.name, job.degree) - job.degree
            if more:
                found.append(number + self._shown * (more > 0))
        return sorted(found)

    def _begin(self) -> None:
        policies = Policies(Fifo(), self._placement)
        self._site = SimulatedSite(self._running(), policies)
        self._elastic: list[tuple[SimulatedJob, ElasticJob]] = []
        self._degrees = [0] * self.wait

    def _choices(self) -> bool:
        simulation = self._running()
        self._site.now_s, self._elastic = simulation.now_s, []
        while head := next(iter(simulation.waiting.values()), None):
            if simulation.occupancy.free < head.workers:
                break
            ring = self._placement.place(simulation.view(), head.spec.view, head.workers)
            if ring is None or not simulation.start(head, ring):
                break
        self._elastic, any_change = self._site.elastic(self._shown), False
        for number, (_, job) in enumerate(self._elastic):
            fewer, more = _neighbours(job)
            any_change = any_change or bool(fewer or more)
            if fewer:
                self._mask[number], self._degrees[number] = 1, fewer
            if more:
                self._mask[number + self._shown], self._degrees[number + self._shown] = 1, more
        return any_change

    def _act(self, action: int) -> bool:
        job, _ = self._elastic[action % self._shown]
        before = job.resizes
        self._site.resize(job, self._degrees[action])
        return job.resizes > before

    def _features(self) -> Observation:
        changes = np.zeros((2 * self._shown, CHANGE_FEATURES), np.float32)
        mask, rows = self._mask.tolist(), list[list[float]]()
        for number, (job, shown) in enumerate(self._elastic):
            seen = [*self._job(job), shown.degree / self.size]
            now_s = shown.iteration_s[shown.degree]
            for action in (number, number + self._shown):
                degree = self._degrees[action] if mask[action] else shown.degree
                after_s = shown.iteration_s[degree]
                both_s = now_s + after_s
                pace = after_s / both_s if 0 < both_s < math.inf else 0.5
                rows.append([*seen, degree / self.size, pace])
        if rows:  # Shrinking and growing of one job after the other.
            changes[: len(self._elastic)], changes[self._shown :][: len(self._elastic)] = (
                rows[::2],
                rows[1::2],
            )
        head = next(iter(self._running().waiting.values()), None)
        waits = [0.0] * JOB_FEATURES if head is None else self._job(head)
        return {"changes": changes, "waits": np.array(waits, np.float32)}


def _neighbours(job: ElasticJob) -> tuple[int, int]:
    """The next lower and the next higher number of GPUs that a job can have now; 0 for none."""
    fewer, more, now = 0, 0, job.degree
    for degree in job.iteration_s:
        if fewer < degree < now:
            fewer = degree
        elif now < degree and (not more or degree < more):
            more = degree
    return fewer, more
