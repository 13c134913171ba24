"""Reads and writes graph files: PipeDream profiles and Patchlight's JSON format.

A line of a profile (``profiler/*/profiles/*/graph.txt``) is an operation or an edge::

    node11 -- ReLU(inplace) -- forward_compute_time=0.539, backward_compute_time=0.188, …
    <tab>node10 -- node11

Times are milliseconds, sizes bytes; ``activation_size`` may be a list ``[a; b]``, which is summed.
The loss is the node with the highest number.

Patchlight's format is JSON, one operation or edge per line::

    {
      "format": "patchlight-graph", "version": 1,
      "name": "vgg16", "origin": "computed", "device": "…", "batch": 64, "notes": "…",
      "loss": "fc8",
      "operations": [
        {"name": "conv1", "kind": "Conv2d", "forward_ms": 1.2, "backward_ms": 2.4,
         "activation_bytes": 4096, "parameter_bytes": 1024}
      ],
      "edges": [["conv1", "relu1"]]
    }

``origin`` is ``profiled`` or ``computed``; ``device``, ``batch``, ``notes`` and ``loss`` are
optional (``loss`` defaults to the last operation without successors).
"""

import json
import math
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from patchlight.testbed.errors import BadInput, nearest
from patchlight.testbed.graphs import model
from patchlight.testbed.io.reader import FileIssues, stands_twice


def read_graph(path: str | Path) -> model.ComputationGraph:
    """The graph in a file; a PipeDream profile ``graph.txt`` is named after its folder.

    ``GraphFileError`` with every mistake, ``BadInput`` if the file cannot be read.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = (
            error.strerror
            if isinstance(error, OSError)
            else "it is not UTF-8 text"
        )
        raise BadInput(
            f"reading the graph file {path}: {reason}",
            hint="expected a PipeDream profile (graph.txt) or a Patchlight graph (JSON)",
        ) from error
    if text.lstrip().startswith(("{", "[")):
        return graph_from_json(text, str(path))
    name = (
        path.resolve().parent.name if path.name == "graph.txt" else path.stem
    )
    return _ProfileReader(str(path)).read(text, name)


def write_graph(graph: model.ComputationGraph, path: str | Path) -> None:
    """Write a graph as JSON; ``read_graph`` returns an equal one."""
    try:
        Path(path).write_text(graph_to_json(graph), encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"writing the graph {graph.name!r} to {path}: {error.strerror}"
        ) from error


# Python's JSON parser is ten times as fast as YAML's composer and reads all of JSON's escapes.
# Positions are computed only for mistakes.

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')

# Keys and indices that lead to a value in a JSON text.
Place = tuple[str | int, ...]


class JsonText:
    """A JSON text and the positions of its values."""

    def __init__(self, text: str, issues: FileIssues) -> None:
        self._text = text
        self._issues = issues

    def parse(self) -> Any:
        """The value of the text; raises the collected issues if it is not JSON."""
        repeated = False

        def group(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            nonlocal repeated
            read = dict(pairs)
            repeated = repeated or len(read) < len(pairs)
            return read

        try:
            # Python would read NaN and Infinity, which are not JSON.
            value = json.loads(
                self._text,
                parse_constant=_refuse,
                object_pairs_hook=group,
            )
            if repeated:
                first: dict[Place, int] = {}
                for path, offset, is_key in _walk(self._text):
                    before = (
                        first.setdefault(path, offset) if is_key else offset
                    )
                    if before != offset:
                        message = stands_twice(
                            str(path[-1]), self._place(before)[0]
                        )
                        self._issues.add(*self._place(offset), message)
            self._issues.raise_if_any()
            return value
        except json.JSONDecodeError as error:
            self._issues.add(error.lineno, error.colno, error.msg)
        except ValueError as error:
            self._issues.add(1, 1, str(error))
        except RecursionError:
            self._issues.add(1, 1, "it is nested too deeply")
        return self._issues.raise_if_any()

    def at(self, path: Place, message: str) -> None:
        """Note an issue at the value at ``path``, or at the start if it has no position."""
        self._issues.add(*self._place(self._offsets.get(path, 0)), message)

    def _place(self, offset: int) -> tuple[int, int]:
        line = self._text.count("\n", 0, offset) + 1
        return line, offset - self._text.rfind("\n", 0, offset)

    @cached_property
    def _offsets(self) -> dict[Place, int]:
        return positions(self._text)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


def positions(text: str) -> dict[Place, int]:
    """Where each value of well-formed JSON begins: its path → offset."""
    offsets: dict[Place, int] = {}
    for path, offset, is_key in _walk(text):
        if not is_key:
            offsets.setdefault(path, offset)
    return offsets


def _walk(text: str) -> Iterator[tuple[Place, int, bool]]:
    path: list[str | int] = []
    # For each open bracket: whether it is an object waiting for a key.
    key_next: list[bool] = []
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in "}]":
            path.pop()
            key_next.pop()
        elif mark == ",":
            last = path[-1]
            if isinstance(last, int):
                path[-1] = last + 1
            else:
                key_next[-1] = True
        elif mark == ":":
            key_next[-1] = False
        elif key_next and key_next[-1]:
            path[-1] = json.loads(mark)
            yield tuple(path), token.start(), True
        else:
            yield tuple(path), token.start(), False
            if mark in "{[":
                path.append("" if mark == "{" else 0)
                key_next.append(mark == "{")


FORMAT = "patchlight-graph"
VERSION = 1
_HEAD = (
    "format",
    "version",
    "name",
    "origin",
    "device",
    "batch",
    "notes",
    "loss",
)
_KEYS = (*_HEAD, "operations", "edges")
_NUMBERS = ("forward_ms", "backward_ms", "activation_bytes", "parameter_bytes")


def graph_to_json(graph: model.ComputationGraph) -> str:
    """The graph as text; ``graph_from_json`` returns an equal one."""
    names = [operation.name for operation in graph.operations]
    own = {"format": FORMAT, "version": VERSION, "loss": names[graph.loss]}
    head = {
        key: own[key] if key in own else getattr(graph, key) for key in _HEAD
    }
    operations = [
        {
            "name": o.name,
            "kind": o.kind,
            **{key: getattr(o, key) for key in _NUMBERS},
        }
        for o in graph.operations
    ]
    edges = [[names[source], names[target]] for source, target in graph.edges]
    if graph.batch is None:
        del head["batch"]
    lines = [
        f"  {json.dumps(key)}: {json.dumps(value)}"
        for key, value in head.items()
    ]
    for key, items in (("operations", operations), ("edges", edges)):
        body = ",\n".join(f"    {json.dumps(item)}" for item in items)
        lines.append(
            f'  "{key}": [\n{body}\n  ]' if items else f'  "{key}": []'
        )
    return "{\n" + ",\n".join(lines) + "\n}\n"


def graph_from_json(text: str, file: str) -> model.ComputationGraph:
    """The graph in a file's text; ``file`` is for messages. May raise ``GraphFileError``."""
    return _Reader(text, file).read()


