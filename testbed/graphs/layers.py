"""Builds a computation graph from layer shapes: operations, bytes and parameters of each layer.

All numbers are float32. The forward pass of a layer reads its inputs and weights and writes its
output; the backward pass moves twice as much. It computes twice as much if it has two gradients (of
the inputs, and of weights or a second input), else the same.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from patchlight.testbed.graphs.model import ComputationGraph, Operation


@dataclass(
    frozen=True,
    slots=True,
)
class GpuModel:
    """A GPU's peak float32 performance, and the share that operations reach.

    Peak figures are the maker's; the shares are estimates (matrix operations reach about 60 % of
    the peak, half of it on tensor cores, streaming ones 75 % of the memory's rate), so the
    resulting times are computed, not measured.
    """

    name: str
    flops: float
    memory_bytes_per_s: float
    compute_share: float = 0.6
    memory_share: float = 0.75
    launch_s: float = 5e-6

    def time_ms(self, flops: float, moved_bytes: float) -> float:
        """Milliseconds for that many float operations and bytes moved; 0 if there are none."""
        if not flops and not moved_bytes:
            return 0.0
        computing = flops / (self.flops * self.compute_share)
        moving = moved_bytes / (self.memory_bytes_per_s * self.memory_share)
        return 1e3 * (max(computing, moving) + self.launch_s)

    @property
    def statement(self) -> str:
        """The model as text, for the notes of graphs."""
        return (
            f"roofline of {self.name}: {self.flops / 1e12:g} TFLOP/s at "
            f"{self.compute_share:.0%}, {self.memory_bytes_per_s / 1e9:g} GB/s at "
            f"{self.memory_share:.0%}, {self.launch_s * 1e6:g} µs per launch"
        )


A100 = GpuModel(
    "NVIDIA A100 SXM4 80 GB, float32",
    flops=19.5e12,
    memory_bytes_per_s=2.039e12,
)
"""Without TF32, as PyTorch multiplies matrices unless told otherwise."""
_TENSOR_CORES = 0.5
GPUS = {
    "v100": GpuModel(
        "NVIDIA V100 SXM2, float32",
        flops=15.7e12,
        memory_bytes_per_s=0.9e12,
    ),
    "a100": A100,
    "a100-tf32": GpuModel(
        "NVIDIA A100 SXM4 80 GB, TF32",
        flops=156e12,
        memory_bytes_per_s=2.039e12,
        compute_share=_TENSOR_CORES,
    ),
    "h100-tf32": GpuModel(
        "NVIDIA H100 SXM, TF32",
        flops=494.7e12,
        memory_bytes_per_s=3.35e12,
        compute_share=_TENSOR_CORES,
    ),
}
"""Peak figures of NVIDIA's data sheets, dense."""

BYTES = 4
Looked = Literal["tokens", "positions", "segments"]


