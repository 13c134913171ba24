"""A model's checkpoint: one file in the job's folder, replaced whole."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .process_groups import ProcessGroups
from .task import TrainingError, TrainingTask


class Checkpoints:
    """Saves and finds what a job has learnt; without a folder, nothing."""

    def __init__(self, task: TrainingTask, model: nn.Module, optimizer: torch.optim.Optimizer):
        self._file = Path(task.checkpoint) / f"{task.job}.pt" if task.checkpoint else None
        self._every, self._of = task.checkpoint_every, task.model
        self._model, self._optimizer = model, optimizer
        self._is_first = task.rank == 0

    def save(self, iteration: int) -> None:
        """Save what is known before ``iteration``. The first rank does, as all know the same."""
        if self._file is None or not self._is_first:
            return
        fresh = self._file.with_suffix(".new")
        known = {"of": self._of, "iteration": iteration, **self._state()}
        try:
            with fresh.open("wb") as opened:
                torch.save(known, opened)
                opened.flush()
                os.fsync(opened.fileno())
            os.replace(fresh, self._file)
        except (OSError, RuntimeError) as exc:
            raise TrainingError(f"writing the checkpoint {self._file}: {exc}") from exc

    def save_if_due(self, iteration: int) -> None:
        """The same, at every so many iterations."""
        if iteration % self._every == 0:
            self.save(iteration)

    def resume(self, groups: ProcessGroups) -> int:
        """Have all ranks know what the one with the newest checkpoint finds; where they go on."""
        found = self.found()
        ages = groups.gather(int(found["iteration"]) if found else 0)
        newest = max(ages)
        if newest == 0:
            return 0
        if min(ages) < newest:  # not a folder that all servers share
            found = groups.share(found, ages.index(newest))
        assert found is not None
        self._model.load_state_dict(found["model"])
        self._optimizer.load_state_dict(found["optimizer"])
        return newest

    def found(self) -> dict[str, Any] | None:
        """What was saved last, if anything; ``TrainingError`` for what is of no use."""
        if self._file is None or not self._file.exists():
            return None
        try:
            found: dict[str, Any] = torch.load(self._file, map_location="cpu", weights_only=True)
            of, _ = found["of"], found["iteration"]
        except (OSError, RuntimeError, KeyError, EOFError, pickle.UnpicklingError) as exc:
            raise TrainingError(
                f"reading the checkpoint {self._file}: {exc}; remove it to begin anew"
            ) from exc
        if of != self._of:
            raise TrainingError(
                f"the checkpoint {self._file} is of {of}, not of {self._of}: give another folder"
            )
        return found

    def _state(self) -> dict[str, Any]:
        return {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
