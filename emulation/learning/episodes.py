"""Plays many episodes of a loss network side by side; learners see their clusters as arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from patchlight.controller.policies.learned import other_blocks
from patchlight.controller.policies.observation import (
    LONGEST,
    RECENT_FEATURES,
    UNIT_S,
    Array,
    ObservationLayout,
    recent_features,
)
from patchlight.controller.policies.sets import members
from patchlight.emulation.simulator.ramp.lossnetwork import (
    Episode,
    JobOutcome,
    Question,
)
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.testbed.errors import BadInput

_Floats = NDArray[np.float64]
_Ints = NDArray[np.intp]


class Finished(NamedTuple):
    """An episode that ended: in which environment, its seed, its faithful blocking rate."""

    env: int
    seed: int
    blocking_rate: float


class EpisodeJobs(NamedTuple):
    """All N jobs of an episode: graph and requirement (N each), and ``recent`` before each and
    after the last (N + 1 × RECENT_FEATURES).
    """

    graph: _Ints
    beta: _Floats
    recent: Array


def layout_of(scenario: Scenario) -> ObservationLayout:
    """How a learned policy sees a scenario's cluster."""
    shape = scenario.workloads.ramp.shape
    return ObservationLayout(
        (shape.groups, shape.racks, shape.servers), scenario.workloads.degrees
    )


