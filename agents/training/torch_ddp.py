"""Trains a real model on one worker, with samples, checkpoints and PyTorch's DDP.

Like the synthetic trainer, a held worker has sent nothing of its iteration's gradient. After each
iteration the parameters of all replicas are compared bit by bit.
"""

import os
import pickle
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import fx, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined,unused-ignore]
from torch.nn.parallel import DistributedDataParallel

from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs.builtin import build
from patchlight.testbed.graphs.layers import A100
from patchlight.testbed.graphs.torch_models import TorchLayers

from .control import Gate, Journal, StoppedAt
from .process_groups import ProcessGroups
from .task import ComputeDevice, TrainingError, TrainingTask, reason

_LEARNING_RATE = 1e-3
_KINDS = 10


class MiniBatch(NamedTuple):
    """A model's inputs, samples first, and the number of classes of its outputs."""

    inputs: tuple[torch.Tensor, ...]
    targets: torch.Tensor


class TrainingSamples:
    """A model and its mini-batches, determined by seed, rank and iteration."""

    def __init__(self, task: TrainingTask) -> None:
        if task.model is None:
            raise TrainingError("the task has no model")
        torch.manual_seed(task.seed)
        try:
            self._layers = build(
                task.model,
                TorchLayers,
                task.batch,
                A100,
            )
        except BadInput as exc:
            raise TrainingError(str(exc)) from exc
        self.model: fx.GraphModule = self._layers.module()
        for module in self.model.modules():
            if isinstance(
                module, nn.Embedding
            ):  # initialised as GPT-2 and BERT are
                nn.init.normal_(module.weight, std=0.02)
        self._seed = task.seed
        self._rank = task.rank
        self._ranks = len(task.ring)
        inputs = self._layers.example_inputs()
        self._patterns = torch.randn(_KINDS, *inputs[-1].shape[1:])
        self._stored = (
            None
            if task.data is None
            else _Stored(Path(task.data), task.model, inputs)
        )

    def of(self, iteration: int) -> MiniBatch:
        """This rank's mini-batch of an iteration."""
        # Dropout draws from it too, so a repeated iteration gives the same result.
        mixed = np.random.SeedSequence(
            [self._seed, self._rank, iteration]
        ).generate_state(1)
        torch.manual_seed(int(mixed[0]))
        if self._stored is not None:
            return self._stored.of(iteration * self._ranks + self._rank)
        inputs = self._layers.example_inputs()
        if inputs[-1].is_floating_point():
            kinds = torch.randint(_KINDS, (self._layers.batch,))
            return MiniBatch(
                (*inputs[:-1], inputs[-1] + self._patterns[kinds]), kinds
            )
        # Each token is replaced by another one.
        return MiniBatch(inputs, 7 * inputs[-1].long() + 3)

    def loss(
        self, output: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """Cross entropy of ``output`` (samples, …, classes) and ``targets`` (the rest);
        ``TrainingError`` if the user's targets have the wrong shape or values."""
        classes = output.shape[-1]
        if self._stored is None:
            # A model with few outputs per sample predicts its first tokens only.
            places = output[0].numel() // classes
            targets = targets.reshape(len(targets), -1)[:, :places] % classes
            targets = targets.reshape(output.shape[:-1])
        elif (
            targets.shape != output.shape[:-1]
            or not 0 <= targets.min() <= targets.max() < classes
        ):
            raise TrainingError(
                f"targets.npy gave classes {int(targets.min())} to {int(targets.max())} in the "
                f"shape {tuple(targets.shape)}: expected 0 to {classes - 1} in the shape "
                f"{tuple(output.shape[:-1])}, samples first"
            )
        return nn.functional.cross_entropy(
            output.flatten(0, -2), targets.flatten()
        )


class _Stored:
    def __init__(
        self,
        folder: Path,
        model: str,
        like: tuple[torch.Tensor, ...],
    ) -> None:
        if len(like) > 1:
            raise TrainingError(
                f"{model} takes {len(like)} inputs and can only be trained without data"
            )
        try:
            self._inputs = np.load(
                folder / "inputs.npy",
                mmap_mode="r",
                allow_pickle=False,
            )
            self._targets = np.load(
                folder / "targets.npy",
                mmap_mode="r",
                allow_pickle=False,
            )
        except (OSError, ValueError) as exc:
            raise TrainingError(
                f"reading the data in {folder}: {reason(exc)}"
            ) from exc
        (wanted,) = like
        found = self._inputs
        count = len(self._targets) if self._targets.ndim else 0
        if (
            found.shape[1:] != tuple(wanted.shape[1:])
            or len(found) != count
            or not count
        ):
            raise TrainingError(
                f"the data in {folder}: inputs.npy is {found.shape}, targets.npy "
                f"{self._targets.shape}: {model} expects (samples, "
                f"{', '.join(map(str, wanted.shape[1:]))}), and a target for each sample"
            )
        self._count = count
        self._batch = len(wanted)
        self._type = wanted.dtype

    def of(self, number: int) -> MiniBatch:
        rows = (number * self._batch + np.arange(self._batch)) % self._count
        inputs = torch.from_numpy(np.ascontiguousarray(self._inputs[rows])).to(
            self._type
        )
        targets = torch.from_numpy(
            np.ascontiguousarray(self._targets[rows]).astype(np.int64)
        )
        return MiniBatch((inputs,), targets)


class Checkpoints:
    """Saves and loads what a job has learnt; does nothing without a folder."""

    def __init__(
        self,
        task: TrainingTask,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
    ):
        self._file = (
            Path(task.checkpoint) / f"{task.job}.pt"
            if task.checkpoint
            else None
        )
        self._of = task.model
        self._model = model
        self._optimizer = optimizer
        self._is_first = task.rank == 0

    def save(self, iteration: int) -> None:
        """Save the state before ``iteration``. Only the first rank writes: all states are equal."""
        if self._file is None or not self._is_first:
            return
        fresh = self._file.with_suffix(".new")
        known = {
            "of": self._of,
            "iteration": iteration,
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        try:
            with fresh.open("wb") as opened:
                torch.save(known, opened)
                opened.flush()
                os.fsync(opened.fileno())
            os.replace(fresh, self._file)
        except (OSError, RuntimeError) as exc:
            raise TrainingError(
                f"writing the checkpoint {self._file}: {reason(exc)}"
            ) from exc

    def resume(self, groups: ProcessGroups) -> int:
        """Load the newest checkpoint of any rank on all ranks; returns the iteration to resume
        at."""
        found = self.found()
        ages = groups.gather(int(found["iteration"]) if found else 0)
        newest = max(ages)
        if newest == 0:
            return 0
        if min(ages) < newest:  # not a folder shared by all servers
            found = groups.share(found, ages.index(newest))
        assert found is not None
        self._model.load_state_dict(found["model"])
        self._optimizer.load_state_dict(found["optimizer"])
        return newest

    def found(self) -> dict[str, Any] | None:
        """The last checkpoint, if any; ``TrainingError`` if it is not usable."""
        if self._file is None or not self._file.exists():
            return None
        try:
            found: dict[str, Any] = torch.load(
                self._file,
                map_location="cpu",
                weights_only=True,
            )
            of = found["of"]
            _ = found["iteration"]
        except (
            OSError,
            RuntimeError,
            KeyError,
            EOFError,
            pickle.UnpicklingError,
        ) as exc:
            raise TrainingError(
                f"reading the checkpoint {self._file}: {reason(exc)}; remove it to start from the "
                "beginning"
            ) from exc
        if of != self._of:
            raise TrainingError(
                f"the checkpoint {self._file} belongs to {of}, not to {self._of}: choose another "
                f"folder"
            )
        return found


class ReplicasDiffer(TrainingError):
    """The ranks' parameters have diverged."""


class GradientExchange:
    """The gradient's sum over all ranks, bucket by bucket: when (time.monotonic) the first was
    computed and the last was summed. ``sent_bytes``: what a ring all-reduce sends, 2(n−1)/n of all
    bytes."""

    def __init__(
        self,
        groups: ProcessGroups,
        gate: Gate,
        device: ComputeDevice,
    ) -> None:
        self._groups = groups
        self._gate = gate
        self._device = device
        self.iteration = 0
        self.computed_at = self.released_at = self.last_at = 0.0
        self._bytes = 0

    @property
    def sent_bytes(self) -> int:
        """Bytes sent by this worker in this iteration, without headers."""
        return 2 * (self._groups.size - 1) * self._bytes // self._groups.size

    def sum(
        self, _: object, bucket: GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        """DDP's communication hook."""
        if bucket.index() == 0:
            self._bytes = 0
            _wait_for_kernels()
            self._device.finish()
            self.computed_at = time.monotonic()
            holds: list[bool] = []
            self._gate.pass_through(self.iteration, holds.append)
            self._groups.renew_if_held(bool(holds))
            self.released_at = time.monotonic()
        if bucket.is_last():
            _wait_for_kernels()
            self.last_at = time.monotonic()
        gradient = bucket.buffer()
        self._bytes += gradient.nbytes
        gradient.div_(self._groups.size)
        work = dist.all_reduce(
            gradient,
            group=self._groups.gradients,
            async_op=True,
        )
        future: torch.futures.Future[list[torch.Tensor]] = work.get_future()
        return future.then(lambda done: done.value()[0])


class Replicas:
    """A model on all ranks, wrapped again whenever the gradients' group is renewed."""

    def __init__(
        self,
        model: nn.Module,
        groups: ProcessGroups,
        exchange: GradientExchange,
    ) -> None:
        self._model = model
        self._groups = groups
        self._exchange = exchange
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
            dist.destroy_process_group(before)
        output: torch.Tensor = self._ddp(*inputs)
        return output


def train(
    task: TrainingTask,
    device: ComputeDevice,
    gate: Gate,
    journal: Journal,
    renews: bool | None = None,
) -> None:
    """Join the other ranks, wait for the start, and train to the end. ``TrainingError`` if that
    fails; ``StoppedAt`` if it is stopped earlier. ``renews`` as in ``ProcessGroups``."""
    samples = TrainingSamples(task)
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = samples.model.to(where)
    optimizer = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE)
    journal.state("starting", "joining the other ranks")
    groups = ProcessGroups(task, renews)
    checkpoints = Checkpoints(task, model, optimizer)
    first = checkpoints.resume(groups)
    exchange = GradientExchange(groups, gate, device)
    replicas = Replicas(model, groups, exchange)
    gate.goes_on_at(first)
    journal.goes_on_at(first)
    journal.state("ready")
    gate.wait_for_start()
    name = (
        f"cuda: {torch.cuda.get_device_name(where)}"
        if where.type == "cuda"
        else "cpu: torch"
    )
    on = f"{device.name}, {name}".removeprefix(", ")
    told: StoppedAt | None = None
    for iteration in range(first, task.iterations):
        exchange.iteration = iteration
        began = time.monotonic()
        device.begin(task.compute_s)
        inputs, targets = samples.of(iteration)
        try:
            output = replicas(*(each.to(where) for each in inputs))
            loss = samples.loss(output, targets.to(where))
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            _wait_for_kernels()
            summed_at = time.monotonic()
            finished_at = time.time()
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
                "compute_s": exchange.computed_at
                - began
                + exchange.last_at
                - exchange.released_at,
                "communication_s": summed_at - exchange.last_at,
                "sent_bytes": exchange.sent_bytes,
                "finished_at": finished_at,
                "check": "ok",
                "device": on,
                "loss": loss.item()
                if loss.isfinite()
                else None,  # JSON has no infinities
            }
        )
        if (iteration + 1) % task.checkpoint_every == 0:
            checkpoints.save(iteration + 1)
    checkpoints.save(task.iterations if told is None else told.iteration)
    groups.leave(task.deadline_s)
    if told is not None:
        raise told


def _compare(
    model: nn.Module,
    groups: ProcessGroups,
    iteration: int,
) -> None:
    """Raise ``ReplicasDiffer`` unless the parameters' bits have the same sum on all ranks."""
    total = 0
    for parameter in model.parameters():
        total += int(
            parameter.detach().view(torch.int32).sum(dtype=torch.int64).item()
        )
    sums = groups.gather(total % 2**62)
    if len(set(sums)) > 1:
        raise ReplicasDiffer(
            f"after iteration {iteration} the ranks' parameters differ: their checksums are {sums}"
        )


def _wait_for_kernels() -> None:
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()
