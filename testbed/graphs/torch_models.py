"""Provides models to measure as PyTorch modules: built-in ones, and ``file.py:function`` of a user.

A built-in model is made from the layers that its graph is computed from, so each operation of the
graph is one module with the same weights and outputs. A user's function returns a module and
example inputs (one or several tensors); it may take ``batch``. This module needs PyTorch.
"""

import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from patchlight.testbed.errors import BadInput, nearest
from patchlight.testbed.graphs.builtin import BUILTIN_NAMES, build
from patchlight.testbed.graphs.layers import GpuModel, Layers, Looked, Tensor


class Add(nn.Module):
    """The sum of its inputs."""

    def forward(
        self, first: torch.Tensor, *others: torch.Tensor
    ) -> torch.Tensor:
        """All of one shape."""
        for other in others:
            first = first + other
        return first


class Concat(nn.Module):
    """Its inputs concatenated along the first dimension of a sample (channels)."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """All of one height and width."""
        return torch.cat(inputs, dim=1)


class Reshaped(nn.Module):
    """The first numbers of each sample, reshaped."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Inputs with at least as many numbers as the shape."""
        flat = x.flatten(1)
        return flat[:, : math.prod(self.shape)].reshape(-1, *self.shape)

    def extra_repr(self) -> str:
        """Return the constant of that shape."""
        return ", ".join(map(str, self.shape))


