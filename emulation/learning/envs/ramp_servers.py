"""``patchlight/RampServers-v0`` and ``Elasticity-v0``: which servers a job gets, and how many."""

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, SupportsInt

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from patchlight.controller.policies.contract import (
    ElasticJob,
    PartitionPolicy,
    PlacementPolicy,
)
from patchlight.controller.policies.degrees import GiveAndTake, Sufficient
from patchlight.controller.policies.observation import LONGEST, UNIT_S
from patchlight.controller.policies.order import Fifo
from patchlight.controller.policies.placement import FirstFit
from patchlight.controller.policies.sets import members
from patchlight.emulation.learning.envs.queued import (
    JOB_FEATURES,
    Observation,
    QueuedEnv,
    unit,
)
from patchlight.emulation.learning.envs.ramp_partition import (
    new_episode,
    scenarios,
)
from patchlight.emulation.learning.envs.registry import (
    Heuristic,
    first_allowed,
)
from patchlight.emulation.simulator.cluster import Policies, Settings
from patchlight.emulation.simulator.cluster.cluster import Cluster
from patchlight.emulation.simulator.cluster.jobs import SyntheticJobs
from patchlight.emulation.simulator.cluster.simulated_job import SimulatedJob
from patchlight.emulation.simulator.cluster.site import SimulatedSite
from patchlight.emulation.simulator.ramp.lossnetwork import Episode, JobOutcome
from patchlight.emulation.simulator.ramp.ramp import (
    Block,
    PlacementRule,
    sub_blocks,
)
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.emulation.simulator.ramp.workloads import LAW_NAMES
from patchlight.testbed.errors import BadInput

OPTION_FEATURES = 4
"""Servers it takes, time over the limit, free blocks that it breaks, and those free soon."""


def first_fit(env: "RampServersEnv", seen: Observation) -> int:
    """The first block that does, in the order of PAC-ML's simulator."""
    mask = seen["action_mask"]
    return int(mask[1:].argmax()) + 1 if mask[1:].any() else 0


def soonest(env: "RampServersEnv", seen: Observation) -> int:
    """The block on which the job ends first."""
    return _least(seen, env.lasting_s)


def least_harm(env: "RampServersEnv", seen: Observation) -> int:
    """The block that leaves the most free blocks to others, larger ones counting more."""
    return _least(seen, env.harm())


def _least(seen: Observation, costs: NDArray[Any]) -> int:
    allowed = seen["action_mask"][1:] > 0
    return (
        int(np.where(allowed, costs, np.inf).argmin()) + 1
        if allowed.any()
        else 0
    )


