"""What a model is trained on: mini-batches made up, or out of a folder of NumPy arrays.

The models are those of the built-in computation graphs, made of the very layers that these are
computed from.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import fx, nn

from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs.builtin import build
from patchlight.testbed.graphs.layers import A100
from patchlight.testbed.graphs.profiling.torch_models import TorchLayers

from .task import TrainingError, TrainingTask

_KINDS = 10


class MiniBatch(NamedTuple):
    """A model's inputs, samples first, and the classes that its outputs are to name."""

    inputs: tuple[torch.Tensor, ...]
    targets: torch.Tensor


class Samples:
    """A model and mini-batches for it. The same seed, rank and iteration give the same one."""

    def __init__(self, task: TrainingTask) -> None:
        if task.model is None:
            raise TrainingError("the task names no model")
        torch.manual_seed(task.seed)
        try:
            self._layers = build(task.model, TorchLayers, task.batch, A100)
        except BadInput as exc:
            raise TrainingError(str(exc)) from exc
        self.model: fx.GraphModule = self._layers.module()
        for module in self.model.modules():
            if isinstance(module, nn.Embedding):  # as GPT-2 and BERT begin; PyTorch's is for others
                nn.init.normal_(module.weight, std=0.02)
        self._seed, self._rank, self._ranks = task.seed, task.rank, len(task.ring)
        inputs = self._layers.example_inputs()
        self._patterns = torch.randn(_KINDS, *inputs[-1].shape[1:])
        self._stored = None if task.data is None else _Stored(Path(task.data), task.model, inputs)

    def of(self, iteration: int) -> MiniBatch:
        """What this rank learns from in an iteration."""
        # Dropout draws from it, too: an iteration that is done again is done the same way.
        mixed = np.random.SeedSequence([self._seed, self._rank, iteration]).generate_state(1)
        torch.manual_seed(int(mixed[0]))
        if self._stored is not None:
            return self._stored.of(iteration * self._ranks + self._rank)
        inputs = self._layers.example_inputs()
        if inputs[-1].is_floating_point():
            kinds = torch.randint(_KINDS, (self._layers.batch,))
            return MiniBatch((*inputs[:-1], inputs[-1] + self._patterns[kinds]), kinds)
        return MiniBatch(inputs, 7 * inputs[-1].long() + 3)  # each token stands for another one

    def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The cross entropy. ``output`` has shape (samples, …, classes), ``targets`` the rest.

        ``TrainingError`` if targets of the user's are of another shape, or no classes.
        """
        classes = output.shape[-1]
        if self._stored is None:
            # A model with few outputs a sample is to name the first tokens, and known classes.
            places = output[0].numel() // classes
            targets = targets.reshape(len(targets), -1)[:, :places] % classes
            targets = targets.reshape(output.shape[:-1])
        elif (
            targets.shape != output.shape[:-1] or not 0 <= targets.min() <= targets.max() < classes
        ):
            raise TrainingError(
                f"targets.npy gave classes {int(targets.min())} to {int(targets.max())} in the "
                f"shape {tuple(targets.shape)}: expected 0 to {classes - 1} in the shape "
                f"{tuple(output.shape[:-1])}, samples first"
            )
        return nn.functional.cross_entropy(output.flatten(0, -2), targets.flatten())


class _Stored:
    """Mini-batches out of ``inputs.npy`` and ``targets.npy``, over and over."""

    def __init__(self, folder: Path, model: str, like: tuple[torch.Tensor, ...]) -> None:
        if len(like) > 1:
            raise TrainingError(f"{model} takes {len(like)} inputs: it can be trained without data")
        try:
            # What there is of it in memory is what is used; NumPy reads the rest when it is.
            self._inputs = np.load(folder / "inputs.npy", mmap_mode="r", allow_pickle=False)
            self._targets = np.load(folder / "targets.npy", mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as exc:
            raise TrainingError(f"reading the data in {folder}: {exc}") from exc
        (wanted,) = like
        found, count = self._inputs, len(self._targets) if self._targets.ndim else 0
        if found.shape[1:] != tuple(wanted.shape[1:]) or len(found) != count or not count:
            raise TrainingError(
                f"the data in {folder}: inputs.npy is {found.shape}, targets.npy "
                f"{self._targets.shape}: {model} expects (samples, "
                f"{', '.join(map(str, wanted.shape[1:]))}), and a target for each sample"
            )
        self._count, self._batch, self._type = count, len(wanted), wanted.dtype

    def of(self, number: int) -> MiniBatch:
        rows = (number * self._batch + np.arange(self._batch)) % self._count
        inputs = torch.from_numpy(np.ascontiguousarray(self._inputs[rows])).to(self._type)
        targets = torch.from_numpy(np.ascontiguousarray(self._targets[rows]).astype(np.int64))
        return MiniBatch((inputs,), targets)
