"""Models computation graphs: a forward pass, a whole training step, and its split over workers."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from patchlight.testbed.errors import BadInput, FileError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Origin = Literal["profiled", "computed"]
MOST_MS = 1e12
"""No operation takes longer than thirty years."""
MOST_BYTES = 1 << 60
"""No operation is larger than an exbibyte."""


class GraphFileError(FileError):
    """A graph file has mistakes."""


def most_of(what: str) -> float:
    """The largest plausible value of a field, by its name."""
    return MOST_MS if what.endswith("_ms") else MOST_BYTES


@dataclass(
    frozen=True,
    slots=True,
)
class Operation:
    """One operation: the times of its two passes, and its memory.

    Times are milliseconds for one whole mini-batch on one device. ``activation_bytes`` is the
    output of the forward pass, ``parameter_bytes`` the weights.
    """

    name: str
    kind: str
    forward_ms: float
    backward_ms: float
    activation_bytes: int
    parameter_bytes: int

    @property
    def memory_bytes(self) -> int:
        """Activations and parameters together."""
        return self.activation_bytes + self.parameter_bytes


@dataclass(frozen=True)
class ComputationGraph:
    """The forward pass of a model, as a value.

    ``edges`` are pairs of indices in ``operations``: the first feeds the second. ``loss`` is the
    index of the operation after which the backward pass begins; the default −1 selects the last one
    without successors. ``origin`` says whether the times were measured or computed, for ``device``.
    Raises ``BadInput`` for an empty graph, a cycle, an edge to a missing operation, a repeated edge
    or name, or a number that is negative, not finite or implausibly large.
    """

    name: str
    operations: tuple[Operation, ...]
    edges: tuple[tuple[int, int], ...]
    loss: int = -1
    origin: Origin = "profiled"
    device: str = "unknown"
    batch: int | None = None
    notes: str = field(
        default="",
        compare=False,
    )

    def __post_init__(self) -> None:
        if wrong := self._wrong_operations() or self._wrong_edges():
            raise BadInput(f"invalid computation graph {self.name!r}: {wrong}")
        if self.loss == -1:
            fed = {source for source, _ in self.edges}
            last = max(i for i in range(len(self.operations)) if i not in fed)
            object.__setattr__(self, "loss", last)
        if not 0 <= self.loss < len(self.operations):
            raise BadInput(
                f"invalid computation graph {self.name!r}: its loss is operation {self.loss} of "
                f"{len(self.operations)}"
            )

    def _wrong_operations(self) -> str | None:
        if not self.operations:
            return "it has no operations"
        names: set[str] = set()
        for operation in self.operations:
            if operation.name in names:
                return f"operation {operation.name!r} appears twice"
            names.add(operation.name)
            for what in (
                "forward_ms",
                "backward_ms",
                "activation_bytes",
                "parameter_bytes",
            ):
                value = getattr(operation, what)
                most = most_of(what)
                if not 0 <= value <= most:
                    return f"{what} of {operation.name!r} is {value}, expected 0 to {most:.3g}"
        return None

    def _wrong_edges(self) -> str | None:
        count = len(self.operations)
        seen = set[tuple[int, int]]()
        for edge in self.edges:
            if not all(0 <= end < count for end in edge):
                return f"edge {edge} has an unknown end"
            if edge in seen:
                return f"edge {self._written(edge)} appears twice"
            seen.add(edge)
        cycle = find_cycle(count, self.edges)
        return f"it has a cycle: {self._written(cycle)}" if cycle else None

    def _written(self, indices: Sequence[int]) -> str:
        return " → ".join(self.operations[index].name for index in indices)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The operations' indices in topological order: breadth first, ties as in the file."""
        return tuple(topological_order(len(self.operations), self.edges))

    @cached_property
    def parents(self) -> tuple[tuple[int, ...], ...]:
        """For each operation the indices of those that feed it."""
        parents: list[list[int]] = [[] for _ in self.operations]
        for source, target in self.edges:
            parents[target].append(source)
        return tuple(map(tuple, parents))

    @property
    def forward_ms(self) -> float:
        """Time of the forward pass on one device."""
        return sum(operation.forward_ms for operation in self.operations)

    @property
    def backward_ms(self) -> float:
        """Time of the backward pass on one device."""
        return sum(operation.backward_ms for operation in self.operations)

    @property
    def parameter_bytes(self) -> int:
        """Size of all weights, in bytes."""
        return sum(operation.parameter_bytes for operation in self.operations)

    @property
    def activation_bytes(self) -> int:
        """Size of all outputs of the forward pass, in bytes."""
        return sum(operation.activation_bytes for operation in self.operations)

    @property
    def memory_bytes(self) -> int:
        """Bytes that one device must hold to train the whole model: weights and activations."""
        return self.parameter_bytes + self.activation_bytes


def topological_order(
    count: int, edges: Iterable[tuple[int, int]]
) -> list[int]:
    """Breadth-first order of ``count`` nodes; shorter than ``count`` if there is a cycle."""
    children: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for source, target in edges:
        children[source].append(target)
        waiting[target] += 1
    order = [node for node in range(count) if not waiting[node]]
    queue = deque(order)
    while queue:
        for child in children[queue.popleft()]:
            waiting[child] -= 1
            if not waiting[child]:
                queue.append(child)
                order.append(child)
    return order


def find_cycle(
    count: int, edges: Sequence[tuple[int, int]]
) -> list[int] | None:
    """The nodes of one cycle, the first repeated at the end; ``None`` if acyclic."""
    stuck = set(range(count)) - set(topological_order(count, edges))
    if not stuck:
        return None
    # Every remaining node has a remaining predecessor: walk back until a node repeats.
    feeder = {
        target: source
        for source, target in edges
        if source in stuck and target in stuck
    }
    path = [min(stuck)]
    while (before := feeder[path[-1]]) not in path:
        path.append(before)
    return [before, *reversed(path[path.index(before) :])]


