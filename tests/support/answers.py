"""Answers of the API of which a test only says what it is about."""

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel

from patchlight.cli.dashboard.lab_view import LabView
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.wire.rest import circuits, jobs, lab

M = TypeVar("M", bound=BaseModel)

# What a view of a lab shows, by its fields.
_SHOWN: dict[str, Any] = {
    "jobs": list[jobs.JobInList],
    "maps": dict[str, circuits.OcsMap],
    "light": dict[str, circuits.LightAnswer],
    "drift": dict[str, circuits.DriftOf],
    "locks": list[circuits.Lock],
    "changes": list[circuits.ChangeAnswer],
    "status": lab.Status,
}


def some(kind: type[M], said: Mapping[str, Any]) -> M:
    """A model with these fields, and nothing, zero or the first choice in the others."""
    others = {
        name: _nothing(field.annotation)
        for name, field in kind.model_fields.items()
        if field.is_required() and name not in said
    }
    known = {
        name: _made(kind.model_fields[name].annotation, value)
        for name, value in said.items()
        if name in kind.model_fields
    }
    return kind.model_validate(others | known)


def shown(of: Lab, **said: Any) -> LabView:
    """A view of a lab with partial answers."""
    made = {
        name: _made(_SHOWN[name], value) if name in _SHOWN else value
        for name, value in said.items()
    }
    return LabView(of, **made)


def _made(kind: Any, value: Any) -> Any:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        models = [each for each in get_args(kind) if each is not NoneType]
        return value if value is None else _made(models[0], value)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return some(kind, value) if isinstance(value, Mapping) else value
    if isinstance(value, Mapping) and origin is not None:
        inner = get_args(kind)[1]
        return {key: _made(inner, each) for key, each in value.items()}
    if isinstance(value, list) and origin is list:
        return [_made(get_args(kind)[0], each) for each in value]
    return value


def _nothing(kind: Any) -> Any:
    origin = get_origin(kind)
    if origin is Literal:
        return get_args(kind)[0]
    if origin in (Union, UnionType) or kind is Any:
        return None
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return some(kind, {})
    if origin in (list, tuple):
        return ()
    return {} if origin is not None else kind()
