"""How the API answers: JSON that any client can read, and refusals in words with what to do."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from patchlight.controller.api.caller import NotAllowed, NotKnown, as_viewer
from patchlight.controller.api.openapi import PROBLEMS, DescribedByExample
from patchlight.controller.changes.record import Refused
from patchlight.controller.changes.requests import as_json
from patchlight.controller.storage.database import JournalError
from patchlight.testbed.errors import (
    PROBLEM_MEDIA_TYPE,
    BadInput,
    Outcome,
    OutcomeUnknown,
    PatchlightError,
    problem,
)
from patchlight.testbed.io.issues import joined, mistake_in_words

_STATUS: Mapping[type[PatchlightError], int] = {
    BadInput: 422,
    Refused: 409,
    NotKnown: 401,
    NotAllowed: 403,
}
_OF_ANOTHER_PROGRAM = 502


class JsonAnswer(JSONResponse):
    """JSON, whatever is in it: half characters and figures that JSON lacks are left out.

    What was stored once can so be read for ever.
    """

    def render(self, content: Any) -> bytes:
        """The text."""
        return as_json(content)


def new_app(title: str) -> FastAPI:
    """An application without routes that answers so, to whoever is let in by ``Admission``."""
    app = DescribedByExample(
        title=title,
        version="1",
        default_response_class=JsonAnswer,
        dependencies=[Depends(as_viewer)],
        responses=PROBLEMS,
        # A redirect would lead a client away from the words on what was wrong.
        redirect_slashes=False,
        # FastAPI's run programs from other machines, and in a browser those may ask for changes.
        docs_url=None,
        redoc_url=None,
    )
    app.exception_handler(PatchlightError)(explain)
    app.exception_handler(RequestValidationError)(explain_request)
    app.exception_handler(HTTPException)(explain_http)
    app.exception_handler(Exception)(explain_bug)
    return app


def problem_answer(
    status: int,
    detail: str,
    hint: str | None = None,
    outcome: Outcome = "nothing-done",
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """An answer with problem details."""
    body = problem(status, detail, hint, outcome)
    return JsonAnswer(body, status, headers, media_type=PROBLEM_MEDIA_TYPE)


def explained(error: PatchlightError) -> JSONResponse:
    """An error of ours: what is wrong, and what to do next."""
    status = next((s for kind, s in _STATUS.items() if isinstance(error, kind)), 0)
    if isinstance(error, JournalError) and error.may_pass:
        status = HTTPStatus.INSUFFICIENT_STORAGE  # before anything was done
    outcome: Outcome = "nothing-done" if status else "failed"
    if isinstance(error, OutcomeUnknown):
        outcome = "unknown"
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    status = status or _OF_ANOTHER_PROGRAM
    return problem_answer(status, error.message, error.hint, outcome, headers)


async def explain(_: Request, error: Exception) -> JSONResponse:
    """An error that a route raised."""
    assert isinstance(error, PatchlightError)
    return explained(error)


async def explain_bug(request: Request, error: Exception) -> JSONResponse:
    """What nobody expected; the log has more of it."""
    what = f"{request.method} {request.url.path[:200]}"
    outcome: Outcome = "failed" if request.method == "GET" else "unknown"
    words = f"the controller failed at {what}: unexpected {type(error).__name__}"
    return problem_answer(500, words, "the controller's log says where; report it", outcome)


async def explain_request(_: Request, error: Exception) -> JSONResponse:
    """A request that is not what the route takes: every field that is wrong, and how."""
    assert isinstance(error, RequestValidationError)
    # Of where it stands, the first is the body, the path or the query.
    words = joined(mistake_in_words(m, m["loc"][1:], "request") for m in error.errors())
    return problem_answer(422, f"the controller does not take that: {words}")


async def explain_http(request: Request, error: Exception) -> JSONResponse:
    """A route that there is not, or a body that cannot be read."""
    assert isinstance(error, HTTPException)
    words, hint = str(error.detail), None
    if error.status_code in (404, 405):
        words = f"there is no {request.method} {request.url.path[:200]}"
        hint = "is the client of the same version as the controller? /openapi.json has all routes"
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_methods(request))
    return problem_answer(error.status_code, words, hint, headers=headers)


def _methods(request: Request) -> list[str]:
    """What may be asked of a path, by any of the routes that have it."""
    path = request.url.path
    found = {
        method.upper()
        for template, operations in request.app.openapi()["paths"].items()
        if compile_path(template)[0].fullmatch(path)
        for method in operations
    }
    return sorted(found)
