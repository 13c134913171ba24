"""What may stand in a YAML file, declared once: for reading, with places, and for JSON Schema.

A *kind* reads one YAML node into a value with its place, or notes what is wrong with it. Text,
numbers and names are told apart here and not by YAML's own guesses, so ``on``, ``010`` or
``12:30`` mean the same whatever version of YAML a reader has in mind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import yaml

from patchlight.testbed.errors import BadInput
from patchlight.testbed.labfile.errors import FileIssues, Located, nearest


class Fields(dict[str, Located[Any]]):
    """The keys of a group that could be read; ``broken`` are those that not all could be of."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: set[str] = set()


_NOTHING = re.compile(r"|~|null|Null|NULL")
_YES_NO = re.compile(r"true|True|TRUE|false|False|FALSE")
_WHOLE = re.compile(r"[+-]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_PLAIN_TAG = re.compile(r"tag:yaml\.org,2002:(str|seq|map)|!?")


class FieldType(Protocol):
    """One kind of value: how to read it, and its JSON Schema."""

    def read(self, node: yaml.Node, mistakes: FileIssues) -> Located[Any] | None:
        """The value with its place, or ``None`` after noting what is wrong with it."""
        ...

    def schema(self) -> dict[str, Any]:
        """The JSON Schema (draft 2020-12) of what ``read`` takes."""
        ...


def place(node: yaml.Node, value: Any) -> Located[Any]:
    """``value`` at the place of ``node``, counted from 1 as editors do."""
    return Located(value, node.start_mark.line + 1, node.start_mark.column + 1)


def describe(node: yaml.Node) -> str:
    """What stands there, in the user's words: ``the number 5``, ``a list``, ``nothing``."""
    if not _PLAIN_TAG.fullmatch(node.tag):
        return f"the YAML tag {short(node.tag.replace('tag:yaml.org,2002:', '!!'))}"
    if isinstance(node, yaml.MappingNode):
        return "a group of keys"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    text = str(node.value)
    if is_plain(node) and not is_bare_text(text):
        if _NOTHING.fullmatch(text):
            return "nothing"
        return text.lower() if _YES_NO.fullmatch(text) else f"the number {short(text)}"
    return f"the text {short(text)!r}"


def is_bare_text(text: str) -> bool:
    """Whether ``text`` without quotes is read as text, not as a number, yes or no, or nothing."""
    return not any(p.fullmatch(text) for p in (_NOTHING, _YES_NO, _WHOLE, _NUMBER))


def is_plain(node: yaml.Node) -> bool:
    """Whether a scalar stands there without quotes and without a tag."""
    scalar = isinstance(node, yaml.ScalarNode) and not node.style
    return scalar and _PLAIN_TAG.fullmatch(node.tag) is not None


def short(text: str) -> str:
    """``text``, cut so that a mistake stays one readable line."""
    return text if len(text) <= 60 else f"{text[:57]}…"


@dataclass(frozen=True)
class Text:
    """A text that ``take`` turns into a value; ``take`` raises ``BadInput`` for a wrong one."""

    what: str
    take: Callable[[str], object]
    json: Mapping[str, Any] = field(default_factory=dict)
    quotable: bool = True  # whether a bare number would do if it stood in quotes

    def read(self, node: yaml.Node, mistakes: FileIssues) -> Located[Any] | None:
        """See ``FieldType``."""
        found = describe(node)
        if not found.startswith("the text "):
            scalar = found.startswith("the number") or found in ("true", "false")
            quote = ": put it in quotes" if scalar and self.quotable else ""
            mistakes.at(place(node, None), f"expected {self.what}, found {found}{quote}")
            return None
        try:
            return place(node, self.take(str(node.value)))
        except BadInput as error:
            mistakes.at(place(node, None), error.message)
            return None

    def schema(self) -> dict[str, Any]:
        """See ``FieldType``."""
        return {"type": "string", **self.json}


@dataclass(frozen=True)
class Whole:
    """A whole number between two bounds, decimal or ``0x`` hexadecimal."""

    what: str
    lowest: int
    highest: int

    def read(self, node: yaml.Node, mistakes: FileIssues) -> Located[Any] | None:
        """See ``FieldType``."""
        if is_plain(node) and _WHOLE.fullmatch(text := str(node.value)):
            # Python refuses to read numbers of thousands of digits; none is in range anyway.
            value = int(text, 0 if text[:2] in ("0x", "0o") else 10) if len(text) < 40 else -1
            # YAML 1.1 reads 010 as eight and YAML 1.2 as ten: neither is meant for sure.
            if not re.match(r"[+-]?0[0-9]", text) and self.lowest <= value <= self.highest:
                return place(node, value)
        expected = f"expected {self.what}, a whole number from {self.lowest} to {self.highest}"
        mistakes.at(place(node, None), f"{expected}, found {describe(node)}")
        return None

    def schema(self) -> dict[str, Any]:
        """See ``FieldType``."""
        return {"type": "integer", "minimum": self.lowest, "maximum": self.highest}


@dataclass(frozen=True)
class Positive:
    """A number above 0."""

    what: str

    def read(self, node: yaml.Node, mistakes: FileIssues) -> Located[Any] | None:
        """See ``FieldType``."""
        if is_plain(node) and _NUMBER.fullmatch(str(node.value)):
            value = float(node.value)
            if 0 < value < math.inf:
                return place(node, value)
        mistakes.at(
            place(node, None), f"expected {self.what}, a number above 0, found {describe(node)}"
        )
        return None

    def schema(self) -> dict[str, Any]:
        """See ``FieldType``."""
        return {"type": "number", "exclusiveMinimum": 0}


@dataclass(frozen=True)
class ListOf:
    """A list of one kind of item; ``count`` fixes how many, where it matters."""

    item: FieldType
    what: str
    count: int | None = None

    def read(self, node: yaml.Node, mistakes: FileIssues) -> Located[Any] | None:
        """See ``FieldType``."""
        if not isinstance(node, yaml.SequenceNode) or not _PLAIN_TAG.fullmatch(node.tag):
            mistakes.at(
                place(node, None), f"expected a list of {self.what}, found {describe(node)}"
            )
            return None
        if self.count is not None and len(node.value) != self.count:
            message = f"expected {self.count} {self.what}, found {len(node.value)}"
            mistakes.at(place(node, None), message)
        items = [self.item.read(child, mistakes) for child in node.value]
        found = [item for item in items if item is not None]
        return replace(place(node, found), whole=len(found) == len(items))

    def schema(self) -> dict[str, Any]:
        """See ``FieldType``."""
        bounds = {} if self.count is None else {"minItems": self.count, "maxItems": self.count}
        return {"type": "array", "items": self.item.schema(), **bounds}


@dataclass(frozen=True)
class Key:
    """One key of a group: its kind, and what it is about for those who edit the file."""

    name: str
    kind: FieldType
    about: str
    required: bool = False
    default: str | None = None


@dataclass(frozen=True)
class Group:
    """A mapping with known keys; every other key is a mistake."""

    what: str
    keys: tuple[Key, ...]

    def read(self, node: yaml.Node, mistakes: FileIssues) -> Located[Any] | None:
        """See ``FieldType``."""
        if not isinstance(node, yaml.MappingNode) or not _PLAIN_TAG.fullmatch(node.tag):
            names = ", ".join(key.name for key in self.keys if key.required)
            wanted = f"{self.what} with keys {names}" if names else self.what
            mistakes.at(place(node, None), f"expected {wanted}, found {describe(node)}")
            return None
        known = {key.name: key for key in self.keys}
        fields = Fields()
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            where = place(key_node, None)
            name = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else None
            if name is None or name not in known:
                shown = describe(key_node) if name is None else f"{short(name)!r}"
                hint = nearest(name or "", known)
                mistakes.at(where, f"unknown key {shown} in {self.what}: {hint}")
            elif name in seen:
                message = f"key {name!r} stands twice, first on line {seen[name]}: expected it once"
                mistakes.at(where, message)
            else:
                seen[name] = where.line
                value = known[name].kind.read(value_node, mistakes)
                if value is not None:
                    fields[name] = value
                if value is None or not value.whole:
                    fields.broken.add(name)
        for key in self.keys:
            if key.required and key.name not in seen:
                mistakes.at(
                    place(node, None), f"{self.what} lacks {key.name!r}: expected {key.about}"
                )
        return place(node, fields)

    def schema(self) -> dict[str, Any]:
        """See ``FieldType``."""
        properties: dict[str, Any] = {}
        for key in self.keys:
            properties[key.name] = {**key.kind.schema(), "description": key.about}
            if key.default is not None:
                properties[key.name]["description"] += f" (default: {key.default})"
        return {
            "type": "object",
            "properties": properties,
            "required": [key.name for key in self.keys if key.required],
            "additionalProperties": False,
        }
