"""Roll-outs: who plays the environments that a learner learns from.

A learner gives orders (its weights, and how far training is) and gets what a worker has played by
them. One worker plays all environments in the learner's own process; on Ray
(``patchlight.emulation.learning.on_ray``) several have a share of them each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from patchlight.emulation.learning.config import Config
from patchlight.emulation.learning.players import network_of, player_of
from patchlight.emulation.learning.vector_episodes import Finished, VectorEpisodes
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.testbed.errors import BadInput

_Floats = NDArray[np.float64]
_SEEDS_APART = 1_000_000
# How fast the mean reward of each scenario is followed, and what it is taken for at first.
_MEAN_RATE, _YOUNG, _FIRST_MEAN = 0.002, 30.0, 0.88


@dataclass(frozen=True)
class Orders:
    """What a worker is to play by: decisions that the run has learned from so far, the mean
    reward of each scenario, and weights, ``None`` where it shares the learner's network.
    """

    steps: int
    means: _Floats
    weights: dict[str, Tensor] | None = None


@dataclass(frozen=True)
class Experience:
    """What a worker has played.

    ``decisions`` over all its environments, the episodes that ended in them, and by how much
    mean rewards turned out to be other than in its orders.
    """

    decisions: int
    finished: tuple[Finished, ...]
    means_change: _Floats


@dataclass(frozen=True, slots=True)
class Progress:
    """One round of learning: its mean error, the part of the latest jobs that was blocked on
    arrival, and the episodes that ended in it.
    """

    loss: float
    blocked: float
    finished: tuple[Finished, ...]


E_co = TypeVar("E_co", bound=Experience, covariant=True)


class Rollouts(Protocol[E_co]):
    """One worker, or several of which one is heard at a time."""

    def play(self, orders: Orders) -> E_co:
        """What a worker has played. Of several workers, it may be by earlier orders."""


class Share(NamedTuple):
    """Which part of the environments a worker has: it is number ``number`` of ``workers``.

    ``life`` counts how often that worker has been made anew, so that it begins with other episodes.
    """

    number: int = 0
    workers: int = 1
    life: int = 0

    def num_envs(self, config: Config) -> int:
        """How many environments it plays; ``BadInput`` if none is left for it."""
        each, more = divmod(config.environment.num_envs, self.workers)
        if not each:
            raise BadInput(
                f"{self.workers} workers cannot share {config.environment.num_envs} environments",
                hint="take fewer workers, or more 'num_envs' in the configuration",
            )
        return each + (self.number < more)

    def rng(self, config: Config, done: int) -> np.random.Generator:
        """Its random numbers, in a run that goes on after ``done`` decisions."""
        mine = [] if self == ALL else [*self]
        return np.random.default_rng([config.seed, done, *mine])

    def episodes(self, config: Config, scenarios: Sequence[Scenario], done: int) -> VectorEpisodes:
        """Its environments. Episodes already used are not drawn again after a resumption."""
        environment = config.environment
        first = environment.first_seed + 2 * (done // 1000 + (done > 0) * environment.num_envs)
        first += _SEEDS_APART * (self.number + self.workers * self.life)
        count, blocks = self.num_envs(config), environment.blocks
        return VectorEpisodes(scenarios, count, first, staggered=True, blocks=blocks)


ALL = Share()


class MeanRewards:
    """The mean reward of each scenario, followed as the policy changes.

    Rewards count beyond it, so that values tell clusters apart, not laws.
    """

    def __init__(self, means: _Floats, played: int) -> None:
        self.before, self.means = means, means.copy()
        self._played = played

    @staticmethod
    def first(scenarios: int) -> _Floats:
        """What they are taken for before any play."""
        return np.full(scenarios, _FIRST_MEAN)

    def beyond(self, gained: NDArray[Any], scenario: NDArray[np.intp]) -> _Floats:
        """The rewards of one decision in each environment, beyond their scenarios' means."""
        found: _Floats = gained - self.means[scenario]
        self._played += 1
        rate = max(_MEAN_RATE, 1 / (_YOUNG + self._played))
        for each in range(len(self.means)):
            if (mine := scenario == each).any():
                self.means[each] += rate * (gained[mine].mean() - self.means[each])
        return found

    @property
    def change(self) -> _Floats:
        """By how much they are other than they were."""
        return self.means - self.before


class RolloutWorker:
    """Has a share of the environments, and plays by a network of its own or by the one given.

    ``done`` are the decisions before a resumption.
    """

    def __init__(
        self,
        config: Config,
        scenarios: Sequence[Scenario],
        share: Share = ALL,
        done: int = 0,
        network: nn.Module | None = None,
    ) -> None:
        self.config, self.number = config, share.number
        self.episodes = share.episodes(config, scenarios, done)
        self.network = network or network_of(config, scenarios[0])
        self.player = player_of(self.network, self.episodes.workloads)
        self.rng = share.rng(config, done)

    def follow(self, orders: Orders) -> MeanRewards:
        """Take the weights ordered, where there are some; the mean rewards, to be followed on."""
        if orders.weights is not None:
            self.network.load_state_dict(orders.weights)
        return MeanRewards(orders.means, orders.steps // self.config.environment.num_envs)


def explored(
    scores: _Floats, actions: NDArray[np.intp], epsilon: float, rng: np.random.Generator
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """``actions``, each with chance ``epsilon`` replaced by any allowed one; which are, E each.

    ``scores`` E × A, minus infinity where an action is not allowed.
    """
    explores = rng.random(len(scores)) < epsilon
    odds = np.where(np.isfinite(scores), rng.random(scores.shape), -1.0)
    return np.where(explores, odds.argmax(axis=1), actions), explores
