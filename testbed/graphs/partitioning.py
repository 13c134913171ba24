"""A whole training step, forward and backward, and the splitting of its operations over workers.

The rules of splitting are those of PAC-ML (Parsonson et al., arXiv 2301.13799) and its simulator:
the forward operation's time decides how often it can be split, its backward twin follows, and the
parts of a backward operation exchange what they hold.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs.model import ComputationGraph

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class TrainingGraph:
    """Forward and backward operations of one training step.

    With n operations in ``forward``, indices 0…n−1 are the forward operations and index n+i is
    the backward twin of i. Arrays have 2n entries; ``memory_bytes`` holds activations and
    parameters for a forward operation and for its twin alike.
    """

    forward: ComputationGraph
    compute_ms: NDArray[np.float64]
    memory_bytes: NDArray[np.float64]
    edges: tuple[tuple[int, int], ...]

    @property
    def half(self) -> int:
        """n: how many forward operations there are, and backward ones."""
        return len(self.forward.operations)

    @property
    def sequential_ms(self) -> float:
        """One step on one device, nothing in parallel."""
        return float(self.compute_ms.sum())

    @cached_property
    def activation_edges_bytes(self) -> float:
        """Activations sent over all edges before any split: each its source's output."""
        outputs = [operation.activation_bytes for operation in self.forward.operations]
        return float(sum(outputs[source % self.half] for source, _ in self.edges))

    @property
    def demand_bytes(self) -> float:
        """Memory of all operations and what all edges carry: the step's total information."""
        return float(self.memory_bytes.sum()) + self.activation_edges_bytes


def mirror(graph: ComputationGraph) -> TrainingGraph:
    """The training step of a forward graph.

    Each edge a→b of the forward pass is b'→a' in the backward pass, a' and b' being the
    backward twins; the loss leads to its own twin.
    """
    import numpy as np

    half = len(graph.operations)
    compute = [o.forward_ms for o in graph.operations] + [o.backward_ms for o in graph.operations]
    memory = [float(o.memory_bytes) for o in graph.operations] * 2
    backward = tuple((half + target, half + source) for source, target in graph.edges)
    compute_ms, memory_bytes = np.array(compute), np.array(memory)
    compute_ms.flags.writeable = memory_bytes.flags.writeable = False
    return TrainingGraph(
        graph, compute_ms, memory_bytes, (*graph.edges, (graph.loss, half + graph.loss), *backward)
    )


QUANTUM_MS = 0.01


@dataclass(frozen=True)
class PartitionedGraph:
    """A training step whose operations are split.

    Operation i (indices as in ``training``) has ``splits[i]`` equal parts, each with
    ``part_ms[i]`` of compute and ``part_bytes[i]`` of memory. Edge k of the training graph
    becomes an edge from every part of its source to every part of its target, with
    ``edge_bytes[k]`` each. The parts of a split backward operation are joined each with each,
    both ways, by edges of ``part_bytes`` (synchronisation).
    """

    training: TrainingGraph
    degree: int
    splits: tuple[int, ...]
    part_ms: NDArray[np.float64]
    part_bytes: NDArray[np.float64]
    edge_bytes: NDArray[np.float64]

    @property
    def max_split(self) -> int:
        """The most parts that any operation has; less than ``degree`` for tiny operations."""
        return max(self.splits)

    @property
    def part_count(self) -> int:
        """Parts of all operations together."""
        return sum(self.splits)

    @property
    def edge_count(self) -> int:
        """Edges between parts, synchronisation included."""
        half, splits = self.training.half, self.splits
        between = sum(splits[source] * splits[target] for source, target in self.training.edges)
        return between + sum(n * (n - 1) for n in splits[half:])

    @property
    def forward_splits(self) -> tuple[int, ...]:
        """The distinct numbers of parts, ascending: each needs a block of servers."""
        return tuple(sorted(set(self.splits)))


def splits_of(
    training: TrainingGraph,
    degree: int,
    quantum_ms: float = QUANTUM_MS,
    served: Collection[int] | None = None,
) -> tuple[int, ...]:
    """How many parts each of the 2n operations gets at this degree.

    No part of a forward operation is made shorter than about ``quantum_ms``; the number is even
    or 1. Where the cluster serves only some numbers (``served``), it is the next lower of them.
    ``BadInput`` if ``degree`` is neither 1 nor even and positive, or the quantum not positive.
    """
    if degree < 1 or (degree > 1 and degree % 2):
        raise BadInput(f"cannot partition by degree {degree}: expected 1 or an even number")
    if not (math.isfinite(quantum_ms) and quantum_ms > 0):
        raise BadInput(f"cannot partition with a quantum of {quantum_ms} ms: expected more than 0")
    times = training.compute_ms[: training.half].tolist()
    forward = [max(1, min(2 * math.ceil(math.ceil(t / quantum_ms) / 2), degree)) for t in times]
    if served is not None:
        known = sorted({1, *served})
        forward = [known[bisect_right(known, parts) - 1] for parts in forward]
    return tuple(forward * 2)


def partition(
    training: TrainingGraph,
    degree: int,
    quantum_ms: float = QUANTUM_MS,
    served: Collection[int] | None = None,
) -> PartitionedGraph:
    """The training step with its operations split up to ``degree`` ways.

    ``served`` and ``BadInput`` as ``splits_of``.
    """
    import numpy as np

    splits = splits_of(training, degree, quantum_ms, served)
    counts = np.array(splits, dtype=float)
    part_bytes = training.memory_bytes / counts
    part_ms = training.compute_ms / counts
    edge_bytes = np.array([_edge_bytes(training, splits, a, b) for a, b in training.edges])
    for array in (part_ms, part_bytes, edge_bytes):
        array.flags.writeable = False
    return PartitionedGraph(training, degree, splits, part_ms, part_bytes, edge_bytes)


def _edge_bytes(
    training: TrainingGraph, splits: tuple[int, ...], source: int, target: int
) -> float:
    """Bytes on each edge between a part of ``source`` and a part of ``target``.

    Operations are split one after the other as they stand in the file, forward before backward.
    Whoever is split makes edges to its neighbours as they are at that moment, with the
    neighbour's memory shared by the parts; so of two split ones the first gives the size.
    """
    memory = training.memory_bytes
    if splits[source] == splits[target] == 1:
        return float(memory[source])
    half = training.half
    turn = {index: (index % half, index // half) for index in (source, target)}
    split = sorted((p for p in (source, target) if splits[p] > 1), key=turn.__getitem__)
    last = split[-1]
    neighbour = source if last == target else target
    return float(memory[neighbour] / splits[neighbour] / splits[last])
