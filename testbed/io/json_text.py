"""JSON files: read by Python's own parser, with positions only for what is wrong.

YAML's composer would read most JSON too, but ten times as slowly, and not its escapes of
characters beyond U+FFFF.
"""

import json
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from patchlight.testbed.io.issues import FileIssues, stands_twice

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')

Path = tuple[str | int, ...]
"""The keys and indices that lead to a value."""


class JsonText:
    """A JSON text, and where each of its values stands."""

    def __init__(self, text: str, issues: FileIssues) -> None:
        self._text, self._issues = text, issues

    def parse(self) -> Any:
        """What the text holds; raises the issues' error if it is no JSON."""
        repeated = False

        def group(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            nonlocal repeated
            read = dict(pairs)
            repeated = repeated or len(read) < len(pairs)
            return read

        try:
            # Not finite numbers are no JSON, though Python would read them.
            value = json.loads(self._text, parse_constant=_refuse, object_pairs_hook=group)
            if repeated:
                self._note_repeated()
            self._issues.raise_if_any()
            return value
        except json.JSONDecodeError as error:
            self._issues.add(error.lineno, error.colno, error.msg)
        except ValueError as error:
            self._issues.add(1, 1, str(error))
        except RecursionError:
            self._issues.add(1, 1, "it is nested too deeply")
        return self._issues.raise_if_any()

    def at(self, path: Path, message: str) -> None:
        """Note an issue where the value at ``path`` stands, or at the start if there is none."""
        self._issues.add(*self._place(self._offsets.get(path, 0)), message)

    def _note_repeated(self) -> None:
        first: dict[Path, int] = {}
        for path, offset in keys(self._text):
            before = first.setdefault(path, offset)
            if before != offset:
                message = stands_twice(str(path[-1]), self._place(before)[0])
                self._issues.add(*self._place(offset), message)

    def _place(self, offset: int) -> tuple[int, int]:
        """Line and column, counted from 1."""
        line = self._text.count("\n", 0, offset) + 1
        return line, offset - self._text.rfind("\n", 0, offset)

    @cached_property
    def _offsets(self) -> dict[Path, int]:
        return positions(self._text)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


def positions(text: str) -> dict[Path, int]:
    """Where each value of a well-formed JSON text begins: its path → offset."""
    offsets: dict[Path, int] = {}
    for path, offset, is_key in _walk(text):
        if not is_key:
            offsets.setdefault(path, offset)
    return offsets


def keys(text: str) -> Iterator[tuple[Path, int]]:
    """Each key of a well-formed JSON text: the path to its value, and where the key stands."""
    return ((path, offset) for path, offset, is_key in _walk(text) if is_key)


def _walk(text: str) -> Iterator[tuple[Path, int, bool]]:
    """Path and offset of each key and of each value, and whether it is a key."""
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
            yield tuple(path), token.start(), True
        else:
            yield tuple(path), token.start(), False
            if mark in "{[":
                path.append("" if mark == "{" else 0)
                key_next.append(mark == "{")
