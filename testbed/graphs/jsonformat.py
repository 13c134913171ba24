"""Our own format of computation graphs: JSON, one operation or edge a line.

::

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

``origin`` is ``profiled`` or ``computed``; ``device``, ``batch``, ``notes`` and ``loss`` may be
left out (without ``loss``, it is the last operation that feeds nothing).
"""

from __future__ import annotations

import json
import re
from typing import Any

from patchlight.testbed.files.issues import FileIssue, nearest
from patchlight.testbed.graphs.model import (
    ComputationGraph,
    GraphFileError,
    Operation,
    find_cycle,
    most_of,
)

FORMAT, VERSION = "patchlight-graph", 1
_KEYS = ("format", "version", "name", "origin", "device", "batch", "notes", "loss", "operations",
         "edges")  # fmt: skip
_NUMBERS = ("forward_ms", "backward_ms", "activation_bytes", "parameter_bytes")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')

_Path = tuple[str | int, ...]


def graph_to_json(graph: ComputationGraph) -> str:
    """The graph as text that ``graph_from_json`` reads back equal."""
    names = [operation.name for operation in graph.operations]
    head = {
        "format": FORMAT,
        "version": VERSION,
        "name": graph.name,
        "origin": graph.origin,
        "device": graph.device,
        "batch": graph.batch,
        "notes": graph.notes,
        "loss": names[graph.loss],
    }
    operations = [
        {"name": o.name, "kind": o.kind, **{key: getattr(o, key) for key in _NUMBERS}}
        for o in graph.operations
    ]
    edges = [[names[source], names[target]] for source, target in graph.edges]
    if graph.batch is None:
        del head["batch"]
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for key, items in (("operations", operations), ("edges", edges)):
        body = ",\n".join(f"    {json.dumps(item)}" for item in items)
        lines.append(f'  "{key}": [\n{body}\n  ]' if items else f'  "{key}": []')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def graph_from_json(text: str, file: str) -> ComputationGraph:
    """The graph in a file's text; ``file`` is for messages. ``GraphFileError``."""
    try:
        # Not finite numbers are no JSON, though Python would read them.
        document = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise GraphFileError([FileIssue(file, error.lineno, error.colno, error.msg)]) from error
    except ValueError as error:
        raise GraphFileError([FileIssue(file, 1, 1, str(error))]) from error
    except RecursionError as error:
        raise GraphFileError([FileIssue(file, 1, 1, "it is nested too deeply")]) from error
    return _Reader(text, file).read(document)


def _shown(value: Any) -> str:
    written = repr(value)
    return written if len(written) <= 40 else f"{written[:40]}…"


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


def positions(text: str) -> dict[_Path, int]:
    """Where each value of a well-formed JSON text begins: its path → offset."""
    found: dict[_Path, int] = {}
    path: list[str | int] = []
    key_next: list[bool] = []  # for each open bracket: is it an object waiting for a key?
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
        else:
            found.setdefault(tuple(path), token.start())
            if mark in "{[":
                path.append("" if mark == "{" else 0)
                key_next.append(mark == "{")
    return found


