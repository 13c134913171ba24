"""Defines what the REST API says: one model for each request and each answer, for both sides."""

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import SkipJsonSchema

Absent = SkipJsonSchema[None]
"""``X | Absent = None``: a field that an answer need not have."""


def _exactly(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Answers have exactly these fields; what a field is if absent is no matter of the API."""
    for field in schema.get("properties", {}).values():
        field.pop("default", None)
    if model.model_config.get("extra") == "allow":
        del schema["additionalProperties"]
    else:
        schema["additionalProperties"] = False


class Answer(BaseModel):
    """An answer: fields that are not set are absent.

    A client ignores unknown fields, which a newer controller may have. ``…Answer`` is omitted from
    a model's name in the API.
    """

    # To make all validators takes half of the API's start.
    model_config = ConfigDict(defer_build=True, json_schema_extra=_exactly)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__name__ = cls.__name__.removesuffix("Answer")
        cls.__qualname__ = cls.__name__

    @property
    def as_json(self) -> dict[str, Any]:
        """As in the API."""
        return self.model_dump(mode="json", exclude_unset=True)
