"""How a route says what it answers, for the API's description (``/openapi.json``)."""

from typing import Annotated, Any

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
