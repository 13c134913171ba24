"""Pictures of computation graphs: every operation is in them."""

import io
from pathlib import Path

import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure

from patchlight.emulation.simulator.graphs.drawing import (
    draw_graph,
    lay_out_graph,
)
from patchlight.testbed.graphs import (
    BUILTIN_NAMES,
    ComputationGraph,
    Operation,
    builtin_graph,
    read_graph,
)


def svg_of(figure: Figure) -> str:
    written = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(written, format="svg")
    return written.getvalue()


def test_an_operation_may_have_any_name_and_take_no_time() -> None:
    odd = Operation("$x_1$ <&>", "", 0.0, 0.0, 0, 0)
    assert "&lt;&amp;&gt;" in svg_of(
        draw_graph(ComputationGraph("one", (odd,), ()))
    )


def test_every_operation_is_named_with_its_times_and_sizes() -> None:
    svg = svg_of(draw_graph(builtin_graph("alexnet")))
    assert svg.count("ReLU") == 7
    assert svg.count("Linear(") == 3
    for said in (
        "computed on NVIDIA A100",
        "23 operations",
        "weights 151MB",
        "batch 256",
    ):
        assert said in svg


def test_pipedreams_profiles_are_drawn_too(pipedream: Path) -> None:
    svg = svg_of(draw_graph(read_graph(pipedream / "gnmt.txt")))
    assert "48 operations" in svg
    assert "RecurrentAttention" in svg


@pytest.mark.parametrize("name", BUILTIN_NAMES)
def test_no_two_operations_stand_in_one_place_and_columns_go_down(
    name: str,
) -> None:
    graph = builtin_graph(name)
    layout = lay_out_graph(graph)
    assert len(set(layout.spots)) == len(graph.operations)
    assert all(
        column < layout.columns and row < layout.rows and lane < layout.lanes
        for column, row, lane in layout.spots
    )
    assert all(
        layout.spots[a][:2] < layout.spots[b][:2] for a, b in graph.edges
    )
