"""Learns the value of the cluster's state after a placement, by temporal differences.

Where a job goes, and for how long, is fixed by its degree; what is random is only who comes next.
So one function, the value of an *afterstate* (the cluster just after a decision), says all about a
choice: its reward now plus the value of what it leaves behind. It is learned from its own play,
as TD-Gammon was (Tesauro, 1995), with λ-returns that end where the policy did not take its best
move (Watkins, 1989). Rewards count beyond each law's mean, so that values tell clusters apart, not
laws, and less what depends on which jobs came (``ControlVariate``). A teacher's plain rule may
decide at first: orderly clusters, in which all jobs have one degree, are seldom met by chance.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from patchlight.emulation.learning.config import Config
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
_Bools = NDArray[np.bool_]
_PARTS = 8  # kinds of cluster by how much of it is free
_OLD = 300.0
_YOUNG = 30.0


class ControlVariate:
    """Means of scores by scenario, kind of cluster and kind of job, to be taken off the samples.

    The sampled value of a cluster depends on which jobs come next, far more than on the cluster.
    Who comes is independent of the cluster, so what a kind of job brings on average, less what
    the jobs of the episode bring on average, can be taken off each sample: its mean stays, its
    noise shrinks to a third. Both averages are kept for each kind of cluster, as a strict job costs
    a full cluster more than an empty one. Laws are other ones in each episode: averages over the
    jobs of all would hide from the values what is special of each.

    A kind of cluster is the largest number of servers that some block has free, and the share of
    servers free; a kind of job its model and the least degree that meets its limit.
    """

    def __init__(self, episodes: VectorEpisodes) -> None:
        degrees = len(episodes.layout.degrees)
        graphs = len(episodes.workloads.names)
        scenarios = len(episodes.scenarios)
        clusters = (len(episodes.block_sizes) + 1) * (_PARTS + 1)
        jobs = graphs * degrees
        self._degrees = degrees
        self._alone_s = np.array(episodes.workloads.sequential_s)
        self._mean = np.zeros((scenarios, clusters, jobs))
        self._seen = np.zeros((scenarios, clusters, jobs))
        self._share = np.zeros((episodes.num_envs, jobs))

    def kinds(self, episodes: VectorEpisodes) -> tuple[_Ints, _Ints, _Ints]:
        """Scenario, kind of cluster and kind of job of each environment, E each."""
        largest = np.zeros(episodes.num_envs, int)
        for place, free in enumerate(episodes.has_block):
            largest[free] = place + 1
        part = (episodes.free * _PARTS // episodes.layout.servers).astype(int)
        for env in np.flatnonzero(episodes.episode_start):
            jobs = episodes.jobs[env]
            found = self._job(episodes, jobs.graph, jobs.beta)
            count = self._share.shape[1]
            self._share[env] = np.bincount(found, minlength=count) / len(found)
        job = self._job(episodes, episodes.graph, episodes.beta)
        return episodes.scenario_of.copy(), largest * (_PARTS + 1) + part, job

    def of(self, kinds: tuple[_Ints, _Ints, _Ints]) -> Floats:
        """How much more than the mean job these jobs bring to such clusters, E."""
        scenario, cluster, job = kinds
        mean_job = (self._share * self._mean[scenario, cluster]).sum(axis=1)
        found: Floats = self._mean[scenario, cluster, job] - mean_job
        return found

    def learn(self, kinds: tuple[_Ints, _Ints, _Ints], scores: Floats) -> None:
        """Take the scores of these, E, into the means."""
        np.add.at(self._seen, kinds, 1.0)
        change = np.zeros_like(self._mean)
        np.add.at(change, kinds, scores - self._mean[kinds])
        self._mean += change / np.clip(self._seen, _YOUNG, _OLD)

    def _job(
        self,
        episodes: VectorEpisodes,
        graph: _Ints,
        beta: Floats,
    ) -> _Ints:
        """The kinds of jobs of these models and requirements."""
        limit_s = beta * self._alone_s[graph]
        enough = episodes.expected_at(graph) <= limit_s[:, None]
        found: _Ints = graph * self._degrees + enough.argmax(axis=1)
        return found


class Teacher:
    """Plain rules: for each scenario a degree to keep to, or the least that meets the limit."""

    def __init__(
        self, episodes: VectorEpisodes, degrees: Sequence[int | str]
    ) -> None:
        known = episodes.layout.actions
        wanted = [
            known.index(each) if isinstance(each, int) else -1
            for each in degrees
        ]
        self._wanted = np.array(wanted)
        # Degree 1 holds a server so long that no good rule takes it first.
        self._tried = np.array(
            [degree > 1 or len(known) == 2 for degree in known[1:]]
        )

    def actions(self, episodes: VectorEpisodes) -> _Ints:
        """Its action in each environment; 0 where what it wants cannot be had."""
        wanted = self._wanted[episodes.scenario_of]
        enough = (
            episodes.expected_s <= episodes.limit_s[:, None]
        ) & self._tried
        least = np.where(enough.any(axis=1), enough.argmax(axis=1) + 1, 0)
        found: _Ints = np.where(wanted < 0, least, wanted)
        return np.where(
            episodes.mask[np.arange(episodes.num_envs), found], found, 0
        )


class AfterstateLearner(Learner):
    """Learns a scorer's values from its own play, some environments by a teacher at first."""

    def __init__(
        self,
        config: Config,
        scenarios: Sequence[Scenario],
        done: int = 0,
    ) -> None:
        super().__init__(config, scenarios, done)
        # The configuration saw to that.
        assert isinstance(self.scorer, OptionScorer)
        self._player = AfterstatePlayer(self.scorer)
        self._teacher: Teacher | None = None
        if teacher := config.afterstates.teacher:
            degrees = [teacher[law] for law, _ in config.environment.scenarios]
            self._teacher = Teacher(self.episodes, degrees)
        self._control_variate = ControlVariate(self.episodes)

    def round(self) -> RoundProgress:
        """Learns from ``n_steps`` decisions in every environment."""
        self._slow_down(1e-5)
        inputs, targets, finished = self._play()
        settings = self.config.afterstates
        y = torch.from_numpy(targets.astype(np.float32))
        given = [torch.from_numpy(each) for each in inputs]
        order = torch.from_numpy(self.learning_rng.permutation(len(y)))
        total = 0.0
        for rows in torch.split(order, settings.batch_size):
            found = self._player.predict(*(each[rows] for each in given))
            total += self._descend(((found - y[rows]) ** 2).mean()) * len(rows)
        self.steps += settings.n_steps * self.episodes.num_envs
        return RoundProgress(
            total / len(y), 1 - float(self.means.mean()), finished
        )

    def _play(
        self,
    ) -> tuple[list[NDArray[np.generic]], Floats, list[Finished]]:
        """Play: the network's inputs, their targets, and the episodes that ended."""
        part = self._part
        means = self._followed()
        episodes = self.episodes
        settings = self.config.afterstates
        player = self._player
        n_steps = settings.n_steps
        count = episodes.num_envs
        rows = np.arange(episodes.num_envs)
        taught = (
            self._teacher is not None and part < settings.teacher_only_fraction
        )
        share = settings.teacher_env_fraction * (
            part < settings.teacher_until_fraction
        )
        share = 1.0 if taught else share
        taught_envs = rows < (
            share * count if self._teacher is not None else 0
        )
        epsilon = settings.epsilon * (1 - part)
        best = np.zeros((n_steps + 1, count))
        rewards = np.zeros((n_steps + 1, count))
        off_policy = np.zeros((n_steps + 1, count), bool)
        over = np.zeros((n_steps, count), bool)
        bias = np.zeros((n_steps + 1, count))
        known = []
        taken = list[tuple[NDArray[np.generic], ...]]()
        finished = list[Finished]()
        for step in range(n_steps + 1):
            scores = player.scores(episodes)
            scores = scores - means.means[episodes.scenario_of][:, None]
            greedy = actions = scores.argmax(axis=1)
            if taught_envs.any() and self._teacher is not None:
                actions = np.where(
                    taught_envs, self._teacher.actions(episodes), actions
                )
            # While taught, values are of the teacher's play; after that, of the best play.
            best[step] = (
                scores[rows, actions] if taught else scores[rows, greedy]
            )
            kinds = self._control_variate.kinds(episodes)
            bias[step] = self._control_variate.of(kinds)
            known.append(kinds)
            if step == n_steps:
                break
            actions, explores = explored(
                scores,
                actions,
                epsilon,
                self.rng,
            )
            off_policy[step] = explores if taught else actions != greedy
            taken.append(player.taken(actions))
            scenario = episodes.scenario_of.copy()
            accepted, ended = episodes.step(actions)
            rewards[step] = means.beyond(accepted, scenario)
            over[step] = episodes.episode_start
            finished += ended
        targets = self._returns(
            best - bias,
            rewards - bias,
            off_policy,
            over,
        )
        for kinds, scores in zip(known, best, strict=True):
            self._control_variate.learn(kinds, scores)
        self.means += means.change
        # The end of an episode says nothing of the cluster.
        kept = ~over.ravel()
        inputs = [
            np.concatenate(each)[kept] for each in zip(*taken, strict=True)
        ]
        return inputs, targets[kept], finished

    def _returns(
        self,
        best: Floats,
        rewards: Floats,
        off_policy: _Bools,
        over: _Bools,
    ) -> Floats:
        """λ-returns of each afterstate: what comes after it, up to the best score that follows."""
        settings = self.config.afterstates
        n_steps = len(over)
        found = np.zeros(over.shape)
        found[-1] = best[n_steps]
        for step in range(n_steps - 2, -1, -1):
            onward = rewards[step + 1] + settings.gamma * found[step + 1]
            mixed = (1 - settings.td_lambda) * best[
                step + 1
            ] + settings.td_lambda * onward
            cut = off_policy[step + 1] | over[step + 1]
            found[step] = np.where(cut, best[step + 1], mixed)
        return found.ravel()
