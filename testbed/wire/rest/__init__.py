"""Defines the REST API's responses as types, for the client and the API description."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict, is_typeddict


def _exactly(shape: Any) -> Any:
    """A response model with exactly these fields; ``Answer`` is omitted from its API name."""
    shape.__qualname__ = shape.__name__ = shape.__name__.removesuffix("Answer")
    return with_config(ConfigDict(extra="forbid"))(shape)


def close(module: Mapping[str, Any], but: Collection[str] = ()) -> None:
    """Make a module's models, except those named, accept exactly their fields."""
    for name, shape in module.items():
        if (
            is_typeddict(shape)
            and shape.__module__ == module["__name__"]
            and name not in but
        ):
            _exactly(shape)


def answer(
    name: str,
    about: str,
    /,
    **fields: Any,
) -> Any:
    """A response with exactly these fields, only for the API description."""
    define: Any = TypedDict
    shape = define(name, fields)
    shape.__doc__ = about
    return _exactly(shape)


def answer_of(
    kind: type,
    name: str,
    about: str,
    /,
    **others: Any,
) -> Any:
    """The fields of a dataclass, required and without bounds, except ``others``."""
    types = get_type_hints(kind)
    return answer(
        name, about, **{f.name: types[f.name] for f in fields(kind)} | others
    )
