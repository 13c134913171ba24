"""The one exception root of Patchlight, and errors as problem details of HTTP (RFC 9457)."""

from http import HTTPStatus
from typing import Any, Literal


class PatchlightError(Exception):
    """Something Patchlight was asked to do could not be done.

    The message says what was being done, to what, and what came back; ``hint`` says
    what to do next. ``exit_code`` is what the command line ends with.
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
    """A device was told to change and did not say what came of it: read it again first."""

    exit_code = 3


def in_words(error: Exception) -> str:
    """What happened, for a record or a report: an error's message, or what kind of bug it is."""
    if isinstance(error, PatchlightError):
        return error.message
    return f"unexpected {type(error).__name__}: {error}"


PROBLEM_MEDIA_TYPE = "application/problem+json"

Outcome = Literal["nothing-done", "failed", "unknown"]
"""What came of a request: nothing; what ``detail`` says; or nobody knows what."""


def problem(
    status: int, detail: str, hint: str | None = None, outcome: Outcome = "nothing-done"
) -> dict[str, Any]:
    """The body of an answer with that HTTP status.

    ``title`` is that of the status, ``detail`` says what is wrong in this case, ``hint`` what may
    help.
    """
    return {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "hint": hint,
        "outcome": outcome,
    }
