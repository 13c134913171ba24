import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import (
    ComputationGraph,
    Operation,
    PartitionedGraph,
    mirror,
    partition,
    read_graph,
    splits_of,
)


def chain(*forward_ms: float) -> ComputationGraph:
    """Operations one after the other; the i-th holds 100·(i+1) bytes, most of it activations."""
    operations = tuple(
        Operation(f"op{i}", "Test", ms, 3 * ms, 90 * (i + 1), 10 * (i + 1))
        for i, ms in enumerate(forward_ms)
    )
    return ComputationGraph(
        "chain",
        operations,
        tuple((i, i + 1) for i in range(len(operations) - 1)),
    )


def parts_and_edges(graph: PartitionedGraph) -> tuple[int, int]:
    """Parts of all operations, and edges between them, synchronisation included."""
    half = graph.training.half
    splits = graph.splits
    between = sum(
        splits[source] * splits[target]
        for source, target in graph.training.edges
    )
    return sum(splits), between + sum(n * (n - 1) for n in splits[half:])


def test_the_backward_pass_is_the_mirror_image() -> None:
    training = mirror(chain(1.0, 2.0, 3.0))

    assert training.edges == ((0, 1), (1, 2), (2, 5), (4, 3), (5, 4))
    assert training.compute_ms.tolist() == [1, 2, 3, 3, 6, 9]
    assert training.memory_bytes.tolist() == [100, 200, 300, 100, 200, 300]
    assert training.activation_edges_bytes == 90 + 180 + 270 + 180 + 270
    with pytest.raises(ValueError, match="read-only"):
        training.compute_ms[0] = 0


def test_the_quantum_limits_the_parts_and_they_are_even_or_one() -> None:
    training = mirror(chain(0.0, 0.001, 0.011, 0.03, 0.05, 5.0))
    assert splits_of(training, 16)[:6] == (1, 2, 2, 4, 6, 16)
    assert splits_of(training, 4)[:6] == (1, 2, 2, 4, 4, 4)
    assert splits_of(training, 1) == (1,) * 12
    assert splits_of(training, 16, quantum_ms=2.5)[:6] == (1, 2, 2, 2, 2, 2)


def test_only_numbers_that_the_cluster_serves() -> None:
    training = mirror(chain(0.095, 5.0))
    assert splits_of(training, 16)[:2] == (10, 16)
    assert splits_of(training, 16, served=(1, 2, 4, 6, 8, 16))[:2] == (8, 16)


@pytest.mark.parametrize("degree", [0, -2, 3, 15])
def test_odd_degrees_are_refused(degree: int) -> None:
    with pytest.raises(BadInput, match=f"by degree {degree}"):
        partition(mirror(chain(1.0)), degree)


def test_a_quantum_of_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match="more than 0"):
        splits_of(mirror(chain(1.0)), 2, 0.0)


def test_work_and_memory_are_shared_out() -> None:
    training = mirror(chain(1.0, 2.0, 0.0))
    graph = partition(training, 4)

    assert graph.splits == (4, 4, 1) * 2
    parts = np.array(graph.splits)
    assert (graph.part_ms * parts).tolist() == training.compute_ms.tolist()
    assert (
        graph.part_bytes * parts
    ).tolist() == training.memory_bytes.tolist()
    # Forward 16 + 4, loss 1, backward 4 + 16, and 2 · 4·3 to synchronise.
    assert parts_and_edges(graph) == (18, 65)
    assert graph.forward_splits == (1, 4)
    assert graph.max_split == 4


def test_edges_take_the_size_of_whoever_was_split_before() -> None:
    graph = partition(mirror(chain(1.0, 2.0, 0.0)), 4)
    by_edge = dict(
        zip(graph.training.edges, graph.edge_bytes.tolist(), strict=True)
    )

    assert by_edge[0, 1] == 100 / 4 / 4  # op0 was split first
    assert by_edge[1, 2] == 300 / 4  # op2 is whole: its memory, by op1's parts
    assert by_edge[2, 5] == 300  # both whole: the source's memory
    assert by_edge[5, 4] == 300 / 4
    assert by_edge[4, 3] == 100 / 4 / 4  # op0's twin was split first


@pytest.mark.parametrize(
    ("name", "splits", "parts", "edges"),
    [("alexnet", (1, 16), 616, 13172), ("gnmt", (1, 6, 8, 16), 466, 5292)],
)
def test_real_profiles_at_degree_16(
    name: str, splits: tuple[int, ...], parts: int, edges: int, pipedream: Path
) -> None:
    graph = partition(mirror(read_graph(pipedream / f"{name}.txt")), 16)
    assert graph.forward_splits == splits
    assert parts_and_edges(graph) == (parts, edges)


def op(name: str, forward_ms: float = 1.0, **other: float) -> Operation:
    numbers = {
        "backward_ms": 2.0,
        "activation_bytes": 8,
        "parameter_bytes": 4,
        **other,
    }
    return Operation(name, "Test", forward_ms, **numbers)  # type: ignore[arg-type]


def test_a_diamond_knows_its_order_parents_and_loss() -> None:
    graph = ComputationGraph(
        "diamond",
        (op("d"), op("a"), op("b"), op("c")),
        ((1, 2), (1, 3), (2, 0), (3, 0)),
    )

    assert [graph.operations[i].name for i in graph.order] == [
        "a",
        "b",
        "c",
        "d",
    ]
    assert graph.parents == ((2, 3), (), (1,), (1,))
    assert graph.operations[graph.loss].name == "d"
    assert (graph.forward_ms, graph.backward_ms, graph.memory_bytes) == (
        4.0,
        8.0,
        48,
    )


@pytest.mark.parametrize(
    ("operations", "edges", "what"),
    [
        ((), (), "no operations"),
        ((op("a"), op("a")), (), "'a' appears twice"),
        ((op("a", -1.0),), (), "forward_ms of 'a' is -1.0"),
        ((op("a", math.nan),), (), "forward_ms of 'a' is nan"),
        ((op("a", parameter_bytes=-4),), (), "parameter_bytes of 'a' is -4"),
        (
            (op("a", activation_bytes=1 << 61),),
            (),
            "activation_bytes of 'a' is 2305843009",
        ),
        ((op("a"),), ((0, 1),), "unknown end"),
        ((op("a"), op("b")), ((0, 1), (0, 1)), "a → b appears twice"),
        (
            (op("a"), op("b"), op("c")),
            ((0, 1), (1, 2), (2, 1)),
            "a cycle: b → c → b",
        ),
        ((op("a"),), ((0, 0),), "a cycle: a → a"),
    ],
)
def test_what_is_no_graph_is_refused(
    operations: tuple[Operation, ...],
    edges: tuple[tuple[int, int], ...],
    what: str,
) -> None:
    with pytest.raises(BadInput, match="invalid computation graph") as refused:
        ComputationGraph("wrong", operations, edges)
    assert what in str(refused.value)


def test_a_loss_outside_the_graph_is_refused() -> None:
    graph = ComputationGraph("one", (op("a"),), ())
    with pytest.raises(BadInput, match="loss is operation 3 of 1"):
        replace(graph, loss=3)
