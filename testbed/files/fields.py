"""What may stand in a file, declared once: for reading, with positions, and for JSON Schema.

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
from patchlight.testbed.files.issues import FileIssues, Located, nearest
from patchlight.testbed.units import Units, pattern


class Fields(dict[str, Located[Any]]):
    """The keys of a group that could be read; ``broken`` are those that not all could be of."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: set[str] = set()


_NOTHING = re.compile(r"|~|null|Null|NULL")
_YES_NO = re.compile(r"true|True|TRUE|false|False|FALSE")
_WHOLE = re.compile(r"[+-]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?:_[0-9]{3})+")
_PLAIN_TAGS = frozenset({"", "!", *(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))})
_NO_BARE_TEXT = re.compile("|".join(p.pattern for p in (_NOTHING, _YES_NO, _WHOLE, _NUMBER)))


def locate(node: yaml.Node, value: Any = None) -> Located[Any]:
    """``value`` at the position of ``node``, counted from 1 as editors do."""
    mark = node.start_mark
    return Located(value, mark.line + 1, mark.column + 1)


def describe(node: yaml.Node) -> str:
    """What stands there, in the user's words: ``the number 5``, ``a list``, ``nothing``."""
    if node.tag not in _PLAIN_TAGS:
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
    return not _NO_BARE_TEXT.fullmatch(text)


def is_plain(node: yaml.Node) -> bool:
    """Whether a scalar stands there without quotes and without a tag."""
    scalar = isinstance(node, yaml.ScalarNode) and not node.style
    return scalar and node.tag in _PLAIN_TAGS


def short(text: str) -> str:
    """``text``, cut so that a message stays one readable line."""
    return text if len(text) <= 60 else f"{text[:57]}…"


def stands_twice(key: str, line: int) -> str:
    """What is wrong with a key that was there before, on ``line``."""
    return f"key {short(key)!r} stands twice, first on line {line}: expected it once"


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
        if isinstance(node, yaml.ScalarNode) and node.tag in _PLAIN_TAGS:
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
        if is_plain(node) and _WHOLE.fullmatch(text):
            # Python refuses to read numbers of thousands of digits; none is in range anyway.
            value = int(text, 0 if text[:2] in ("0x", "0o") else 10) if len(text) < 40 else -1
            # YAML 1.1 reads 010 as eight and YAML 1.2 as ten: neither is meant for sure.
            if not re.match(r"[+-]?0[0-9]", text) and self.lowest <= value <= self.highest:
                return locate(node, value)
        bounds = f"a whole number from {self.lowest} to {self.highest}"
        raise BadInput(f"expected {self.what}, {bounds}, found {describe(node)}")

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.lowest, "maximum": self.highest}


@dataclass(frozen=True)
class Number(FieldType):
    """A finite number from ``lowest`` (or ``above`` a bound that is not one itself) on."""

    what: str
    lowest: float | None = None
    highest: float | None = None
    above: float | None = None

    def _read(self, node: yaml.Node, issues: FileIssues) -> Located[Any]:
        if is_plain(node) and _NUMBER.fullmatch(str(node.value)):
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


@dataclass(frozen=True)
class ListOf(FieldType):
    """A list of one type of item; ``count`` fixes how many, where it matters."""

    item: FieldType
    what: str
    count: int | None = None

    def _read(self, node: yaml.Node, issues: FileIssues) -> Located[Any]:
        if not isinstance(node, yaml.SequenceNode) or node.tag not in _PLAIN_TAGS:
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


@dataclass(frozen=True)
class Key:
    """One key of a group: its type, and what it is about for those who edit the file.

    ``default`` says in words what holds without the key; ``example`` is a value in YAML, that of
    the type if there is none.
    """

    name: str
    type: FieldType
    about: str
    default: str | None = None
    example: str = ""
    required: bool = False

    @property
    def sample(self) -> str:
        """A value of the key, as it stands in YAML."""
        return self.example or sample(self.type)

    @property
    def description(self) -> str:
        """What it is about, and what holds without it."""
        return self.about if self.default is None else f"{self.about} (default: {self.default})"


def required(name: str, type: FieldType, about: str, example: str = "") -> Key:
    """A key that a group cannot do without."""
    return Key(name, type, about, example=example, required=True)


class Group(FieldType):
    """A mapping with known keys; every other key is a mistake."""

    def __init__(self, what: str, *keys: Key) -> None:
        self.what, self.keys = what, keys

    def _read(self, node: yaml.Node, issues: FileIssues) -> Located[Any]:
        if not isinstance(node, yaml.MappingNode) or node.tag not in _PLAIN_TAGS:
            raise BadInput(f"expected {self.expected()}, found {describe(node)}")
        known = {key.name: key for key in self.keys}
        fields = Fields()
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            position = locate(key_node)
            name = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else None
            if name is None or name not in known:
                shown = describe(key_node) if name is None else f"{short(name)!r}"
                hint = nearest(name or "", known)
                issues.at(position, f"unknown key {shown} in {self.what}: {hint}")
            elif name in lines:
                issues.at(position, stands_twice(name, lines[name]))
            else:
                lines[name] = position.line
                value = known[name].type.read(value_node, issues)
                if value is not None:
                    fields[name] = value
                if value is None or not value.whole:
                    fields.broken.add(name)
        for key in self.keys:
            if key.required and key.name not in lines:
                message = f"{self.what} lacks {key.name!r}: expected {key.about}"
                issues.at(locate(node), message)
        return locate(node, fields)

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {
                key.name: {**key.type.schema(), "description": key.description} for key in self.keys
            },
            "required": [key.name for key in self.keys if key.required],
            "additionalProperties": False,
        }

    def expected(self) -> str:
        names = ", ".join(key.name for key in self.keys if key.required)
        return f"{self.what} with keys {names}" if names else self.what


def sample(type: FieldType) -> str:
    """A value of the type, as it stands in YAML: its example, or the simplest there is."""
    match type:
        case Text():
            return type.example or str(type.json.get("enum", [""])[0])
        case Whole():
            return str(type.lowest)
        case Number():
            return f"{1.5 if type.highest is None else type.highest:g}"
        case YesNo():
            return "true"
        case ListOf():
            return f"[{', '.join([sample(type.item)] * (type.count or 1))}]"
        case MapOf():
            return type.example
        case Group():
            required = (f"{key.name}: {key.sample}" for key in type.keys if key.required)
            return f"{{{', '.join(required)}}}"
    raise TypeError(f"no sample of {type.what}")
