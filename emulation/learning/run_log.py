"""What a training run says of itself: rows of ``progress.csv``, TensorBoard's files, what is left.

TensorBoard's files are written where the package ``tensorboard`` is installed.
"""

import csv
import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PROGRESS, TENSORBOARD = "progress.csv", "tensorboard"
SAID_EVERY_S = 15.0


def has_tensorboard() -> bool:
    """Whether runs write TensorBoard's files here."""
    return find_spec("tensorboard") is not None


class RunLog:
    """The log of a run in ``folder`` that goes on after ``first`` of ``steps`` decisions, in which
    ``before_s`` were spent.
    """

    def __init__(self, folder: Path, steps: int, first: int, before_s: float) -> None:
        self._folder, self._steps, self._first = folder, steps, first
        self._before_s = before_s
        self._board: Any = None
        if has_tensorboard():
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / TENSORBOARD), purge_step=first or None)

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
        """Figures after so many decisions, for TensorBoard, but for those that are no numbers."""
        if self._board is not None:
            for name, value in figures.items():
                if math.isfinite(value):
                    self._board.add_scalar(name, value, steps)
            self._board.flush()

    def words(self, steps: int, spent_s: float) -> str:
        """How far it is, after ``spent_s`` of this sitting, and how long the rest takes."""
        done, part = steps - self._first, min(1.0, steps / self._steps)
        words = f"{part:4.0%}  {steps:>10,} decisions  {self._before_s + spent_s:6.0f} s"
        left_s = max(0.0, spent_s * (self._steps - steps) / done) if done else math.nan
        return f"{words}, {left_s:.0f} s left" if math.isfinite(left_s) else words

    def close(self) -> None:
        """Nothing more comes."""
        if self._board is not None:
            self._board.close()
