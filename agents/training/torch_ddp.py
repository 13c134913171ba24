"""One worker's training of a real model: PyTorch's ``DistributedDataParallel``.

It is held as the synthetic trainer is: before the first bucket of an iteration's gradient is
summed, so that a worker that is held has not sent a byte of it. Each iteration the replicas are
compared: the bits of their parameters have to be the same on all ranks.
"""

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined,unused-ignore]
from torch.nn.parallel import DistributedDataParallel

from .checkpoints import Checkpoints
from .compute import Device
from .control import Gate, Journal, StoppedAt
from .process_groups import ProcessGroups
from .samples import Samples
from .task import TrainingError, TrainingTask

_LEARNING_RATE = 1e-3


class ReplicasDiffer(TrainingError):
    """The ranks' parameters are not the same any more."""


class Exchange:
    """The gradient's sum over all ranks, bucket by bucket, as DDP has them ready.

    ``computed_at`` is when the first bucket was, ``released_at`` when it could be sent and
    ``last_at`` when the last one was ready (time.monotonic); ``sent_bytes`` is what a ring
    all-reduce of them all sends, 2(n−1)/n of their bytes.
    """

    def __init__(self, groups: ProcessGroups, gate: Gate, device: Device) -> None:
        self._groups, self._gate, self._device = groups, gate, device
        self.iteration = 0
        self.computed_at = self.released_at = self.last_at = 0.0
        self._bytes = 0

    @property
    def sent_bytes(self) -> int:
        """By this worker in this iteration, beside headers."""
        return 2 * (self._groups.size - 1) * self._bytes // self._groups.size

    def sum(self, _: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """DDP's communication hook."""
        if bucket.index() == 0:
            self._begin()
        if bucket.is_last():
            _wait_for_kernels()
            self.last_at = time.monotonic()
        gradient = bucket.buffer()
        self._bytes += gradient.nbytes
        gradient.div_(self._groups.size)
        work = dist.all_reduce(gradient, group=self._groups.gradients, async_op=True)
        future: torch.futures.Future[list[torch.Tensor]] = work.get_future()
        return future.then(lambda done: done.value()[0])

    def _begin(self) -> None:
        self._bytes = 0
        _wait_for_kernels()
        self._device.finish()
        self.computed_at = time.monotonic()
        holds: list[bool] = []
        self._gate.pass_through(self.iteration, holds.append)
        self._groups.renew_if_held(bool(holds))
        self.released_at = time.monotonic()


class Replicas:
    """A model on all ranks. A new group of the gradients gets a new wrapper of the same model."""

    def __init__(self, model: nn.Module, groups: ProcessGroups, exchange: Exchange) -> None:
        self._model, self._groups, self._exchange = model, groups, exchange
        self._wrap(groups.gradients)

    def _wrap(self, group: Any) -> None:
        self._group = group
        self._ddp = DistributedDataParallel(self._model, process_group=group)
        self._ddp.register_comm_hook(None, self._exchange.sum)

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The model's output."""
        if (group := self._groups.gradients) is not self._group:
            before = self._group
            self._wrap(group)
            self._groups.forget(before)
        output: torch.Tensor = self._ddp(*inputs)
        return output


def train(
    task: TrainingTask, device: Device, gate: Gate, journal: Journal, renews: bool | None = None
) -> None:
    """Join the other ranks, wait for the start, and train to the end.

    ``TrainingError`` if a rank is lost, replicas differ, or the data or the checkpoint cannot be
    used; ``StoppedAt`` if it is told to end sooner. ``renews`` is that of ``ProcessGroups``.
    """
    samples = Samples(task)
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = samples.model.to(where)
    optimizer = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE)
    groups = ProcessGroups(task, renews)
    checkpoints = Checkpoints(task, model, optimizer)
    first = checkpoints.resume(groups)
    exchange = Exchange(groups, gate, device)
    replicas = Replicas(model, groups, exchange)
    gate.goes_on_at(first)
    journal.goes_on_at(first)
    journal.state("ready")
    gate.wait_for_start()
    on = f"{device.name}, {_name_of(where)}".removeprefix(", ")
    told: StoppedAt | None = None
    for iteration in range(first, task.iterations):
        exchange.iteration, began = iteration, time.monotonic()
        device.begin(task.compute_s)
        inputs, targets = samples.of(iteration)
        try:
            output = replicas(*(each.to(where) for each in inputs))
            loss = samples.loss(output, targets.to(where))
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            _wait_for_kernels()
            summed_at, finished_at = time.monotonic(), time.time()
            optimizer.step()
            _compare(model, groups, iteration)
        except StoppedAt as end:
            told = end
            break
        except RuntimeError as exc:
            lost = groups.lost(exc, iteration)
            if lost is None:
                raise
            raise lost from exc
        journal.iteration(
            {
                "index": iteration,
                "compute_s": exchange.computed_at - began + exchange.last_at - exchange.released_at,
                "communication_s": summed_at - exchange.last_at,
                "sent_bytes": exchange.sent_bytes,
                "finished_at": finished_at,
                "check": "ok",
                "device": on,
                "loss": loss.item() if loss.isfinite() else None,  # JSON knows no others
            }
        )
        checkpoints.save_if_due(iteration + 1)
    checkpoints.save(task.iterations if told is None else told.iteration)
    groups.leave(task.deadline_s)
    if told is not None:
        raise told


def _compare(model: nn.Module, groups: ProcessGroups, iteration: int) -> None:
    """Raise ``ReplicasDiffer`` unless the parameters' bits add up to the same on all ranks."""
    total = 0
    for parameter in model.parameters():
        total += int(parameter.detach().view(torch.int32).sum(dtype=torch.int64).item())
    sums = groups.gather(total % 2**62)
    if len(set(sums)) > 1:
        raise ReplicasDiffer(
            f"after iteration {iteration} the ranks' parameters differ: their bits add up to {sums}"
        )


def _wait_for_kernels() -> None:
    """Until the GPU has computed what it was given; what it sends meanwhile is not waited for."""
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()


def _name_of(where: torch.device) -> str:
    return f"cuda: {torch.cuda.get_device_name(where)}" if where.type == "cuda" else "cpu: torch"
