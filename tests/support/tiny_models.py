"""Models of few operations: their completion times are simulated in no time."""

from patchlight.testbed.graphs import ComputationGraph, Operation


def chain(name: str, *forward_ms: float) -> ComputationGraph:
    """Operations one after the other."""
    each = tuple(
        Operation(f"{name}{n}", "x", ms, 2 * ms, 10**6, 10**6)
        for n, ms in enumerate(forward_ms)
    )
    return ComputationGraph(
        name, each, tuple((n, n + 1) for n in range(len(each) - 1))
    )


GRAPHS = [
    chain("alexnet", 120.0, 60.0, 40.0),
    chain("vgg16", 80.0, 90.0, 30.0, 30.0),
]
