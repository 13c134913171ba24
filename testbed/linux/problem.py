"""What an HTTP API answers where it does not do what it was asked: problem details (RFC 9457)."""

from http import HTTPStatus
from typing import Any, Literal

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
