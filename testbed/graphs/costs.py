"""What an operation costs, as far as a graph says without its times: arithmetic and bytes.

Graphs hold no arithmetic. For layers whose weights meet every position of their output
(convolutions, linear and recurrent layers) it follows from sizes: each output number that shares
its weights with others takes as many multiply-adds as there are weights for it.
"""

import re

import numpy as np
from numpy.typing import NDArray

from patchlight.testbed.graphs.model import ComputationGraph, Operation

COSTS = 4
"""Numbers of an operation: multiply-adds, bytes read, bytes written, bytes of weights."""
_BYTES = 4
_WEIGHTED = re.compile(r"(Conv2d|Linear|LSTM)\((\d+), (\d+)")
_BOTH_WAYS = ("both ways", "bidirectional")


def multiply_adds(operation: Operation) -> float:
    """Of one forward pass of a mini-batch, from the kind (``Conv2d(64, 128, …)``) and the sizes.

    0 for kinds that have no weights, or whose weights are looked up, and for those not known.
    """
    found = _WEIGHTED.search(operation.kind)
    if found is None:
        return 0.0
    ways = 2 if any(word in operation.kind for word in _BOTH_WAYS) else 1
    numbers = operation.activation_bytes / _BYTES
    if found[1] == "Linear":  # Its weights may be those of another operation.
        return numbers * int(found[2])
    return numbers / (int(found[3]) * ways) * operation.parameter_bytes / _BYTES


def operation_costs(graph: ComputationGraph) -> NDArray[np.float64]:
    """Operations × ``COSTS``; none of it is a time."""
    written = np.array([each.activation_bytes for each in graph.operations], float)
    found = np.zeros((len(written), COSTS))
    found[:, 0] = [multiply_adds(each) for each in graph.operations]
    for source, target in graph.edges:
        found[target, 1] += written[source]
    found[:, 2] = written
    found[:, 3] = [each.parameter_bytes for each in graph.operations]
    return found
