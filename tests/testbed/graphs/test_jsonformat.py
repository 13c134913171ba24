from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchlight.testbed.graphs import (
    ComputationGraph,
    GraphFileError,
    Operation,
    read_graph,
    write_graph,
)
from patchlight.testbed.graphs.files import graph_from_json, graph_to_json

_times = st.floats(0, 1e6, allow_nan=False)
_sizes = st.integers(0, 2**50)


@st.composite
def graphs(draw: st.DrawFn) -> ComputationGraph:
    names = draw(
        st.lists(
            st.text(min_size=1, max_size=8),
            min_size=1,
            max_size=6,
            unique=True,
        )
    )
    operations = tuple(
        Operation(
            name,
            draw(st.text(max_size=8)),
            draw(_times),
            draw(_times),
            draw(_sizes),
            draw(_sizes),
        )
        for name in names
    )
    pairs = [(a, b) for b in range(len(names)) for a in range(b)]
    edges = (
        tuple(draw(st.lists(st.sampled_from(pairs), unique=True)))
        if pairs
        else ()
    )
    return ComputationGraph(
        draw(st.text(max_size=8)),
        operations,
        edges,
        draw(st.integers(0, len(names) - 1)),
        draw(st.sampled_from(["profiled", "computed"])),
        "some GPU",
        draw(st.none() | st.integers(1, 512)),
    )


@given(graphs())
def test_a_graph_is_read_back_equal(graph: ComputationGraph) -> None:
    assert graph_from_json(graph_to_json(graph), "x.json") == graph


def test_through_a_file(tmp_path: Path, pipedream: Path) -> None:
    graph = read_graph(pipedream / "gnmt.txt")
    write_graph(graph, tmp_path / "gnmt.json")
    assert read_graph(tmp_path / "gnmt.json") == graph


WRONG = """\
{
  "format": "patchlight-graph", "version": 2,
  "name": "wrong", "origin": "guessed", "batch": 0,
  "losss": "a",
  "loss": "z",
  "operations": [
    {"name": "a", "kind": "Op", "forward_ms": 1, "backward_ms": 1,
     "activation_bytes": 1.5, "parameter_bytes": true},
    {"name": "b", "kind": "Op", "forward_ms": -1, "backward_ms": 1,
     "activation_bytes": 1},
    {"kind": "Op"},
    {"name": "a", "kind": "Op", "forward_ms": "fast", "backward_ms": 1,
     "activation_bytes": 1, "parameter_bytes": 1, "colour": "red"}
  ],
  "edges": [["a", "b"], ["b", "a"], ["a"],
    ["a", "c"]]
}
"""


def test_every_mistake_is_named_with_line_and_column() -> None:
    with pytest.raises(GraphFileError) as refused:
        graph_from_json(WRONG, "wrong.json")
    found = [str(mistake) for mistake in refused.value.issues]
    for start, what in [
        ("wrong.json:2:44: ", "version is 2"),
        ("wrong.json:3:30: ", "'profiled' or 'computed'"),
        ("wrong.json:3:50: ", "batch is 0"),
        ("wrong.json:4:12: ", "did you mean 'loss'?"),
        ("wrong.json:5:11: ", "loss is 'z'"),
        ("wrong.json:8:26: ", "whole bytes"),
        ("wrong.json:8:50: ", "parameter_bytes is True"),
        ("wrong.json:9:47: ", "forward_ms is -1"),
        ("wrong.json:9:5: ", "'parameter_bytes' of 'b' is missing"),
        ("wrong.json:11:5: ", "'name'"),
        ("wrong.json:12:5: ", "'a' appears twice"),
        ("wrong.json:12:47: ", "forward_ms is 'fast'"),
        ("wrong.json:13:61: ", "'colour' is unknown"),
        ("wrong.json:15:37: ", "a pair of names"),
        ("wrong.json:16:5: ", "unknown operation 'c'"),
    ]:
        assert any(m.startswith(start) and what in m for m in found), (
            start,
            what,
            found,
        )
    assert sum("closes a cycle" in m for m in found) == 1
    assert len(found) == 16


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"name": ', "x:1:10: Expecting value"),
        ("[1]", "expected an object"),
        ("{}", "'operations' is missing"),
        ('{"operations": {}, "edges": 3}', "x:1:29: expected a list of pairs"),
        ('{"operations": [NaN]}', "NaN is not a JSON number"),
    ],
)
def test_what_is_no_graph_at_all(text: str, what: str) -> None:
    with pytest.raises(GraphFileError) as refused:
        graph_from_json(text, "x")
    assert what in str(refused.value)


ONE = (
    '{"format": "patchlight-graph", "version": 1, "name": "n", "origin": "computed",\n'
    ' "operations": [{"name": "a", "kind": "k", "forward_ms": 1, "backward_ms": 1,\n'
    '  "activation_bytes": 1, "parameter_bytes": 1}], "edges": []}'
)


@pytest.mark.parametrize(
    ("old", "new", "place", "what"),
    [
        (
            '"activation_bytes": 1',
            '"activation_bytes": 1e300',
            "x:3:23: ",
            "0 to 1.15e+18",
        ),
        (
            '"parameter_bytes": 1',
            f'"parameter_bytes": 1{"0" * 400}',
            "x:3:45: ",
            "100000",
        ),
        (
            '"forward_ms": 1',
            '"forward_ms": 1e13',
            "x:2:58: ",
            "expected a number, 0 to 1e+12",
        ),
        (
            '"activation_bytes": 1',
            '"activation_bytes": 1e999',
            "x:3:23: ",
            "inf",
        ),
    ],
)
def test_sizes_of_nonsense(old: str, new: str, place: str, what: str) -> None:
    text = ONE.replace(old, new)
    assert graph_from_json(ONE, "x").name == "n"
    with pytest.raises(GraphFileError) as refused:
        graph_from_json(text, "x")
    (mistake,) = refused.value.issues
    assert str(mistake).startswith(place)
    assert what in str(mistake)
    assert len(str(mistake)) < 150


def test_a_text_nested_without_end() -> None:
    with pytest.raises(GraphFileError, match="nested too deeply"):
        graph_from_json("[" * 100_000, "x")
