"""A computation graph: the operations of one forward pass and who feeds whom."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.issues import FileError

Origin = Literal["profiled", "computed"]
MOST_MS = 1e12
"""Longer than thirty years is no operation's time."""
MOST_BYTES = 1 << 60
"""More than an exbibyte is no operation's size."""


class GraphFileError(FileError):
    """A graph file has mistakes."""


def most_of(what: str) -> float:
    """The largest value that is not nonsense, of a time or a size by the name of its field."""
    return MOST_MS if what.endswith("_ms") else MOST_BYTES


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: how long its two passes take, and what it keeps in memory.

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
    index of the operation after which the backward pass begins; −1, the default, is the last
    one that feeds nothing. ``origin`` says whether the times were measured or computed, on or
    for ``device``. Raises ``BadInput`` for a graph that is empty or has a cycle, an edge from
    or to nothing, an edge or a name twice, or a number that is negative, not finite or so large
    that it is nonsense.
    """

    name: str
    operations: tuple[Operation, ...]
    edges: tuple[tuple[int, int], ...]
    loss: int = -1
    origin: Origin = "profiled"
    device: str = "unknown"
    batch: int | None = None
    notes: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if wrong := self._wrong_operations() or self._wrong_edges():
            raise BadInput(f"{self.name!r} is not a computation graph: {wrong}")
        if self.loss == -1:
            fed = {source for source, _ in self.edges}
            last = max(i for i in range(len(self.operations)) if i not in fed)
            object.__setattr__(self, "loss", last)
        if not 0 <= self.loss < len(self.operations):
            raise BadInput(
                f"{self.name!r} is not a computation graph: its loss is operation {self.loss} of "
                f"{len(self.operations)}"
            )

    def _wrong_operations(self) -> str | None:
        if not self.operations:
            return "it has no operations"
        names: set[str] = set()
        for operation in self.operations:
            if operation.name in names:
                return f"operation {operation.name!r} is there twice"
            names.add(operation.name)
            for what in ("forward_ms", "backward_ms", "activation_bytes", "parameter_bytes"):
                value, most = getattr(operation, what), most_of(what)
                if not 0 <= value <= most:
                    return f"{what} of {operation.name!r} is {value}, expected 0 to {most:.3g}"
        return None

    def _wrong_edges(self) -> str | None:
        count, seen = len(self.operations), set[tuple[int, int]]()
        for edge in self.edges:
            if not all(0 <= end < count for end in edge):
                return f"edge {edge} leads from or to an operation that is not there"
            if edge in seen:
                return f"edge {self._written(edge)} is there twice"
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
        """All weights."""
        return sum(operation.parameter_bytes for operation in self.operations)

    @property
    def activation_bytes(self) -> int:
        """All outputs of the forward pass."""
        return sum(operation.activation_bytes for operation in self.operations)

    @property
    def memory_bytes(self) -> int:
        """What one device must hold to train the whole model: weights and activations."""
        return self.parameter_bytes + self.activation_bytes


def topological_order(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
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


def find_cycle(count: int, edges: Sequence[tuple[int, int]]) -> list[int] | None:
    """The nodes of one cycle, the first again at the end; ``None`` if there is none."""
    stuck = set(range(count)) - set(topological_order(count, edges))
    if not stuck:
        return None
    # Every node left over is fed by another one left over: walk back until one comes again.
    feeder = {target: source for source, target in edges if source in stuck and target in stuck}
    path = [min(stuck)]
    while (before := feeder[path[-1]]) not in path:
        path.append(before)
    return [before, *reversed(path[path.index(before) :])]
