"""How the API answers: JSON that any client can read, and refusals in words with what to do."""

import json
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from patchlight.controller.changes.record import Refused
from patchlight.testbed.errors import BadInput, OutcomeUnknown, PatchlightError
from patchlight.testbed.mistakes import joined, mistake_in_words


class Answered(JSONResponse):
    """JSON, whatever is in it: half characters and figures that JSON lacks are left out.

    What was stored once can so be read for ever.
    """

    def render(self, content: Any) -> bytes:
        """The text: ``?`` for a lone surrogate, ``null`` for NaN and infinity."""
        try:
            return to_json(content, inf_nan_mode="null")
        except ValueError:  # half characters
            finite = json.loads(json.dumps(content), parse_constant=lambda _: None)
            return json.dumps(finite, ensure_ascii=False).encode("utf-8", "replace")


def new_app(title: str) -> FastAPI:
    """An application without routes that answers so."""
    app = FastAPI(
        title=title,
        version="1",
        default_response_class=Answered,
        # A redirect would lead a client away from the words on what was wrong.
        redirect_slashes=False,
        # These pages run programs from other machines, and in a browser those may ask for changes.
        docs_url=None,
        redoc_url=None,
    )
    app.exception_handler(PatchlightError)(explain)
    app.exception_handler(RequestValidationError)(explain_request)
    app.exception_handler(HTTPException)(explain_http)
    return app


async def explain(_: Request, error: Exception) -> JSONResponse:
    """An error of ours: what is wrong, and what to do next."""
    assert isinstance(error, PatchlightError)
    status = 422 if isinstance(error, BadInput) else 409 if isinstance(error, Refused) else 502
    answer = {"error": error.message, "hint": error.hint}
    if isinstance(error, OutcomeUnknown):
        answer["outcome"] = "unknown"
    return Answered(answer, status_code=status)


async def explain_request(_: Request, error: Exception) -> JSONResponse:
    """A request that is not what the route takes: every field that is wrong, and how."""
    assert isinstance(error, RequestValidationError)
    # Of where it stands, the first is the body, the path or the query.
    words = joined(mistake_in_words(m, m["loc"][1:], "request") for m in error.errors())
    return Answered({"error": f"the controller does not take that: {words}", "hint": None}, 422)


async def explain_http(request: Request, error: Exception) -> JSONResponse:
    """A route that there is not, or a body that cannot be read."""
    assert isinstance(error, HTTPException)
    words, hint = str(error.detail), None
    if error.status_code in (404, 405):
        words = f"there is no {request.method} {request.url.path[:200]}"
        hint = "is the client of the same version as the controller? /openapi.json has all routes"
    return Answered({"error": words, "hint": hint}, error.status_code, error.headers)
