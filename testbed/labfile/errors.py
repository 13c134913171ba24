"""The mistakes in a file a user wrote: all of them at once, each with its line and column."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from patchlight.testbed.errors import BadInput

T = TypeVar("T", covariant=True)


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
    """A file has mistakes. ``mistakes`` holds all of them, in the order of the file."""

    def __init__(self, mistakes: Iterable[FileIssue]) -> None:
        self.mistakes = tuple(sorted(mistakes, key=lambda m: (m.line, m.column)))
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


class LabFileError(FileError):
    """A lab file has mistakes."""


class FileIssues:
    """Collects the mistakes of one file while it is read."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._found: list[FileIssue] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, line: int, column: int, message: str) -> None:
        """Note a mistake at this line and column."""
        self._found.append(FileIssue(self.file, line, column, message))

    def at(self, place: Located[object], message: str) -> None:
        """Note a mistake where this value stands."""
        self.add(place.line, place.column, message)

    def error(self) -> LabFileError:
        """All that was noted, as one error to raise."""
        return LabFileError(self._found)


def nearest(name: str, known: Iterable[str], what: str = "expected one of") -> str:
    """``did you mean 'fibres'?`` where a known name is near, else the known names."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    listed = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    return f"{what} {listed or 'none'}"
