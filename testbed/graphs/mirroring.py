"""A whole training step: the forward pass, and the backward pass as its mirror image."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from patchlight.testbed.graphs.model import ComputationGraph


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
    half = len(graph.operations)
    compute = [o.forward_ms for o in graph.operations] + [o.backward_ms for o in graph.operations]
    memory = [float(o.memory_bytes) for o in graph.operations] * 2
    backward = tuple((half + target, half + source) for source, target in graph.edges)
    compute_ms, memory_bytes = np.array(compute), np.array(memory)
    compute_ms.flags.writeable = memory_bytes.flags.writeable = False
    return TrainingGraph(
        graph, compute_ms, memory_bytes, (*graph.edges, (graph.loss, half + graph.loss), *backward)
    )