class _Reader:
    def __init__(self, text: str, file: str) -> None:
        self.issues = FileIssues(file, model.GraphFileError)
        self.text = JsonText(text, self.issues)

    def read(self) -> model.ComputationGraph:
        document = self.text.parse()
        if not isinstance(document, dict):
            self.text.at(
                (), "expected an object with 'operations' and 'edges'"
            )
            self.issues.raise_if_any()
        self._head(document)
        operations = self._operations(document.get("operations"))
        index_of = {
            o.name: index for index, o in reversed([*enumerate(operations)])
        }
        edges = self._edges(document.get("edges", []), index_of)
        loss = document.get("loss")
        if loss is not None and not (
            isinstance(loss, str) and loss in index_of
        ):
            self.text.at(
                ("loss",), f"loss is {loss!r}: no operation has that name"
            )
        cycle = model.find_cycle(len(operations), list(edges))
        if cycle:
            written = " → ".join(operations[index].name for index in cycle)
            closing = ("edges", edges[cycle[-2], cycle[-1]])
            self.text.at(closing, f"this edge closes a cycle: {written}")
        self.issues.raise_if_any()
        return model.ComputationGraph(
            document["name"],
            tuple(operations),
            tuple(edges),
            -1 if loss is None else index_of[loss],
            document["origin"],
            document.get("device", "unknown"),
            document.get("batch"),
            document.get("notes", ""),
        )

    def _head(self, document: dict[str, Any]) -> None:
        for key in document.keys() - set(_KEYS):
            self.text.at((key,), f"{key!r} is unknown: {nearest(key, _KEYS)}")
        for key in (
            "format",
            "version",
            "name",
            "origin",
            "operations",
            "edges",
        ):
            if key not in document:
                self.text.at((), f"{key!r} is missing")
        for key, expected in (("format", FORMAT), ("version", VERSION)):
            if key in document and document[key] != expected:
                self.text.at(
                    (key,),
                    f"{key} is {document[key]!r}: expected {expected!r}",
                )
        if document.get("origin", "computed") not in ("profiled", "computed"):
            self.text.at(
                ("origin",), "origin: expected 'profiled' or 'computed'"
            )
        for key in ("name", "device", "notes"):
            if key in document and not isinstance(document[key], str):
                self.text.at((key,), f"{key}: expected text")
        batch = document.get("batch", 1)
        if type(batch) is not int or batch < 1:
            self.text.at(
                ("batch",),
                f"batch is {batch!r}: expected a whole number, 1 or more",
            )

    def _operations(self, listed: Any) -> list[model.Operation]:
        operations: list[model.Operation] = []
        if not isinstance(listed, list) or not listed:
            if listed is not None:
                self.text.at(
                    ("operations",),
                    "expected a list of at least one operation",
                )
            return operations
        first: set[str] = set()
        for index, item in enumerate(listed):
            path = ("operations", index)
            name = item.get("name") if isinstance(item, dict) else None
            if not isinstance(item, dict) or not isinstance(name, str):
                self.text.at(path, "expected an object with a 'name'")
                continue
            if name in first:
                self.text.at(path, f"operation {name!r} appears twice")
            first.add(name)
            known = ("name", "kind", *_NUMBERS)
            for key in item.keys() - set(known):
                self.text.at(
                    (*path, key), f"{key!r} is unknown: {nearest(key, known)}"
                )
            numbers = [
                self._number((*path, key), item, key) for key in _NUMBERS
            ]
            kind = str(item.get("kind", ""))
            times = numbers[:2]
            sizes = map(int, numbers[2:])
            operations.append(
                model.Operation(
                    name,
                    kind,
                    times[0],
                    times[1],
                    *sizes,
                )
            )
        return operations

    def _number(
        self,
        path: Place,
        item: dict[str, Any],
        key: str,
    ) -> float:
        value = item.get(key)
        if value is None:
            self.text.at(path[:-1], f"{key!r} of {item['name']!r} is missing")
        elif type(value) not in (
            int,
            float,
        ) or not 0 <= value <= model.most_of(key):
            expected = f"expected a number, 0 to {model.most_of(key):.3g}"
            written = repr(value)
            shown = written if len(written) <= 40 else f"{written[:40]}…"
            self.text.at(path, f"{key} is {shown}: {expected}")
        elif key.endswith("bytes") and value != int(value):
            self.text.at(path, f"{key} is {value!r}: expected whole bytes")
        else:
            return float(value)
        return 0.0

    def _edges(
        self, listed: Any, index_of: dict[str, int]
    ) -> dict[tuple[int, int], int]:
        """Edges between indices of operations, with each edge's index in the list."""
        edges: dict[tuple[int, int], int] = {}
        if not isinstance(listed, list):
            self.text.at(("edges",), "expected a list of pairs of names")
            return edges
        for number, item in enumerate(listed):
            path = ("edges", number)
            is_list = isinstance(item, list) and len(item) == 2
            if not is_list or not all(isinstance(end, str) for end in item):
                self.text.at(
                    path, "expected a pair of names, like ['conv1', 'relu1']"
                )
                continue
            absent = [end for end in item if end not in index_of]
            for end in absent:
                self.text.at(
                    path,
                    f"unknown operation {end!r}: {nearest(end, index_of)}",
                )
            if absent:
                continue
            edge = index_of[item[0]], index_of[item[1]]
            if edge in edges:
                self.text.at(path, "this edge appears twice")
            edges.setdefault(edge, number)
        return edges


