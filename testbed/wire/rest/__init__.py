"""What the REST API answers, as types: of the client's calls, and of the API's description."""

from dataclasses import fields
from typing import Any, TypeVar, get_type_hints

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

T = TypeVar("T", bound=type)


def exactly(shape: T) -> T:
    """These fields and no others; ``Answer`` at the end is left out of its name in the API."""
    shape.__qualname__ = shape.__name__ = shape.__name__.removesuffix("Answer")
    return with_config(ConfigDict(extra="forbid"))(shape)


def answer(name: str, about: str, /, **fields: Any) -> Any:
    """An answer that only the API's description names: it has these fields and no others."""
    define: Any = TypedDict
    shape = define(name, fields)
    shape.__doc__ = about
    return exactly(shape)


def answer_of(kind: type, name: str, about: str, /, **others: Any) -> Any:
    """The fields of a dataclass, all there and without their bounds, but for these ``others``."""
    types = get_type_hints(kind)
    return answer(name, about, **{f.name: types[f.name] for f in fields(kind)} | others)
