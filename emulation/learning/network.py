"""Value networks of the cluster after a placement, one or an ensemble.

Each option is scored by the cluster that it leaves behind. ``ClusterValue`` is told, for each of
some times, which servers would still be busy, and gives one number for all of it. Several scorers
decide together by the mean of their scores, or those whose jobs were most like the recent ones.
``load_run`` and ``scorer_of`` read a trained one back from its run's folder.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from patchlight.controller.policies.observation import (
    COUNTED,
    INTERVAL,
    RECENT_BINS,
    RECENT_JOBS,
    UNEVENNESS,
    WORK,
    WORK_DEVIATION,
    ObservationLayout,
)
from patchlight.emulation.learning.config import Config, Network, read_config
from patchlight.emulation.learning.episode_arrays import EpisodeJobs
from patchlight.emulation.learning.run_folder import (
    CHECKPOINT,
    CONFIG,
    read_checkpoint,
)
from patchlight.emulation.simulator.ramp.ramp import PAC_ML_SHAPE
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.testbed.errors import BadInput

# Where an action cannot succeed. Not infinite, so that softmax and export stay finite.
IMPOSSIBLE = -1e6
Likeness = Sequence[tuple[float, float]]
"""Of jobs under a condition, what ``_likeness`` says of them: each with its mean and deviation."""
_SEEDS = 8
_LEAST = 0.02  # episodes that are looked at; what differs by less is alike
_FARTHER = (
    1.5  # deviations of the time between jobs count as one of anything else
)


class ClusterValue(nn.Module):
    """The value of a cluster: jobs that it will accept, discounted, beyond the mean number.

    Times count in those in which one job comes to 32 servers, and the work of jobs in what the
    cluster does meanwhile, so that one network serves any load.
    """

    busy_after: Tensor

    def __init__(self, layout: ObservationLayout, network: Network) -> None:
        super().__init__()
        # A little more, so that a job that ends as the next one comes counts as gone.
        self.register_buffer(
            "busy_after", torch.tensor(network.busy_after_ks).float() + 1e-3
        )
        self._order = self.busy_after.argsort()
        self._looked_up: tuple[Tensor, Tensor] | None = None
        self.layout = layout
        known = self._known(torch.zeros(layout.shapes["recent"])).shape[-1]
        width = len(network.busy_after_ks) * layout.servers + known
        layers: list[nn.Module] = []
        for hidden in network.hidden:
            layers += [nn.Linear(width, hidden), nn.ReLU()]
            width = hidden
        last = nn.Linear(width, 1)
        with torch.no_grad():
            last.weight.mul_(0.1)
            last.bias.zero_()
        self.layers = nn.Sequential(*layers, last)

    def forward(self, remaining: Tensor, recent: Tensor) -> Tensor:
        """``remaining`` … × servers, ``recent`` … × features → …"""
        return self.of(self.seen(remaining, recent))

    def of(self, seen: Tensor) -> Tensor:
        """The value of what was ``seen``."""
        found: Tensor = self.layers(seen)
        return found.squeeze(-1)

    def worth(self, remaining: Tensor, recent: Tensor) -> Tensor:
        """As ``forward`` of N × servers and N × features, where nothing is learned from it."""
        first = self.layers[0]
        assert isinstance(first, nn.Linear)
        after = self._after(recent)[:, self._order].contiguous()
        busy = torch.searchsorted(after, remaining.contiguous())
        servers = remaining.shape[-1]
        rows = busy * servers + torch.arange(servers)
        shown = embedding_bag(
            rows, self._sums(first.weight, servers), mode="sum"
        )
        told = first.weight[:, len(self.busy_after) * servers :]
        shown += torch.addmm(first.bias, self._known(recent), told.T)
        found: Tensor = self.layers[1:](shown)
        return found.squeeze(-1)

    def _sums(self, weight: Tensor, servers: int) -> Tensor:
        """The sums for a server that is busy at the first k times, (times + 1) · servers × width.

        To look such sums up takes a fifth of the time of multiplying.
        """
        if self._looked_up is None or not torch.equal(
            weight, self._looked_up[0]
        ):
            times = len(self.busy_after)
            width = len(weight)
            each = weight.T[: times * servers].reshape(times, servers, width)[
                self._order
            ]
            sums = torch.zeros(times + 1, servers, width)
            torch.cumsum(each, 0, out=sums[1:])
            self._looked_up = weight.detach().clone(), sums.view(-1, width)
        return self._looked_up[1]

    def seen(self, remaining: Tensor, recent: Tensor) -> Tensor:
        """The numbers that the value is made of."""
        after = self._after(recent)
        shown = (
            (remaining.unsqueeze(-2) > after.unsqueeze(-1)).float().flatten(-2)
        )
        return torch.cat([shown, self._known(recent)], dim=-1)

    def _after(self, recent: Tensor) -> Tensor:
        """The times at which it is told who is busy, … × times."""
        # In which one job comes to as many servers as PAC-ML's cluster has.
        each = self.layout.servers / PAC_ML_SHAPE.size
        return self.busy_after * (recent[..., INTERVAL : INTERVAL + 1] * each)

    def _known(self, recent: Tensor) -> Tensor:
        """The features of recent jobs, without units."""
        capacity = (
            recent[..., INTERVAL : INTERVAL + 1] * self.layout.servers
        ).clamp(min=1e-6)
        told = [
            recent[..., : RECENT_BINS + 2],
            recent[..., WORK : WORK + 1] / capacity,
        ]
        told.append(recent[..., COUNTED : COUNTED + 1])
        told.append(
            recent[..., WORK_DEVIATION : WORK_DEVIATION + 1] / capacity
        )
        told.append(recent[..., UNEVENNESS : UNEVENNESS + 1])
        return torch.cat(told, dim=-1).clamp(max=10.0)


class OptionScorer(nn.Module):
    """A score for each action of an observation: its reward now and the value of what it leaves."""

    inputs = ("remaining", "mask", "recent")
    """The arrays of an observation that it looks at."""

    def __init__(
        self,
        layout: ObservationLayout,
        network: Network,
        discount: float,
    ) -> None:
        super().__init__()
        # To a larger cluster as many more jobs come, for each of which a free server counts.
        self.discount = discount * layout.servers / PAC_ML_SHAPE.size
        self.value = ClusterValue(layout, network)

    def forward(self, seen: Mapping[str, Tensor]) -> Tensor:
        """Scores, batch × actions; ``IMPOSSIBLE`` where the mask is 0."""
        remaining = seen["remaining"]
        mask = seen["mask"]
        actions = remaining.shape[-2]
        recent = seen["recent"].unsqueeze(-2).expand(-1, actions, -1)
        scores = self.discount * self.value(remaining, recent)
        scores = scores + (torch.arange(actions) > 0).float()
        return torch.where(
            mask > 0, scores, torch.full_like(scores, IMPOSSIBLE)
        )


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
        self,
        members: Sequence[OptionScorer],
        likenesses: Sequence[Likeness],
        shares: Tensor,
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
    work = recent[..., WORK]
    interval = recent[..., INTERVAL].clamp(min=1e-6)
    load = work / (interval * servers)
    spread = recent[..., WORK_DEVIATION] / work.clamp(min=1e-6)
    told = [
        interval.log(),
        load,
        spread,
        recent[..., UNEVENNESS],
    ]
    return torch.stack(told, -1).clamp(-10.0, 10.0)


def likeness_of(
    scenario: Scenario,
    layout: ObservationLayout,
    first_seed: int,
) -> Likeness:
    """What the jobs of a scenario are like: mean and deviation over some episodes."""
    seen = [
        EpisodeJobs.of(scenario, first_seed + n).recent for n in range(_SEEDS)
    ]
    # Once there are as many recent jobs as are counted; of a short episode at its end.
    rows = np.concatenate(
        [each[-max(1, len(each) - RECENT_JOBS) :] for each in seen]
    )
    told = _likeness(torch.from_numpy(rows), layout.servers).double()
    return [
        (float(each.mean()), float(each.std(correction=0))) for each in told.T
    ]


def load_run(folder: Path) -> tuple[Config, dict[str, Any]]:
    """The configuration and the checkpoint in a run's folder; ``BadInput`` if it has none."""
    kept = read_checkpoint(folder)
    return read_config(folder / CONFIG), kept