class RampServersEnv(gymnasium.Env[Observation, np.int64]):
    """Jobs come to a RAMP cluster; an action is a block of servers, or 0 to refuse.

    Action i is ``blocks[i − 1]``: all servers that may be one job's, small blocks first. A
    ``partition`` policy says into how many parts each job is split (by default the least that
    meet its limit by rule ``sufficient``), and so how large its block is; with ``any_degree``
    the block's size says that instead, and the action is degree and servers in one. Allowed are
    free blocks on which the job meets its limit. The reward is +1 for an accepted job, −1 for a
    blocked one. An episode is one of a drawn law of ``laws``.

    Seen are how long each server is still busy, and the job: requirement β, time on one server,
    limit, part of the servers that are free, and part of them that it would get (0: any).
    ``options`` are for each action the part of the servers that it takes, the job's time there over
    its limit, and the servers of all free blocks that it would take one of, over those of all such
    blocks; then the same with a block that is busy for t more as 1/(1 + t) of a free one.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own name
    figure: ClassVar[str] = "blocking_rate"
    per_action: ClassVar[tuple[str, ...]] = ("options",)
    heuristics: ClassVar[Mapping[str, Heuristic]] = {
        "first-fit": first_fit,
        "soonest": soonest,
        "least-harm": least_harm,
    }

    def __init__(
        self,
        laws: Sequence[str] = LAW_NAMES,
        partition: PartitionPolicy | None = None,
        any_degree: bool = False,
        horizon_s: float = 1e6,
        profiles: Path | None = None,
        scenario: Sequence[Scenario] | None = None,
    ) -> None:
        if any_degree and partition is not None:
            raise BadInput(
                "any_degree and a partition policy exclude each other: give one of them"
            )
        rule = PlacementRule.RAMP_BLOCK
        self.scenarios = tuple(
            scenario
            or scenarios(
                laws,
                rule,
                horizon_s,
                profiles,
            )
        )
        if any(each.rule != rule for each in self.scenarios):
            raise BadInput(
                f"servers are chosen as whole blocks: expected scenarios of rule {rule}"
            )
        self._partition = None if any_degree else partition or Sufficient()
        workloads = self._workloads = self.scenarios[0].workloads
        sizes = sorted(
            {
                plan.max_split
                for each in workloads.plans
                for plan in each.values()
            }
        )
        blocks = [
            block for size in sizes for block in workloads.ramp.blocks(size)
        ]
        self.blocks: tuple[Block, ...] = tuple(blocks)
        self._sizes = np.array([len(block.servers) for block in blocks])
        self._members = np.zeros(
            (len(blocks), workloads.ramp.shape.size), np.float32
        )
        for row, block in enumerate(blocks):
            self._members[row, list(block.servers)] = 1.0
        self._of_server = np.ascontiguousarray(self._members.T)
        self._worth = (
            self._members @ self._members.T > 0
        ) * self._sizes.astype(np.float32)
        self._most_harm = self._worth.sum(axis=1)
        # The least degree that fills a block of each size, by model.
        self._degrees = [
            {
                plan.max_split: degree
                for degree, plan in sorted(each.items(), reverse=True)
            }
            for each in workloads.plans
        ]
        self._times: dict[tuple[int, int], NDArray[np.float64]] = {}
        self.action_space = spaces.Discrete(len(blocks) + 1)
        self.observation_space = spaces.Dict(
            {
                "remaining": spaces.Box(
                    0.0,
                    LONGEST,
                    (workloads.ramp.shape.size,),
                    np.float32,
                ),
                "job": spaces.Box(
                    0.0,
                    LONGEST,
                    (5,),
                    np.float32,
                ),
                "options": unit(len(blocks) + 1, OPTION_FEATURES),
                "action_mask": spaces.MultiBinary(len(blocks) + 1),
            }
        )
        self.episode: Episode | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """A new episode; ``options`` may have ``episode_seed`` and ``law``, a place in the laws."""
        super().reset(seed=seed)
        self.episode = episode = new_episode(
            self.np_random, self.scenarios, options
        )
        return self._observe(), {
            "law": episode.scenario.law.name,
            "episode_seed": episode.seed,
        }

    def step(
        self, action: np.int64 | SupportsInt
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One decision; a block that is not allowed blocks the job."""
        episode = self._running()
        number = int(action)
        assert episode.job is not None or number >= 0
        if number == 0 or not self._mask[number]:
            outcome = episode.decide(0)
        else:
            outcome = episode.decide(
                self._degree_on(number - 1), self.blocks[number - 1]
            )
        over = episode.job is None
        info: dict[str, Any] = {"outcome": outcome.name.lower()}
        if over:
            info["blocking_rate"] = episode.result().blocking_rate()
        reward = 1.0 if outcome is JobOutcome.ACCEPTED else -1.0
        return self._observe(), reward, over, False, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions can succeed now; refusing always does."""
        return self._mask.copy()

    def harm(self) -> NDArray[Any]:
        """For each block the servers of all free blocks that it would take one of."""
        found: NDArray[Any] = self._worth @ self._free
        return found

    def _running(self) -> Episode:
        if self.episode is None:
            raise gymnasium.error.ResetNeeded(
                "call reset() before the first step()"
            )
        return self.episode

    def _degree_on(self, block: int) -> int:
        return (
            self._degree or self._degrees[self._graph][int(self._sizes[block])]
        )

    def _times_of(self, graph: int, degree: int) -> NDArray[np.float64]:
        """How long a model takes on each block; infinity where it does not go there."""
        known = self._times.get((graph, degree))
        if known is None:
            known = np.full(len(self.blocks), np.inf)
            for number, block in enumerate(self.blocks):
                chosen = degree or self._degrees[graph].get(
                    len(block.servers), 0
                )
                plan = self._workloads.plans[graph].get(chosen)
                if (
                    plan is None
                    or plan.max_split != len(block.servers)
                    or not plan.fits_memory
                ):
                    continue
                parts = sub_blocks(self._workloads.ramp, block, plan.splits)
                known[number] = self._workloads.completion_s(
                    graph, chosen, parts
                )
            self._times[graph, degree] = known
        return known

    def _observe(self) -> Observation:
        episode = self._running()
        remaining = np.zeros(self._members.shape[1], np.float32)
        mask = self._mask = np.zeros(len(self.blocks) + 1, np.bool_)
        mask[0] = True
        options = np.zeros((len(mask), OPTION_FEATURES), np.float32)
        seen = {
            "remaining": remaining,
            "job": np.zeros(5, np.float32),
            "options": options,
        }
        job = episode.job
        if job is not None:
            question = episode.question()
            busy = np.zeros(len(remaining), np.float32)
            busy[members(question.cluster.occupied)] = 1
            for running in question.cluster.running:
                left = min((running.ends_s - episode.now_s) / UNIT_S, LONGEST)
                remaining[members(running.gpus)] = left
            self._free = (self._members @ busy == 0).astype(np.float32)
            self._graph = job.graph
            chooses = self._partition
            self._degree = (
                0 if chooses is None else chooses.degree(*question) or 0
            )
            refused = chooses is not None and self._degree == 0
            self.lasting_s = self._times_of(job.graph, self._degree)
            if not refused:
                mask[1:] = (self._free > 0) & (self.lasting_s <= job.limit_s)
            sequential = job.sequential_s / UNIT_S
            limit = job.limit_s / UNIT_S
            size = len(remaining)
            features = (
                job.requirement,
                sequential,
                limit,
                float(1 - busy.sum() / size),
            )
            seen["job"][:4] = np.minimum(features, LONGEST)
            seen["job"][4] = self._degree / size
            options = options[1:]
            soon = 1 / (1 + (self._of_server * remaining[:, None]).max(axis=0))
            options[:, 0] = self._sizes / size
            options[:, 1] = np.minimum(self.lasting_s / job.limit_s, 1)
            options[:, 2] = self.harm() / self._most_harm
            options[:, 3] = self._worth @ soon / self._most_harm
        return {**seen, "action_mask": mask.astype(np.int8)}


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
        extra = {
            "changes": unit(2 * shown, CHANGE_FEATURES),
            "waits": unit(JOB_FEATURES),
        }
        jobs = jobs or SyntheticJobs(elastic=True)
        super().__init__(
            2 * shown + 1,
            cluster,
            jobs,
            settings,
            extra,
        )
        self._shown = shown
        self._placement = placement or FirstFit()

    def answer(self, policy: GiveAndTake) -> list[int]:
        """The actions for what an elasticity policy wants of the jobs shown, shrinking first."""
        simulation = self._running()
        site = self._site
        queue = [
            site.queued(job)
            for job in islice(simulation.waiting.values(), self._shown)
        ]
        wanted = policy.resize(
            simulation.view(), [each for _, each in self._elastic], queue
        )
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
        self._site.now_s = simulation.now_s
        self._elastic = []
        while head := next(iter(simulation.waiting.values()), None):
            if simulation.occupancy.free < head.workers:
                break
            ring = self._placement.place(
                simulation.view(), head.spec.view, head.workers
            )
            if ring is None or not simulation.start(head, ring):
                break
        self._elastic = self._site.elastic(self._shown)
        any_change = False
        for number, (_, job) in enumerate(self._elastic):
            fewer, more = _neighbours(job)
            any_change = any_change or bool(fewer or more)
            if fewer:
                self._mask[number] = 1
                self._degrees[number] = fewer
            if more:
                self._mask[number + self._shown] = 1
                self._degrees[number + self._shown] = more
        return any_change

    def _act(self, action: int) -> bool:
        job, _ = self._elastic[action % self._shown]
        before = job.resizes
        self._site.resize(job, self._degrees[action])
        return job.resizes > before

    def _features(self) -> Observation:
        changes = np.zeros((2 * self._shown, CHANGE_FEATURES), np.float32)
        mask = self._mask.tolist()
        rows = list[list[float]]()
        for number, (job, shown) in enumerate(self._elastic):
            seen = [*self._job(job), shown.degree / self.size]
            now_s = shown.iteration_s[shown.degree]
            for action in (number, number + self._shown):
                degree = (
                    self._degrees[action] if mask[action] else shown.degree
                )
                after_s = shown.iteration_s[degree]
                both_s = now_s + after_s
                pace = after_s / both_s if 0 < both_s < math.inf else 0.5
                rows.append([*seen, degree / self.size, pace])
        if rows:  # Shrinking and growing of one job after the other.
            changes[: len(self._elastic)] = rows[::2]
            changes[self._shown :][: len(self._elastic)] = rows[1::2]
        head = next(iter(self._running().waiting.values()), None)
        waits = [0.0] * JOB_FEATURES if head is None else self._job(head)
        return {"changes": changes, "waits": np.array(waits, np.float32)}


def _neighbours(job: ElasticJob) -> tuple[int, int]:
    """The next lower and the next higher number of GPUs that a job can have now; 0 for none."""
    fewer = 0
    more = 0
    now = job.degree
    for degree in job.iteration_s:
        if fewer < degree < now:
            fewer = degree
        elif now < degree and (not more or degree < more):
            more = degree
    return fewer, more
