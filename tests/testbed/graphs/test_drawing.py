"""The picture of a computation graph: every operation is in it, and none covers another."""

import io
from pathlib import Path

import pytest
from matplotlib import rc_context

from patchlight.testbed.drawing import FORMATS
from patchlight.testbed.graphs import (
    BUILTIN_NAMES,
    ComputationGraph,
    Operation,
    builtin_graph,
    read_graph,
)
from patchlight.testbed.graphs.drawing import draw_graph, lay_out_graph


def svg_of(graph: ComputationGraph) -> str:
    written = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):
        draw_graph(graph).savefig(written, format="svg")
    return written.getvalue()


def test_every_operation_is_named_with_its_times_and_sizes() -> None:
    svg = svg_of(builtin_graph("alexnet"))
    assert svg.count("ReLU") == 7
    assert svg.count("Linear(") == 3
    for said in ("computed on NVIDIA A100", "23 operations", "weights 151MB", "batch 256"):
        assert said in svg


def test_pipedreams_profiles_are_drawn_too(pipedream: Path) -> None:
    svg = svg_of(read_graph(pipedream / "gnmt.txt"))
    assert "48 operations" in svg
    assert "RecurrentAttention" in svg


@pytest.mark.parametrize("name", BUILTIN_NAMES)
def test_no_two_operations_stand_in_one_place_and_columns_go_down(name: str) -> None:
    graph = builtin_graph(name)
    layout = lay_out_graph(graph)
    assert len(set(layout.spots)) == len(graph.operations)
    assert all(
        column < layout.columns and row < layout.rows and lane < layout.lanes
        for column, row, lane in layout.spots
    )
    assert all(layout.spots[a][:2] < layout.spots[b][:2] for a, b in graph.edges)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_written(kind: str) -> None:
    odd = Operation("$x_1$ <&>", "", 0.0, 0.0, 0, 0)  # no formula, no markup, no time at all
    written = io.BytesIO()
    draw_graph(ComputationGraph("one", (odd,), ())).savefig(written, format=kind)
    start = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[kind]
    assert written.getvalue().startswith(start)
