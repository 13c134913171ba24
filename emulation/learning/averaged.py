"""What learners share that play by the mean of their latest weights, better than by the last."""

import copy
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from patchlight.emulation.learning.rollouts import MeanRewards


class Rates(Protocol):
    """Settings of a learner's steps, as ``algorithms`` has them."""

    @property
    def learning_rate(self) -> float:
        """Adam's."""

    @property
    def decay_from_fraction(self) -> float:
        """When it begins to fall, as a part of all steps."""

    @property
    def ema_rate(self) -> float:
        """Of the mean of weights."""


class AveragedLearner:
    """A network, the mean of its weights, its optimiser, and the mean reward of each scenario."""

    def __init__(self, scorer: nn.Module, scenarios: int, done: int) -> None:
        self.scorer = scorer
        self.average = copy.deepcopy(scorer)
        self.optimizer = torch.optim.Adam(scorer.parameters(), lr=1e-3, fused=True)
        self.means = MeanRewards.first(scenarios)
        self.steps = done

    def state(self) -> dict[str, Any]:
        """Weights, the optimiser's memory and mean rewards; all else begins anew."""
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

    def _slow_down(self, rates: Rates, part: float, least: float) -> None:
        """Set the learning rate when ``part`` of all steps is done: it falls to ``least``."""
        left = (1 - part) / max(1 - rates.decay_from_fraction, 1e-9)
        for group in self.optimizer.param_groups:
            group["lr"] = rates.learning_rate * min(1.0, left) + least

    def _descend(self, loss: Tensor, rates: Rates) -> float:
        """One gradient step, and the mean of weights after it."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        with torch.no_grad():
            weights = self.average.parameters(), self.scorer.parameters()
            for mean, now in zip(*weights, strict=True):
                mean.lerp_(now, rates.ema_rate)
        return loss.item()
