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

from patchlight.testbed.files.issues import FileIssue
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
        self.file = file
        self.mistakes: list[FileIssue] = []
        self.places: dict[int, int] = {}
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
                self._wrong(
                    number,
                    1,
                    f"cannot read {line.strip()[:60]!r}: expected "
                    "'nodeN -- what -- forward_compute_time=…, …' or "
                    "'nodeA -- nodeB'",
                )
        if not self.operations and not self.mistakes:
            self._wrong(1, 1, "no operations: expected lines like 'node1 -- Input -- …'")
        lines = self._edges(edges)
        cycle = find_cycle(len(self.operations), list(lines))
        if cycle:
            path = " → ".join(self.operations[place].name for place in cycle)
            self._wrong(lines[cycle[-2], cycle[-1]], 1, f"this edge closes a cycle: {path}")
        if self.mistakes:
            raise GraphFileError(self.mistakes)
        loss = self.places[max(self.places)]
        return ComputationGraph(name, tuple(self.operations), tuple(lines), loss)

    def _operation(self, line: int, match: re.Match[str]) -> None:
        number = int(match[1])
        if number in self.places:
            self._wrong(line, match.start(1) - 3, f"node{number} is there twice")
        start = match.start(3)
        found = {m[1]: (m[2], start + m.start(2) + 1) for m in _VALUE.finditer(match[3])}
        for key in found.keys() - set(_KEYS):
            self._wrong(line, found[key][1], f"{key!r} is unknown: expected {', '.join(_KEYS)}")
        values = [self._value(line, start + 1, key, found.get(key)) for key in _KEYS]
        self.places.setdefault(number, len(self.operations))
        self.operations.append(
            Operation(
                f"node{number}", match[2], values[0], values[1], round(values[2]), round(values[3])
            )
        )

    def _value(self, line: int, column: int, key: str, found: tuple[str, int] | None) -> float:
        if found is None:
            self._wrong(line, column, f"{key} is missing")
            return 0.0
        written, column = found
        listed = written.startswith("[")
        parts = written.strip("[]").split(";") if listed and written != "[]" else [written]
        try:
            values = [float(part) for part in parts]
        except ValueError:
            values = [math.nan]
        most = MOST_MS if key.endswith("_time") else MOST_BYTES
        if all(0 <= value <= most for value in values) and (total := math.fsum(values)) <= most:
            return total
        self._wrong(line, column, f"{key} is {written!r}: expected a number, 0 to {most:.3g}")
        return 0.0

    def _edges(self, found: list[tuple[int, re.Match[str]]]) -> dict[tuple[int, int], int]:
        """Edges between places, with the line where each stands."""
        lines: dict[tuple[int, int], int] = {}
        for line, match in found:
            ends = [int(match[1]), int(match[2])]
            absent = [end for end in ends if end not in self.places]
            for end in dict.fromkeys(absent):
                self._wrong(line, match.start(1 + ends.index(end)) - 3, f"node{end} is not there")
            if absent:
                continue
            edge = self.places[ends[0]], self.places[ends[1]]
            if edge in lines:
                self._wrong(line, match.start(1) - 3, f"this edge is already on line {lines[edge]}")
            lines.setdefault(edge, line)
        return lines

    def _wrong(self, line: int, column: int, message: str) -> None:
        self.mistakes.append(FileIssue(self.file, line, column, message))
