"""Builds the application: responses, errors, and the API description with examples."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import Any, TypedDict

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from patchlight.controller.api.caller import NotAllowed, NotKnown, as_viewer
from patchlight.controller.changes.record import Refused
from patchlight.controller.policies.topology import CannotRegroup
from patchlight.controller.storage.database import JournalError
from patchlight.testbed import errors
from patchlight.testbed.errors import joined, mistake_in_words
from patchlight.testbed.wire.rest import Answer
from patchlight.testbed.wire.rest.requests import as_json

Json = dict[str, Any]
Responses = dict[int | str, Json]


class Problem(BaseModel):
    """An error (RFC 9457), and what to do.

    ``detail`` says what is wrong in this case, ``hint`` what may help, and ``outcome`` whether
    anything was done.
    """

    type: str
    title: str
    status: int
    detail: str
    hint: str | None
    outcome: errors.Outcome


def _problem(
    about: str,
    status: int,
    detail: str,
    hint: str | None,
    outcome: errors.Outcome,
) -> Json:
    example = errors.problem(
        status,
        detail,
        hint,
        outcome,
    )
    content = {
        errors.PROBLEM_MEDIA_TYPE: {
            "schema": Problem.model_json_schema(),
            "example": example,
        }
    }
    return {"description": about, "content": content}


PROBLEMS: Responses = {
    "4XX": _problem(
        "The request was refused: 401 without a valid token, 403 without the role, 409 in the "
        "present state, 422 if it is invalid, 429 for too many requests (Retry-After).",
        403,
        "POST /v1/stop needs the role operator; eva is a user",
        "an admin gives roles with 'patchlight token create', or with controller: {access: …} in "
        "the lab file; the users of its group are operators",
        "nothing-done",
    ),
    "5XX": _problem(
        "It failed, or its result is unknown (outcome).",
        502,
        "server a has no agent",
        "give it a 'management:' address in the lab file, or bring an emulated lab up with "
        "--agents",
        "failed",
    ),
}


DATA: Json = {
    "response_model_exclude_unset": True,
    "response_description": "The requested data.",
}
"""Options of a route that responds with the fields of its model that are set."""


def also(media_type: str) -> Responses:
    """Responses of a route that has another media type, too."""
    return {200: {"content": {media_type: {"schema": {"type": "string"}}}}}


def under_way(shape: Any, about: str) -> Responses:
    """Responses of a route that responds before the end of the operation."""
    where = {
        "description": "The URL of its progress.",
        "schema": {"type": "string"},
    }
    return {
        202: {
            "model": shape,
            "description": about,
            "headers": {"Location": where},
        }
    }


_CHANGE_HEADERS = {
    "Prefer": "``respond-async``: start the change, respond with 202, and do not wait.",
    "If-Match": "The ``ETag`` of a plan: refuse unless all maps are unchanged since.",
}


def _header(name: str, about: str) -> Json:
    schema = {"type": "string"}
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": about,
        "schema": schema,
    }


def changing(answer: Any) -> Json:
    """Options of a route that makes or starts a change with this model as the answer."""
    headers = [_header(name, about) for name, about in _CHANGE_HEADERS.items()]
    started = "The change has started, or is waiting."
    return {
        **DATA,
        "responses": under_way(answer, started),
        "openapi_extra": {"parameters": headers},
    }


# ``examples.json`` is in the order of the requests to a real controller;
# ``tests/controller/test_examples.py`` compares it with current responses.


class Example(TypedDict, total=False):
    """A request, by ``method`` and ``path`` (a template with ``parameters``), and its response.

    ``status``: selects one of several possible successful responses.
    """

    method: str
    path: str
    parameters: dict[str, str | int]
    query: dict[str, str | int]
    headers: dict[str, str]
    status: int
    body: Any
    answer: Any


@cache
def examples() -> list[Example]:
    """All examples, in an order in which they can be requested."""
    text = (files("patchlight.controller.api") / "examples.json").read_text(
        encoding="utf-8"
    )
    found: list[Example] = json.loads(text)
    return found


class DescribedByExample(FastAPI):
    """An application whose description includes the examples of its routes."""

    _described: asyncio.Task[bytes] | None = None

    async def description_as_json(self) -> bytes:
        """The description as JSON, made once in a thread: that takes as long as 100 requests."""
        if self._described is None:
            making = asyncio.to_thread(lambda: as_json(self.openapi()))
            self._described = asyncio.create_task(making)
        return await asyncio.shield(self._described)

    def openapi(self) -> dict[str, Any]:
        """The cached description."""
        if self.openapi_schema is None:
            paths = super().openapi()["paths"]
            for example in examples():
                operation = paths.get(example["path"], {}).get(
                    example["method"].lower()
                )
                if operation is not None:
                    _show(operation, example)
        return super().openapi()


def _show(operation: dict[str, Any], example: Example) -> None:
    if "body" in example:
        _add(
            operation["requestBody"]["content"]["application/json"],
            example,
            "body",
        )
    well = {
        status: r
        for status, r in operation["responses"].items()
        if status.startswith("2")
    }
    response = well[str(example.get("status", min(well)))]
    kind = (
        "text/plain"
        if isinstance(example["answer"], str)
        else "application/json"
    )
    _add(response["content"][kind], example, "answer")
    parts = (
        example.get(part, {}) for part in ("parameters", "query", "headers")
    )
    given = {name: value for part in parts for name, value in part.items()}  # type: ignore[attr-defined]
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in given:
            parameter["example"] = given[parameter["name"]]


def _add(
    content: dict[str, Any],
    example: Example,
    part: str,
) -> None:
    shown = content.setdefault("examples", {})
    shown[f"{len(shown) + 1}"] = {"value": example[part]}  # type: ignore[literal-required]


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Patchlight: REST API</title>
<link rel="stylesheet" href="/docs/swagger-ui.css">
<link rel="icon" href="data:,">
</head>
<body>
<div id="swagger-ui"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""
_START = """SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  presets: [SwaggerUIBundle.presets.apis],
});
"""
# Styles that the library writes into its elements, and images within its style sheet.
_POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
}
_ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
}


def docs_routes() -> APIRouter:
    """Routes for the page and its files."""
    routes = APIRouter(
        prefix="/docs",
        include_in_schema=False,
    )

    @routes.get("")
    async def page() -> Response:
        return HTMLResponse(_PAGE, headers=_HEADERS)

    @routes.get("/start.js")
    async def start() -> Response:
        return Response(
            _START,
            media_type="text/javascript",
            headers=_HEADERS,
        )

    for name, kind in _ASSETS.items():
        routes.add_api_route(f"/{name}", _giving(name, kind), methods=["GET"])
    return routes


def _giving(name: str, kind: str) -> Callable[[], Awaitable[Response]]:
    async def asset() -> Response:
        body = (files("fastapi_offline") / "static" / name).read_bytes()
        return Response(
            body,
            media_type=kind,
            headers=_HEADERS,
        )

    return asset


_STATUS: Mapping[type[errors.PatchlightError], int] = {
    errors.BadInput: 422,
    Refused: 409,
    CannotRegroup: 409,
    NotKnown: 401,
    NotAllowed: 403,
}
_OF_ANOTHER_PROGRAM = 502


class JsonAnswer(JSONResponse):
    """JSON with any content: lone surrogates and non-JSON numbers are replaced."""

    def render(self, content: Any) -> bytes:
        """The text."""
        return as_json(content)


def in_one_pass(answer: Answer) -> Response:
    """A long answer: FastAPI would make records of it before the text."""
    try:
        text = answer.model_dump_json(exclude_unset=True)
    except ValueError:  # lone surrogates
        return JsonAnswer(answer.as_json)
    return Response(text, media_type="application/json")


def new_app(title: str) -> FastAPI:
    """An application without routes, for callers identified by ``Admission``."""
    app = DescribedByExample(
        title=title,
        version="1",
        default_response_class=JsonAnswer,
        dependencies=[Depends(as_viewer)],
        responses=PROBLEMS,
        # A redirect would hide the error message.
        redirect_slashes=False,
        # FastAPI's pages load scripts from other sites, which could send requests.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.add_route("/openapi.json", _describe, include_in_schema=False)
    app.exception_handler(errors.PatchlightError)(explain)
    app.exception_handler(RequestValidationError)(explain_request)
    app.exception_handler(HTTPException)(explain_http)
    app.exception_handler(Exception)(explain_bug)
    return app


async def _describe(request: Request) -> Response:
    return Response(
        await request.app.description_as_json(), media_type="application/json"
    )


def problem_answer(
    status: int,
    detail: str,
    hint: str | None = None,
    outcome: errors.Outcome = "nothing-done",
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """A response with problem details."""
    body = errors.problem(
        status,
        detail,
        hint,
        outcome,
    )
    return JsonAnswer(
        body,
        status,
        headers,
        media_type=errors.PROBLEM_MEDIA_TYPE,
    )


def explained(error: errors.PatchlightError) -> JSONResponse:
    """A Patchlight error: what is wrong, and what to do."""
    status = next(
        (s for kind, s in _STATUS.items() if isinstance(error, kind)), 0
    )
    if isinstance(error, JournalError) and error.may_pass:
        status = HTTPStatus.INSUFFICIENT_STORAGE  # before anything was done
    outcome: errors.Outcome = "nothing-done" if status else "failed"
    if isinstance(error, errors.OutcomeUnknown):
        outcome = "unknown"
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    status = status or _OF_ANOTHER_PROGRAM
    return problem_answer(
        status,
        error.message,
        error.hint,
        outcome,
        headers,
    )


async def explain(_: Request, error: Exception) -> JSONResponse:
    """An error that a route raised."""
    assert isinstance(error, errors.PatchlightError)
    return explained(error)


async def explain_bug(request: Request, error: Exception) -> JSONResponse:
    """An unexpected error; the log has its traceback."""
    what = f"{request.method} {request.url.path[:200]}"
    outcome: errors.Outcome = (
        "failed" if request.method == "GET" else "unknown"
    )
    words = (
        f"the controller failed on {what}: unexpected {type(error).__name__}"
    )
    return problem_answer(
        500,
        words,
        "the controller's log has the traceback; please report it",
        outcome,
    )


async def explain_request(_: Request, error: Exception) -> JSONResponse:
    """A request that does not match the route: every wrong field."""
    assert isinstance(error, RequestValidationError)
    # The first element is the body, the path or the query.
    words = joined(
        mistake_in_words(m, m["loc"][1:], "request") for m in error.errors()
    )
    return problem_answer(422, f"invalid request: {words}")


async def explain_http(request: Request, error: Exception) -> JSONResponse:
    """An unknown route, or an unreadable body."""
    assert isinstance(error, HTTPException)
    words = str(error.detail)
    hint = None
    if error.status_code in (404, 405):
        words = f"unknown request: {request.method} {request.url.path[:200]}"
        hint = "do client and controller have the same version? /openapi.json has all routes"
    headers = dict(error.headers or {})
    if error.status_code == 405:
        await request.app.description_as_json()
        headers["Allow"] = ", ".join(_methods(request))
    return problem_answer(
        error.status_code,
        words,
        hint,
        headers=headers,
    )


def _methods(request: Request) -> list[str]:
    path = request.url.path
    found = {
        method.upper()
        for template, operations in request.app.openapi()["paths"].items()
        if compile_path(template)[0].fullmatch(path)
        for method in operations
    }
    return sorted(found)
