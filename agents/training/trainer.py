"""One worker's training: compute, all-reduce, check, report, as often as the task says.

The gradients are synthetic, and every worker knows their true sum. The values are small integers,
so float32 adds them exactly in any order: one wrong, lost or doubled bit anywhere on the way
shows. Made from the raw stream of PCG64, which NumPy keeps the same in all versions, so workers
with different NumPys agree.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import numpy as np

from .allreduce import ring_all_reduce
from .compute import ComputeDevice
from .control import Gate, Journal, StoppedAt
from .ring import Neighbours, join_ring
from .task import TrainingError, TrainingTask

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from .allreduce import Array


class WrongSum(TrainingError):
    """An all-reduce gave something else than the sum of all gradients."""


def gradient(seed: int, rank: int, iteration: int, elements: int) -> Array:
    """What ``rank`` computes in ``iteration``: float32 integers from −8 to 7."""
    bits = np.random.PCG64(np.random.SeedSequence([seed, rank, iteration]))
    words = np.asarray(bits.random_raw(-(-elements // 8)), dtype="<u8")
    nibbles = words.view(np.uint8)[:elements] & np.uint8(15)
    values = nibbles.astype(np.float32)
    values -= np.float32(8)
    return values


def true_sum(seed: int, ranks: int, iteration: int, elements: int) -> Array:
    """What the all-reduce of ``iteration`` must give on every worker."""
    total = gradient(seed, 0, iteration, elements)
    for rank in range(1, ranks):
        total += gradient(seed, rank, iteration, elements)
    return total


def check_sum(got: Array, expected: Array, iteration: int) -> None:
    """Raise ``WrongSum`` unless the two are equal in every bit that counts."""
    if np.array_equal(got, expected):
        return
    wrong = np.flatnonzero(got != expected)
    first = int(wrong[0])
    raise WrongSum(
        f"all-reduce of iteration {iteration}: {wrong.size} of {got.size} values are wrong, the "
        f"first at {first}: got {got[first]}, the true sum is {expected[first]}"
    )


def train(
    task: TrainingTask,
    device: ComputeDevice,
    gate: Gate,
    journal: Journal,
    path: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
) -> None:
    """Join the ring, wait for the start, and train to the end.

    Each all-reduce is inside a ``path``.

    ``TrainingError`` if a neighbour is lost, a sum is wrong or the GPU refuses; ``StoppedAt`` if
    it is told to end sooner.
    """
    size = len(task.ring)
    neighbours: Neighbours | None = join_ring(task) if size > 1 else None

    def on_hold(held: bool) -> None:
        if neighbours is not None:
            neighbours.ask_for_life(not held)

    journal.state("ready")
    gate.wait_for_start()
    told: StoppedAt | None = None
    for iteration in range(task.first_iteration, task.iterations):
        began = time.monotonic()
        # The synthetic gradient and its true sum are made while the GPU "computes" them.
        device.begin(task.compute_s)
        array = gradient(task.seed, task.rank, iteration, task.elements)
        expected = true_sum(task.seed, size, iteration, task.elements)
        device.finish()
        report = {"index": iteration, "compute_s": time.monotonic() - began, "sent_bytes": 0}
        try:
            gate.pass_through(iteration, on_hold)
        except StoppedAt as end:
            told = end
            break
        began = time.monotonic()
        if neighbours is not None:
            with path():
                report["sent_bytes"] = ring_all_reduce(
                    array, task.rank, size, neighbours, iteration
                )
                if task.paths:  # What is on its way when it gets dark is sent again, much later.
                    neighbours.drain(task.deadline_s)
        report |= {"communication_s": time.monotonic() - began, "finished_at": time.time()}
        check_sum(array, expected, iteration)
        journal.iteration({**report, "check": "ok", "device": device.name})
    if neighbours is not None:
        neighbours.drain(task.deadline_s)
        neighbours.close()
    if told is not None:
        raise told
