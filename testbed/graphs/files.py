"""Graph files in and out: ours (JSON) or PipeDream's profiles, told apart by what is in them."""

from __future__ import annotations

from pathlib import Path

from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs.jsonformat import graph_from_json, graph_to_json
from patchlight.testbed.graphs.model import ComputationGraph
from patchlight.testbed.graphs.pipedream import graph_from_pipedream


def read_graph(path: str | Path) -> ComputationGraph:
    """The graph in a file; a PipeDream profile ``graph.txt`` is named after its folder.

    ``GraphFileError`` with every mistake, ``BadInput`` if the file cannot be read.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadInput(
            f"reading the graph file {path}: {reason}",
            hint="expected a PipeDream profile (graph.txt) or a Patchlight graph (JSON)",
        ) from error
    if text.lstrip().startswith(("{", "[")):
        return graph_from_json(text, str(path))
    name = path.resolve().parent.name if path.name == "graph.txt" else path.stem
    return graph_from_pipedream(text, str(path), name)


def write_graph(graph: ComputationGraph, path: str | Path) -> None:
    """Write a graph in our JSON format; ``read_graph`` gives an equal one back."""
    try:
        Path(path).write_text(graph_to_json(graph), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"writing the graph {graph.name!r} to {path}: {error.strerror}") from error
