"""Who plays many environments at once and learns from it: by scores of all actions.

``AfterstatePlayer`` values the cluster that an action leaves behind; what the computation graph
adds is learned with it where the network has one. ``pac_ml_agent.PacMlPlayer`` values actions.
"""

from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr
from torch import Tensor, nn

from patchlight.emulation.learning.config import Config
from patchlight.emulation.learning.ensembles import MeanScorer
from patchlight.emulation.learning.job_times import JobTimes, TimedGraphs
from patchlight.emulation.learning.network import OptionScorer
from patchlight.emulation.learning.pac_ml_agent import PacMlNetwork, PacMlPlayer
from patchlight.emulation.learning.vector_episodes import VectorEpisodes, layout_of, stacked_graphs
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.emulation.simulator.ramp.workloads import Workloads

_Floats = NDArray[np.float64]


class Player(Protocol):
    """Scores actions, and says what its network is to be given to learn of those taken."""

    @property
    def values_afterstates(self) -> bool:
        """Whether what it learns is the value after an action, without its reward."""

    def scores(self, episodes: VectorEpisodes) -> _Floats:
        """Of each action in each environment, E × A; minus infinity where it may not be taken."""

    def taken(self, actions: NDArray[np.intp]) -> tuple[NDArray[np.generic], ...]:
        """Of the last scores, what ``predict`` is to be given for these actions, E × … each."""

    def predict(self, *inputs: Tensor) -> Tensor:
        """The values of these."""

    def observed(self, episodes: VectorEpisodes) -> tuple[NDArray[np.generic], ...]:
        """All that scores are made of, E × … each: what a replay buffer keeps."""

    def scores_of(self, *observed: Tensor) -> Tensor:
        """The score of each action, N × A, ``IMPOSSIBLE`` where it may not be taken."""


class AfterstatePlayer:
    """Plays by an ``OptionScorer``; only actions that can succeed are computed.

    Where nobody tells how long a job takes, any action can that has a place: its score is what is
    expected of it, being late included. What is learned from is what came of it.
    """

    values_afterstates = True

    def __init__(self, scorer: OptionScorer, workloads: Workloads, told: bool = False) -> None:
        self.scorer = scorer
        self._times = None if told else scorer.times
        if scorer.graph is not None:
            nodes, edges = stacked_graphs(workloads)
            self._graphs = torch.from_numpy(nodes), torch.from_numpy(edges)
        self._workloads = workloads
        self._log_s: Tensor | None = None
        self._episodes: VectorEpisodes
        self._rows: NDArray[np.intp] = np.empty(0, int)
        self._inputs: tuple[Tensor, ...] = ()

    def scores(self, episodes: VectorEpisodes) -> _Floats:
        """Reward now and discounted value after, E × A; minus infinity if impossible."""
        if self._times is not None:
            return self._estimated(episodes, self._times)
        count, actions = episodes.mask.shape
        rows = np.flatnonzero(episodes.mask)
        envs = rows // actions
        recent = torch.from_numpy(episodes.recent[envs])
        with torch.no_grad():
            left = torch.from_numpy(episodes.afterstates(envs, rows % actions))
            worth = self.scorer.value.worth(left, recent)
            self._inputs = (left, recent)
            if self.scorer.graph is not None:
                options, job = episodes.described()
                option = options.reshape(count * actions, -1)[rows]
                about = (episodes.graph[envs], job[envs], option)
                told = [torch.from_numpy(each) for each in about]
                worth += self._added(*told, recent)
                self._inputs = (left, recent, *told)
            value = worth.numpy()
        self._rows = np.full(count * actions, -1)
        self._rows[rows] = np.arange(len(rows))
        found = np.full(count * actions, -np.inf)
        found[rows] = self.scorer.discount * value + (rows % actions > 0)
        return found.reshape(count, actions)

    def _estimated(self, episodes: VectorEpisodes, times: JobTimes) -> _Floats:
        """The same by estimated times."""
        if self._log_s is None:
            self._log_s = times.of_models(TimedGraphs(self._workloads))
        self._episodes = episodes
        count, actions = episodes.mask.shape
        possible = np.concatenate([np.ones((count, 1), bool), episodes.fits], axis=1)
        rows = np.flatnonzero(possible)
        envs, columns = rows // actions, rows % actions
        job_log_s, job_spread = times.of_jobs(
            self._log_s,
            torch.from_numpy(episodes.graph),
            torch.from_numpy(episodes.limit_s).float(),
        )
        log_s, spread = (each.double().numpy()[envs] for each in (job_log_s, job_spread))
        log_s = log_s - np.log(np.array(episodes.layout.actions).clip(min=1))[columns]
        left = torch.from_numpy(episodes.afterstates(envs, columns, np.exp(log_s)))
        with torch.no_grad():
            seen = self.scorer.value.seen(left, torch.from_numpy(episodes.recent[envs]))
            value = np.full((count, actions), -np.inf)
            value[envs, columns] = self.predict(seen).numpy()
        in_time = ndtr((np.log(episodes.limit_s)[envs] - log_s) / spread) * (columns > 0)
        accepted = 1 + self.scorer.discount * value[envs, columns]
        late = self.scorer.discount * value[envs, 0]
        value[envs, columns] = in_time * accepted + (1 - in_time) * late
        return value

    def taken(self, actions: NDArray[np.intp]) -> tuple[NDArray[np.generic], ...]:
        """What the network sees of the clusters that these actions leave behind."""
        if self._times is not None:
            busy = self._episodes.afterstates(np.arange(len(actions)), actions)
            known = torch.from_numpy(busy), torch.from_numpy(self._episodes.recent)
            return (self.scorer.value.seen(*known).numpy(),)
        each = len(self._rows) // len(actions)
        rows = torch.from_numpy(self._rows[np.arange(len(actions)) * each + actions])
        left, recent, *about = (array[rows] for array in self._inputs)
        given = [self.scorer.value.seen(left, recent), *about]
        if self.scorer.graph is not None:
            given.append(recent)
        return tuple(array.numpy() for array in given)

    def predict(self, *inputs: Tensor) -> Tensor:
        """The value of each cluster, and what the graph adds to it."""
        seen, *about = inputs
        found = self.scorer.value.of(seen)
        return found + self._added(*about) if about else found

    def _added(self, graph: Tensor, *about: Tensor) -> Tensor:
        """What the computation graphs, by their numbers, add to the values; ``about`` the job, the
        option and recent jobs.
        """
        assert self.scorer.graph is not None
        described = self.scorer.graph(*self._graphs)[graph]
        return self.scorer.corrected(described, *about) / self.scorer.discount

    def observed(self, episodes: VectorEpisodes) -> tuple[NDArray[np.generic], ...]:
        """The clusters that actions leave behind, the mask and recent jobs; with a graph network
        also which graph it is, and what options and job are like.
        """
        seen = episodes.remaining(), episodes.mask.astype(np.float32), episodes.recent
        if self.scorer.graph is None:
            return seen
        return (*seen, episodes.graph.copy(), *episodes.described())

    def scores_of(self, *observed: Tensor) -> Tensor:
        """Reward now and discounted value after."""
        seen = dict(zip(("remaining", "mask", "recent"), observed, strict=False))
        if self.scorer.graph is not None:
            graph, seen["options"], seen["job"] = observed[3:]
            seen["nodes"], seen["edges"] = (each[graph] for each in self._graphs)
        found: Tensor = self.scorer(seen)
        return found


