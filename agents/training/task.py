"""The task file: what one worker is to do, as its agent wrote it."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # slow to import
    from pathlib import Path


class TrainingError(Exception):
    """The worker cannot go on. The message names the step, the peer and its answer."""


@dataclass(frozen=True)
class Member:
    """One worker of the ring, and where it listens for its predecessor."""

    rank: int
    address: str
    port: int


@dataclass(frozen=True)
class TrainingTask:
    """One worker's part of a job. Times in seconds; ``ring`` is in the order of ranks.

    ``gpu_socket`` is an emulated GPU's Unix socket, if the worker has such a GPU;
    ``device`` is ``"auto"`` or ``"sleep"`` (compute nothing, only let the time pass);
    ``deadline_s`` is how long the peers may take to come up; ``window_bytes`` is how much a
    neighbour may send ahead (``None``: as the kernel sees fit). Iterations before
    ``first_iteration`` were done by workers before this one. With ``paths``, the agent is asked for
    a path of light for each all-reduce.

    With a ``model`` (a built-in graph's name) PyTorch trains that, over mini-batches of ``batch``
    samples (``None``: as many as usual) from the folder ``data`` (``None``: made up). Where it
    goes on is what the ``checkpoint`` folder says, which is written each ``checkpoint_every``
    iterations. Its gradient is the model's; ``compute_s`` is the least that an emulated GPU takes.
    """

    id: str
    job: str
    rank: int
    ring: tuple[Member, ...]
    iterations: int
    gradient_bytes: int = 0
    compute_s: float = 0.0
    seed: int = 0
    gpu_socket: str | None = None
    device: str = "auto"
    deadline_s: float = 60.0
    window_bytes: int | None = None
    first_iteration: int = 0
    model: str | None = None
    batch: int | None = None
    data: str | None = None
    checkpoint: str | None = None
    checkpoint_every: int = 100
    paths: bool = False

    @property
    def elements(self) -> int:
        """How many float32 values the gradient has: the bytes, rounded up to whole ones."""
        return max(1, -(-self.gradient_bytes // 4))

    @classmethod
    def parse(cls, data: dict[str, Any]) -> TrainingTask:
        """A task from its JSON object; ``TrainingError`` naming what does not fit."""
        known = {field.name for field in fields(cls)}
        if set(data) - known:
            raise TrainingError(
                f"the task has unknown keys: {', '.join(sorted(set(data) - known))}"
            )
        try:
            members = tuple(
                sorted((Member(**member) for member in data["ring"]), key=lambda m: m.rank)
            )
            task = cls(**{**data, "ring": members})
        except (KeyError, TypeError) as exc:
            raise TrainingError(f"the task is not complete: {exc}") from exc
        if [member.rank for member in members] != list(range(len(members))):
            raise TrainingError(f"the ring must have ranks 0…n−1, once each: got {members}")
        if not 0 <= task.rank < len(members):
            raise TrainingError(f"rank {task.rank} is not in a ring of {len(members)}")
        has_gradient = task.gradient_bytes >= 1 or task.model is not None
        if task.iterations < 1 or not has_gradient or task.compute_s < 0:
            raise TrainingError("iterations and gradient_bytes must be positive, compute_s not < 0")
        if not 0 <= task.first_iteration < task.iterations:
            raise TrainingError(f"first_iteration must be one of {task.iterations} iterations")
        return task


def read_task(path: Path | str) -> TrainingTask:
    """The task in this file; ``TrainingError`` if it cannot be read or does not fit."""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except (OSError, ValueError) as exc:
        raise TrainingError(f"reading the task {path}: {exc}") from exc
    if not isinstance(data, dict):
        raise TrainingError(f"reading the task {path}: expected a JSON object")
    return TrainingTask.parse(data)
