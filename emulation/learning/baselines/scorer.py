"""A network for any environment: a score for each action, out of what is seen of it and of all.

Arrays of the observation that have a row for each action (``per_action`` of the environment) are
scored row by row with the same weights, beside a summary of the other arrays. So what is learned of
one server, job or flow holds for all of them. Rows of other tables are pooled. Edges are not
followed.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from patchlight.emulation.learning.baseline_files import WHOLE
from patchlight.testbed.errors import BadInput


def inputs_of(space: spaces.Space[Any], wanted: Sequence[str] = ()) -> dict[str, tuple[int, ...]]:
    """The arrays that a network is shown, and their shapes; ``BadInput`` for one there is not."""
    parts = space.spaces if isinstance(space, spaces.Dict) else {WHOLE: space}
    found = {
        name: tuple(part.shape)
        for name, part in parts.items()
        if isinstance(part, spaces.Box) and part.dtype == np.float32 and len(part.shape) in (1, 2)
    }
    if missing := [name for name in wanted if name not in found]:
        raise BadInput(
            f"the observation has no array {missing[0]!r} of numbers with one or two axes",
            hint=f"those that it has: {', '.join(found) or 'none'}",
        )
    if not found:
        raise BadInput("nothing is observed that a network can be shown: expected float32 arrays")
    return {name: shape for name, shape in found.items() if not wanted or name in wanted}


PLACES = 6


class ActionScorer(nn.Module):
    """Arrays by name, each with a batch before its axes → batch × (actions + 1), a value last."""

    places: Tensor

    def __init__(
        self,
        inputs: Mapping[str, tuple[int, ...]],
        actions: int,
        per_action: Collection[str],
        hidden: int,
    ) -> None:
        super().__init__()
        self.inputs, self.actions = dict(inputs), actions
        self.rows = tuple(name for name in inputs if name in per_action)
        others = {name: shape for name, shape in inputs.items() if name not in self.rows}
        self.vectors = tuple(name for name, shape in others.items() if len(shape) == 1)
        self.tables = tuple(name for name, shape in others.items() if len(shape) == 2)
        self.pooled = nn.ModuleDict(
            {name: _layers(others[name][1], hidden, hidden) for name in self.tables}
        )
        width = sum(others[name][0] for name in self.vectors) + 2 * hidden * len(self.tables)
        self.summary = _layers(width, hidden, hidden) if width else None
        # Rows that an array lacks, like that of waiting, are told from those of zeros by a flag.
        features = sum(_columns(inputs[name]) + 1 for name in self.rows) + PLACES
        self.register_buffer("places", _places(actions), persistent=False)
        self.row = _layers(features + (hidden if width else 0), hidden, hidden)
        self.score = nn.Linear(hidden, 1)
        self.worth = _layers((hidden if width else 0) + 2 * hidden, hidden, 1)
        with torch.no_grad():
            self.score.weight.mul_(0.1)
            self.score.bias.zero_()

    def forward(self, seen: Mapping[str, Tensor]) -> Tensor:
        """The scores and the value of a batch."""
        summary = self._summary(seen)
        rows = self._rows(seen)
        if summary is not None:
            beside = summary.unsqueeze(1).expand(-1, self.actions, -1)
            rows = torch.cat([rows, beside], -1)
        rows = torch.relu(self.row(rows))
        pooled = [rows.mean(1), rows.max(1).values]
        value = self.worth(torch.cat(pooled if summary is None else [summary, *pooled], -1))
        return torch.cat([self.score(rows).squeeze(-1), value], -1)

    def _summary(self, seen: Mapping[str, Tensor]) -> Tensor | None:
        if self.summary is None:
            return None
        parts = [seen[name] for name in self.vectors]
        for name in self.tables:
            rows = torch.relu(self.pooled[name](seen[name]))
            parts += [rows.mean(1), rows.max(1).values]
        return torch.relu(self.summary(torch.cat(parts, -1)))

    def _rows(self, seen: Mapping[str, Tensor]) -> Tensor:
        """Batch × actions × what is seen of each."""
        batch = seen[next(iter(self.inputs))].shape[0]
        parts = [self.places.expand(batch, -1, -1)]
        for name in self.rows:
            array = seen[name] if seen[name].dim() == 3 else seen[name].unsqueeze(-1)
            there = torch.nn.functional.pad(array, (0, 1), value=1.0)
            missing = self.actions - array.shape[1]
            parts.append(torch.nn.functional.pad(there, (0, 0, 0, missing)))
        return torch.cat(parts, -1)


def _places(actions: int) -> Tensor:
    """Which action a row is of: as part of all, then the first few and the last one by a flag."""
    found = torch.zeros(actions, PLACES)
    found[:, 0] = torch.linspace(0, 1, actions)
    for number in range(min(actions, PLACES - 2)):
        found[number, 1 + number] = 1.0
    found[-1, -1] = 1.0
    return found


def _columns(shape: tuple[int, ...]) -> int:
    return shape[1] if len(shape) == 2 else 1


def _layers(width: int, hidden: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, out))
