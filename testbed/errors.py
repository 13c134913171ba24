"""The one exception root of Patchlight, and errors as problem details of HTTP (RFC 9457)."""

from http import HTTPStatus
from typing import Any, Literal


class PatchlightError(Exception):
    """An operation failed: the message says which, on what, and why; ``hint`` what to do next.

    The command line ends with ``exit_code``.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class BadInput(PatchlightError):
    """The user's input is wrong; nothing was done. The command line ends with 2."""

    exit_code = 2


class OutcomeUnknown(PatchlightError):
    """A device did not report the result of a change: read it again first."""

    exit_code = 3


def in_words(error: Exception) -> str:
    """An error's message for a record or a report; of an unexpected one also its type."""
    if isinstance(error, PatchlightError):
        return error.message
    return f"unexpected {type(error).__name__}: {error}"


PROBLEM_MEDIA_TYPE = "application/problem+json"

Outcome = Literal["nothing-done", "failed", "unknown"]
"""The result of a request: nothing was done, ``detail`` happened, or it is not known."""


def problem(
    status: int, detail: str, hint: str | None = None, outcome: Outcome = "nothing-done"
) -> dict[str, Any]:
    """The body of an answer with that HTTP status."""
    return {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "hint": hint,
        "outcome": outcome,
    }
