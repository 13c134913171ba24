"""JSON files: read by Python's own parser, with positions only for what is wrong.

YAML's composer would read most JSON too, but ten times as slowly, and not its escapes of
characters beyond U+FFFF.
"""

import json
import re
from functools import cached_property
from typing import Any

from patchlight.testbed.files.issues import FileIssues

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')

Path = tuple[str | int, ...]
"""The keys and indices that lead to a value."""


class JsonText:
    """A JSON text, and where each of its values stands."""

    def __init__(self, text: str, issues: FileIssues) -> None:
        self._text, self._issues = text, issues

    def parse(self) -> Any:
        """What the text holds; raises the issues' error if it is no JSON."""
        try:
            # Not finite numbers are no JSON, though Python would read them.
            return json.loads(self._text, parse_constant=_refuse)
        except json.JSONDecodeError as error:
            self._issues.add(error.lineno, error.colno, error.msg)
        except ValueError as error:
            self._issues.add(1, 1, str(error))
        except RecursionError:
            self._issues.add(1, 1, "it is nested too deeply")
        return self._issues.raise_if_any()

    def at(self, path: Path, message: str) -> None:
        """Note an issue where the value at ``path`` stands, or at the start if there is none."""
        before = self._text[: self._offsets.get(path, 0)]
        self._issues.add(before.count("\n") + 1, len(before) - before.rfind("\n"), message)

    @cached_property
    def _offsets(self) -> dict[Path, int]:
        return positions(self._text)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


def positions(text: str) -> dict[Path, int]:
    """Where each value of a well-formed JSON text begins: its path → offset."""
    offsets: dict[Path, int] = {}
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
            offsets.setdefault(tuple(path), token.start())
            if mark in "{[":
                path.append("" if mark == "{" else 0)
                key_next.append(mark == "{")
    return offsets
