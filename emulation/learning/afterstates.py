"""Learning what a cluster is worth once a job is placed, by temporal differences.

Where a job goes, and for how long, is fixed by its degree; what is random is only who comes next.
So one function, the worth of an *afterstate* (the cluster just after a decision), says all about a
choice: its reward now plus the worth of what it leaves behind. It is learned from its own play,
as TD-Gammon was (Tesauro, 1995), with λ-returns that end where the player did not take its best
move (Watkins, 1989). Rewards are counted beyond each law's mean, so that worths tell clusters
apart, not laws, and less the luck of who came (``luck``). A teacher's plain rule may decide at
first: orderly clusters, in which all jobs have one degree, are seldom met by chance.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from patchlight.controller.policies.observation import Array
from patchlight.emulation.learning.config import Config
from patchlight.emulation.learning.lanes import Finished, VectorEpisodes
from patchlight.emulation.learning.luck import ControlVariate
from patchlight.emulation.learning.network import OptionScorer
from patchlight.emulation.simulator.ramp.scenario import Scenario

_Floats = NDArray[np.float64]
_Ints = NDArray[np.intp]
# How fast the mean reward of each law is followed.
_MEAN_RATE = 0.002
_FIRST_MEAN = 0.88


class Player:
    """Scores the actions of all lanes at once; only those that can succeed are computed."""

    def __init__(self, scorer: OptionScorer) -> None:
        self.scorer = scorer

    def scores(self, lanes: VectorEpisodes, remaining: Array) -> _Floats:
        """Reward now and discounted worth after, lanes × actions; minus infinity if impossible."""
        count, actions, servers = remaining.shape
        rows = np.flatnonzero(lanes.mask.ravel())
        with torch.no_grad():
            worth = self.scorer.value(
                torch.from_numpy(remaining.reshape(-1, servers)[rows]),
                torch.from_numpy(lanes.recent[rows // actions]),
            ).numpy()
        found = np.full(count * actions, -np.inf)
        found[rows] = self.scorer.discount * worth + (rows % actions > 0)
        return found.reshape(count, actions)


def play(scorer: OptionScorer, scenario: Scenario, first_seed: int, seeds: int) -> list[float]:
    """The faithful blocking rate of each of these seeds' episodes, decided by the best scores."""
    lanes, player = VectorEpisodes([scenario], seeds, first_seed), Player(scorer)
    found: dict[int, float] = {}
    while len(found) < seeds:
        actions = player.scores(lanes, lanes.remaining()).argmax(axis=1)
        for each in lanes.step(actions)[1]:
            found.setdefault(each.seed, each.blocking_rate)
    return [found[seed] for seed in range(first_seed, first_seed + seeds)]


class Teacher:
    """Plain rules: for each scenario a degree to keep to, or the least that meets the limit."""

    def __init__(self, lanes: VectorEpisodes, degrees: Sequence[int | str]) -> None:
        known = lanes.layout.actions
        wanted = [known.index(each) if isinstance(each, int) else -1 for each in degrees]
        self._wanted = np.array(wanted)
        # Degree 1 holds a server so long that no good rule takes it first.
        self._tried = np.array([degree > 1 or len(known) == 2 for degree in known[1:]])

    def actions(self, lanes: VectorEpisodes) -> _Ints:
        """Its action in each lane; 0 where what it wants cannot be had."""
        wanted = self._wanted[lanes.scenario_of]
        enough = (lanes.expected_s <= lanes.limit_s[:, None]) & self._tried
        least = np.where(enough.any(axis=1), enough.argmax(axis=1) + 1, 0)
        found: _Ints = np.where(wanted < 0, least, wanted)
        return np.where(lanes.mask[np.arange(lanes.count), found], found, 0)


@dataclass(frozen=True, slots=True)
class Progress:
    """One round of learning: its mean squared error, and the episodes that ended in it."""

    loss: float
    finished: tuple[Finished, ...]


