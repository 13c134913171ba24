"""What values may stand in a file, declared once: for reading, with positions, and for JSON Schema.

A *field type* reads one YAML node into a value with its position, or notes what is wrong with
it. Text, numbers and names are told apart here and not by YAML's own guesses, so ``on``, ``010``
or ``12:30`` mean the same whatever version of YAML a reader has in mind.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.issues import (
    NUMBER,
    PLAIN_TAGS,
    WHOLE,
    FileIssues,
    Located,
    describe,
    is_bare_text,
    is_plain,
    locate,
    nearest,
    short,
    stands_twice,
)
from patchlight.testbed.units import Units, pattern

_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?:_[0-9]{3})+")


def plain(value: Any) -> Any:
    """What was read without its positions: lists as tuples, groups and mappings as dicts."""
    if isinstance(value, list):
        return tuple(plain(item.value) for item in value)
    if isinstance(value, dict):
        return {key: plain(item.value) for key, item in value.items()}
    return value


class FieldType(ABC):
    """One kind of value: how to read it, its JSON Schema, and an example of it in YAML.

    A subclass implements ``_read``, which raises ``BadInput`` with what is wrong with the node.
    """

    what: str

    def read(self, node: yaml.Node, issues: FileIssues) -> Located[Any] | None:
        """The value with its position, or ``None`` after noting what is wrong with it."""
        try:
            return self._read(node, issues)
        except BadInput as error:
            issues.at(locate(node), error.message)
            return None

    @abstractmethod
    def _read(self, node: yaml.Node, issues: FileIssues) -> Located[Any] | None: ...

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """The JSON Schema (draft 2020-12) of what ``read`` takes."""

    @abstractmethod
    def sample(self) -> str:
        """A value of the type, as it stands in YAML: its example, or the simplest there is."""

    def expected(self) -> str:
        """What the type takes, for messages."""
        return self.what


@dataclass(frozen=True)
class Text(FieldType):
    """A text that ``take`` turns into a value; ``take`` raises ``BadInput`` for a wrong one.

    ``units`` are what may stand behind its number; with ``numbers``, a bare one is a text too.
    """

    what: str
    take: Callable[[str], object]
    json: Mapping[str, Any] = field(default_factory=dict)
    numbers: bool = False
    example: str = ""
    units: tuple[str, ...] = ()

    def _read(self, node: yaml.Node, issues: FileIssues) -> Located[Any]:
        if isinstance(node, yaml.ScalarNode) and node.tag in PLAIN_TAGS:
            text = str(node.value)
            if node.style or is_bare_text(text):
                return locate(node, self.take(text))
        shown = describe(node)
        is_number = shown.startswith("the number ")
        if is_number and self.numbers:
            return locate(node, self.take(str(node.value)))
        quote = is_number or shown in ("true", "false")
        hint = ": put it in quotes" if quote and not self.units else ""
        raise BadInput(f"expected {self.expected()}, found {shown}{hint}")

    def schema(self) -> dict[str, Any]:
        examples = {"examples": [self.example]} if self.example else {}
        kind: Any = ["string", "number"] if self.numbers else "string"
        return {"type": kind, **examples, **self.json}

    def sample(self) -> str:
        return self.example or str(self.json.get("enum", [""])[0])

    def expected(self) -> str:
        return f"{self.what}, like {self.example!r}" if self.example else self.what


def matching(regex: str, what: str, expected: str, example: str, longest: int = 255) -> Text:
    """A text of at most ``longest`` characters that matches a pattern; ``what`` is its noun."""
    compiled = re.compile(regex)

    def take(text: str) -> str:
        if compiled.fullmatch(text) and len(text) <= longest:
            return text
        raise BadInput(f"{short(text)!r} is not {what}: expected {expected}, like {example!r}")

    return Text(what, take, {"pattern": f"^{regex}$", "maxLength": longest}, example=example)


def choice(what: str, *choices: str) -> Text:
    """One of some words."""

    def take(text: str) -> str:
        if text in choices:
            return text
        raise BadInput(f"{short(text)!r} is not {what}: {nearest(text, choices)}")

    return Text(f"{what}: {' or '.join(choices)}", take, {"enum": list(choices)})


def quantity(parse: Callable[[str], object], known: Units, what: str, example: str) -> Text:
    """A number with one of the ``known`` units."""
    json, names = {"pattern": pattern(known)}, tuple(known)
    return Text(f"{what} with its unit", parse, json, example=example, units=names)


@dataclass(frozen=True)
class Whole(FieldType):
    """A whole number between two bounds, decimal or ``0x`` hexadecimal.

    With ``grouped``, ``14_000_000`` is one too.
    """

    what: str
    lowest: int
    highest: int
    grouped: bool = False

    def _read(self, node: yaml.Node, issues: FileIssues) -> Located[Any]:
        text = str(node.value)
        if self.grouped and _GROUPED.fullmatch(text):
            text = text.replace("_", "")
        if is_plain(node) and WHOLE.fullmatch(text):
            # Python refuses to read numbers of thousands of digits; none is in range anyway.
            value = int(text, 0 if text[:2] in ("0x", "0o") else 10) if len(text) < 40 else -1
            # YAML 1.1 reads 010 as eight and YAML 1.2 as ten: neither is meant for sure.
            if not re.match(r"[+-]?0[0-9]", text) and self.lowest <= value <= self.highest:
                return locate(node, value)
        bounds = f"a whole number from {self.lowest} to {self.highest}"
        raise BadInput(f"expected {self.what}, {bounds}, found {describe(node)}")

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.lowest, "maximum": self.highest}

    def sample(self) -> str:
        return str(self.lowest)


@dataclass(frozen=True)
class Number(FieldType):
    """A finite number from ``lowest`` (or ``above`` a bound that is not one itself) on."""

    what: str
    lowest: float | None = None
    highest: float | None = None
    above: float | None = None

    def _read(self, node: yaml.Node, issues: FileIssues) -> Located[Any]:
        if is_plain(node) and NUMBER.fullmatch(str(node.value)):
            value = float(node.value)
            if (
                math.isfinite(value)
                and (self.lowest is None or value >= self.lowest)
                and (self.highest is None or value <= self.highest)
                and (self.above is None or value > self.above)
            ):
                return locate(node, value)
        raise BadInput(f"expected {self.what}, a number{self.range}, found {describe(node)}")

    @property
    def range(self) -> str:
        """The bounds in words, with a blank before."""
        if self.above is not None:
            return f" above {self.above:g}" + self._upto(", at most")
        if self.lowest is not None:
            return f" from {self.lowest:g}" + (self._upto(" to") or " on")
        return self._upto(" of at most")

    def _upto(self, before: str) -> str:
        return "" if self.highest is None else f"{before} {self.highest:g}"

    def schema(self) -> dict[str, Any]:
        bounds = {"minimum": self.lowest, "maximum": self.highest, "exclusiveMinimum": self.above}
        return {"type": "number", **{key: b for key, b in bounds.items() if b is not None}}

    def sample(self) -> str:
        return f"{1.5 if self.highest is None else self.highest:g}"


@dataclass(frozen=True)
class YesNo(FieldType):
    """``true`` or ``false``."""

    what: str

    def _read(self, node: yaml.Node, issues: FileIssues) -> Located[Any]:
        if is_plain(node) and node.value in ("true", "True", "false", "False"):
            return locate(node, node.value in ("true", "True"))
        raise BadInput(f"expected {self.what}, true or false, found {describe(node)}")

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}

    def sample(self) -> str:
        return "true"


@dataclass(frozen=True)
class ListOf(FieldType):
    """A list of one type of item; ``count`` fixes how many, where it matters."""

    item: FieldType
    what: str
    count: int | None = None

    def _read(self, node: yaml.Node, issues: FileIssues) -> Located[Any]:
        if not isinstance(node, yaml.SequenceNode) or node.tag not in PLAIN_TAGS:
            raise BadInput(f"expected {self.expected()}, found {describe(node)}")
        if self.count is not None and len(node.value) != self.count:
            message = f"expected {self.count} {self.what}, found {len(node.value)}"
            issues.at(locate(node), message)
        items = [self.item.read(child, issues) for child in node.value]
        read = [item for item in items if item is not None]
        located = locate(node, read)
        return located if len(read) == len(items) else replace(located, whole=False)

    def schema(self) -> dict[str, Any]:
        bounds = {} if self.count is None else {"minItems": self.count, "maxItems": self.count}
        return {"type": "array", "items": self.item.schema(), **bounds}

    def sample(self) -> str:
        return f"[{', '.join([self.item.sample()] * (self.count or 1))}]"

    def expected(self) -> str:
        return f"a list of {self.what}"


@dataclass(frozen=True)
class MapOf(FieldType):
    """A mapping from texts to one type of value; each value has the position of its key."""

    key: Text
    item: FieldType
    what: str
    example: str

    def _read(self, node: yaml.Node, issues: FileIssues) -> Located[Any]:
        if not isinstance(node, yaml.MappingNode):
            raise BadInput(f"expected {self.what}, like {self.example}, found {describe(node)}")
        values: dict[Any, Located[Any]] = {}
        first: dict[Any, Located[Any]] = {}
        for key_node, value_node in node.value:
            key, value = self.key.read(key_node, issues), self.item.read(value_node, issues)
            if key is None:
                continue
            if first.setdefault(key.value, key) is not key:
                issues.at(key, stands_twice(str(key_node.value), first[key.value].line))
            elif value is not None:
                values[key.value] = replace(key, value=value.value)
        return locate(node, values)

    def schema(self) -> dict[str, Any]:
        values = {self.key.json.get("pattern", ".*"): self.item.schema()}
        return {"type": "object", "patternProperties": values, "additionalProperties": False}

    def sample(self) -> str:
        return self.example