def network_of(config: Config, scenario: Scenario) -> nn.Module:
    """The network that a configuration asks for, before any training."""
    layout = layout_of(scenario)
    if config.network.observation == "pac-ml":
        return PacMlNetwork(layout, config.network, scenario.workloads)
    return OptionScorer(layout, config.network, config.discount)


def player_of(network: nn.Module, workloads: Workloads) -> Player:
    """Who plays by a network."""
    if isinstance(network, PacMlNetwork):
        return PacMlPlayer(network)
    assert isinstance(network, OptionScorer)
    return AfterstatePlayer(network, workloads)


class Played(NamedTuple):
    """What came of some episodes: the faithful blocking rate of each, and the share of decisions
    that would be the same were times told, ``None`` where they are.
    """

    rates: list[float]
    as_told: float | None


def play(
    network: nn.Module, scenario: Scenario, first_seed: int, seeds: int, blocks: int = 1
) -> list[float]:
    """The faithful blocking rate of each of these seeds' episodes, decided by the best scores."""
    return played(network, scenario, first_seed, seeds, blocks).rates


def played(
    network: nn.Module, scenario: Scenario, first_seed: int, seeds: int, blocks: int = 1
) -> Played:
    """These seeds' episodes, decided by the best scores; of so many blocks for each degree."""
    episodes, told = VectorEpisodes([scenario], seeds, first_seed, blocks=blocks), None
    members = list(network.members) if isinstance(network, MeanScorer) else [network]
    members = [m.on(episodes.layout) if isinstance(m, OptionScorer) else m for m in members]
    if isinstance(network, OptionScorer) and network.times is not None:
        told = AfterstatePlayer(network.on(episodes.layout), scenario.workloads, told=True)
    players = [player_of(member, scenario.workloads) for member in members]
    found: dict[int, float] = {}
    same = decisions = 0
    while len(found) < seeds:
        scores = np.stack([player.scores(episodes) for player in players], axis=-1)
        if isinstance(network, MeanScorer):
            weights = network.weights(torch.from_numpy(episodes.recent)).numpy()[:, None]
            # Where nothing can succeed a score is minus infinity, whoever gives it.
            scores = np.where(weights > 0, scores, 0.0) * np.maximum(weights, 1e-9)
        actions = scores.sum(axis=-1).argmax(axis=1)
        if told is not None:
            same += int((actions == told.scores(episodes).argmax(axis=1)).sum())
            decisions += len(actions)
        for each in episodes.step(actions)[1]:
            found.setdefault(each.seed, each.blocking_rate)
    rates = [found[seed] for seed in range(first_seed, first_seed + seeds)]
    return Played(rates, same / decisions if told is not None else None)
