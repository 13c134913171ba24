"""One worker's training: compute, all-reduce, check, report, as often as the task says."""

from __future__ import annotations

import time

from .allreduce import ring_all_reduce
from .compute import Device
from .gate import Gate
from .gradients import check_sum, gradient, true_sum
from .journal import Journal
from .ring import Neighbours, join_ring
from .task import TrainingTask


def train(task: TrainingTask, device: Device, gate: Gate, journal: Journal) -> None:
    """Join the ring, wait for the start, and train to the end.

    ``TrainingError`` if a neighbour is lost, a sum is wrong or the GPU refuses.
    """
    size = len(task.ring)
    neighbours: Neighbours | None = join_ring(task) if size > 1 else None
    journal.state("ready")
    gate.wait_for_start()
    for iteration in range(task.iterations):
        _iterate(task, device, gate, journal, neighbours, iteration)
    if neighbours is not None:
        neighbours.drain(task.deadline_s)
        neighbours.close()


def _iterate(
    task: TrainingTask,
    device: Device,
    gate: Gate,
    journal: Journal,
    neighbours: Neighbours | None,
    iteration: int,
) -> None:
    size = len(task.ring)
    began = time.monotonic()
    # The synthetic gradient and its true sum are made while the GPU "computes" them.
    device.begin(task.compute_s)
    array = gradient(task.seed, task.rank, iteration, task.elements)
    expected = true_sum(task.seed, size, iteration, task.elements)
    device.finish()
    compute_s = time.monotonic() - began
    gate.pass_through(iteration)
    began = time.monotonic()
    sent_bytes = 0
    if neighbours is not None:
        sent_bytes = ring_all_reduce(array, task.rank, size, neighbours, iteration)
    communication_s = time.monotonic() - began
    finished_at = time.time()
    check_sum(array, expected, iteration)
    journal.iteration(
        {
            "index": iteration,
            "finished_at": finished_at,
            "compute_s": compute_s,
            "communication_s": communication_s,
            "sent_bytes": sent_bytes,
            "check": "ok",
            "device": device.name,
        }
    )