class Episodes:
    """Episodes with the seeds ``first_seed``, ``first_seed`` + 1, … in ``num_envs`` environments.

    ``scenarios`` take turns, one for each episode; they share workloads and placement rule. With
    ``staggered``, the first episode of each environment begins somewhere in its middle, with an
    empty cluster, so that not all end at once; the result of such an episode is left out.

    Action 0 refuses, 1 to D take a degree on the first free block. With ``blocks`` of more than 1
    under ``ramp-block``, D actions follow for each further block (``other_blocks``).

    Public arrays; E environments, D degrees, A = blocks · D + 1 actions:

    | array | shape | what |
    |---|---|---|
    | ``graph`` | E | the computation graph of the waiting job |
    | ``beta`` | E | the part of its sequential time in which it must complete |
    | ``limit_s`` | E | the time within which it must complete |
    | ``expected_s`` | E × D | about how long it takes |
    | ``mask`` | E × A | which actions can succeed |
    | ``free``, ``running`` | E | free servers, running jobs |
    | ``largest`` | E | which of ``block_sizes`` is the largest with a free block, from 1; 0: none |
    | ``recent`` | E × RECENT_FEATURES | the jobs before it |
    | ``scenario_of`` | E | the episode's scenario |
    | ``episode_start`` | E | whether the job is the first of its episode |
    """

    def __init__(
        self,
        scenarios: Sequence[Scenario],
        num_envs: int,
        first_seed: int,
        staggered: bool = False,
        blocks: int = 1,
    ) -> None:
        first = scenarios[0]
        workloads = first.workloads
        self.scenarios = tuple(scenarios)
        self.num_envs = num_envs
        self.blocks = blocks
        self.layout = layout_of(first)
        self.workloads = workloads
        self.block_sizes = sorted(
            {
                size
                for each in workloads.plans
                for plan in each.values()
                for size in plan.splits
            }
        )
        degrees = len(self.layout.degrees)
        servers = self.layout.servers
        actions = blocks * degrees + 1
        self._next_seed = first_seed
        self._expected_s = np.array(
            [
                [
                    workloads.expected_s(graph, degree, first.rule)
                    for degree in self.layout.degrees
                ]
                for graph in range(len(workloads.names))
            ]
        )
        self.graph = np.zeros(num_envs, int)
        self.beta = np.zeros(num_envs)
        self.limit_s = np.zeros(num_envs)
        self.expected_s = np.zeros((num_envs, degrees))
        self.mask = np.zeros((num_envs, actions), bool)
        self.free = np.zeros(num_envs, int)
        self.running = np.zeros(num_envs, int)
        self.largest = np.zeros(num_envs, int)
        self.recent = np.zeros((num_envs, RECENT_FEATURES), np.float32)
        self.scenario_of = np.zeros(num_envs, int)
        self.episode_start = np.ones(num_envs, bool)
        self._left = np.zeros((num_envs, servers), np.float32)
        self._taken = np.zeros((num_envs, actions, servers), bool)
        self._whole = np.ones(num_envs, bool)
        self._position = np.zeros(num_envs, int)
        begun = [self._begun(env) for env in range(num_envs)]
        self._episodes = [episode for episode, _ in begun]
        self.jobs = [jobs for _, jobs in begun]
        if staggered:
            rng = np.random.default_rng([first_seed, num_envs])
            for env, episode in enumerate(self._episodes):
                skipped = int(rng.integers(episode.decisions))
                self._whole[env] = skipped == 0
                self._position[env] = skipped
                for _ in range(skipped):
                    episode.decide(0)
        for env in range(num_envs):
            self._look(env)

    def expected_at(self, graph: _Ints) -> _Floats:
        """About how long jobs of these N graphs take at each degree, N × D."""
        found: _Floats = self._expected_s[graph]
        return found

    def afterstates(self, envs: _Ints, actions: _Ints) -> Array:
        """How long each server is busy after these N actions, N × servers, in ``UNIT_S``.

        After an action that cannot succeed it is as long as now.
        """
        column = np.maximum(actions - 1, 0) % len(self.layout.degrees)
        lasting = np.minimum(self.expected_s[envs, column] / UNIT_S, LONGEST)
        found: Array = np.where(
            self._taken[envs, actions],
            lasting[:, None].astype(np.float32),
            self._left[envs],
        )
        return found

    def step(self, actions: _Ints) -> tuple[NDArray[np.bool_], list[Finished]]:
        """Decide in every environment: which jobs were accepted (E), and which episodes ended.

        ``actions`` has one for each. Where an episode ended, the next one has begun.
        """
        accepted = np.zeros(self.num_envs, bool)
        finished = []
        for env, action in enumerate(actions.tolist()):
            episode = self._episodes[env]
            outcome = self._decide(env, action)
            accepted[env] = outcome is JobOutcome.ACCEPTED
            over = episode.job is None
            self.episode_start[env] = over
            self._position[env] += 1
            if over:
                if self._whole[env]:
                    rate = episode.result().blocking_rate()
                    finished.append(Finished(env, episode.seed, rate))
                self._whole[env] = True
                self._position[env] = 0
                self._episodes[env], self.jobs[env] = self._begun(env)
            self._look(env)
        return accepted, finished

    def _begun(self, env: int) -> tuple[Episode, EpisodeJobs]:
        """The next episode, and its jobs; ``BadInput`` if it has none to decide on."""
        seed = self._next_seed
        self._next_seed += 1
        which = seed % len(self.scenarios)
        scenario = self.scenarios[which]
        self.scenario_of[env] = which
        episode = Episode(scenario, seed)
        jobs = episode.jobs
        if episode.job is None:
            raise BadInput(
                f"the episode with seed {seed} has no job to decide on"
            )
        recent = recent_features(
            [job.requirement for job in jobs],
            [job.sequential_s for job in jobs],
            [*(job.arrived_s for job in jobs), scenario.horizon_s],
        )
        return episode, EpisodeJobs(
            np.array([job.graph for job in jobs]),
            np.array([job.requirement for job in jobs]),
            recent,
        )

    def _decide(self, env: int, action: int) -> JobOutcome:
        episode = self._episodes[env]
        choice, column = divmod(action - 1, len(self.layout.degrees))
        is_first = choice == 0
        if action == 0 or not (is_first or self.mask[env, action]):
            return episode.decide(0)
        degree = self.layout.degrees[column]
        if is_first:
            return episode.decide(degree)
        servers = np.flatnonzero(self._taken[env, action]).tolist()
        block = self.workloads.ramp.block(sum(1 << s for s in servers))
        return episode.decide(degree, block)

    def _look(self, env: int) -> None:
        """Fill the environment's rows of all arrays."""
        question = self._episodes[env].question()
        cluster, job, _ = question
        number = self._position[env]
        graph = self.jobs[env].graph[number]
        self.graph[env] = graph
        self.beta[env] = job.requirement
        self.limit_s[env] = job.limit_s
        self.expected_s[env] = self._expected_s[graph]
        self.free[env] = cluster.free.bit_count()
        self.running[env] = len(cluster.running)
        self.recent[env] = self.jobs[env].recent[number]
        self.largest[env] = self._largest_free(cluster.occupied)
        self._left[env] = 0.0
        for running in cluster.running:
            left = min((running.ends_s - cluster.now_s) / UNIT_S, LONGEST)
            self._left[env, members(running.gpus)] = left
        self.mask[env] = False
        self.mask[env, 0] = True
        self._taken[env] = False
        for action, servers in self._options(question).items():
            self.mask[env, action] = True
            self._taken[env, action, members(servers)] = True

    def _options(self, question: Question) -> dict[int, int]:
        """The servers of each action that places the waiting job in time."""
        cluster, job, legal = question
        found = dict[int, int]()
        placed = dict[int, int]()
        for action, degree in enumerate(self.layout.degrees, start=1):
            if (
                degree in legal
                and job.expected_s.get(degree, math.inf) <= job.limit_s
            ):
                servers = cluster.preview(job, degree)
                if servers is not None:
                    found[action] = servers
                    placed[degree] = action
        if self.blocks > 1:
            others = other_blocks(cluster, job, list(placed), self.blocks - 1)
            for degree, blocks in others.items():
                for choice, servers in enumerate(blocks, start=1):
                    action = placed[degree]
                    action += choice * len(self.layout.degrees)
                    found[action] = servers
        return found

    def _largest_free(self, occupied: int) -> int:
        ramp = self.workloads.ramp
        sizes = self.block_sizes
        for place in range(len(sizes), 0, -1):
            if ramp.first_free(sizes[place - 1], occupied) is not None:
                return place
        return 0
