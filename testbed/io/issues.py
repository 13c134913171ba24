"""What is wrong in a file that a user wrote: all of it at once, with lines and columns."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from patchlight.testbed.errors import BadInput

T = TypeVar("T", covariant=True)

MOST_ISSUES = 1_000
"""A file with more mistakes than this is not read on."""


@dataclass(frozen=True, slots=True)
class Located(Generic[T]):
    """A value read from a file, and where it stands there (line and column count from 1).

    ``whole`` is false for a list some of whose items could not be read.
    """

    value: T
    line: int
    column: int
    whole: bool = True


@dataclass(frozen=True, slots=True)
class FileIssue:
    """One thing wrong in a file: where, what, and what was expected."""

    file: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}"


class FileError(BadInput):
    """A file has mistakes. ``issues`` holds all of them, in the order of the file."""

    def __init__(self, issues: Iterable[FileIssue]) -> None:
        self.issues = tuple(sorted(issues, key=lambda issue: (issue.line, issue.column)))
        super().__init__("\n".join(str(issue) for issue in self.issues))


class FileIssues:
    """Collects what is wrong in one file while it is read.

    ``error_class`` is what ``raise_if_any`` raises.
    """

    def __init__(self, file: str, error_class: type[FileError] = FileError) -> None:
        self.file = file
        self._error_class = error_class
        self._issues: dict[FileIssue, None] = {}
        self._settled: set[tuple[int, int]] = set()

    def __bool__(self) -> bool:
        return bool(self._issues)

    def add(self, line: int, column: int, message: str) -> None:
        """Note an issue at this line and column; raise all of them if they become too many."""
        if (line, column) in self._settled:
            return
        if len(self._issues) < MOST_ISSUES:
            self._issues[FileIssue(self.file, line, column, message)] = None
            return
        last = max(issue.line for issue in self._issues)
        message = f"more than {MOST_ISSUES:,} mistakes: the rest of the file was not read"
        raise self._error_class([*self._issues, FileIssue(self.file, last + 1, 1, message)])

    def at(self, position: Located[object], message: str) -> None:
        """Note an issue where this value stands."""
        self.add(position.line, position.column, message)

    def only(self, position: Located[object], message: str) -> None:
        """Note an issue, and none that comes later of the same place: it would follow from it."""
        self.at(position, message)
        self._settled.add((position.line, position.column))

    @property
    def found(self) -> tuple[FileIssue, ...]:
        """What was noted, in the order of the file."""
        return tuple(sorted(self._issues, key=lambda issue: (issue.line, issue.column)))

    def raise_if_any(self) -> None:
        """Raise all that was noted as one error; do nothing if the file is good."""
        if self._issues:
            raise self._error_class(self._issues)


def nearest(name: str, known: Iterable[str], what: str = "expected one of") -> str:
    """``did you mean 'fibres'?`` where a known name is near, else the known names."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    listed = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    return f"{what} {listed or 'none'}"


def short(text: str) -> str:
    """``text``, cut so that a message stays one readable line."""
    return text if len(text) <= 60 else f"{text[:57]}…"


def stands_twice(key: str, line: int) -> str:
    """What is wrong with a key that was there before, on ``line``."""
    return f"key {short(key)!r} stands twice, first on line {line}: expected it once"
