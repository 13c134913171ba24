"""Defines Patchlight's exceptions, and formats errors as text and problem details (RFC 9457)."""

import difflib
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pydantic import ValidationError


def harmless(text: str, keep: str = "") -> str:
    r"""``text`` with control characters written as ``\x1b``, but for those in ``keep``.

    So are half characters that no encoding can write, and marks that turn the direction of text.
    """
    if text.isprintable():
        return text
    return "".join(
        c
        if c.isprintable() or c in keep
        else c.encode("unicode_escape").decode()
        for c in text
    )


class PatchlightError(Exception):
    """An operation failed: the message says which, on what, and why; ``hint`` says what to do.

    The command line ends with ``exit_code``.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        # It may quote a file or a device, and is printed to terminals.
        text = f"{self.message}\n  {self.hint}" if self.hint else self.message
        return harmless(text, keep="\n\t")


class BadInput(PatchlightError):
    """The user's input is wrong and nothing was changed. The exit code is 2."""

    exit_code = 2


class OutcomeUnknown(PatchlightError):
    """A device did not report the result of a change: read it again first."""

    exit_code = 3


class NoReply(OutcomeUnknown):
    """A device did not answer a command in time: it may still carry it out."""


# Packages whose name differs from that of their module.
_PACKAGES = {
    "google": "protobuf",
    "grpc": "grpcio",
    "opentelemetry": "opentelemetry-sdk",
    "os_ken": "os-ken",
    "pynvml": "nvidia-ml-py",
    "yaml": "PyYAML",
}


class PackageMissing(PatchlightError):
    """``what`` needs Python packages that cannot be imported: says which, and how to install them.

    ``modules`` are their names, or the error of an import.
    """

    def __init__(self, what: str, *modules: str | ImportError) -> None:
        names = dict.fromkeys(map(_package_of, modules))
        broken = ""
        for error in modules:
            if isinstance(error, ImportError) and not isinstance(
                error, ModuleNotFoundError
            ):
                broken = f"cannot be imported: {error}"
        packages, are = (
            ("packages", "are") if len(names) > 1 else ("package", "is")
        )
        super().__init__(
            f"{what} needs the Python {packages} {', '.join(names)}, which "
            f"{broken or f'{are} not installed'}",
            hint=f"install it: {shlex.quote(sys.executable)} -m pip install "
            + " ".join(dict.fromkeys(map(_installed_by, names))),
        )


def _package_of(module: str | ImportError) -> str:
    name = module if isinstance(module, str) else module.name or "?"
    first = name.partition(".")[0]
    return _PACKAGES.get(first, first)


def _installed_by(package: str) -> str:
    """What pip installs it by: the first extra of Patchlight that has it, or its own name."""
    # Imported here: this takes longer than a short command.
    from importlib.metadata import PackageNotFoundError, requires

    with suppress(PackageNotFoundError):
        for requirement in requires("patchlight") or ():
            found = re.match(
                rf"{re.escape(package)}\b.*extra == ['\"](\w+)", requirement
            )
            if found:
                return f"'patchlight[{found[1]}]'"
    return package


def require_packages(what: str, *modules: str) -> None:
    """``PackageMissing`` if one of these top-level modules is not installed; imports none."""
    from importlib.util import find_spec

    if missing := [name for name in modules if find_spec(name) is None]:
        raise PackageMissing(what, *missing)


@dataclass(
    frozen=True,
    slots=True,
)
class FileIssue:
    """One mistake in a file: where, what, and what was expected."""

    file: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}"


class FileError(BadInput):
    """A file has mistakes. ``issues`` has all of them, in file order."""

    def __init__(self, issues: Iterable[FileIssue]) -> None:
        self.issues = tuple(
            sorted(issues, key=lambda issue: (issue.line, issue.column))
        )
        super().__init__("\n".join(str(issue) for issue in self.issues))


def in_words(error: BaseException) -> str:
    """An error's message for a record or report; unexpected errors include their type."""
    if isinstance(error, PatchlightError):
        return error.message
    said = reason(error)
    name = type(error).__name__
    return (
        f"unexpected {name}" if said == name else f"unexpected {name}: {said}"
    )


def reason(error: BaseException) -> str:
    """Why something failed, never empty: the text of a time-out, a cancelled call or a closed
    connection often is, and then its type says it."""
    if (said := str(error).strip()) not in (
        "",
        "()",
    ):  # that of an SSLError without a text
        return said
    return getattr(error, "strerror", None) or type(error).__name__


