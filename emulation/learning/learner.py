"""The base of all learners: playing many environments by scores of all actions, and weight
averaging.

``AfterstatePlayer`` values the cluster that an action leaves behind, ``PacMlPlayer`` degrees.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from patchlight.emulation.learning.config import Config, Dqn
from patchlight.emulation.learning.network import (
    MeanScorer,
    OptionScorer,
    begin_with,
)
from patchlight.emulation.learning.pac_ml_agent import (
    PacMlNetwork,
    PacMlPlayer,
)
from patchlight.emulation.learning.vector_episodes import (
    Finished,
    VectorEpisodes,
    layout_of,
)
from patchlight.emulation.simulator.ramp.scenario import Scenario

Floats = NDArray[np.float64]
# How fast the mean reward of each scenario is followed, and what it is taken for at first.
_MEAN_RATE = 0.002
_YOUNG = 30.0
_FIRST_MEAN = 0.88


class AfterstatePlayer:
    """Plays by an ``OptionScorer``; only actions that can succeed are computed."""

    def __init__(self, scorer: OptionScorer) -> None:
        self.scorer = scorer
        self._rows: NDArray[np.intp] = np.empty(0, int)
        self._inputs: tuple[Tensor, ...] = ()

    def scores(self, episodes: VectorEpisodes) -> Floats:
        """Reward now and discounted value after, E × A; minus infinity if impossible."""
        count, actions = episodes.mask.shape
        rows = np.flatnonzero(episodes.mask)
        envs = rows // actions
        recent = torch.from_numpy(episodes.recent[envs])
        left = torch.from_numpy(episodes.afterstates(envs, rows % actions))
        with torch.no_grad():
            value = self.scorer.value.worth(left, recent).numpy()
        self._inputs = (left, recent)
        self._rows = np.full(count * actions, -1)
        self._rows[rows] = np.arange(len(rows))
        found = np.full(count * actions, -np.inf)
        found[rows] = self.scorer.discount * value + (rows % actions > 0)
        return found.reshape(count, actions)

    def taken(
        self, actions: NDArray[np.intp]
    ) -> tuple[NDArray[np.generic], ...]:
        """The network's inputs for the clusters after these actions, E × …"""
        each = len(self._rows) // len(actions)
        rows = torch.from_numpy(
            self._rows[np.arange(len(actions)) * each + actions]
        )
        return (
            self.scorer.value.seen(
                *(array[rows] for array in self._inputs)
            ).numpy(),
        )

    def predict(self, seen: Tensor) -> Tensor:
        """The value of each cluster."""
        return self.scorer.value.of(seen)


Player: TypeAlias = AfterstatePlayer | PacMlPlayer


def network_of(
    config: Config, scenario: Scenario
) -> OptionScorer | PacMlNetwork:
    """The network that a configuration asks for, before any training."""
    layout = layout_of(scenario)
    if config.network.observation == "pac-ml":
        return PacMlNetwork(layout, config.network, scenario.workloads)
    return OptionScorer(layout, config.network, config.settings.gamma)


def player_of(network: nn.Module) -> Player:
    """The player by a network."""
    if isinstance(network, PacMlNetwork):
        return PacMlPlayer(network)
    assert isinstance(network, OptionScorer)
    return AfterstatePlayer(network)


def play(
    network: nn.Module,
    scenario: Scenario,
    first_seed: int,
    seeds: int,
    blocks: int = 1,
    counts: NDArray[np.intp] | None = None,
) -> list[float]:
    """The faithful blocking rate of each of these seeds' episodes, decided by the best scores.

    ``counts`` is increased by how often each action was taken.
    """
    episodes = VectorEpisodes(
        [scenario],
        seeds,
        first_seed,
        blocks=blocks,
    )
    members = (
        list(network.members) if isinstance(network, MeanScorer) else [network]
    )
    players = [player_of(member) for member in members]
    found: dict[int, float] = {}
    while len(found) < seeds:
        scores = np.stack(
            [player.scores(episodes) for player in players], axis=-1
        )
        if isinstance(network, MeanScorer):
            weights = network.weights(
                torch.from_numpy(episodes.recent)
            ).numpy()[:, None]
            # Where nothing can succeed, all scores are minus infinity.
            scores = np.where(weights > 0, scores, 0.0) * np.maximum(
                weights, 1e-9
            )
        actions = scores.sum(axis=-1).argmax(axis=1)
        if counts is not None:
            counts += np.bincount(actions, minlength=len(counts))
        for each in episodes.step(actions)[1]:
            found.setdefault(each.seed, each.blocking_rate)
    return [found[seed] for seed in range(first_seed, first_seed + seeds)]


