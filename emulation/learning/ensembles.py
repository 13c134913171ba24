"""Several scorers that decide together: by the mean of their scores, or by whose jobs these are."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from patchlight.controller.policies.observation import (
    COUNTED,
    INTERVAL,
    RECENT_JOBS,
    UNEVENNESS,
    WORK,
    WORK_DEVIATION,
    ObservationLayout,
)
from patchlight.emulation.learning.episode_jobs import EpisodeJobs
from patchlight.emulation.learning.network import OptionScorer
from patchlight.emulation.simulator.ramp.scenario import Scenario

Likeness = Sequence[tuple[float, float]]
"""Of jobs under a condition, what ``_likeness`` says of them: each with its mean and deviation."""
_SEEDS, _LEAST = 8, 0.02  # episodes that are looked at; what differs by less is alike
_FARTHER = 1.5  # deviations of the time between jobs count as one of anything else


class MeanScorer(nn.Module):
    """The mean of the scores of several, which errs less than each where they err differently."""

    def __init__(self, members: Sequence[OptionScorer]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.inputs = members[0].inputs

    def weights(self, recent: Tensor) -> Tensor:
        """How much each member's score counts, … × members; ``recent`` … × features."""
        count = len(self.members)
        return torch.full((*recent.shape[:-1], count), 1 / count)

    def forward(self, seen: Mapping[str, Tensor]) -> Tensor:
        """Scores, batch × actions; ``IMPOSSIBLE`` where the mask is 0."""
        scores = torch.stack([member(seen) for member in self.members], dim=-1)
        return (scores * self.weights(seen["recent"]).unsqueeze(-2)).sum(-1)


class NearestScorer(MeanScorer):
    """Of members that learned under different conditions those decide, by the mean of their
    scores, under one of whose conditions jobs were most like the recent ones.

    ``likenesses`` has for each condition what its jobs are like, ``shares`` conditions × members
    how much each member counts there.
    """

    centres: Tensor
    widths: Tensor
    shares: Tensor

    def __init__(
        self, members: Sequence[OptionScorer], likenesses: Sequence[Likeness], shares: Tensor
    ) -> None:
        super().__init__(members)
        told = torch.tensor(likenesses, dtype=torch.float32)
        self._servers = members[0].value.layout.servers
        self.register_buffer("centres", told[..., 0])
        widths = told[..., 1].square().mean(0).sqrt().clamp(min=_LEAST)
        # The load says how often jobs come, too: that by itself only tells mixes apart.
        widths[0] *= _FARTHER
        self.register_buffer("widths", widths)
        self.register_buffer("shares", shares)

    def weights(self, recent: Tensor) -> Tensor:
        """As above: those of the nearest condition; for the first job of all, of the first one."""
        told = _likeness(recent, self._servers).unsqueeze(-2)
        away = (((told - self.centres) / self.widths) ** 2).sum(-1)
        return self.shares[away.argmin(-1) * (recent[..., COUNTED] > 0)]


def _likeness(recent: Tensor, servers: int) -> Tensor:
    """What jobs are like, … × 4: the logarithm of the time between two, the work that comes over
    what the servers do meanwhile, the deviation of work over its mean, how unevenly jobs come.
    """
    work, interval = recent[..., WORK], recent[..., INTERVAL].clamp(min=1e-6)
    load = work / (interval * servers)
    spread = recent[..., WORK_DEVIATION] / work.clamp(min=1e-6)
    told = [interval.log(), load, spread, recent[..., UNEVENNESS]]
    return torch.stack(told, -1).clamp(-10.0, 10.0)


def likeness_of(scenario: Scenario, layout: ObservationLayout, first_seed: int) -> Likeness:
    """What the jobs of a scenario are like: mean and deviation over some episodes."""
    seen = [EpisodeJobs.of(scenario, first_seed + n).recent for n in range(_SEEDS)]
    # Once there are as many recent jobs as are counted; of a short episode at its end.
    rows = np.concatenate([each[-max(1, len(each) - RECENT_JOBS) :] for each in seen])
    told = _likeness(torch.from_numpy(rows), layout.servers).double()
    return [(float(each.mean()), float(each.std(correction=0))) for each in told.T]
