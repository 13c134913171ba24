"""A job's computation graph of any size as a graph that a model sees: the larger ones pooled.

Operations that follow each other are joined until there are few enough, so a graph of 10,000 is
seen as well as one of 10, only more coarsely.
"""

import numpy as np
from numpy.typing import NDArray

from patchlight.testbed.graphs.model import ComputationGraph

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

OPERATION_FEATURES = 6
"""Of an operation, or of those joined: their part of the graph's forward time, backward time,
activations and parameters; how deep they are, and 1 (0 where a job comes without a graph)."""
MOST_OPERATIONS = 64
"""Graphs of more operations are pooled to so many."""
_SCALED = ("forward_ms", "backward_ms", "activation_bytes", "parameter_bytes")
_NOTHING = np.zeros((1, OPERATION_FEATURES), np.float32), np.zeros((1, 2), np.int64)


_MOST_KEPT = 256


class JobGraphs:
    """Makes the arrays of graphs, and keeps those of the graphs that it has seen."""

    def __init__(self) -> None:
        # By identity: to compare large graphs takes longer than to ask whether one was seen.
        self._known: dict[int, tuple[ComputationGraph, Floats, Ints]] = {}

    def of(self, graph: ComputationGraph | None) -> tuple[Floats, Ints]:
        """As ``job_graph``."""
        if graph is None:
            return _NOTHING
        known = self._known.get(id(graph))
        if known is None or known[0] is not graph:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            known = self._known[id(graph)] = (graph, *job_graph(graph))
        return known[1:]


def job_graph(graph: ComputationGraph, most: int = MOST_OPERATIONS) -> tuple[Floats, Ints]:
    """Nodes (n × features) and edges (m × 2, from, to), pooled to ``most`` nodes.

    One edge at least: of a graph without any, from its first operation to itself.
    """
    count = len(graph.operations)
    depth = np.zeros(count)
    for node in graph.order:
        depth[node] = 1 + max((depth[parent] for parent in graph.parents[node]), default=-1)
    groups = min(count, most)
    group = np.empty(count, np.int64)
    # By depth, so that what is joined stands beside each other in the graph.
    in_turn = np.lexsort((np.argsort(graph.order), depth))
    group[in_turn] = np.arange(count) * groups // count
    nodes = np.zeros((groups, OPERATION_FEATURES), np.float32)
    for column, name in enumerate(_SCALED):
        values = np.array([float(getattr(each, name)) for each in graph.operations])
        nodes[:, column] = np.bincount(group, values, groups) / max(float(values.sum()), 1e-30)
    held = np.bincount(group, minlength=groups)
    nodes[:, len(_SCALED)] = np.bincount(group, depth, groups) / held / max(1.0, depth.max())
    nodes[:, len(_SCALED) + 1] = 1.0
    ends = sorted({(int(group[a]), int(group[b])) for a, b in graph.edges if group[a] != group[b]})
    return nodes, np.array(ends or [(0, 0)], np.int64)
