r"""Reader of PipeDream's profiles (``profiler/*/profiles/*/graph.txt``).

A line is an operation or an edge::

    node11 -- ReLU(inplace) -- forward_compute_time=0.539, backward_compute_time=0.188, …
    <tab>node10 -- node11

Times are milliseconds, sizes bytes; ``activation_size`` may be a list ``[a; b]``, of which the
sum counts. The loss is the node with the highest number.
"""

from __future__ import annotations

import math
import re

from patchlight.testbed.files.issues import FileIssues
from patchlight.testbed.graphs.model import (
    MOST_BYTES,
    MOST_MS,
    ComputationGraph,
    GraphFileError,
    Operation,
    find_cycle,
)

_EDGE = re.compile(r"\s*node(\d+) -- node(\d+)\s*")
_NODE = re.compile(r"\s*node(\d+) -- (.*) -- (.*?)\s*")
_VALUE = re.compile(r"(\w+)=(\[[^\]]*\]|[^,\]]*)(?:, |$)")
_KEYS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")


def graph_from_pipedream(text: str, file: str, name: str) -> ComputationGraph:
    """The graph in a profile's text; ``file`` is for messages. ``GraphFileError``."""
    return _Reader(file).read(text, name)


class _Reader:
    def __init__(self, file: str) -> None:
        self.issues = FileIssues(file, GraphFileError)
        self.indices: dict[int, int] = {}
        self.operations: list[Operation] = []

    def read(self, text: str, name: str) -> ComputationGraph:
        edges: list[tuple[int, re.Match[str]]] = []
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip():
                continue
            if edge := _EDGE.fullmatch(line):
                edges.append((number, edge))
            elif node := _NODE.fullmatch(line):
                self._operation(number, node)
            else:
                self.issues.add(
                    number,
                    1,
                    f"cannot read {line.strip()[:60]!r}: expected "
                    "'nodeN -- what -- forward_compute_time=…, …' or "
                    "'nodeA -- nodeB'",
                )
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
            self.issues.add(
                line, fields[key][1], f"{key!r} is unknown: expected {', '.join(_KEYS)}"
            )
        values = [self._value(line, start + 1, key, fields.get(key)) for key in _KEYS]
        self.indices.setdefault(number, len(self.operations))
        self.operations.append(
            Operation(
                f"node{number}", match[2], values[0], values[1], round(values[2]), round(values[3])
            )
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
                self.issues.add(
                    line, match.start(1 + ends.index(end)) - 3, f"node{end} is not there"
                )
            if absent:
                continue
            edge = self.indices[ends[0]], self.indices[ends[1]]
            if edge in lines:
                self.issues.add(
                    line, match.start(1) - 3, f"this edge is already on line {lines[edge]}"
                )
            lines.setdefault(edge, line)
        return lines
