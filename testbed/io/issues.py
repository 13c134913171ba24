"""Mistakes in what users write: all of a file with lines and columns, and pydantic's as text."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from patchlight.testbed.errors import BadInput

if TYPE_CHECKING:
    from pydantic import ValidationError

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
    """The message for a key that is already on ``line``."""
    return f"key {short(key)!r} stands twice, first on line {line}: expected it once"


_MOST = 10
_LONGEST_PLACE = 80

# By pydantic's name of the mistake, with its context and the value found.
_WORDS = {
    "missing": "it is missing",
    "extra_forbidden": "there is no such field",
    "unexpected_keyword_argument": "there is no such field",
    "greater_than": "{found} is not more than {gt}",
    "greater_than_equal": "{found} is less than {ge}",
    "less_than": "{found} is not less than {lt}",
    "less_than_equal": "{found} is more than {le}",
    "string_too_short": "expected at least {min_length} characters",
    "string_too_long": "expected at most {max_length} characters",
    "too_short": "expected at least {min_length} of them",
    "too_long": "expected at most {max_length} of them",
    "string_pattern_mismatch": "{found} does not match the pattern {pattern}",
    "literal_error": "expected {expected}, found {found}",
    "enum": "expected {expected}, found {found}",
    "value_error": "{error}",
    "json_invalid": "it is no JSON: {error}",
}
# The expected kind of value, by how the other names begin.
_KINDS = {
    "int": "a whole number",
    "finite_number": "a finite number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "dict": "an object",
    "mapping": "an object",
    "model": "an object",
    "dataclass": "an object",
    "none": "nothing",
}


def mistakes_in_words(error: "ValidationError") -> str:
    """All that is wrong, like ``iterations: 12000000 is more than 10000000``, in one line."""
    return joined(mistake_in_words(each, each["loc"]) for each in error.errors())


def joined(mistakes: Iterable[str]) -> str:
    """Mistakes in one line: the first ten, and how many more there are."""
    listed = list(mistakes)
    more = [f"and {len(listed) - _MOST} more"] if len(listed) > _MOST else []
    return "; ".join([*listed[:_MOST], *more])


def mistake_in_words(
    mistake: Mapping[str, Any], place: Sequence[str | int], whole: str = ""
) -> str:
    """One of pydantic's ``errors()`` as text; ``whole`` is the name where ``place`` is empty."""
    if mistake["type"] == "json_invalid":
        place = ()  # a number of characters
    where = ".".join(map(str, place))[:_LONGEST_PLACE] or whole
    return f"{where}: {_what(mistake)}" if where else _what(mistake)


def _what(mistake: Mapping[str, Any]) -> str:
    kind, found = mistake["type"], _shown(mistake.get("input"))
    if (words := _WORDS.get(kind)) is not None:
        limits = {key: _whole(limit) for key, limit in mistake.get("ctx", {}).items()}
        return words.format(**limits, found=found)
    expected = next((words for start, words in _KINDS.items() if kind.startswith(start)), None)
    # No kind of ours is without words; a later pydantic may have new ones.
    return f"expected {expected}, found {found}" if expected else str(mistake["msg"])


def _whole(limit: object) -> object:
    """``86400.0`` as 86400."""
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def _shown(value: object) -> str:
    """A value as users know it: short, and a text that is a number as the number."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case str():
            return short(value if value.lstrip("+-").isdecimal() else repr(value))
        case int() | float():
            return _number(value)
        case Mapping():
            return "an object"
        case Sequence():
            return "a list"
    return f"a {type(value).__name__}"


def _number(value: float) -> str:
    try:
        return short(str(value))
    except ValueError:  # Python writes no numbers of thousands of digits
        return "a number of thousands of digits"
