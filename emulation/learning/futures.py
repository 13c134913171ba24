"""What comes of an action: clusters that go on from it with jobs drawn anew."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from patchlight.controller.policies.observation import Array
from patchlight.emulation.learning.episode_jobs import JobColumns
from patchlight.emulation.learning.vector_episodes import VectorEpisodes

_Floats = NDArray[np.float64]
_Ints = NDArray[np.intp]


class Drawn(NamedTuple):
    """The jobs of N futures, N × J each: how long after the one before each comes, of which model
    it is, and what it asks for.
    """

    wait_s: _Floats
    graph: _Ints
    beta: _Floats

    def at(self, rows: _Ints) -> "Drawn":
        """The futures in these places."""
        return Drawn(self.wait_s[rows], self.graph[rows], self.beta[rows])


def drawn(episodes: VectorEpisodes, envs: _Ints, jobs: int, rng: np.random.Generator) -> Drawn:
    """Futures of these environments: the job that waits, and ``jobs`` after it.

    Those are drawn, putting back, from all jobs of the episode, so that they follow its law. This
    is for training only: a policy that decides does not know the law.
    """
    wait_s, graph, beta = np.zeros((3, len(envs), jobs + 1))
    for row, env in enumerate(envs.tolist()):
        known = episodes.jobs[env]
        chosen = rng.integers(1, max(2, len(known.graph)), size=jobs) % len(known.graph)
        wait_s[row, 1:] = np.diff(known.arrived_s, prepend=0.0)[chosen]
        graph[row, 1:], beta[row, 1:] = known.graph[chosen], known.beta[chosen]
    graph[:, 0], beta[:, 0] = episodes.graph[envs], episodes.beta[envs]
    return Drawn(wait_s, graph.astype(int), beta)


class _DrawnColumns(JobColumns):
    """The jobs of futures. They do not come to an end."""

    def __init__(self, jobs: Drawn, now_s: _Floats, recent: Array) -> None:
        count, many = jobs.graph.shape
        self.arrived_s = now_s[:, None] + np.cumsum(jobs.wait_s, axis=1)
        self.graph, self.beta = jobs.graph, jobs.beta
        self.recent = np.broadcast_to(recent[:, None, :], (count, many, recent.shape[1]))
        self.decisions, self.horizon_s = np.full(count, many + 1), np.full(count, np.inf)
        self.scenario_of = self.seed_of = np.zeros(count, int)


class Futures(VectorEpisodes):
    """Clusters of other environments that go on with drawn jobs.

    A policy sees the recent jobs of the episode all the time, not the drawn ones.
    """

    def __init__(self, episodes: VectorEpisodes) -> None:
        super().__init__(episodes.scenarios[:1], 1, 0, blocks=episodes.blocks)

    def begin(self, episodes: VectorEpisodes, envs: _Ints, jobs: Drawn) -> None:
        """As the clusters of ``envs`` are now, N of them, with a future of ``jobs`` for each."""
        columns = _DrawnColumns(jobs, episodes.now_s[envs], episodes.recent[envs])
        self._columns = columns
        self.num_envs, self._rows = len(envs), np.arange(len(envs))
        self._until, self._first_times = episodes._until[envs], episodes._first_times[envs]
        self.scenario_of, self.seed_of = columns.scenario_of, columns.seed_of
        self._position, self._whole = np.zeros(len(envs), int), np.zeros(len(envs), bool)
        self.episode_start = np.zeros(len(envs), bool)
        self.blocked, self.unfinished = np.zeros((2, len(envs)), int)
        self._decide_options()
