"""Ape-X DQN as PAC-ML's authors ran it in RLlib: double, dueling, 3 steps, prioritised replay.

Horgan et al., "Distributed Prioritized Experience Replay", ICLR 2018; Parsonson et al., arXiv
2301.13799. Each environment explores at its own constant rate, so the schedule of rates in the
authors' configuration has no effect. A batch is learned from for as many decisions as it holds.
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import huber_loss

from patchlight.emulation.learning.config import Config
from patchlight.emulation.learning.learner import (
    Floats,
    Learner,
    RoundProgress,
    explored,
)
from patchlight.emulation.learning.pac_ml_agent import (
    PacMlNetwork,
    PacMlPlayer,
)
from patchlight.emulation.learning.vector_episodes import Finished
from patchlight.emulation.simulator.ramp.scenario import Scenario

_MOST = 0.4
_SPREAD = 7.0  # the first environment's exploration, and how far the others are from it
_LEAST_PRIORITY = 1e-6


class Replay:
    """The latest ``size`` transitions, drawn by priority to the power of ``alpha``."""

    def __init__(
        self,
        size: int,
        alpha: float,
        beta: float,
    ) -> None:
        self._size = size
        self._alpha = alpha
        self._beta = beta
        self._columns: list[NDArray[Any]] = []
        self._weights = np.zeros(size)
        self._next = self.kept = 0

    def add(self, columns: Sequence[NDArray[Any]], errors: Floats) -> None:
        """Keep transitions, each a row of all ``columns``; the oldest give way."""
        if not self._columns:
            self._columns = [
                np.zeros((self._size, *c.shape[1:]), c.dtype) for c in columns
            ]
        rows = (self._next + np.arange(len(errors))) % self._size
        for kept, new in zip(self._columns, columns, strict=True):
            kept[rows] = new
        self._next = (self._next + len(errors)) % self._size
        self.kept = min(self._size, self.kept + len(errors))
        self.rate(rows, errors)

    def rate(self, rows: NDArray[np.intp], errors: Floats) -> None:
        """Set the priorities of rows by their errors."""
        self._weights[rows] = (np.abs(errors) + _LEAST_PRIORITY) ** self._alpha

    def draw(
        self, count: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.intp], list[NDArray[Any]], Floats]:
        """Rows, their columns, and by how much each counts, at most 1."""
        sums = np.cumsum(self._weights[: self.kept])
        rows = np.searchsorted(
            sums, rng.random(count) * sums[-1], side="right"
        )
        rows = np.minimum(rows, self.kept - 1)
        least = self._weights[: self.kept].min()
        counts = (self._weights[rows] / least) ** -self._beta
        return rows, [column[rows] for column in self._columns], counts


class DqnLearner(Learner):
    """Learns the values of degrees; rewards are 1 for an accepted job and −1 for another."""

    def __init__(
        self,
        config: Config,
        scenarios: Sequence[Scenario],
        done: int = 0,
    ) -> None:
        super().__init__(config, scenarios, done)
        self.settings = settings = config.dqn
        # The configuration saw to that.
        assert isinstance(self.scorer, PacMlNetwork)
        self._network = self.scorer
        self._target = copy.deepcopy(self.scorer)
        self._player = PacMlPlayer(self.scorer)
        self.replay = Replay(
            settings.buffer_size, settings.alpha, settings.beta
        )
        envs = self.episodes.num_envs
        actions = self.episodes.layout.actions
        self._epsilon = _MOST ** (
            1 + _SPREAD * np.arange(envs) / max(1, envs - 1)
        )
        # The action of a degree; others refuse.
        self._actions = np.zeros(actions[-1] + 1, int)
        self._actions[list(actions)] = np.arange(len(actions))
        self._due = self._since_target = 0
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate

    def round(self) -> RoundProgress:
        """Plays ``n_steps`` decisions in every environment, then learns from as many."""
        settings = self.settings
        losses = list[float]()
        finished = self._play()
        if self.replay.kept >= settings.learning_starts:
            self._due += settings.n_steps * self.episodes.num_envs
        while self._due >= settings.batch_size:
            self._due -= settings.batch_size
            losses.append(self._learn())
        self.steps += settings.n_steps * self.episodes.num_envs
        loss = sum(losses) / len(losses) if losses else float("nan")
        return RoundProgress(loss, 1 - float(self.means.mean()), finished)

    def state(self) -> dict[str, Any]:
        """The base's and the target network; the memory fills again."""
        return super().state() | {"target": self._target.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        super().restore(state)
        self._target.load_state_dict(state["target"])

    def _play(self) -> list[Finished]:
        """Decisions of all environments, into the memory; the episodes that ended."""
        settings = self.settings
        episodes = self.episodes
        means = self._followed()
        steps = settings.n_steps
        envs = episodes.num_envs
        rewards = np.zeros((steps, envs))
        over = np.zeros((steps, envs), bool)
        seen = []
        degrees = np.zeros((steps, envs), int)
        finished = list[Finished]()
        played, best, columns = (
            *np.zeros((2, steps + 1, envs)),
            np.arange(envs),
        )
        with torch.no_grad():
            pooled = self._network.pooled()
        for step in range(steps + 1):
            seen.append(self._player.seen(episodes))
            with torch.no_grad():
                values = self._network(
                    *map(torch.from_numpy, seen[-1]), pooled
                ).numpy()
            best[step] = values.max(axis=1)
            if step == steps:
                break
            degrees[step], _ = explored(
                values,
                values.argmax(axis=1),
                self._epsilon,
                self.rng,
            )
            played[step] = values[columns, degrees[step]]
            scenario = episodes.scenario_of.copy()
            accepted, ended = episodes.step(self._actions[degrees[step]])
            means.beyond(accepted, scenario)
            rewards[step] = np.where(accepted, 1.0, -1.0)
            over[step] = episodes.episode_start
            finished += ended
        self.means += means.change
        graph, about = map(np.stack, zip(*seen, strict=True))
        returns = rewards.copy()
        discount = np.where(over, 0.0, settings.gamma)
        after = np.arange(1, steps + 1)[:, None].repeat(envs, axis=1)
        for ahead in range(1, min(settings.multi_step, steps)):
            later = np.arange(ahead, steps)
            before = slice(0, steps - ahead)
            returns[before] += discount[before] * rewards[later]
            after[before] += 1
            discount[before] *= np.where(over[later], 0.0, settings.gamma)
        kept = [
            graph[:-1],
            about[:-1],
            degrees,
            returns,
            discount,
        ]
        kept += [graph[after, columns], about[after, columns]]
        rows = [each.reshape(-1, *each.shape[2:]) for each in kept]
        # By the values that it played by; the target network's come in when it learns from them.
        errors = played[:-1] - returns - discount * best[after, columns]
        self.replay.add(rows, errors.ravel())
        return finished

    def _errors(self, *row: Tensor) -> Tensor:
        """How far the values of what was done are from those that followed."""
        graph, about, degree, returns, discount, graph_after, about_after = row
        pooled = self._network.pooled()
        found = (
            self._network(graph, about, pooled)
            .gather(1, degree.unsqueeze(1))
            .squeeze(1)
        )
        with torch.no_grad():
            best = self._network(graph_after, about_after, pooled).argmax(
                1, keepdim=True
            )
            after = (
                self._target(graph_after, about_after)
                .gather(1, best)
                .squeeze(1)
            )
        errors: Tensor = found - (returns + discount * after).float()
        return errors

    def _learn(self) -> float:
        """One gradient step."""
        settings = self.settings
        rows, columns, counts = self.replay.draw(
            settings.batch_size, self.learning_rng
        )
        errors = self._errors(*map(torch.from_numpy, columns))
        each = huber_loss(errors, torch.zeros_like(errors), reduction="none")
        found = self._descend((torch.from_numpy(counts).float() * each).mean())
        self.replay.rate(rows, errors.detach().numpy().astype(np.float64))
        self._since_target += settings.batch_size
        if self._since_target >= settings.target_update_interval:
            self._since_target = 0
            self._target.load_state_dict(self._network.state_dict())
        return found
