"""The built-in models as PyTorch modules, made from the very layers their graphs are computed from.

So each operation of a computed graph is one module here, with the same weights and outputs. This
module needs PyTorch.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs.layers import GpuModel, Layers, Tensor
from patchlight.testbed.graphs.profiling import steps

_MODULES: dict[str, Callable[..., nn.Module]] = {
    "AdaptiveAvgPool2d": nn.AdaptiveAvgPool2d,
    "Add": steps.Add,
    "BahdanauAttention": steps.BahdanauAttention,
    "BatchNorm2d": nn.BatchNorm2d,
    "Concat": steps.Concat,
    "Conv2d": lambda inputs, outputs, kernel, stride, padding, bias: nn.Conv2d(
        inputs, outputs, kernel, stride, padding, bias=bias
    ),
    "Dropout": nn.Dropout,
    "Embedding": steps.Lookup,
    "GELU": nn.GELU,
    "LSTM": steps.Recurrent,
    "LayerNorm": nn.LayerNorm,
    "Linear": lambda inputs, outputs, bias, tied: nn.Linear(inputs, outputs, bias),
    "MaxPool2d": lambda kernel, stride, padding, ceil: nn.MaxPool2d(
        kernel, stride, padding, ceil_mode=ceil
    ),
    "Mixed": steps.Mixed,
    "ReLU": nn.ReLU,
    "Reshaped": steps.Reshaped,
    "Scores": steps.Scores,
    "Softmax": lambda: nn.Softmax(dim=-1),
    "Tanh": nn.Tanh,
}


class TorchLayers(Layers):
    """A model in the making, and its modules with it."""

    def __init__(self, name: str, batch: int, gpu: GpuModel) -> None:
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
        """A mini-batch of noise, or of tokens where they are looked up."""
        return tuple(map(self._example, self._inputs))

    def _example(self, tensor: Tensor) -> torch.Tensor:
        shape = (self.batch, *tensor.shape)
        if tensor.operation not in self._looked_up:
            return torch.randn(shape)
        entries = min(entries for entries, _ in self._tables)
        return torch.randint(entries, shape, dtype=torch.int32)

    def add(
        self,
        kind: str,
        inputs: tuple[Tensor, ...],
        shape: tuple[int, ...],
        layer: tuple[Any, ...],
        **numbers: Any,
    ) -> Tensor:
        """Add an operation, and its module; ``BadInput`` if PyTorch has none for ``layer``."""
        output = super().add(kind, inputs, shape, layer, **numbers)
        name = self.operations[output.operation].name
        if kind == "Input":
            self._inputs.append(output)
            self._nodes.append(self._graph.placeholder(f"input{name}"))
            return output
        if layer[0] not in _MODULES:
            raise BadInput(f"no PyTorch module is known for the layer {layer[0]!r}")
        module = _MODULES[layer[0]](*layer[1:])
        self._share(module, inputs[0], layer)
        self._root.add_module(name, module)
        arguments = tuple(self._nodes[tensor.operation] for tensor in inputs)
        self._nodes.append(self._graph.call_module(name, arguments))
        return output

    def _share(self, module: nn.Module, first: Tensor, layer: tuple[Any, ...]) -> None:
        """Note what an embedding looks up; tied weights are those of the table of that size."""
        match module, layer:
            case steps.Lookup(), (_, entries, width, of):
                self._looked_up.add(first.operation)
                if of == "tokens":
                    self._tables[entries, width] = module.table
            case nn.Linear(), (_, inputs, outputs, _, True):
                module.weight = self._tables[outputs, inputs].weight