_EDGE = re.compile(r"\s*node(\d+) -- node(\d+)\s*")
_NODE = re.compile(r"\s*node(\d+) -- (.*) -- (.*?)\s*")
_VALUE = re.compile(r"(\w+)=(\[[^\]]*\]|[^,\]]*)(?:, |$)")
_PROFILE_KEYS = (
    "forward_compute_time",
    "backward_compute_time",
    "activation_size",
    "parameter_size",
)


class _ProfileReader:
    def __init__(self, file: str) -> None:
        self.issues = FileIssues(file, model.GraphFileError)
        self.indices: dict[int, int] = {}
        self.operations: list[model.Operation] = []

    def read(self, text: str, name: str) -> model.ComputationGraph:
        edges: list[tuple[int, re.Match[str]]] = []
        for number, line in enumerate(text.splitlines(), 1):
            if edge := _EDGE.fullmatch(line):
                edges.append((number, edge))
            elif node := _NODE.fullmatch(line):
                self._operation(number, node)
            elif line.strip():
                expected = "'nodeN -- what -- forward_compute_time=…, …' or 'nodeA -- nodeB'"
                message = (
                    f"cannot read {line.strip()[:60]!r}: expected {expected}"
                )
                self.issues.add(number, 1, message)
        if not self.operations and not self.issues:
            self.issues.add(
                1,
                1,
                "no operations: expected lines like 'node1 -- Input -- …'",
            )
        lines = self._edges(edges)
        cycle = model.find_cycle(len(self.operations), list(lines))
        if cycle:
            path = " → ".join(self.operations[index].name for index in cycle)
            self.issues.add(
                lines[cycle[-2], cycle[-1]],
                1,
                f"this edge closes a cycle: {path}",
            )
        self.issues.raise_if_any()
        loss = self.indices[max(self.indices)]
        return model.ComputationGraph(
            name,
            tuple(self.operations),
            tuple(lines),
            loss,
        )

    def _operation(self, line: int, match: re.Match[str]) -> None:
        number = int(match[1])
        if number in self.indices:
            self.issues.add(
                line, match.start(1) - 3, f"node{number} appears twice"
            )
        start = match.start(3)
        fields = {
            m[1]: (m[2], start + m.start(2) + 1)
            for m in _VALUE.finditer(match[3])
        }
        for key in fields.keys() - set(_PROFILE_KEYS):
            message = (
                f"{key!r} is unknown: expected {', '.join(_PROFILE_KEYS)}"
            )
            self.issues.add(line, fields[key][1], message)
        values = (
            self._value(
                line,
                start + 1,
                key,
                fields.get(key),
            )
            for key in _PROFILE_KEYS
        )
        forward_ms, backward_ms, *sizes = values
        self.indices.setdefault(number, len(self.operations))
        self.operations.append(
            model.Operation(
                f"node{number}",
                match[2],
                forward_ms,
                backward_ms,
                *map(round, sizes),
            )
        )

    def _value(
        self,
        line: int,
        column: int,
        key: str,
        field: tuple[str, int] | None,
    ) -> float:
        if field is None:
            self.issues.add(line, column, f"{key} is missing")
            return 0.0
        written, column = field
        listed = written.startswith("[")
        parts = (
            written.strip("[]").split(";")
            if listed and written != "[]"
            else [written]
        )
        try:
            values = [float(part) for part in parts]
        except ValueError:
            values = [math.nan]
        most = model.MOST_MS if key.endswith("_time") else model.MOST_BYTES
        if (
            all(0 <= value <= most for value in values)
            and (total := math.fsum(values)) <= most
        ):
            return total
        self.issues.add(
            line,
            column,
            f"{key} is {written!r}: expected a number, 0 to {most:.3g}",
        )
        return 0.0

    def _edges(
        self, matches: list[tuple[int, re.Match[str]]]
    ) -> dict[tuple[int, int], int]:
        """Edges between indices, with the line of each."""
        lines: dict[tuple[int, int], int] = {}
        for line, match in matches:
            ends = [int(match[1]), int(match[2])]
            absent = [end for end in ends if end not in self.indices]
            for end in dict.fromkeys(absent):
                column = match.start(1 + ends.index(end)) - 3
                self.issues.add(line, column, f"node{end} does not exist")
            if absent:
                continue
            edge = self.indices[ends[0]], self.indices[ends[1]]
            if edge in lines:
                message = f"this edge is already on line {lines[edge]}"
                self.issues.add(line, match.start(1) - 3, message)
            lines.setdefault(edge, line)
        return lines
