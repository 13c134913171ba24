"""Approximate policy iteration: near actions are played out, and their difference is learned.

Temporal differences tell a good cluster from a bad one, but what a policy decides is among clusters
that are nearly as good. Here the actions whose scores are near the best are each played out, all in
the same drawn futures, by the policy itself. What one of them brings more than another is then
known far better than what any of them brings, and is what the network learns (Lagoudakis and Parr,
"Reinforcement Learning as Classification", ICML 2003, learn which one wins). Each improvement
of the policy is that of the next roll-outs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from patchlight.controller.policies.observation import Array
from patchlight.emulation.learning.averaged import AveragedLearner
from patchlight.emulation.learning.config import Config
from patchlight.emulation.learning.futures import Futures, drawn
from patchlight.emulation.learning.network import OptionScorer
from patchlight.emulation.learning.players import AfterstatePlayer, network_of
from patchlight.emulation.learning.rollouts import (
    Experience,
    Orders,
    Progress,
    Rollouts,
    RolloutWorker,
    explored,
)
from patchlight.emulation.learning.vector_episodes import Finished
from patchlight.emulation.learning.warm_start import begin_with
from patchlight.emulation.simulator.ramp.scenario import Scenario

_Floats = NDArray[np.float64]
_Ints = NDArray[np.intp]


class Comparisons(NamedTuple):
    """N decisions of which up to K actions were played out.

    ``left`` N × K × servers are the clusters that these leave behind, ``recent`` N × features,
    both as observations have them; ``values`` N × K is what came of each, where ``there`` N × K
    says that there is one.
    """

    left: Array
    recent: Array
    values: Array
    there: NDArray[np.bool_]


@dataclass(frozen=True)
class PlayedOut(Experience):
    """Decisions, and those of them that were played out."""

    comparisons: Comparisons


class PlayOutWorker(RolloutWorker):
    """Plays, and plays out what it might have done instead."""

    def __init__(self, config: Config, *given: Any, **more: Any) -> None:
        super().__init__(config, *given, **more)
        self.settings = config.policy_iteration
        assert isinstance(self.network, OptionScorer)  # The configuration saw to that.
        self._futures = Futures(self.episodes)
        self._plays_out = AfterstatePlayer(self.network, self.episodes.workloads)

    def play(self, orders: Orders) -> PlayedOut:
        """``n_steps`` decisions in every environment."""
        means = self.follow(orders)
        episodes, settings = self.episodes, self.settings
        epsilon = settings.epsilon * (1 - min(1.0, orders.steps / self.config.steps))
        compared, finished = list[Comparisons](), list[Finished]()
        for _ in range(settings.n_steps):
            scores = self.player.scores(episodes)
            compared.append(self._compared(scores))
            actions, _ = explored(scores, scores.argmax(axis=1), epsilon, self.rng)
            scenario = episodes.scenario_of.copy()
            accepted, ended = episodes.step(actions)
            means.beyond(accepted, scenario)
            finished += ended
        comparisons = Comparisons(*map(np.concatenate, zip(*compared, strict=True)))
        decisions = settings.n_steps * episodes.num_envs
        return PlayedOut(decisions, tuple(finished), means.change, comparisons)

    def _compared(self, scores: _Floats) -> Comparisons:
        """The decisions in which other actions than the best one are near it."""
        most = min(self.settings.options, scores.shape[1])
        order = np.argsort(-scores, axis=1, kind="stable")[:, :most]
        sorted_scores = np.take_along_axis(scores, order, axis=1)
        near = sorted_scores >= sorted_scores[:, :1] - self.settings.near
        # Degrees that come to the same servers and time have one score: one of them is enough.
        near[:, 1:] &= sorted_scores[:, 1:] < sorted_scores[:, :-1]
        chosen = np.flatnonzero(near.sum(axis=1) > 1)
        near = near[chosen]
        row, column = np.nonzero(near)
        envs, actions = chosen[row], order[chosen[row], column]
        count, servers = len(chosen), self.episodes.layout.servers
        left = np.zeros((count, most, servers), np.float32)
        values = np.zeros((count, most), np.float32)
        if count:
            left[row, column] = self.episodes.afterstates(envs, actions)
            values[row, column] = self._played_out(chosen, near.sum(axis=1), envs, actions)
        return Comparisons(left, self.episodes.recent[chosen], values, near)

    def _played_out(self, chosen: _Ints, counts: _Ints, envs: _Ints, actions: _Ints) -> _Floats:
        """The value after each of ``actions`` in ``envs``: ``counts`` of them for each chosen."""
        settings, futures = self.settings, self._futures
        each = settings.futures
        jobs = drawn(self.episodes, np.repeat(chosen, each), settings.jobs, self.rng)
        # All futures of the first action, then those of the second: the same for each of them.
        places = np.arange(len(chosen) * each).reshape(-1, each)
        rows = np.repeat(places, counts, axis=0).ravel()
        futures.begin(self.episodes, np.repeat(envs, each), jobs.at(rows))
        futures.step(np.repeat(actions, each))
        found, worth = np.zeros(len(rows)), 1.0
        for _ in range(settings.jobs - 1):
            accepted, _ = futures.step(self._plays_out.scores(futures).argmax(axis=1))
            found += worth * accepted
            worth *= settings.gamma
        found += worth * self._plays_out.scores(futures).max(axis=1)
        means: _Floats = found.reshape(-1, each).mean(axis=1)
        return means


class PolicyIterationLearner(AveragedLearner):
    """Learns what is better than what. ``average``, the mean of its latest weights, is what plays.

    ``rollouts`` plays for it; without, a worker in this process does.
    """

    def __init__(
        self,
        config: Config,
        scenarios: Sequence[Scenario],
        done: int = 0,
        rollouts: Rollouts[PlayedOut] | None = None,
    ) -> None:
        self.config, self.settings = config, config.policy_iteration
        torch.manual_seed(config.seed)
        network = network_of(config, scenarios[0])
        assert isinstance(network, OptionScorer)  # The configuration saw to that.
        if self.settings.start:
            begin_with(network, self.settings.start)
        super().__init__(network, len(scenarios), done)
        self._value = network.value
        self._apart = rollouts is not None
        self._rollouts = rollouts or PlayOutWorker(
            config, scenarios, done=done, network=self.average
        )
        self._rng = np.random.default_rng([config.seed, done, 1])
        self._memory: list[NDArray[Any]] = []
        self._kept = self._next = 0

    def round(self) -> Progress:
        """Takes what a worker has played out, and learns once there is enough."""
        weights = self.average.state_dict() if self._apart else None
        played = self._rollouts.play(Orders(self.steps, self.means, weights))
        self._keep(played.comparisons)
        self.means += played.means_change
        self.steps += played.decisions
        settings, losses = self.settings, list[float]()
        if self._kept >= max(1, settings.learning_starts):
            self._slow_down(settings, min(1.0, self.steps / self.config.steps), 1e-6)
            losses = [self._learn() for _ in range(settings.gradient_steps)]
        loss = sum(losses) / len(losses) if losses else float("nan")
        return Progress(loss, 1 - float(self.means.mean()), played.finished)

    def _keep(self, comparisons: Comparisons) -> None:
        """The latest ``buffer_size``; the oldest give way."""
        size = self.settings.buffer_size
        if not self._memory:
            self._memory = [np.zeros((size, *each.shape[1:]), each.dtype) for each in comparisons]
        count = len(comparisons.there)
        places = (self._next + np.arange(count)) % size
        for kept, each in zip(self._memory, comparisons, strict=True):
            kept[places] = each
        self._next = (self._next + count) % size
        self._kept = min(self._kept + count, size)

    def _learn(self) -> float:
        """One gradient step: its mean error, of values less the mean of those compared."""
        rows = self._rng.integers(self._kept, size=self.settings.batch_size)
        left, recent, values, there = (torch.from_numpy(each[rows]) for each in self._memory)
        found = self._value(left, recent.unsqueeze(1).expand(-1, left.shape[1], -1))
        error = (_beyond_mean(found, there) - _beyond_mean(values, there))[there]
        return self._descend((error**2).mean(), self.settings)


def _beyond_mean(values: Tensor, there: Tensor) -> Tensor:
    """By how much each is more than the mean of those that are there, N × K."""
    mean = (values * there).sum(1, keepdim=True) / there.sum(1, keepdim=True)
    return values - mean