class _Reader:
    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        self.offsets = positions(text)
        self.mistakes: list[FileIssue] = []

    def read(self, document: Any) -> ComputationGraph:
        if not isinstance(document, dict):
            self._wrong((), "expected an object with 'operations' and 'edges'")
            raise GraphFileError(self.mistakes)
        self._head(document)
        operations = self._operations(document.get("operations"))
        places = {operation.name: place for place, operation in reversed([*enumerate(operations)])}
        edges = self._edges(document.get("edges", []), places)
        loss = document.get("loss")
        if loss is not None and not (isinstance(loss, str) and loss in places):
            self._wrong(("loss",), f"loss is {loss!r}: no operation has that name")
        cycle = find_cycle(len(operations), list(edges))
        if cycle:
            written = " → ".join(operations[place].name for place in cycle)
            closing = ("edges", edges[cycle[-2], cycle[-1]])
            self._wrong(closing, f"this edge closes a cycle: {written}")
        if self.mistakes:
            raise GraphFileError(self.mistakes)
        return ComputationGraph(
            document["name"],
            tuple(operations),
            tuple(edges),
            -1 if loss is None else places[loss],
            document["origin"],
            document.get("device", "unknown"),
            document.get("batch"),
            document.get("notes", ""),
        )

    def _head(self, document: dict[str, Any]) -> None:
        for key in document.keys() - set(_KEYS):
            self._wrong((key,), f"{key!r} is unknown: {nearest(key, _KEYS)}")
        for key in ("format", "version", "name", "origin", "operations", "edges"):
            if key not in document:
                self._wrong((), f"{key!r} is missing")
        for key, expected in (("format", FORMAT), ("version", VERSION)):
            if key in document and document[key] != expected:
                self._wrong((key,), f"{key} is {document[key]!r}: expected {expected!r}")
        if document.get("origin", "computed") not in ("profiled", "computed"):
            self._wrong(("origin",), "origin: expected 'profiled' or 'computed'")
        for key in ("name", "device", "notes"):
            if key in document and not isinstance(document[key], str):
                self._wrong((key,), f"{key}: expected text")
        batch = document.get("batch", 1)
        if type(batch) is not int or batch < 1:
            self._wrong(("batch",), f"batch is {batch!r}: expected a whole number, 1 or more")

    def _operations(self, listed: Any) -> list[Operation]:
        found: list[Operation] = []
        if not isinstance(listed, list) or not listed:
            if listed is not None:
                self._wrong(("operations",), "expected a list of at least one operation")
            return found
        first: set[str] = set()
        for place, item in enumerate(listed):
            path = ("operations", place)
            name = item.get("name") if isinstance(item, dict) else None
            if not isinstance(item, dict) or not isinstance(name, str):
                self._wrong(path, "expected an object with a 'name'")
                continue
            if name in first:
                self._wrong(path, f"operation {name!r} is there twice")
            first.add(name)
            for key in item.keys() - {"name", "kind", *_NUMBERS}:
                known = ("name", "kind", *_NUMBERS)
                self._wrong((*path, key), f"{key!r} is unknown: {nearest(key, known)}")
            numbers = [self._number((*path, key), item, key) for key in _NUMBERS]
            found.append(Operation(name, str(item.get("kind", "")), numbers[0], numbers[1],
                                   int(numbers[2]), int(numbers[3])))  # fmt: skip
        return found

    def _number(self, path: _Path, item: dict[str, Any], key: str) -> float:
        value = item.get(key)
        if value is None:
            self._wrong(path[:-1], f"{key!r} of {item['name']!r} is missing")
        elif type(value) not in (int, float) or not 0 <= value <= most_of(key):
            expected = f"expected a number, 0 to {most_of(key):.3g}"
            self._wrong(path, f"{key} is {_shown(value)}: {expected}")
        elif key.endswith("bytes") and value != int(value):
            self._wrong(path, f"{key} is {value!r}: expected whole bytes")
        else:
            return float(value)
        return 0.0

    def _edges(self, listed: Any, places: dict[str, int]) -> dict[tuple[int, int], int]:
        """Edges between places, with each one's place in the list."""
        found: dict[tuple[int, int], int] = {}
        if not isinstance(listed, list):
            self._wrong(("edges",), "expected a list of pairs of names")
            return found
        for number, item in enumerate(listed):
            path = ("edges", number)
            if not (
                isinstance(item, list)
                and len(item) == 2
                and all(isinstance(end, str) for end in item)
            ):
                self._wrong(path, "expected a pair of names, like ['conv1', 'relu1']")
                continue
            absent = [end for end in item if end not in places]
            for end in absent:
                self._wrong(path, f"{end!r} is not there: {nearest(end, places)}")
            if absent:
                continue
            edge = places[item[0]], places[item[1]]
            if edge in found:
                self._wrong(path, "this edge is there twice")
            found.setdefault(edge, number)
        return found

    def _wrong(self, path: _Path, message: str) -> None:
        offset = self.offsets.get(path, 0)
        before = self.text[:offset]
        line, column = before.count("\n") + 1, offset - before.rfind("\n")
        self.mistakes.append(FileIssue(self.file, line, column, message))
