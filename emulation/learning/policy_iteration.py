"""Approximate policy iteration: simulates nearby actions and learns the difference.

Temporal differences tell a good cluster from a bad one, but what a policy decides is among clusters
that are nearly as good. Here the actions whose scores are near the best are each played out, all in
the same drawn futures, by the policy itself. What one of them brings more than another is then
known far better than what any of them brings, and is what the network learns (Lagoudakis and Parr,
"Reinforcement Learning as Classification", ICML 2003, learn which one wins). Each improvement
of the policy is that of the next roll-outs.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from patchlight.controller.policies.observation import Array
from patchlight.emulation.learning.config import Config
from patchlight.emulation.learning.episode_arrays import JobColumns
from patchlight.emulation.learning.learner import (
    AfterstatePlayer,
    Floats,
    Learner,
    RoundProgress,
    explored,
)
from patchlight.emulation.learning.network import OptionScorer
from patchlight.emulation.learning.vector_episodes import (
    Finished,
    VectorEpisodes,
)
from patchlight.emulation.simulator.ramp.scenario import Scenario

_Ints = NDArray[np.intp]


class DrawnJobs(NamedTuple):
    """The jobs of N futures, N × J each: how long after the one before each comes, of which model
    it is, and what it asks for.
    """

    wait_s: Floats
    graph: _Ints
    beta: Floats

    def at(self, rows: _Ints) -> "DrawnJobs":
        """The futures in these places."""
        return DrawnJobs(self.wait_s[rows], self.graph[rows], self.beta[rows])


def drawn(
    episodes: VectorEpisodes,
    envs: _Ints,
    jobs: int,
    rng: np.random.Generator,
) -> DrawnJobs:
    """Futures of these environments: the job that waits, and ``jobs`` after it.

    Those are drawn, putting back, from all jobs of the episode, so that they follow its law. This
    is for training only: a policy that decides does not know the law.
    """
    wait_s, graph, beta = np.zeros((3, len(envs), jobs + 1))
    for row, env in enumerate(envs.tolist()):
        known = episodes.jobs[env]
        chosen = rng.integers(1, max(2, len(known.graph)), size=jobs) % len(
            known.graph
        )
        wait_s[row, 1:] = np.diff(known.arrived_s, prepend=0.0)[chosen]
        graph[row, 1:] = known.graph[chosen]
        beta[row, 1:] = known.beta[chosen]
    graph[:, 0] = episodes.graph[envs]
    beta[:, 0] = episodes.beta[envs]
    return DrawnJobs(wait_s, graph.astype(int), beta)


class _DrawnColumns(JobColumns):
    """The jobs of futures. They never end."""

    def __init__(
        self,
        jobs: DrawnJobs,
        now_s: Floats,
        recent: Array,
    ) -> None:
        count, many = jobs.graph.shape
        self.arrived_s = now_s[:, None] + np.cumsum(jobs.wait_s, axis=1)
        self.graph = jobs.graph
        self.beta = jobs.beta
        self.recent = np.broadcast_to(
            recent[:, None, :], (count, many, recent.shape[1])
        )
        self.decisions = np.full(count, many + 1)
        self.horizon_s = np.full(count, np.inf)
        self.scenario_of = self.seed_of = np.zeros(count, int)


class Futures(VectorEpisodes):
    """Clusters of other environments that continue with drawn jobs.

    A policy sees the recent jobs of the episode all the time, not the drawn ones.
    """

    def __init__(self, episodes: VectorEpisodes) -> None:
        super().__init__(
            episodes.scenarios[:1],
            1,
            0,
            blocks=episodes.blocks,
        )

    def begin(
        self,
        episodes: VectorEpisodes,
        envs: _Ints,
        jobs: DrawnJobs,
    ) -> None:
        """As the clusters of ``envs`` are now, N of them, with a future of ``jobs`` for each."""
        columns = _DrawnColumns(
            jobs, episodes.now_s[envs], episodes.recent[envs]
        )
        self._columns = columns
        self.num_envs = len(envs)
        self._rows = np.arange(len(envs))
        self._until = episodes._until[envs]
        self._first_times = episodes._first_times[envs]
        self.scenario_of = columns.scenario_of
        self.seed_of = columns.seed_of
        self._position = np.zeros(len(envs), int)
        self._whole = np.zeros(len(envs), bool)
        self.episode_start = np.zeros(len(envs), bool)
        self.blocked, self.unfinished = np.zeros((2, len(envs)), int)
        self._decide_options()


class Comparisons(NamedTuple):
    """N decisions of which up to K actions were played out.

    ``left`` N × K × servers are the clusters that these leave behind, ``recent`` N × features,
    both as observations have them; ``values`` N × K is the outcome of each, where ``there`` N × K
    says that there is one.
    """

    left: Array
    recent: Array
    values: Array
    there: NDArray[np.bool_]


class PolicyIterationLearner(Learner):
    """Learns what is better than what; the mean of its latest weights plays and plays out."""

    def __init__(
        self,
        config: Config,
        scenarios: Sequence[Scenario],
        done: int = 0,
    ) -> None:
        super().__init__(config, scenarios, done)
        self.settings = config.policy_iteration
        scorer = self.scorer
        average = self.average
        # The configuration saw to that.
        assert isinstance(scorer, OptionScorer)
        assert isinstance(average, OptionScorer)
        self._value = scorer.value
        self._futures = Futures(self.episodes)
        self._player = AfterstatePlayer(average)
        self._plays_out = AfterstatePlayer(average)
        self._memory: list[NDArray[Any]] = []
        self._kept = self._next = 0

    def round(self) -> RoundProgress:
        """Plays, and learns once enough was played out."""
        settings = self.settings
        episodes = self.episodes
        means = self._followed()
        epsilon = settings.epsilon * (1 - self._part)
        finished = list[Finished]()
        compared = list[Comparisons]()
        for _ in range(settings.n_steps):
            scores = self._player.scores(episodes)
            compared.append(self.compared(scores))
            actions, _ = explored(
                scores,
                scores.argmax(axis=1),
                epsilon,
                self.rng,
            )
            scenario = episodes.scenario_of.copy()
            accepted, ended = episodes.step(actions)
            means.beyond(accepted, scenario)
            finished += ended
        self._keep(
            Comparisons(*map(np.concatenate, zip(*compared, strict=True)))
        )
        self.means += means.change
        self.steps += settings.n_steps * episodes.num_envs
        losses = list[float]()
        if self._kept >= max(1, settings.learning_starts):
            self._slow_down(1e-6)
            losses = [self._learn() for _ in range(settings.gradient_steps)]
        loss = sum(losses) / len(losses) if losses else float("nan")
        return RoundProgress(loss, 1 - float(self.means.mean()), finished)

    def compared(self, scores: Floats) -> Comparisons:
        """The decisions in which other actions than the best one are near it."""
        most = min(self.settings.options, scores.shape[1])
        order = np.argsort(
            -scores,
            axis=1,
            kind="stable",
        )[:, :most]
        sorted_scores = np.take_along_axis(scores, order, axis=1)
        near = sorted_scores >= sorted_scores[:, :1] - self.settings.near
        # Degrees with the same servers and time have one score: one of them is enough.
        near[:, 1:] &= sorted_scores[:, 1:] < sorted_scores[:, :-1]
        chosen = np.flatnonzero(near.sum(axis=1) > 1)
        near = near[chosen]
        row, column = np.nonzero(near)
        envs = chosen[row]
        actions = order[chosen[row], column]
        count = len(chosen)
        servers = self.episodes.layout.servers
        left = np.zeros((count, most, servers), np.float32)
        values = np.zeros((count, most), np.float32)
        if count:
            left[row, column] = self.episodes.afterstates(envs, actions)
            values[row, column] = self._played_out(
                chosen,
                near.sum(axis=1),
                envs,
                actions,
            )
        return Comparisons(
            left,
            self.episodes.recent[chosen],
            values,
            near,
        )

    def _played_out(
        self,
        chosen: _Ints,
        counts: _Ints,
        envs: _Ints,
        actions: _Ints,
    ) -> Floats:
        """The value after each of ``actions`` in ``envs``: ``counts`` of them for each chosen."""
        settings = self.settings
        futures = self._futures
        each = settings.futures
        jobs = drawn(
            self.episodes,
            np.repeat(chosen, each),
            settings.jobs,
            self.rng,
        )
        # All futures of the first action, then those of the second: the same for each of them.
        places = np.arange(len(chosen) * each).reshape(-1, each)
        rows = np.repeat(places, counts, axis=0).ravel()
        futures.begin(self.episodes, np.repeat(envs, each), jobs.at(rows))
        futures.step(np.repeat(actions, each))
        found = np.zeros(len(rows))
        worth = 1.0
        for _ in range(settings.jobs - 1):
            accepted, _ = futures.step(
                self._plays_out.scores(futures).argmax(axis=1)
            )
            found += worth * accepted
            worth *= settings.gamma
        found += worth * self._plays_out.scores(futures).max(axis=1)
        means: Floats = found.reshape(-1, each).mean(axis=1)
        return means

    def _keep(self, comparisons: Comparisons) -> None:
        """The latest ``buffer_size``; the oldest give way."""
        size = self.settings.buffer_size
        if not self._memory:
            self._memory = [
                np.zeros((size, *each.shape[1:]), each.dtype)
                for each in comparisons
            ]
        count = len(comparisons.there)
        places = (self._next + np.arange(count)) % size
        for kept, each in zip(self._memory, comparisons, strict=True):
            kept[places] = each
        self._next = (self._next + count) % size
        self._kept = min(self._kept + count, size)

    def _learn(self) -> float:
        """One gradient step: its mean error, of values less the mean of those compared."""
        rows = self.learning_rng.integers(
            self._kept, size=self.settings.batch_size
        )
        left, recent, values, there = (
            torch.from_numpy(each[rows]) for each in self._memory
        )
        found = self._value(
            left, recent.unsqueeze(1).expand(-1, left.shape[1], -1)
        )
        error = (_beyond_mean(found, there) - _beyond_mean(values, there))[
            there
        ]
        return self._descend((error**2).mean())


def _beyond_mean(values: Tensor, there: Tensor) -> Tensor:
    """By how much each is more than the mean of those that are there, N × K."""
    mean = (values * there).sum(1, keepdim=True) / there.sum(1, keepdim=True)
    return values - mean
