"""An example of each request and its answer, for the API's description (``/openapi.json``).

``examples.json`` is in the order in which a controller was asked. Its answers are that
controller's; ``tests/controller/test_examples.py`` compares them with what one answers now.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any, TypedDict

from fastapi import FastAPI


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