class AfterstateLearner:
    """Learns a scorer's worths. ``scorer`` is what plays and learns, ``average`` the mean of
    its latest states, which plays better.
    """

    def __init__(self, config: Config, scenarios: Sequence[Scenario], done: int = 0) -> None:
        self.config, self.settings = config, config.afterstates
        environment = config.environment
        torch.manual_seed(config.seed)
        self._rng = np.random.default_rng([config.seed, done])
        # Episodes already used are not drawn again after a resumption.
        first = environment.first_seed + 2 * (done // 1000 + (done > 0) * environment.lanes)
        self.lanes = VectorEpisodes(scenarios, environment.lanes, first, staggered=True)
        discount = self.settings.discount
        self.scorer = OptionScorer(self.lanes.layout, config.network, discount)
        self.average = copy.deepcopy(self.scorer)
        self.optimizer = torch.optim.Adam(self.scorer.value.parameters(), lr=1e-3)
        teacher = self.settings.teacher
        self._teacher = None
        if all(law in teacher for law in environment.laws):
            self._teacher = Teacher(self.lanes, [teacher[law] for law in environment.laws])
        self._luck = ControlVariate(self.lanes)
        self.means = np.full(len(scenarios), _FIRST_MEAN)
        self.steps = done

    def round(self) -> Progress:
        """Plays ``horizon`` decisions in every lane and learns from them."""
        part = min(1.0, self.steps / self.config.steps)
        settings = self.settings
        rate = settings.learning_rate * min(1.0, (1 - part) / max(1 - settings.decaying, 1e-9))
        for group in self.optimizer.param_groups:
            group["lr"] = rate + 1e-5
        remaining, recent, targets, finished = self._play(part)
        loss = self._learn(remaining, recent, targets)
        self.steps += settings.horizon * self.lanes.count
        return Progress(loss, tuple(finished))

    def state(self) -> dict[str, Any]:
        """Weights, the optimiser's memory and mean rewards; lanes begin anew."""
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

    def _play(self, part: float) -> tuple[Array, Array, _Floats, list[Finished]]:
        lanes, settings, player = self.lanes, self.settings, Player(self.scorer)
        turns, count, rows = settings.horizon, lanes.count, np.arange(lanes.count)
        taught = self._teacher is not None and part < settings.taught
        share = 1.0 if taught else settings.taught_lanes * (part < settings.teaching)
        pupils = rows < (share * count if self._teacher is not None else 0)
        exploration = settings.exploration * (1 - part)
        best, rewards = np.zeros((turns + 1, count)), np.zeros((turns + 1, count))
        strayed, over = np.zeros((turns + 1, count), bool), np.zeros((turns, count), bool)
        luck, known = np.zeros((turns + 1, count)), []
        after, before, finished = [], [], list[Finished]()
        for turn in range(turns + 1):
            remaining = lanes.remaining()
            scores = player.scores(lanes, remaining) - self.means[lanes.scenario_of][:, None]
            greedy = actions = scores.argmax(axis=1)
            if pupils.any() and self._teacher is not None:
                actions = np.where(pupils, self._teacher.actions(lanes), actions)
            # While taught, worths are of the teacher's play; after that, of the best play.
            best[turn] = scores[rows, actions] if taught else scores[rows, greedy]
            kinds = self._luck.kinds(lanes)
            luck[turn] = self._luck.of(kinds)
            known.append(kinds)
            if turn == turns:
                break
            lost = self._rng.random(count) < exploration
            anyhow = np.where(lanes.mask, self._rng.random(lanes.mask.shape), -1.0).argmax(axis=1)
            actions = np.where(lost, anyhow, actions)
            strayed[turn] = lost if taught else actions != greedy
            after.append(remaining[rows, actions])
            before.append(lanes.recent)
            scenario = lanes.scenario_of.copy()
            accepted, ended = lanes.step(actions)
            rewards[turn] = accepted - self.means[scenario]
            over[turn] = lanes.fresh
            finished += ended
            for each in range(len(self.means)):
                if (mine := scenario == each).any():
                    mean = accepted[mine].mean()
                    self.means[each] += _MEAN_RATE * (mean - self.means[each])
        targets = self._returns(best - luck, rewards - luck, strayed, over)
        for kinds, scores in zip(known, best, strict=True):
            self._luck.learn(kinds, scores)
        kept = ~over.ravel()  # The end of an episode says nothing of the cluster.
        return np.concatenate(after)[kept], np.concatenate(before)[kept], targets[kept], finished

    def _returns(
        self, best: _Floats, rewards: _Floats, strayed: NDArray[np.bool_], over: NDArray[np.bool_]
    ) -> _Floats:
        """λ-returns of each afterstate: what comes after it, up to the best score that follows."""
        settings, turns = self.settings, len(over)
        found = np.zeros(over.shape)
        found[-1] = best[turns]
        for turn in range(turns - 2, -1, -1):
            onward = rewards[turn + 1] + settings.discount * found[turn + 1]
            mixed = (1 - settings.trace) * best[turn + 1] + settings.trace * onward
            cut = strayed[turn + 1] | over[turn + 1]
            found[turn] = np.where(cut, best[turn + 1], mixed)
        return found.ravel()

    def _learn(self, remaining: Array, recent: Array, targets: _Floats) -> float:
        settings = self.settings
        x, context = torch.from_numpy(remaining), torch.from_numpy(recent)
        y = torch.from_numpy(targets.astype(np.float32))
        order = torch.from_numpy(self._rng.permutation(len(y)))
        total = 0.0
        for rows in torch.split(order, settings.batch):
            loss = ((self.scorer.value(x[rows], context[rows]) - y[rows]) ** 2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            with torch.no_grad():
                for mean, now in zip(
                    self.average.parameters(), self.scorer.parameters(), strict=True
                ):
                    mean.lerp_(now, settings.averaging)
            total += loss.item() * len(rows)
        return total / len(y)