@dataclass(
    frozen=True,
    slots=True,
)
class Tensor:
    """The output of a layer: the index of its operation; its shape for one sample."""

    operation: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many numbers it has for one sample."""
        return math.prod(self.shape)


class Layers:
    """A model being built. Each method adds one operation and returns its output."""

    def __init__(
        self,
        name: str,
        batch: int,
        gpu: GpuModel,
    ) -> None:
        self.name = name
        self.batch = batch
        self.gpu = gpu
        self.operations: list[Operation] = []
        self.edges: list[tuple[int, int]] = []
        self.macs = 0

    def add(
        self,
        kind: str,
        inputs: tuple[Tensor, ...],
        shape: tuple[int, ...],
        layer: tuple[Any, ...],
        *,
        macs: int = 0,
        flops: int = 0,
        parameters: int = 0,
        read: int | None = None,
    ) -> Tensor:
        """Add an operation. ``macs`` (multiply-adds) and other ``flops`` are for one sample.

        ``layer`` is its name and arguments, to build a module; ``read`` is how many parameters a
        pass touches, if not all (an embedding's rows).
        """
        output = Tensor(len(self.operations), shape)
        moved = self.batch * (
            output.size + sum(tensor.size for tensor in inputs)
        )
        moved_bytes = (
            BYTES * (moved + (parameters if read is None else read))
            if inputs
            else 0
        )
        forward_flops = self.batch * (2 * macs + flops)
        backward_flops = 2 * forward_flops if macs else forward_flops
        self.macs += macs
        name = f"{output.operation + 1}"
        activation_bytes = BYTES * self.batch * output.size
        forward_ms = round(self.gpu.time_ms(forward_flops, moved_bytes), 6)
        backward_ms = round(
            self.gpu.time_ms(backward_flops, 2 * moved_bytes), 6
        )
        self.operations.append(
            Operation(
                name,
                kind,
                forward_ms,
                backward_ms,
                activation_bytes,
                BYTES * parameters,
            )
        )
        self.edges += [
            (tensor.operation, output.operation)
            for tensor in dict.fromkeys(inputs)
        ]
        return output

    def graph(self) -> ComputationGraph:
        """The finished model."""
        return ComputationGraph(
            self.name,
            tuple(self.operations),
            tuple(self.edges),
            len(self.operations) - 1,
            "computed",
            self.gpu.name,
            self.batch,
            f"computed from layer shapes, not measured; {self.gpu.statement}",
        )

    def input(self, *shape: int) -> Tensor:
        """The data, already on the GPU: takes no time."""
        return self.add(
            "Input",
            (),
            shape,
            ("Input",),
        )

    def linear(
        self,
        x: Tensor,
        outputs: int,
        bias: bool = True,
        tied: bool = False,
    ) -> Tensor:
        """A dense layer over the last dimension; ``tied`` weights belong to another layer."""
        *rest, inputs = x.shape
        weights = inputs * outputs + (outputs if bias else 0)
        return self.add(
            f"Linear({inputs}, {outputs})",
            (x,),
            (*rest, outputs),
            ("Linear", inputs, outputs, bias, tied),
            macs=math.prod(rest) * inputs * outputs,
            parameters=0 if tied else weights,
            read=weights,
        )

    def pointwise(
        self,
        kind: str,
        *inputs: Tensor,
        flops: int = 1,
    ) -> Tensor:
        """An element-wise operation: activation, dropout, sum."""
        shape = inputs[0].shape
        return self.add(
            kind,
            inputs,
            shape,
            (kind,),
            flops=flops * inputs[0].size,
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
        """A square two-dimensional convolution of (channels, height, width)."""
        inputs = x.shape[0]
        shape = (
            outputs,
            *_slid(
                x,
                kernel,
                stride,
                padding,
            ),
        )
        weights = inputs * outputs * kernel * kernel
        return self.add(
            f"Conv2d({inputs}, {outputs}, kernel_size={kernel}, stride={stride})",
            (x,),
            shape,
            ("Conv2d", inputs, outputs, kernel, stride, padding, bias),
            macs=weights * shape[1] * shape[2],
            parameters=weights + (outputs if bias else 0),
        )

    def pool(
        self,
        kind: str,
        x: Tensor,
        kernel: int,
        stride: int,
        padding: int = 0,
        ceil: bool = False,
    ) -> Tensor:
        """Pooling over a square window."""
        shape = (
            x.shape[0],
            *_slid(
                x,
                kernel,
                stride,
                padding,
                ceil,
            ),
        )
        layer = (kind, kernel, stride, padding, ceil)
        return self.add(
            kind,
            (x,),
            shape,
            layer,
            flops=math.prod(shape) * kernel * kernel,
        )

    def average(self, x: Tensor, side: int = 1) -> Tensor:
        """Adaptive average pooling to ``side`` × ``side``."""
        kind = f"AdaptiveAvgPool2d({side})"
        shape = (x.shape[0], side, side)
        return self.add(
            kind,
            (x,),
            shape,
            ("AdaptiveAvgPool2d", side),
            flops=x.size,
        )

    def batch_norm(self, x: Tensor) -> Tensor:
        """Batch normalisation of each channel."""
        return self._norm(
            "BatchNorm2d",
            x,
            x.shape[0],
            flops=4 * x.size,
        )

    def layer_norm(self, x: Tensor) -> Tensor:
        """Layer normalisation over the last dimension."""
        return self._norm(
            "LayerNorm",
            x,
            x.shape[-1],
            flops=8 * x.size,
        )

    def _norm(
        self,
        kind: str,
        x: Tensor,
        width: int,
        flops: int,
    ) -> Tensor:
        layer = (kind, width)
        return self.add(
            f"{kind}({width})",
            (x,),
            x.shape,
            layer,
            flops=flops,
            parameters=2 * width,
        )

    def reshape(
        self,
        kind: str,
        x: Tensor,
        *shape: int,
    ) -> Tensor:
        """The same numbers in another shape; moves no data."""
        return self.add(
            kind,
            (x,),
            shape,
            ("Reshaped", *shape),
        )

    def concatenate(self, *inputs: Tensor) -> Tensor:
        """Concatenated along the first dimension (channels)."""
        first = sum(tensor.shape[0] for tensor in inputs)
        return self.add(
            "Concat",
            inputs,
            (first, *inputs[0].shape[1:]),
            ("Concat",),
        )

    def embedding(
        self,
        tokens: Tensor,
        entries: int,
        width: int,
        of: Looked = "tokens",
    ) -> Tensor:
        """A row of a table for each token; ``of`` selects what is looked up."""
        return self.add(
            f"Embedding({entries}, {width})",
            (tokens,),
            (*tokens.shape, width),
            ("Embedding", entries, width, of),
            parameters=entries * width,
            read=self.batch * tokens.size * width,
        )

    def lstm(
        self,
        inputs: tuple[Tensor, ...],
        width: int,
        ways: int = 1,
    ) -> Tensor:
        """One LSTM layer over a sequence of (length, features), PyTorch's two biases included.

        Several inputs are concatenated along their features; with 2 ``ways`` it is bidirectional.
        """
        length = inputs[0].shape[0]
        features = sum(tensor.shape[1] for tensor in inputs)
        gates = 4 * width * (features + width)
        return self.add(
            f"LSTM({features}, {width})"
            + ("" if ways == 1 else ", both ways"),
            inputs,
            (length, ways * width),
            ("LSTM", features, width, ways),
            macs=ways * length * gates,
            flops=ways * length * 10 * width,
            parameters=ways * (gates + 8 * width),
        )

    def additive_attention(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Bahdanau's attention: both sides projected, summed for each pair, weighted, averaged."""
        length, width = queries.shape
        return self.add(
            "BahdanauAttention",
            (queries, keys),
            queries.shape,
            ("BahdanauAttention", width),
            macs=2 * length * width * width + 2 * length * length * width,
            flops=2 * length * length * width,
            parameters=2 * width * width + width,
        )

    def scores(self, joined: Tensor, heads: int) -> Tensor:
        """Queries times keys for each head, from concatenated (length, 3 × width) projections."""
        length = joined.shape[0]
        width = joined.shape[1] // 3
        return self.add(
            "MatMul(queries, keys)",
            (joined,),
            (heads, length, length),
            ("Scores", heads),
            macs=length * length * width,
        )

    def mixed(self, shares: Tensor, joined: Tensor) -> Tensor:
        """Values, from the concatenated projections, weighted by each head's shares."""
        length = joined.shape[0]
        width = joined.shape[1] // 3
        return self.add(
            "MatMul(shares, values)",
            (shares, joined),
            (length, width),
            ("Mixed", shares.shape[0]),
            macs=length * length * width,
        )


def _slid(
    x: Tensor,
    kernel: int,
    stride: int,
    padding: int,
    ceil: bool = False,
) -> list[int]:
    rooms = [length + 2 * padding - kernel for length in x.shape[1:]]
    return [
        (-(-room // stride) if ceil else room // stride) + 1 for room in rooms
    ]
