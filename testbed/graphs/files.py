"""Graph files in and out: ours (JSON) or PipeDream's profiles, told apart by what is in them.

A line of a profile (``profiler/*/profiles/*/graph.txt``) is an operation or an edge::

    node11 -- ReLU(inplace) -- forward_compute_time=0.539, backward_compute_time=0.188, …
    <tab>node10 -- node11

Times are milliseconds, sizes bytes; ``activation_size`` may be a list ``[a; b]``, of which the
sum counts. The loss is the node with the highest number.
"""

import math
import re
from pathlib import Path

from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs.jsonformat import graph_from_json, graph_to_json
from patchlight.testbed.graphs.model import (
    MOST_BYTES,
    MOST_MS,
    ComputationGraph,
    GraphFileError,
    Operation,
    find_cycle,
)
from patchlight.testbed.io.issues import FileIssues

_EDGE = re.compile(r"\s*node(\d+) -- node(\d+)\s*")
_NODE = re.compile(r"\s*node(\d+) -- (.*) -- (.*?)\s*")
_VALUE = re.compile(r"(\w+)=(\[[^\]]*\]|[^,\]]*)(?:, |$)")
_KEYS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")


class _ProfileReader:
    def __init__(self, file: str) -> None:
        self.issues = FileIssues(file, GraphFileError)
        self.indices: dict[int, int] = {}
        self.operations: list[Operation] = []

    def read(self, text: str, name: str) -> ComputationGraph:
        edges: list[tuple[int, re.Match[str]]] = []
        for number, line in enumerate(text.splitlines(), 1):
            if edge := _EDGE.fullmatch(line):
                edges.append((number, edge))
            elif node := _NODE.fullmatch(line):
                self._operation(number, node)
            elif line.strip():
                expected = "'nodeN -- what -- forward_compute_time=…, …' or 'nodeA -- nodeB'"
                message = f"cannot read {line.strip()[:60]!r}: expected {expected}"
                self.issues.add(number, 1, message)
        if not self.operations and not self.issues:
            self.issues.add(1, 1, "no operations: expected lines like 'node1 -- Input -- …'")
        lines = self._edges(edges)
        cycle = find_cycle(len(self.operations), list(lines))
        if cycle:
            path = " → ".join(self.operations[index].name for index in cycle)
            self.issues.add(lines[cycle[-2], cycle[-1]], 1, f"this edge closes a cycle: {path}")
        self.issues.raise_if_any()
        loss = self.indices[max(self.indices)]
        return ComputationGraph(name, tuple(self.operations), tuple(lines), loss)

    def _operation(self, line: int, match: re.Match[str]) -> None:
        number = int(match[1])
        if number in self.indices:
            self.issues.add(line, match.start(1) - 3, f"node{number} is there twice")
        start = match.start(3)
        fields = {m[1]: (m[2], start + m.start(2) + 1) for m in _VALUE.finditer(match[3])}
        for key in fields.keys() - set(_KEYS):
            message = f"{key!r} is unknown: expected {', '.join(_KEYS)}"
            self.issues.add(line, fields[key][1], message)
        values = (self._value(line, start + 1, key, fields.get(key)) for key in _KEYS)
        forward_ms, backward_ms, *sizes = values
        self.indices.setdefault(number, len(self.operations))
        self.operations.append(
            Operation(f"node{number}", match[2], forward_ms, backward_ms, *map(round, sizes))
        )

    def _value(self, line: int, column: int, key: str, field: tuple[str, int] | None) -> float:
        if field is None:
            self.issues.add(line, column, f"{key} is missing")
            return 0.0
        written, column = field
        listed = written.startswith("[")
        parts = written.strip("[]").split(";") if listed and written != "[]" else [written]
        try:
            values = [float(part) for part in parts]
        except ValueError:
            values = [math.nan]
        most = MOST_MS if key.endswith("_time") else MOST_BYTES
        if all(0 <= value <= most for value in values) and (total := math.fsum(values)) <= most:
            return total
        self.issues.add(line, column, f"{key} is {written!r}: expected a number, 0 to {most:.3g}")
        return 0.0

    def _edges(self, matches: list[tuple[int, re.Match[str]]]) -> dict[tuple[int, int], int]:
        """Edges between indices, with the line where each stands."""
        lines: dict[tuple[int, int], int] = {}
        for line, match in matches:
            ends = [int(match[1]), int(match[2])]
            absent = [end for end in ends if end not in self.indices]
            for end in dict.fromkeys(absent):
                column = match.start(1 + ends.index(end)) - 3
                self.issues.add(line, column, f"node{end} is not there")
            if absent:
                continue
            edge = self.indices[ends[0]], self.indices[ends[1]]
            if edge in lines:
                message = f"this edge is already on line {lines[edge]}"
                self.issues.add(line, match.start(1) - 3, message)
            lines.setdefault(edge, line)
        return lines


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
    return _ProfileReader(str(path)).read(text, name)


def write_graph(graph: ComputationGraph, path: str | Path) -> None:
    """Write a graph in our JSON format; ``read_graph`` gives an equal one back."""
    try:
        Path(path).write_text(graph_to_json(graph), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"writing the graph {graph.name!r} to {path}: {error.strerror}") from error
