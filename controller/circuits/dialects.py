"""Dialects: what a vendor's device is told and how its answers read, as tables of text.

No vendor's manual was at hand: the built-in tables follow third-party drivers and captured
sessions. Where a unit's firmware says it differently, correct the table without touching
code: put a TOML file named after the driver (``polatis-scpi.toml``) in a directory and name
that directory in ``PATCHLIGHT_DIALECTS``. Its keys replace those of the built-in table.
"""

import difflib
import math
import os
import re
import string
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

from patchlight.controller.circuits.contract import Condition
from patchlight.testbed.errors import BadInput

DIRECTORY_VARIABLE = "PATCHLIGHT_DIALECTS"

_TEMPLATE, _PATTERN = "template", "pattern"
Template = Annotated[str, _TEMPLATE]
"""A command to fill in: ``"DLT-PATCH::{ins}:{ctag}:;"``."""
Pattern = Annotated[str, _PATTERN]
"""A regular expression; a correction must name the groups that the built-in one names."""


class Bare(str):
    """Text made here, of numbers and of a dialect's own marks: it goes into a command as it is."""


def filled(template: str, quoted: Callable[[str], str], **values: str | int) -> str:
    """A template with these values: each text that is not ``Bare`` only as ``quoted`` gives it.

    What a user or a device chose, a name say, must not end a command or begin another one.
    Every command goes through here; ``quoted`` is what its protocol does about that.
    """
    return template.format(
        **{
            key: value if isinstance(value, (int, Bare)) else quoted(value)
            for key, value in values.items()
        }
    )


@dataclass(frozen=True)
class Dialect:
    """The root of all tables. ``FIELDS``: what the templates of a table may name."""

    FIELDS: ClassVar[frozenset[str]] = frozenset()


@dataclass(frozen=True)
class NumberedDialect(Dialect):
    """A device that numbers inputs and outputs apart and is told lists of ``list_limit`` pairs.

    At or below ``dark_dbm`` a port is dark.
    """

    list_limit: int = 512
    dark_dbm: float = -50.0


@dataclass(frozen=True)
class AnyPolatisDialect(NumberedDialect):
    """A Polatis: a model in which ``any_to_any`` is found has no inputs and outputs."""

    vendor: str = "Polatis"
    any_to_any: Pattern = r"\b\d+xCC\b"


D = TypeVar("D", bound=Dialect)


def corrected(driver: str, built_in: D) -> D:
    """The built-in table with the user's corrections for that driver, if there are any.

    Raises ``BadInput`` with every mistake of the file at once.
    """
    directory = os.environ.get(DIRECTORY_VARIABLE)
    if not directory:
        return built_in
    path = Path(directory) / f"{driver}.toml"
    if not path.exists():
        return built_in
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"reading the dialect {path}: {error}") from error
    mistakes = [m for key, value in table.items() if (m := _mistake(key, value, built_in))]
    if mistakes:
        raise BadInput(f"the dialect {path} has mistakes:\n  " + "\n  ".join(mistakes))
    return replace(built_in, **table)


def _mistake(key: str, value: object, built_in: Dialect) -> str | None:
    known = {f.name: getattr(built_in, f.name) for f in fields(built_in)}
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1)
        return f"{key}: no such entry" + (f"; did you mean {near[0]}?" if near else "")
    wanted = type(known[key])
    if type(value) is not wanted and not (wanted is float and type(value) is int):
        return f"{key}: expected a {wanted.__name__}, got {value!r}"
    if type(value) is int and wanted is int and value < 1:
        return f"{key}: expected more than {value!r}"
    if not isinstance(value, str):
        return None
    kinds: tuple[Any, ...] = getattr(_hints(type(built_in))[key], "__metadata__", ())
    if _TEMPLATE in kinds:
        return _template_mistake(key, value, built_in.FIELDS)
    return _pattern_mistake(key, value, str(known[key])) if _PATTERN in kinds else None


def _hints(table: type[Dialect]) -> dict[str, Any]:
    return get_type_hints(table, include_extras=True)


def _template_mistake(key: str, value: str, known: frozenset[str]) -> str | None:
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(value) if name is not None}
    except ValueError as error:
        return f"{key}: {error}"
    wrong = names - known
    return f"{key}: no such field: {', '.join(sorted(wrong))}" if wrong else None


def _pattern_mistake(key: str, value: str, built_in: str) -> str | None:
    try:
        groups = re.compile(value).groupindex
    except re.error as error:
        return f"{key}: not a pattern: {error}"
    missing = set(re.compile(built_in).groupindex) - set(groups)
    return f"{key}: lacks the groups {', '.join(sorted(missing))}" if missing else None


def power_dbm(text: str, dark_dbm: float = -math.inf) -> float | None:
    """A power as the device writes it, in dBm; ``None`` at or below ``dark_dbm`` or if none."""
    try:
        power = float(text)
    except ValueError:
        return None
    return power if dark_dbm < power < 100 else None


def condition(answer: str, ready: str, locked: str) -> Condition:
    """What a port's state means, given the patterns for two of the meanings."""
    if re.fullmatch(ready, answer):
        return "ready"
    return "locked" if re.fullmatch(locked, answer) else "failed"