def scorer_of(
    config: Config, kept: dict[str, Any]
) -> tuple[OptionScorer, ObservationLayout]:
    """The scorer that a checkpoint holds, and the layout it is for.

    ``BadInput`` for a network with PAC-ML's observation, and for a checkpoint of another network.
    """
    if not config.network.has_model:
        raise BadInput(
            f"{config.name!r} learned by PAC-ML's observation, which has no models"
        )
    with of_this_network(f"the checkpoint of {config.name!r}"):
        groups, racks, servers = kept["ramp"]
        layout = ObservationLayout(
            (groups, racks, servers), tuple(kept["degrees"])
        )
        scorer = OptionScorer(layout, config.network, float(kept["discount"]))
        scorer.load_state_dict(kept["average"])
    return scorer, layout


def begin_with(scorer: OptionScorer, run: str) -> None:
    """Give a scorer the weights of an earlier run with the same network, by its folder."""
    if not (Path(run) / CHECKPOINT).exists():
        raise BadInput(
            f"cannot begin with {run!r}: no such run",
            hint="use a folder written by 'patchlight policy train'",
        )
    with of_this_network(f"the run in {run}"):
        scorer.load_state_dict(load_run(Path(run))[1]["average"])


@contextmanager
def of_this_network(what: str) -> Iterator[None]:
    """``BadInput`` where weights inside do not fit: ``what`` is of another network."""
    try:
        yield
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        # PyTorch lists each weight that does not fit, on lines of their own.
        reason = str(error).strip().splitlines()[:2]
        raise BadInput(
            f"{what} has another network than its configuration: {' '.join(reason)}",
            hint="use a new folder, or its own config.json",
        ) from error
