"""A deep Q-network with action masks, the family of PAC-ML's learner (Ape-X DQN).

Actions' values are the scores of the same networks that the other algorithms train. Targets are
of n steps, and of double Q-learning (van Hasselt, Guez, Silver, AAAI 2016): the network says which
allowed action comes next, its earlier self what that is worth. Against Ape-X (Horgan et al., ICLR
2018), all decisions are drawn alike, not by their error. The settings are those of
Stable-Baselines3's ``DQN``, which knows no masks.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from patchlight.emulation.learning.config import Config
from patchlight.emulation.learning.network import IMPOSSIBLE
from patchlight.emulation.learning.players import network_of, player_of
from patchlight.emulation.learning.replay import Chunk, Observed, Replay
from patchlight.emulation.learning.rollouts import (
    Experience,
    MeanRewards,
    Orders,
    Progress,
    Rollouts,
    RolloutWorker,
    explored,
)
from patchlight.emulation.learning.vector_episodes import Finished
from patchlight.emulation.simulator.ramp.scenario import Scenario


@dataclass(frozen=True)
class Played(Experience):
    """Decisions for the replay memory of worker ``number``."""

    number: int
    chunk: Chunk


class DqnWorker(RolloutWorker):
    """Plays for the replay memory that it is the worker of."""

    _follows = False

    def play(self, orders: Orders) -> Played:
        """``train_freq`` decisions in every environment."""
        means = self.follow(orders)
        settings, episodes = self.config.dqn, self.episodes
        epsilon = settings.epsilon_at(orders.steps / self.config.steps)
        seen, rewards, finished = list[Observed](), [], list[Finished]()
        taken, last = [], []
        for _ in range(settings.train_freq):
            observed = self.player.observed(episodes)
            with torch.no_grad():
                scores = self.player.scores_of(*map(torch.from_numpy, observed)).numpy()
            scores = np.where(scores > IMPOSSIBLE / 2, scores, -np.inf)
            actions, _ = explored(scores, scores.argmax(axis=1), epsilon, self.rng)
            scenario = episodes.scenario_of.copy()
            accepted, ended = episodes.step(actions)
            seen.append(observed)
            taken.append(actions)
            rewards.append(means.beyond(accepted, scenario))
            last.append(episodes.episode_start)
            finished += ended
        observations = tuple(np.stack(each) for each in zip(*seen, strict=True))
        chunk = Chunk(
            observations, np.stack(taken), np.stack(rewards), np.stack(last), self._follows
        )
        self._follows = True
        decisions = settings.train_freq * episodes.num_envs
        return Played(decisions, tuple(finished), means.change, self.number, chunk)


class DqnLearner:
    """Learns actions' values from replay. ``rollouts`` plays for it, ``workers`` of them; without,
    a worker in this process does, by the learner's own network.
    """

    def __init__(
        self,
        config: Config,
        scenarios: Sequence[Scenario],
        done: int = 0,
        rollouts: Rollouts[Played] | None = None,
        workers: int = 1,
    ) -> None:
        self.config, self.settings = config, config.dqn
        settings = self.settings
        torch.manual_seed(config.seed)
        self.average = network_of(config, scenarios[0])
        self._target = copy.deepcopy(self.average)
        self.optimizer = torch.optim.Adam(self.average.parameters(), settings.learning_rate)
        self._apart = rollouts is not None
        self._rollouts = rollouts or DqnWorker(config, scenarios, done=done, network=self.average)
        players = (player_of(net, scenarios[0].workloads) for net in (self.average, self._target))
        self._player, self._earlier = players
        self._rng = np.random.default_rng([config.seed, done, 1])
        each = settings.buffer_size // workers
        self._replays = [Replay(each, settings.n_steps, settings.gamma) for _ in range(workers)]
        self.means = MeanRewards.first(len(scenarios))
        self.steps = self._begun = done
        self._copied = done

    def round(self) -> Progress:
        """Takes what a worker has played, and learns once there is enough."""
        weights = self.average.state_dict() if self._apart else None
        played = self._rollouts.play(Orders(self.steps, self.means, weights))
        self._replays[played.number].add(played.chunk)
        self.means += played.means_change
        self.steps += played.decisions
        losses = []
        # What was played before a resumption is not in memory any more.
        if self.steps - self._begun >= self.settings.learning_starts:
            losses = [self._learn() for _ in range(self.settings.gradient_steps)]
            if self.steps - self._copied >= self.settings.target_update_interval:
                self._copied = self.steps
                self._target.load_state_dict(self.average.state_dict())
        loss = sum(losses) / len(losses) if losses else float("nan")
        return Progress(loss, 1 - float(self.means.mean()), played.finished)

    def state(self) -> dict[str, Any]:
        """Weights, the optimiser's memory and mean rewards; the replay memory fills anew."""
        return {
            "scorer": self.average.state_dict(),
            "target": self._target.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "means": self.means.tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.average.load_state_dict(state["scorer"])
        self._target.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.means[:] = state["means"]

    def _learn(self) -> float:
        """One gradient step: its mean Huber loss."""
        settings = self.settings
        sizes = np.array([len(replay) for replay in self._replays])
        replay = self._replays[self._rng.choice(len(sizes), p=sizes / sizes.sum())]
        drawn = replay.sample(settings.batch_size, self._rng)
        targets = torch.from_numpy(drawn.returns.astype(np.float32))
        with torch.no_grad():
            then = tuple(map(torch.from_numpy, drawn.then))
            after = self._earlier.scores_of(*then)
            best = self._player.scores_of(*then).argmax(dim=1, keepdim=True)
            discounts = torch.from_numpy(drawn.discounts.astype(np.float32))
            targets += discounts * after.gather(1, best).squeeze(1)
        scores = self._player.scores_of(*map(torch.from_numpy, drawn.observed))
        taken = torch.from_numpy(drawn.actions).unsqueeze(1)
        found = scores.gather(1, taken).squeeze(1)
        # None of few drawn may be left.
        loss: Tensor = nn.functional.smooth_l1_loss(found, targets, reduction="sum")
        loss = loss / max(1, len(targets))
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.average.parameters(), settings.max_grad_norm)
        self.optimizer.step()
        return loss.item()
