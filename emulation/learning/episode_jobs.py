"""The jobs of an episode as arrays, for many episodes side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patchlight.controller.policies.observation import RECENT_FEATURES, Array, recent_features
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.testbed.errors import BadInput

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EpisodeJobs:
    """The jobs of one episode as columns; of the last ones some may not be decided on."""

    graph: NDArray[np.intp]
    beta: _Floats
    arrived_s: _Floats
    recent: Array
    decisions: int
    horizon_s: float
    told_over_true: _Floats | None

    @classmethod
    def of(cls, scenario: Scenario, seed: int) -> EpisodeJobs:
        """Of the episode with this seed; ``BadInput`` if it has none to decide on."""
        jobs = scenario.jobs(seed)
        if not jobs or jobs[0].arrived_s >= scenario.horizon_s:
            raise BadInput(f"the episode with seed {seed} has no job to decide on")
        return cls(
            np.array([job.graph for job in jobs]),
            np.array([job.requirement for job in jobs]),
            np.array([job.arrived_s for job in jobs]),
            recent_features(
                [job.requirement for job in jobs],
                [job.sequential_s for job in jobs],
                [*(job.arrived_s for job in jobs), scenario.horizon_s],
            ),
            sum(job.arrived_s < scenario.horizon_s for job in jobs),
            scenario.horizon_s,
            scenario.told_over_true(seed, len(jobs)),
        )


class JobColumns:
    """The jobs of an episode in each of E environments, in arrays with a column for each job.

    Episodes have the seeds from ``first_seed`` on, and ``scenarios`` take turns.
    """

    def __init__(self, scenarios: Sequence[Scenario], num_envs: int, first_seed: int) -> None:
        self._scenarios, self._next_seed = scenarios, first_seed
        self.scenario_of, self.seed_of = np.zeros(num_envs, int), np.zeros(num_envs, int)
        self.jobs = [self._drawn(env) for env in range(num_envs)]
        longest = max(len(jobs.graph) for jobs in self.jobs) + 1
        self.arrived_s, self.beta = np.zeros((num_envs, longest)), np.zeros((num_envs, longest))
        self.graph = np.zeros((num_envs, longest), int)
        self.recent = np.zeros((num_envs, longest + 1, RECENT_FEATURES), np.float32)
        self.decisions, self.horizon_s = np.zeros(num_envs, int), np.zeros(num_envs)
        self._load(range(num_envs))

    def draw(self, envs: Sequence[int]) -> None:
        """These environments go on to the next episodes."""
        for env in envs:
            self.jobs[env] = self._drawn(env)
        self._load(envs)

    def _drawn(self, env: int) -> EpisodeJobs:
        seed, self._next_seed = self._next_seed, self._next_seed + 1
        which = seed % len(self._scenarios)
        self.scenario_of[env], self.seed_of[env] = which, seed
        return EpisodeJobs.of(self._scenarios[which], seed)

    def _load(self, envs: Iterable[int]) -> None:
        for env in envs:
            jobs = self.jobs[env]
            many = len(jobs.graph)
            if many >= self.graph.shape[1]:
                wider = many + many // 4
                self.arrived_s = _widened(self.arrived_s, wider)
                self.graph = _widened(self.graph, wider)
                self.beta = _widened(self.beta, wider)
                self.recent = _widened(self.recent, wider + 1)
            self.arrived_s[env, :many] = jobs.arrived_s
            self.horizon_s[env] = jobs.horizon_s
            self.graph[env, :many] = jobs.graph
            self.beta[env, :many] = jobs.beta
            self.recent[env, : many + 1] = jobs.recent
            self.decisions[env] = jobs.decisions


def _widened(array: NDArray, columns: int) -> NDArray:  # type: ignore[type-arg]
    wider = np.zeros((len(array), columns, *array.shape[2:]), array.dtype)
    wider[:, : array.shape[1]] = array
    return wider