@dataclass(frozen=True)
class TrainingGraph:
    """Forward and backward operations of one training step.

    With n operations in ``forward``, indices 0…n−1 are the forward operations and index n+i is its
    backward twin. Arrays have 2n entries; ``memory_bytes`` is activations plus parameters, equal
    for both twins.
    """

    forward: ComputationGraph
    compute_ms: NDArray[np.float64]
    memory_bytes: NDArray[np.float64]
    edges: tuple[tuple[int, int], ...]

    @property
    def half(self) -> int:
        """n: the number of forward operations, and of backward ones."""
        return len(self.forward.operations)

    @property
    def sequential_ms(self) -> float:
        """Time of one step on one device, without parallelism."""
        return float(self.compute_ms.sum())

    @cached_property
    def activation_edges_bytes(self) -> float:
        """Activation bytes sent over all edges before any split: each its source's output."""
        outputs = [
            operation.activation_bytes for operation in self.forward.operations
        ]
        return float(
            sum(outputs[source % self.half] for source, _ in self.edges)
        )

    @property
    def demand_bytes(self) -> float:
        """Memory of all operations plus traffic of all edges: the step's total information."""
        return float(self.memory_bytes.sum()) + self.activation_edges_bytes


def mirror(graph: ComputationGraph) -> TrainingGraph:
    """The training step of a forward graph.

    Each edge a→b of the forward pass becomes b'→a' between the backward twins; the loss leads to
    its twin.
    """
    import numpy as np

    half = len(graph.operations)
    compute = [o.forward_ms for o in graph.operations] + [
        o.backward_ms for o in graph.operations
    ]
    memory = [float(o.memory_bytes) for o in graph.operations] * 2
    backward = tuple(
        (half + target, half + source) for source, target in graph.edges
    )
    compute_ms = np.array(compute)
    memory_bytes = np.array(memory)
    compute_ms.flags.writeable = memory_bytes.flags.writeable = False
    return TrainingGraph(
        graph,
        compute_ms,
        memory_bytes,
        (*graph.edges, (graph.loss, half + graph.loss), *backward),
    )


QUANTUM_MS = 0.01


@dataclass(frozen=True)
class PartitionedGraph:
    """A training step whose operations are split.

    Operation i (indices as in ``training``) has ``splits[i]`` equal parts, each with ``part_ms[i]``
    of compute and ``part_bytes[i]`` of memory. Edge k of the training graph becomes an edge from
    every part of its source to every part of its target, with ``edge_bytes[k]`` each. The parts of
    a split backward operation are fully connected by edges of ``part_bytes`` (synchronisation).
    """

    training: TrainingGraph
    degree: int
    splits: tuple[int, ...]
    part_ms: NDArray[np.float64]
    part_bytes: NDArray[np.float64]
    edge_bytes: NDArray[np.float64]

    @property
    def max_split(self) -> int:
        """The most parts of any operation; less than ``degree`` for tiny operations."""
        return max(self.splits)

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

    The rules are those of PAC-ML (Parsonson et al., arXiv 2301.13799) and its simulator: the
    forward operation's time decides the number, and its backward twin gets the same.

    No part of a forward operation is shorter than about ``quantum_ms``; the number is even or 1. If
    the cluster serves only some numbers (``served``), the next lower one is used. ``BadInput`` if
    ``degree`` is neither 1 nor even and positive, or the quantum is not positive.
    """
    if degree < 1 or (degree > 1 and degree % 2):
        raise BadInput(
            f"cannot partition by degree {degree}: expected 1 or an even number"
        )
    if not (math.isfinite(quantum_ms) and quantum_ms > 0):
        raise BadInput(
            f"cannot partition with a quantum of {quantum_ms} ms: expected more than 0"
        )
    times = training.compute_ms[: training.half].tolist()
    forward = [
        max(1, min(2 * math.ceil(math.ceil(t / quantum_ms) / 2), degree))
        for t in times
    ]
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
    """The training step with its operations split into up to ``degree`` parts.

    ``served`` and ``BadInput`` as in ``splits_of``.
    """
    import numpy as np

    splits = splits_of(
        training,
        degree,
        quantum_ms,
        served,
    )
    counts = np.array(splits, dtype=float)
    part_bytes = training.memory_bytes / counts
    part_ms = training.compute_ms / counts
    edge_bytes = np.array(
        [
            _edge_bytes(
                training,
                splits,
                a,
                b,
            )
            for a, b in training.edges
        ]
    )
    for array in (part_ms, part_bytes, edge_bytes):
        array.flags.writeable = False
    return PartitionedGraph(
        training,
        degree,
        splits,
        part_ms,
        part_bytes,
        edge_bytes,
    )


def _edge_bytes(
    training: TrainingGraph,
    splits: tuple[int, ...],
    source: int,
    target: int,
) -> float:
    """Bytes on each edge between a part of ``source`` and a part of ``target``.

    Operations are split in file order, forward before backward. The edges of a split operation
    share the memory of its neighbour at that moment, so of two split ones the first determines the
    size.
    """
    memory = training.memory_bytes
    if splits[source] == splits[target] == 1:
        return float(memory[source])
    half = training.half
    turn = {index: (index % half, index // half) for index in (source, target)}
    split = sorted(
        (p for p in (source, target) if splits[p] > 1), key=turn.__getitem__
    )
    last = split[-1]
    neighbour = source if last == target else target
    return float(memory[neighbour] / splits[neighbour] / splits[last])
