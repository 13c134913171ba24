"""What the REST API answers, as types: of the client's calls, and of the API's description."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict, is_typeddict


def _exactly(shape: Any) -> Any:
    """These fields and no others; ``Answer`` at the end is left out of its name in the API."""
    shape.__qualname__ = shape.__name__ = shape.__name__.removesuffix("Answer")
    return with_config(ConfigDict(extra="forbid"))(shape)


def close(module: Mapping[str, Any], but: Collection[str] = ()) -> None:
    """Let the shapes of a module, but for those named, have their fields and no others."""
    for name, shape in module.items():
        if is_typeddict(shape) and shape.__module__ == module["__name__"] and name not in but:
            _exactly(shape)


def answer(name: str, about: str, /, **fields: Any) -> Any:
    """An answer that only the API's description names: it has these fields and no others."""
    define: Any = TypedDict
    shape = define(name, fields)
    shape.__doc__ = about
    return _exactly(shape)


def answer_of(kind: type, name: str, about: str, /, **others: Any) -> Any:
    """The fields of a dataclass, all there and without their bounds, but for these ``others``."""
    types = get_type_hints(kind)
    return answer(name, about, **{f.name: types[f.name] for f in fields(kind)} | others)
