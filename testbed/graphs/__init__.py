"""Describes neural networks as computation graphs: compute times, traffic and memory of a step.

Read them (``read_graph``), take built-in ones (``builtin_graph``), turn the forward pass into a
whole training step (``mirror``) and split its operations over workers (``partition``).
"""

from patchlight.testbed.graphs.builtin import BUILTIN_NAMES, builtin_graph
from patchlight.testbed.graphs.files import read_graph, write_graph
from patchlight.testbed.graphs.model import (
    ComputationGraph,
    GraphFileError,
    Operation,
    PartitionedGraph,
    TrainingGraph,
    mirror,
    partition,
    splits_of,
)

__all__ = [
    "BUILTIN_NAMES",
    "ComputationGraph",
    "GraphFileError",
    "Operation",
    "PartitionedGraph",
]
__all__ += [
    "TrainingGraph",
    "builtin_graph",
    "mirror",
    "partition",
    "read_graph",
    "splits_of",
]
__all__ += ["write_graph"]
