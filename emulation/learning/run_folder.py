"""The folder of a training run: configuration, progress and checkpoint.

It holds ``config.json``, ``progress.csv``, ``checkpoint.pt`` (read back as tensors only) and, at
the end, the model: ``NAME.onnx`` with its card.
"""

import csv
import json
import math
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from patchlight.testbed.errors import BadInput, reason

CHECKPOINT = "checkpoint.pt"
CONFIG = "config.json"
PROGRESS = "progress.csv"
TENSORBOARD = "tensorboard"
SAID_EVERY_S = 15.0
FIRST_SAID_S = 3.0
KEPT_EVERY_S = 60.0


class RunFolder:
    """``config`` is what may not change between a run and its resumption, ``may_change`` what may.

    ``before_s`` were spent before it was resumed.
    """

    def __init__(
        self,
        path: Path,
        config: Mapping[str, Any],
        may_change: str,
    ) -> None:
        self.path = path
        self._may_change = may_change
        self._config = json.dumps(config, sort_keys=True)
        self.before_s = 0.0
        self._is_resumed = False

    def resume(self) -> dict[str, Any]:
        """The checkpoint to go on from; ``BadInput`` if there is none of this configuration."""
        kept = read_checkpoint(self.path)
        if kept.get("config") != self._config:
            raise BadInput(
                f"the checkpoint in {self.path} has another configuration",
                hint=f"only {self._may_change} may change: use a new folder",
            )
        self.before_s = float(kept["wall_s"])
        self._is_resumed = True
        return kept

    def check(self) -> None:
        """``BadInput`` if the folder holds a run that was not resumed."""
        if not self._is_resumed and (self.path / CHECKPOINT).exists():
            raise BadInput(
                f"{self.path} already has a run",
                hint="continue it with --resume, or choose another folder with --output",
            )

    def begin(self, config: Mapping[str, Any]) -> None:
        """Make the folder, and write the configuration into it."""
        self.path.mkdir(
            parents=True,
            exist_ok=True,
        )
        draft = self.path / f"{CONFIG}.tmp"
        draft.write_text(json.dumps(config, indent=2) + "\n")
        os.replace(draft, self.path / CONFIG)

    def keep(self, state: Mapping[str, Any], spent_s: float) -> None:
        """Write a checkpoint, ``spent_s`` after the run was started or resumed."""
        draft = self.path / f"{CHECKPOINT}.tmp"
        torch.save(
            {
                "config": self._config,
                "wall_s": self.before_s + spent_s,
                **state,
            },
            draft,
        )
        os.replace(draft, self.path / CHECKPOINT)


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """A run's checkpoint, as plain tensors; ``BadInput`` if there is none that can be read."""
    path = folder / CHECKPOINT
    try:
        kept = torch.load(path, weights_only=True)
    except FileNotFoundError as error:
        raise BadInput(
            f"{folder} is not a training run: it has no {CHECKPOINT}",
            hint="use a folder written by 'patchlight policy train'",
        ) from error
    except Exception as error:  # torch raises whatever its archive reader does
        raise BadInput(
            f"cannot read the checkpoint {path}: {reason(error)}"
        ) from error
    if not isinstance(kept, dict) or not {"config", "wall_s"} <= kept.keys():
        raise BadInput(f"the checkpoint {path} is not a training run's")
    return kept


class RunLog:
    """The log of a run in ``folder`` that goes on after ``first`` of ``steps`` decisions, in which
    ``before_s`` were spent: rows of ``progress.csv``; TensorBoard's files where it is installed.
    """

    def __init__(
        self,
        folder: Path,
        steps: int,
        first: int,
        before_s: float,
    ) -> None:
        self._folder = folder
        self._steps = steps
        self._first = first
        self._before_s = before_s
        self._board: Any = None
        if find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(
                str(folder / TENSORBOARD), purge_step=first or None
            )

    def row(self, figures: Mapping[str, float]) -> None:
        """One more row of the table; ``figures`` are the same each time."""
        path = self._folder / PROGRESS
        new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(figures)
            writer.writerow(figures.values())

    def scalars(self, steps: int, figures: Mapping[str, float]) -> None:
        """Figures after so many decisions, for TensorBoard, except those that are not numbers."""
        if self._board is not None:
            for name, value in figures.items():
                if math.isfinite(value):
                    self._board.add_scalar(name, value, steps)
            self._board.flush()

    def words(self, steps: int, spent_s: float) -> str:
        """Progress and remaining time, ``spent_s`` after the run was started or resumed."""
        done = steps - self._first
        part = min(1.0, steps / self._steps)
        words = f"{part:4.0%}  {steps:>10,} decisions  {self._before_s + spent_s:6.0f} s"
        left_s = (
            max(0.0, spent_s * (self._steps - steps) / done)
            if done
            else math.nan
        )
        return (
            f"{words}, {left_s:.0f} s left" if math.isfinite(left_s) else words
        )

    def close(self) -> None:
        """Nothing more comes."""
        if self._board is not None:
            self._board.close()