PROBLEM_MEDIA_TYPE = "application/problem+json"

Outcome = Literal["nothing-done", "failed", "unknown"]
"""The outcome of a request: refused, ``detail`` happened, or unknown."""


def problem(
    status: int,
    detail: str,
    hint: str | None = None,
    outcome: Outcome = "nothing-done",
) -> dict[str, Any]:
    """The body of a response with that HTTP status."""
    return {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "hint": hint,
        "outcome": outcome,
    }


def nearest(
    name: str,
    known: Iterable[str],
    what: str = "expected one of",
) -> str:
    """``did you mean 'fibres'?`` if a known name is similar, else the known names."""
    names = list(known)
    near = difflib.get_close_matches(
        name,
        names,
        n=1,
        cutoff=0.6,
    )
    if near:
        return f"did you mean {near[0]!r}?"
    listed = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    return f"{what} {listed or 'none'}"


def short(text: str) -> str:
    """``text``, shortened so that a message stays one readable line."""
    return text if len(text) <= 60 else f"{text[:57]}…"


_MOST = 10
_LONGEST_PLACE = 80

# By pydantic's error type, with its context and the value found.
_WORDS = {
    "missing": "it is missing",
    "extra_forbidden": "unknown field",
    "unexpected_keyword_argument": "unknown field",
    "greater_than": "{found} is not more than {gt}",
    "greater_than_equal": "{found} is less than {ge}",
    "less_than": "{found} is not less than {lt}",
    "less_than_equal": "{found} is more than {le}",
    "string_too_short": "expected at least {min_length} characters",
    "string_too_long": "expected at most {max_length} characters",
    "too_short": "expected at least {min_length} item(s)",
    "too_long": "expected at most {max_length} item(s)",
    "string_pattern_mismatch": "{found} does not match the pattern {pattern}",
    "literal_error": "expected {expected}, found {found}",
    "enum": "expected {expected}, found {found}",
    "value_error": "{error}",
    "json_invalid": "not valid JSON: {error}",
}
# The expected type, by the start of pydantic's error types.
_KINDS = {
    "int": "a whole number",
    "finite_number": "a finite number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    **dict.fromkeys(("list", "tuple", "set"), "a list"),
    **dict.fromkeys(("dict", "mapping", "model", "dataclass"), "an object"),
    "none": "nothing",
}


def mistakes_in_words(error: "ValidationError") -> str:
    """All mistakes, like ``iterations: 12000000 is more than 10000000``, in one line."""
    return joined(
        mistake_in_words(each, each["loc"]) for each in error.errors()
    )


def joined(mistakes: Iterable[str]) -> str:
    """Mistakes in one line: the first ten, and the number of others."""
    listed = list(mistakes)
    more = [f"and {len(listed) - _MOST} more"] if len(listed) > _MOST else []
    return "; ".join([*listed[:_MOST], *more])


def mistake_in_words(
    mistake: Mapping[str, Any],
    place: Sequence[str | int],
    whole: str = "",
) -> str:
    """One of pydantic's ``errors()`` as text; ``whole`` replaces an empty ``place``."""
    if mistake["type"] == "json_invalid":
        place = ()  # a number of characters
    where = ".".join(map(str, place))[:_LONGEST_PLACE] or whole
    return f"{where}: {_what(mistake)}" if where else _what(mistake)


def _what(mistake: Mapping[str, Any]) -> str:
    kind = mistake["type"]
    found = _shown(mistake.get("input"))
    if (words := _WORDS.get(kind)) is not None:
        limits = {
            key: _whole(limit) for key, limit in mistake.get("ctx", {}).items()
        }
        return words.format(
            **limits,
            found=found,
        )
    expected = next(
        (words for start, words in _KINDS.items() if kind.startswith(start)),
        None,
    )
    # All known types are covered; a later pydantic may have new ones.
    return (
        f"expected {expected}, found {found}"
        if expected
        else str(mistake["msg"])
    )


def _whole(limit: object) -> object:
    return (
        int(limit)
        if isinstance(limit, float) and limit.is_integer()
        else limit
    )


def _shown(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case str():
            return short(
                value if value.lstrip("+-").isdecimal() else repr(value)
            )
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
    except (
        ValueError
    ):  # Python does not print numbers with thousands of digits.
        return "a number of thousands of digits"
