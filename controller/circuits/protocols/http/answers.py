"""Reading JSON whose shape nobody promised: what is not as it should be is a ``ValueError``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def rows(said: object) -> list[Mapping[str, Any]]:
    """A list of objects, or the one list in an object around it (RESTCONF names it)."""
    if isinstance(said, dict) and len(said) == 1:
        (said,) = said.values()
    if not isinstance(said, list) or not all(isinstance(row, dict) for row in said):
        raise ValueError(f"expected a list of objects, got {short(said)}")
    return said


def only(said: object) -> Mapping[str, Any]:
    """An object, be it alone in a list or in an object around it; empty for none."""
    while isinstance(said, (list, dict)) and len(said) == 1:
        inner = said[0] if isinstance(said, list) else next(iter(said.values()))
        if isinstance(said, dict) and not isinstance(inner, (list, dict)):
            break
        said = inner
    if isinstance(said, list) and not said:
        return {}
    if not isinstance(said, dict):
        raise ValueError(f"expected an object, got {short(said)}")
    return said


def text(row: Mapping[str, Any], key: str) -> str:
    """A value as text; empty where there is none."""
    value = row.get(key)
    return "" if value is None else str(value).strip()


def number(row: Mapping[str, Any], key: str) -> int:
    """A whole number, be it written as one or as text."""
    value = row.get(key)
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value[:9])
    if type(value) is not int:
        raise ValueError(f"expected a number at {key!r} of {short(row)}")
    return value


def short(said: object) -> str:
    """JSON as errors may have it, and as alarms are told apart by."""
    return json.dumps(said, ensure_ascii=False, sort_keys=True, default=str)[:300]
