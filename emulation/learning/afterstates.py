"""Learning the value of a cluster once a job is placed, by temporal differences.

Where a job goes, and for how long, is fixed by its degree; what is random is only who comes next.
So one function, the value of an *afterstate* (the cluster just after a decision), says all about a
choice: its reward now plus the value of what it leaves behind. It is learned from its own play,
as TD-Gammon was (Tesauro, 1995), with λ-returns that end where the policy did not take its best
move (Watkins, 1989). Playing is a worker's (``afterstate_worker``).
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from patchlight.emulation.learning.afterstate_worker import AfterstateWorker, Returns
from patchlight.emulation.learning.averaged import AveragedLearner
from patchlight.emulation.learning.config import Config
from patchlight.emulation.learning.network import OptionScorer
from patchlight.emulation.learning.players import network_of, player_of
from patchlight.emulation.learning.rollouts import Orders, Progress, Rollouts
from patchlight.emulation.learning.warm_start import begin_with
from patchlight.emulation.simulator.ramp.scenario import Scenario


class AfterstateLearner(AveragedLearner):
    """Learns a scorer's values. ``scorer`` is what plays and learns, ``average`` the mean of
    its latest states, which plays better.

    ``rollouts`` plays for it; without, a worker in this process does, by the learner's own network.
    """

    def __init__(
        self,
        config: Config,
        scenarios: Sequence[Scenario],
        done: int = 0,
        rollouts: Rollouts[Returns] | None = None,
    ) -> None:
        self.config, self.settings = config, config.afterstates
        torch.manual_seed(config.seed)
        scorer = network_of(config, scenarios[0])
        if self.settings.start:
            assert isinstance(scorer, OptionScorer)  # The configuration saw to that.
            begin_with(scorer, self.settings.start)
        if isinstance(scorer, OptionScorer) and scorer.times is not None:
            scorer.times.fit(scenarios, config.environment.first_seed)
        super().__init__(scorer, len(scenarios), done)
        self._apart = rollouts is not None
        self._rollouts = rollouts or AfterstateWorker(config, scenarios, done=done, network=scorer)
        self._player = player_of(self.scorer, scenarios[0].workloads)
        self._rng = np.random.default_rng([config.seed, done, 1])

    def round(self) -> Progress:
        """Learns from ``n_steps`` decisions in every environment that a worker has."""
        part = min(1.0, self.steps / self.config.steps)
        self._slow_down(self.settings, part, 1e-5)
        weights = self.scorer.state_dict() if self._apart else None
        played = self._rollouts.play(Orders(self.steps, self.means, weights))
        self.means += played.means_change
        loss = self._learn(played.inputs, played.targets)
        self.steps += played.decisions
        return Progress(loss, 1 - float(self.means.mean()), played.finished)

    def _learn(self, inputs: Sequence[NDArray[np.generic]], targets: NDArray[np.float64]) -> float:
        settings = self.settings
        # What comes from Ray cannot be written to, which PyTorch does not like.
        given = [torch.from_numpy(np.require(each, requirements="W")) for each in inputs]
        y = torch.from_numpy(targets.astype(np.float32))
        order = torch.from_numpy(self._rng.permutation(len(y)))
        total = 0.0
        for rows in torch.split(order, settings.batch_size):
            found = self._player.predict(*(each[rows] for each in given))
            loss = ((found - y[rows]) ** 2).mean()
            total += self._descend(loss, settings) * len(rows)
        return total / len(y)
