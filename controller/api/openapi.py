"""The API's description: ``/openapi.json`` with examples, and the page ``/docs``."""

import json
from collections.abc import Awaitable, Callable
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, TypedDict

from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse, Response
from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from patchlight.testbed.errors import PROBLEM_MEDIA_TYPE, Outcome, problem

Json = dict[str, Any]


class Problem(BaseModel):
    """What went wrong (RFC 9457), and what to do next.

    ``detail`` says what is wrong in this case, ``hint`` what may help, and ``outcome`` whether
    anything was done.
    """

    type: str
    title: str
    status: int
    detail: str
    hint: str | None
    outcome: Outcome


def _problem(about: str, status: int, detail: str, hint: str | None, outcome: Outcome) -> Json:
    example = problem(status, detail, hint, outcome)
    content = {PROBLEM_MEDIA_TYPE: {"schema": Problem.model_json_schema(), "example": example}}
    return {"description": about, "content": content}


PROBLEMS: dict[int | str, Json] = {
    "4XX": _problem(
        "The request was not carried out: 401 without a good token, 403 in a role that may not, "
        "409 as things are now, 422 if it is wrong, 429 after too many that were refused.",
        403,
        "POST /v1/stop is for operators; eva is a user",
        "an admin gives roles with 'patchlight token create', or with controller: {access: …} in "
        "the lab file; the users of its group are operators",
        "nothing-done",
    ),
    "5XX": _problem(
        "It could not be carried out, or it is not known what came of it (outcome).",
        502,
        "server a has no agent",
        "give it a 'management:' address in the lab file, or bring an emulated lab up with "
        "--agents",
        "failed",
    ),
}


class _OnceDescribed:
    """A shape that Pydantic looks at when the description is asked for, and not before.

    Nothing else needs it, and to look at all shapes is half of an API's start.
    """

    def __init__(self, shape: Any) -> None:
        self._shape = shape

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.any_schema()

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        # Within definitions it is one of them, and referred to.
        return handler(core_schema.definitions_schema(TypeAdapter(self._shape).core_schema, []))


def _model(shape: Any) -> Any:
    return Annotated[Any, _OnceDescribed(shape)]


def gives(shape: Any, status: int = 200, *, also: str = "") -> Json:
    """Options of a route whose answers look so; ``also``: or are of another media type."""
    answer: Json = {"model": _model(shape), "description": "What was asked for."}
    if also:
        answer["content"] = {also: {"schema": {"type": "string"}}}
    return {"status_code": status, "response_model": None, "responses": {status: answer}}


def begins(change: Any, plan: Any = None) -> Json:
    """Options of a route that makes a change, begins it, or plans it, if it does."""
    options = gives(change if plan is None else change | plan)
    headers = [_header(name, about) for name, about in _CHANGE_HEADERS.items()]
    options["responses"][202] = under_way(change, "The change has begun, or waits for its turn.")
    return {**options, "openapi_extra": {"parameters": headers}}


def under_way(shape: Any, about: str) -> Json:
    """An answer to who does not wait for the end of what was asked for."""
    where = {"description": "Where it is followed.", "schema": {"type": "string"}}
    return {"model": _model(shape), "description": about, "headers": {"Location": where}}


_CHANGE_HEADERS = {
    "Prefer": "``respond-async``: begin the change, answer with 202, and do not wait for its end.",
    "If-Match": "The ``ETag`` of a plan: refuse unless all maps are as they were then.",
}


def _header(name: str, about: str) -> Json:
    schema = {"type": "string"}
    return {"name": name, "in": "header", "required": False, "description": about, "schema": schema}


# ``examples.json`` is in the order in which a controller was asked. Its answers are that
# controller's; ``tests/controller/test_examples.py`` compares them with what one answers now.


class Example(TypedDict, total=False):
    """A request, by ``method`` and ``path`` (a template with ``parameters``), and its answer.

    ``status``: where the route may do well in several ways, in which of them.
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
    """All of them, in the order in which they can be asked for."""
    text = (files("patchlight.controller.api") / "examples.json").read_text(encoding="utf-8")
    found: list[Example] = json.loads(text)
    return found


class DescribedByExample(FastAPI):
    """An application whose description has the examples of the routes that it has."""

    def openapi(self) -> dict[str, Any]:
        """The description, made once."""
        if self.openapi_schema is None:
            paths = super().openapi()["paths"]
            for example in examples():
                operation = paths.get(example["path"], {}).get(example["method"].lower())
                if operation is not None:
                    _show(operation, example)
        return super().openapi()


def _show(operation: dict[str, Any], example: Example) -> None:
    if "body" in example:
        _add(operation["requestBody"]["content"]["application/json"], example, "body")
    well = {status: r for status, r in operation["responses"].items() if status.startswith("2")}
    response = well[str(example.get("status", min(well)))]
    kind = "text/plain" if isinstance(example["answer"], str) else "application/json"
    _add(response["content"][kind], example, "answer")
    parts = (example.get(part, {}) for part in ("parameters", "query", "headers"))
    given = {name: value for part in parts for name, value in part.items()}  # type: ignore[attr-defined]
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in given:
            parameter["example"] = given[parameter["name"]]


def _add(content: dict[str, Any], example: Example, part: str) -> None:
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
# Styles that the library writes into its elements, and pictures within its style sheet.
_POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
_HEADERS = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
_ASSETS = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}


def docs_routes() -> APIRouter:
    """The routes of the page and its files."""
    routes = APIRouter(prefix="/docs", include_in_schema=False)

    @routes.get("")
    async def page() -> Response:
        return HTMLResponse(_PAGE, headers=_HEADERS)

    @routes.get("/start.js")
    async def start() -> Response:
        return Response(_START, media_type="text/javascript", headers=_HEADERS)

    for name, kind in _ASSETS.items():
        routes.add_api_route(f"/{name}", _giving(name, kind), methods=["GET"])
    return routes


def _giving(name: str, kind: str) -> Callable[[], Awaitable[Response]]:
    async def asset() -> Response:
        body = (files("fastapi_offline") / "static" / name).read_bytes()
        return Response(body, media_type=kind, headers=_HEADERS)

    return asset