@dataclass(
    frozen=True,
    slots=True,
)
class RoundProgress:
    """One round of learning: its mean error, the part of the latest jobs that was blocked on
    arrival, and the episodes that ended in it.
    """

    loss: float
    blocked: float
    finished: Sequence[Finished]


class MeanRewards:
    """The mean reward of each scenario, followed as the policy changes.

    Rewards count beyond it, so that values tell clusters apart, not laws.
    """

    def __init__(self, means: Floats, played: int) -> None:
        self.before = means
        self.means = means.copy()
        self._played = played

    def beyond(
        self, gained: NDArray[Any], scenario: NDArray[np.intp]
    ) -> Floats:
        """The rewards of one decision in each environment, beyond their scenarios' means."""
        found: Floats = gained - self.means[scenario]
        self._played += 1
        rate = max(_MEAN_RATE, 1 / (_YOUNG + self._played))
        for each in range(len(self.means)):
            if (mine := scenario == each).any():
                self.means[each] += rate * (
                    gained[mine].mean() - self.means[each]
                )
        return found

    @property
    def change(self) -> Floats:
        """By how much they are other than they were."""
        return self.means - self.before


def explored(
    scores: Floats,
    actions: NDArray[np.intp],
    epsilon: float | Floats,
    rng: np.random.Generator,
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """``actions``, each with chance ``epsilon`` replaced by any allowed one; which are, E each.

    ``scores`` E × A, minus infinity where an action is not allowed.
    """
    explores = rng.random(len(scores)) < epsilon
    odds = np.where(np.isfinite(scores), rng.random(scores.shape), -1.0)
    return np.where(explores, odds.argmax(axis=1), actions), explores


class Learner:
    """A network that plays and learns, and the mean of its latest weights, which plays better.

    ``average`` is what is evaluated and kept, ``means`` the mean reward of each scenario, ``steps``
    the decisions so far, of which ``done`` came before a resumption.
    """

    def __init__(
        self,
        config: Config,
        scenarios: Sequence[Scenario],
        done: int = 0,
    ) -> None:
        self.config = config
        environment = config.environment
        settings = config.settings
        torch.manual_seed(config.seed)
        self.scorer = network_of(config, scenarios[0])
        if not isinstance(settings, Dqn) and settings.start:
            # The configuration saw to that.
            assert isinstance(self.scorer, OptionScorer)
            begin_with(self.scorer, settings.start)
        self.average = copy.deepcopy(self.scorer)
        self.optimizer = torch.optim.Adam(
            self.scorer.parameters(),
            lr=1e-3,
            fused=True,
        )
        self.means = np.full(len(scenarios), _FIRST_MEAN)
        self.steps = done
        # Episodes already used are not drawn again after a resumption.
        first = environment.first_seed + 2 * (
            done // 1000 + (done > 0) * environment.num_envs
        )
        self.episodes = VectorEpisodes(
            scenarios,
            environment.num_envs,
            first,
            staggered=True,
            blocks=environment.blocks,
        )
        self.rng = np.random.default_rng([config.seed, done])
        self.learning_rng = np.random.default_rng([config.seed, done, 1])

    def round(self) -> RoundProgress:
        """Plays and learns."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Weights, the optimiser's memory and mean rewards; episodes begin again."""
        return {
            "scorer": self.scorer.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "means": self.means.tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.scorer.load_state_dict(state["scorer"])
        self.average.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.means[:] = state["means"]

    def _followed(self) -> MeanRewards:
        """Mean rewards, to be followed on in a round."""
        return MeanRewards(self.means, self.steps // self.episodes.num_envs)

    @property
    def _part(self) -> float:
        """Which part of all steps is done."""
        return min(1.0, self.steps / self.config.steps)

    def _slow_down(self, least: float) -> None:
        """Set the learning rate, which falls to ``least`` at the end."""
        settings = self.config.settings
        assert not isinstance(settings, Dqn)  # Its rate stays as it is.
        left = (1 - self._part) / max(1 - settings.decay_from_fraction, 1e-9)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * min(1.0, left) + least

    def _descend(self, loss: Tensor) -> float:
        """One gradient step, and the mean of weights after it."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        with torch.no_grad():
            weights = self.average.parameters(), self.scorer.parameters()
            for mean, now in zip(*weights, strict=True):
                mean.lerp_(now, self.config.settings.ema_rate)
        return loss.item()