class Lookup(nn.Module):
    """A row of a table for each token: by token, position or segment."""

    def __init__(
        self,
        entries: int,
        width: int,
        of: Looked,
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(entries, width)
        self.of = of

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """``tokens`` has shape (batch, length)."""
        if self.of == "positions":
            rows = torch.arange(
                tokens.shape[1], device=tokens.device
            ).expand_as(tokens)
        else:
            rows = tokens if self.of == "tokens" else torch.zeros_like(tokens)
        output: torch.Tensor = self.table(rows)
        return output


class Recurrent(nn.Module):
    """One LSTM layer over its inputs, concatenated along their features; returns the sequence."""

    def __init__(
        self,
        features: int,
        width: int,
        ways: int,
    ) -> None:
        super().__init__()
        self.lstm = nn.LSTM(
            features,
            width,
            batch_first=True,
            bidirectional=ways == 2,
        )

    def forward(
        self, first: torch.Tensor, *others: torch.Tensor
    ) -> torch.Tensor:
        """Each of shape (batch, length, features)."""
        joined = torch.cat((first, *others), dim=2) if others else first
        output: torch.Tensor = self.lstm(joined)[0]
        return output


class BahdanauAttention(nn.Module):
    """Additive attention (Bahdanau et al. 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_queries = nn.Linear(width, width, bias=False)
        self.of_keys = nn.Linear(width, width, bias=False)
        self.weights = nn.Parameter(torch.rand(width))

    def forward(
        self, queries: torch.Tensor, keys: torch.Tensor
    ) -> torch.Tensor:
        """Both of shape (batch, length, width)."""
        pairs = self.of_queries(queries).unsqueeze(2) + self.of_keys(
            keys
        ).unsqueeze(1)
        scores = torch.tanh(pairs) @ self.weights
        return torch.softmax(scores, dim=2) @ keys


class Scores(nn.Module):
    """Queries times keys for each head, from concatenated queries, keys and values."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, joined: torch.Tensor) -> torch.Tensor:
        """(batch, length, 3 × width) to (batch, heads, length, length)."""
        queries, keys, _ = _apart(joined, self.heads)
        return (queries / math.sqrt(queries.shape[-1])) @ keys.transpose(2, 3)


class Mixed(nn.Module):
    """Values weighted by each head's shares, with the heads concatenated."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(
        self, shares: torch.Tensor, joined: torch.Tensor
    ) -> torch.Tensor:
        """(batch, heads, length, length) and (batch, length, 3 × width)."""
        values = _apart(joined, self.heads)[2]
        return (shares @ values).transpose(1, 2).flatten(2)


def _apart(joined: torch.Tensor, heads: int) -> tuple[torch.Tensor, ...]:
    batch, length, width = joined.shape
    split = joined.view(
        batch,
        length,
        3,
        heads,
        width // 3 // heads,
    )
    return split.permute(
        2,
        0,
        3,
        1,
        4,
    ).unbind(0)


_MODULES: dict[str, Callable[..., nn.Module]] = {
    "AdaptiveAvgPool2d": nn.AdaptiveAvgPool2d,
    "Add": Add,
    "BahdanauAttention": BahdanauAttention,
    "BatchNorm2d": nn.BatchNorm2d,
    "Concat": Concat,
    "Conv2d": lambda inputs, outputs, kernel, stride, padding, bias: nn.Conv2d(
        inputs,
        outputs,
        kernel,
        stride,
        padding,
        bias=bias,
    ),
    "Dropout": nn.Dropout,
    "Embedding": Lookup,
    "GELU": nn.GELU,
    "LSTM": Recurrent,
    "LayerNorm": nn.LayerNorm,
    "Linear": lambda inputs, outputs, bias, tied: nn.Linear(
        inputs, outputs, bias
    ),
    "MaxPool2d": lambda kernel, stride, padding, ceil: nn.MaxPool2d(
        kernel,
        stride,
        padding,
        ceil_mode=ceil,
    ),
    "Mixed": Mixed,
    "ReLU": nn.ReLU,
    "Reshaped": Reshaped,
    "Scores": Scores,
    "Softmax": lambda: nn.Softmax(dim=-1),
    "Tanh": nn.Tanh,
}


class TorchLayers(Layers):
    """A model being built, with its modules."""

    def __init__(
        self,
        name: str,
        batch: int,
        gpu: GpuModel,
    ) -> None:
        super().__init__(name, batch, gpu)
        self._graph = fx.Graph()
        self._nodes: list[fx.Node] = []
        self._root = nn.Module()
        self._inputs: list[Tensor] = []
        self._looked_up: set[int] = set()
        self._tables: dict[tuple[int, int], nn.Embedding] = {}

    def module(self) -> fx.GraphModule:
        """The finished model; its inputs are those of ``example_inputs``, in order."""
        if not any(node.op == "output" for node in self._graph.nodes):
            self._graph.output(self._nodes[-1])
        return fx.GraphModule(self._root, self._graph)

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        """A mini-batch of noise, or of tokens for embeddings."""
        entries = min((entries for entries, _ in self._tables), default=0)
        return tuple(
            torch.randint(
                entries, (self.batch, *tensor.shape), dtype=torch.int32
            )
            if tensor.operation in self._looked_up
            else torch.randn((self.batch, *tensor.shape))
            for tensor in self._inputs
        )

    def add(
        self,
        kind: str,
        inputs: tuple[Tensor, ...],
        shape: tuple[int, ...],
        layer: tuple[Any, ...],
        **numbers: Any,
    ) -> Tensor:
        """Add an operation and its module; ``BadInput`` if PyTorch has none for ``layer``."""
        output = super().add(
            kind,
            inputs,
            shape,
            layer,
            **numbers,
        )
        name = self.operations[output.operation].name
        if kind == "Input":
            self._inputs.append(output)
            self._nodes.append(self._graph.placeholder(f"input{name}"))
            return output
        if layer[0] not in _MODULES:
            raise BadInput(f"no PyTorch module for the layer {layer[0]!r}")
        module = _MODULES[layer[0]](*layer[1:])
        match module, layer:
            case Lookup(), (_, entries, width, of):
                self._looked_up.add(inputs[0].operation)
                if of == "tokens":
                    self._tables[entries, width] = module.table
            case nn.Linear(), (
                _,
                narrow,
                wide,
                _,
                True,
            ):  # shares the weights of the table of that size
                module.weight = self._tables[wide, narrow].weight
        self._root.add_module(name, module)
        arguments = tuple(self._nodes[tensor.operation] for tensor in inputs)
        self._nodes.append(self._graph.call_module(name, arguments))
        return output


_EXPECTED = (
    "the function must return (model, inputs): a torch.nn.Module and a tensor or a tuple of "
    "tensors; for --batch it needs a parameter named batch"
)


class Loaded(NamedTuple):
    """A model to measure, a mini-batch for it, and its number of samples."""

    name: str
    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    batch: int


def load_model(
    name: str,
    batch: int | None,
    device: str = "cpu",
) -> Loaded:
    """A built-in model on the device, or the result of the function in ``file.py:function``.

    ``BadInput`` for an unknown name, and if the file or function fails or returns other types.
    """
    if name in BUILTIN_NAMES:
        with torch.device(device):
            net = build(name, TorchLayers, batch)
            return Loaded(
                name,
                net.module(),
                net.example_inputs(),
                net.batch,
            )
    file, colon, function = name.rpartition(":")
    if not colon:
        raise BadInput(
            f"unknown model {name!r}: {nearest(name, BUILTIN_NAMES)}",
            hint="or use FILE.py:FUNCTION",
        )
    return _from_function(Path(file), function, batch)


def _from_function(
    file: Path,
    function: str,
    batch: int | None,
) -> Loaded:
    what = f"{file}:{function}"
    make = _function(file, function)
    takes = inspect.signature(make).parameters
    if batch is not None and "batch" not in takes:
        raise BadInput(
            f"{what} has no parameter batch, so --batch {batch} cannot be used",
            hint=_EXPECTED,
        )
    given = _guarded(
        lambda: make() if batch is None else make(batch=batch),
        f"calling {what}",
    )
    model, inputs = (
        given if isinstance(given, tuple) and len(given) == 2 else (None, None)
    )
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    if not isinstance(model, nn.Module) or not (
        isinstance(inputs, tuple | list)
        and inputs
        and all(isinstance(tensor, torch.Tensor) for tensor in inputs)
    ):
        raise BadInput(
            f"{what} returned {type(given).__name__}, expected a model and inputs",
            hint=_EXPECTED,
        )
    samples = inputs[0].shape[0] if inputs[0].dim() else 1
    if batch is not None and samples != batch:
        raise BadInput(
            f"{what} was called with a batch of {batch}, but its first input has {samples}",
            hint=_EXPECTED,
        )
    return Loaded(
        f"{file.stem}:{function}",
        model,
        tuple(inputs),
        samples,
    )


def _function(file: Path, name: str) -> Callable[..., Any]:
    if not file.is_file():
        raise BadInput(f"loading the model from {file}: file not found")
    spec = importlib.util.spec_from_file_location(
        f"patchlight_model_{file.stem}", file
    )
    if spec is None or spec.loader is None:
        raise BadInput(
            f"loading the model from {file}: expected a Python file, NAME.py"
        )
    module = importlib.util.module_from_spec(spec)
    # The file's own imports and pickles of its classes look there.
    sys.modules[spec.name] = module
    _guarded(
        lambda: spec.loader.exec_module(module),  # type: ignore[union-attr]
        f"loading the model from {file}",
    )
    make = getattr(module, name, None)
    if not callable(make):
        functions = [
            n for n, value in vars(module).items() if inspect.isfunction(value)
        ]
        raise BadInput(
            f"{file} has no function {name!r}: {nearest(name, functions)}",
            hint=_EXPECTED,
        )
    return make  # type: ignore[no-any-return]


def _guarded(call: Callable[[], Any], doing: str) -> Any:
    try:
        return call()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = (
            f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        )
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise BadInput(
            f"{doing}{line}: {type(error).__name__}: {error}{where}"
        ) from error
