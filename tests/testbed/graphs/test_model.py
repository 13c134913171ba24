import math
from dataclasses import replace

import pytest

from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import ComputationGraph, Operation


def op(name: str, forward_ms: float = 1.0, **other: float) -> Operation:
    numbers = {"backward_ms": 2.0, "activation_bytes": 8, "parameter_bytes": 4, **other}
    return Operation(name, "Test", forward_ms, **numbers)  # type: ignore[arg-type]


def test_a_diamond_knows_its_order_parents_and_loss() -> None:
    graph = ComputationGraph(
        "diamond", (op("d"), op("a"), op("b"), op("c")), ((1, 2), (1, 3), (2, 0), (3, 0))
    )

    assert [graph.operations[i].name for i in graph.order] == ["a", "b", "c", "d"]
    assert graph.parents == ((2, 3), (), (1,), (1,))
    assert graph.operations[graph.loss].name == "d"
    assert (graph.forward_ms, graph.backward_ms, graph.memory_bytes) == (4.0, 8.0, 48)


@pytest.mark.parametrize(
    ("operations", "edges", "what"),
    [
        ((), (), "no operations"),
        ((op("a"), op("a")), (), "'a' is there twice"),
        ((op("a", -1.0),), (), "forward_ms of 'a' is -1.0"),
        ((op("a", math.nan),), (), "forward_ms of 'a' is nan"),
        ((op("a", parameter_bytes=-4),), (), "parameter_bytes of 'a' is -4"),
        ((op("a", activation_bytes=1 << 61),), (), "activation_bytes of 'a' is 2305843009"),
        ((op("a"),), ((0, 1),), "not there"),
        ((op("a"), op("b")), ((0, 1), (0, 1)), "a → b is there twice"),
        ((op("a"), op("b"), op("c")), ((0, 1), (1, 2), (2, 1)), "a cycle: b → c → b"),
        ((op("a"),), ((0, 0),), "a cycle: a → a"),
    ],
)
def test_what_is_no_graph_is_refused(
    operations: tuple[Operation, ...], edges: tuple[tuple[int, int], ...], what: str
) -> None:
    with pytest.raises(BadInput, match="is not a computation graph") as refused:
        ComputationGraph("wrong", operations, edges)
    assert what in str(refused.value)


def test_a_loss_outside_the_graph_is_refused() -> None:
    graph = ComputationGraph("one", (op("a"),), ())
    with pytest.raises(BadInput, match="loss is operation 3 of 1"):
        replace(graph, loss=3)
