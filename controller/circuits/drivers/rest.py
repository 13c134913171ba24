"""Shared by drivers of switches with a REST interface: changes over HTTP, and JSON.

No vendor guarantees the form of its JSON: unexpected forms raise ``ValueError``.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from patchlight.controller.circuits import contract
from patchlight.controller.circuits.drivers.base import SessionDriver
from patchlight.controller.circuits.drivers.table import R
from patchlight.controller.circuits.protocols.http import (
    HttpClient,
    HttpDialect,
)


class RestDriver(SessionDriver[R]):
    """See ``CircuitDriver``."""

    client_class = HttpClient
    client: HttpClient
    _dialect: HttpDialect

    async def _tell(
        self,
        method: str,
        path: str,
        body: str = "",
    ) -> None:
        with self._telling():
            await self.client.change(method, path, body)


def json_rows(body: object) -> list[Mapping[str, Any]]:
    """A list of objects, or the only list in an object (RESTCONF names it)."""
    if isinstance(body, dict) and len(body) == 1:
        (body,) = body.values()
    if not isinstance(body, list) or not all(
        isinstance(row, dict) for row in body
    ):
        raise ValueError(f"expected a list of objects, got {json_short(body)}")
    return body


def json_object(body: object) -> Mapping[str, Any]:
    """An object, also as the only one in a list or an object; empty if missing."""
    while isinstance(body, (list, dict)) and len(body) == 1:
        inner = (
            body[0] if isinstance(body, list) else next(iter(body.values()))
        )
        if isinstance(body, dict) and not isinstance(inner, (list, dict)):
            break
        body = inner
    if isinstance(body, list) and not body:
        return {}
    if not isinstance(body, dict):
        raise ValueError(f"expected an object, got {json_short(body)}")
    return body


def json_text(row: Mapping[str, Any], key: str) -> str:
    """A value as text; empty if missing."""
    value = row.get(key)
    return "" if value is None else str(value).strip()


def json_number(row: Mapping[str, Any], key: str) -> int:
    """A whole number, written as a number or as text."""
    value = row.get(key)
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value[:9])
    if type(value) is not int:
        raise ValueError(f"expected a number at {key!r} of {json_short(row)}")
    return value


def severity(
    alarm: str,
    critical: str,
    major: str,
) -> contract.Severity:
    """That of an alarm, given the patterns for two of them."""
    if re.fullmatch(critical, alarm):
        return "critical"
    return "major" if re.fullmatch(major, alarm) else "minor"


def json_short(body: object) -> str:
    """JSON for errors, and to identify alarms."""
    return json.dumps(
        body,
        ensure_ascii=False,
        sort_keys=True,
        default=str,
    )[:300]
