"""The built-in models as PyTorch modules, made from the very layers their graphs are computed from.

So each operation of a computed graph is one module here, with the same weights and outputs. This
module needs PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx, nn

from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs.gpu_model import GpuModel
from patchlight.testbed.graphs.layers import Layers, Looked, Tensor
from patchlight.testbed.graphs.profiling import steps

_POINTWISE: dict[str, Callable[[], nn.Module]] = {
    "Add": steps.Add,
    "Dropout": nn.Dropout,
    "GELU": nn.GELU,
    "ReLU": nn.ReLU,
    "Softmax": lambda: nn.Softmax(dim=-1),
    "Tanh": nn.Tanh,
}


class TorchLayers(Layers):
    """A model in the making, and its modules with it."""

    def __init__(self, name: str, batch: int, gpu: GpuModel) -> None:
        super().__init__(name, batch, gpu)
        self._graph = fx.Graph()
        self._nodes: dict[int, fx.Node] = {}
        self._root = nn.Module()
        self._inputs: list[Tensor] = []
        self._looked_up: set[int] = set()
        self._tables: dict[tuple[int, int], nn.Embedding] = {}

    def module(self) -> fx.GraphModule:
        """The finished model; its inputs are those of ``example_inputs``, in order."""
        if not any(node.op == "output" for node in self._graph.nodes):
            self._graph.output(self._nodes[len(self.operations) - 1])
        return fx.GraphModule(self._root, self._graph)

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        """A mini-batch of noise, or of tokens where they are looked up."""
        return tuple(self._example(each) for each in self._inputs)

    def _example(self, wanted: Tensor) -> torch.Tensor:
        shape = (self.batch, *wanted.shape)
        if wanted.place not in self._looked_up:
            return torch.randn(shape)
        entries = min(entries for entries, _ in self._tables)
        return torch.randint(entries, shape, dtype=torch.int32)

    def _keep(self, output: Tensor, module: nn.Module, *inputs: Tensor) -> Tensor:
        name = self.operations[output.place].name
        self._root.add_module(name, module)
        arguments = tuple(self._nodes[each.place] for each in inputs)
        self._nodes[output.place] = self._graph.call_module(name, arguments)
        return output

    def input(self, *shape: int) -> Tensor:
        """As ``Layers``."""
        output = super().input(*shape)
        name = f"input{self.operations[output.place].name}"
        self._nodes[output.place] = self._graph.placeholder(name)
        self._inputs.append(output)
        return output

    def linear(self, x: Tensor, outputs: int, bias: bool = True, tied: bool = False) -> Tensor:
        """As ``Layers``; ``tied`` weights are those of the table of that size."""
        module = nn.Linear(x.shape[-1], outputs, bias)
        if tied:
            module.weight = self._tables[outputs, x.shape[-1]].weight
        return self._keep(super().linear(x, outputs, bias, tied), module, x)

    def pointwise(self, kind: str, *inputs: Tensor, flops: int = 1) -> Tensor:
        """As ``Layers``."""
        if kind not in _POINTWISE:
            raise BadInput(f"no PyTorch module is known for the layer {kind!r}")
        return self._keep(
            super().pointwise(kind, *inputs, flops=flops), _POINTWISE[kind](), *inputs
        )

    def convolution(
        self,
        x: Tensor,
        outputs: int,
        kernel: int,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
    ) -> Tensor:
        """As ``Layers``."""
        module = nn.Conv2d(x.shape[0], outputs, kernel, stride, padding, bias=bias)
        return self._keep(super().convolution(x, outputs, kernel, stride, padding, bias), module, x)

    def pool(
        self, kind: str, x: Tensor, kernel: int, stride: int, padding: int = 0, ceil: bool = False
    ) -> Tensor:
        """As ``Layers``; of kinds, there is ``MaxPool2d``."""
        if kind != "MaxPool2d":
            raise BadInput(f"no PyTorch module is known for the layer {kind!r}")
        module = nn.MaxPool2d(kernel, stride, padding, ceil_mode=ceil)
        return self._keep(super().pool(kind, x, kernel, stride, padding, ceil), module, x)

    def average(self, x: Tensor, side: int = 1) -> Tensor:
        """As ``Layers``."""
        return self._keep(super().average(x, side), nn.AdaptiveAvgPool2d(side), x)

    def batch_norm(self, x: Tensor) -> Tensor:
        """As ``Layers``."""
        return self._keep(super().batch_norm(x), nn.BatchNorm2d(x.shape[0]), x)

    def layer_norm(self, x: Tensor) -> Tensor:
        """As ``Layers``."""
        return self._keep(super().layer_norm(x), nn.LayerNorm(x.shape[-1]), x)

    def reshape(self, kind: str, x: Tensor, *shape: int) -> Tensor:
        """As ``Layers``."""
        return self._keep(super().reshape(kind, x, *shape), steps.Reshaped(*shape), x)

    def concatenate(self, *inputs: Tensor) -> Tensor:
        """As ``Layers``."""
        return self._keep(super().concatenate(*inputs), steps.Concat(), *inputs)

    def embedding(self, tokens: Tensor, entries: int, width: int, of: Looked = "tokens") -> Tensor:
        """As ``Layers``."""
        self._looked_up.add(tokens.place)
        module = steps.Lookup(entries, width, of)
        if of == "tokens":
            self._tables[entries, width] = module.table
        return self._keep(super().embedding(tokens, entries, width, of), module, tokens)

    def lstm(self, inputs: tuple[Tensor, ...], width: int, ways: int = 1) -> Tensor:
        """As ``Layers``."""
        module = steps.Recurrent(sum(each.shape[1] for each in inputs), width, ways)
        return self._keep(super().lstm(inputs, width, ways), module, *inputs)

    def additive_attention(self, queries: Tensor, keys: Tensor) -> Tensor:
        """As ``Layers``."""
        module = steps.BahdanauAttention(queries.shape[1])
        return self._keep(super().additive_attention(queries, keys), module, queries, keys)

    def scores(self, joined: Tensor, heads: int) -> Tensor:
        """As ``Layers``."""
        return self._keep(super().scores(joined, heads), steps.Scores(heads), joined)

    def mixed(self, shares: Tensor, joined: Tensor) -> Tensor:
        """As ``Layers``."""
        module = steps.Mixed(shares.shape[0])
        return self._keep(super().mixed(shares, joined), module, shares, joined)
