"""``patchlight/RampServers-v0``: on which free servers of a RAMP does the job that came run?"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, SupportsInt

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from patchlight.controller.policies.contract import PartitionPolicy
from patchlight.controller.policies.degrees import Sufficient
from patchlight.controller.policies.observation import LONGEST, UNIT_S
from patchlight.controller.policies.sets import members
from patchlight.emulation.learning.envs.queued import unit
from patchlight.emulation.learning.envs.ramp_partition import new_episode, scenarios
from patchlight.emulation.learning.envs.registry import Heuristic
from patchlight.emulation.simulator.ramp.lossnetwork import Episode, JobOutcome
from patchlight.emulation.simulator.ramp.ramp import Block, PlacementRule, sub_blocks
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.emulation.simulator.ramp.workloads import LAW_NAMES
from patchlight.testbed.errors import BadInput

Observation = dict[str, Any]

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
    return int(np.where(allowed, costs, np.inf).argmin()) + 1 if allowed.any() else 0


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
            raise BadInput("any_degree and a partition policy exclude each other: give one of them")
        rule = PlacementRule.RAMP_BLOCK
        self.scenarios = tuple(scenario or scenarios(laws, rule, horizon_s, profiles))
        if any(each.rule != rule for each in self.scenarios):
            raise BadInput(f"servers are chosen as whole blocks: expected scenarios of rule {rule}")
        self._partition = None if any_degree else partition or Sufficient()
        workloads = self._workloads = self.scenarios[0].workloads
        sizes = sorted({plan.max_split for each in workloads.plans for plan in each.values()})
        blocks = [block for size in sizes for block in workloads.ramp.blocks(size)]
        self.blocks: tuple[Block, ...] = tuple(blocks)
        self._sizes = np.array([len(block.servers) for block in blocks])
        self._members = np.zeros((len(blocks), workloads.ramp.shape.size), np.float32)
        for row, block in enumerate(blocks):
            self._members[row, list(block.servers)] = 1.0
        self._of_server = np.ascontiguousarray(self._members.T)
        self._worth = (self._members @ self._members.T > 0) * self._sizes.astype(np.float32)
        self._most_harm = self._worth.sum(axis=1)
        # The least degree that fills a block of each size, by model.
        self._degrees = [
            {plan.max_split: degree for degree, plan in sorted(each.items(), reverse=True)}
            for each in workloads.plans
        ]
        self._times: dict[tuple[int, int], NDArray[np.float64]] = {}
        self.action_space = spaces.Discrete(len(blocks) + 1)
        self.observation_space = spaces.Dict(
            {
                "remaining": spaces.Box(0.0, LONGEST, (workloads.ramp.shape.size,), np.float32),
                "job": spaces.Box(0.0, LONGEST, (5,), np.float32),
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
        self.episode = episode = new_episode(self.np_random, self.scenarios, options)
        return self._observe(), {"law": episode.scenario.law.name, "episode_seed": episode.seed}

    def step(
        self, action: np.int64 | SupportsInt
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One decision; a block that is not allowed blocks the job."""
        episode, number = self._running(), int(action)
        assert episode.job is not None or number >= 0
        if number == 0 or not self._mask[number]:
            outcome = episode.decide(0)
        else:
            outcome = episode.decide(self._degree_on(number - 1), self.blocks[number - 1])
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
            raise gymnasium.error.ResetNeeded("call reset() before the first step()")
        return self.episode

    def _degree_on(self, block: int) -> int:
        return self._degree or self._degrees[self._graph][int(self._sizes[block])]

    def _times_of(self, graph: int, degree: int) -> NDArray[np.float64]:
        """How long a model takes on each block; infinity where it does not go there."""
        known = self._times.get((graph, degree))
        if known is None:
            known = np.full(len(self.blocks), np.inf)
            for number, block in enumerate(self.blocks):
                chosen = degree or self._degrees[graph].get(len(block.servers), 0)
                plan = self._workloads.plans[graph].get(chosen)
                if plan is None or plan.max_split != len(block.servers) or not plan.fits_memory:
                    continue
                parts = sub_blocks(self._workloads.ramp, block, plan.splits)
                known[number] = self._workloads.completion_s(graph, chosen, parts)
            self._times[graph, degree] = known
        return known

    def _observe(self) -> Observation:
        episode = self._running()
        remaining = np.zeros(self._members.shape[1], np.float32)
        mask = self._mask = np.zeros(len(self.blocks) + 1, np.bool_)
        mask[0] = True
        options = np.zeros((len(mask), OPTION_FEATURES), np.float32)
        seen = {"remaining": remaining, "job": np.zeros(5, np.float32), "options": options}
        job = episode.job
        if job is not None:
            question = episode.question()
            busy = np.zeros(len(remaining), np.float32)
            busy[members(question.cluster.occupied)] = 1
            for running in question.cluster.running:
                left = min((running.ends_s - episode.now_s) / UNIT_S, LONGEST)
                remaining[members(running.gpus)] = left
            self._free = (self._members @ busy == 0).astype(np.float32)
            self._graph, chooses = job.graph, self._partition
            self._degree = 0 if chooses is None else chooses.degree(*question) or 0
            refused = chooses is not None and self._degree == 0
            self.lasting_s = self._times_of(job.graph, self._degree)
            if not refused:
                mask[1:] = (self._free > 0) & (self.lasting_s <= job.limit_s)
            sequential, limit = job.sequential_s / UNIT_S, job.limit_s / UNIT_S
            size = len(remaining)
            features = (job.requirement, sequential, limit, 1 - busy.sum() / size)
            seen["job"][:4] = np.minimum(features, LONGEST)
            seen["job"][4] = self._degree / size
            options = options[1:]
            soon = 1 / (1 + (self._of_server * remaining[:, None]).max(axis=0))
            options[:, 0] = self._sizes / size
            options[:, 1] = np.minimum(self.lasting_s / job.limit_s, 1)
            options[:, 2] = self.harm() / self._most_harm
            options[:, 3] = self._worth @ soon / self._most_harm
        return {**seen, "action_mask": mask.astype(np.int8)}
