"""Declares types of values in files, which are read, written and described as JSON Schema."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

import yaml

from patchlight.testbed.errors import BadInput, nearest, short
from patchlight.testbed.io.reader import (
    FileIssues,
    Located,
    compose,
    stands_twice,
)

# Resolved here, because YAML versions read ``on``, ``010`` or ``12:30`` differently.
_NOTHING = re.compile(r"|~|null|Null|NULL")
_YES_NO = re.compile(r"true|True|TRUE|false|False|FALSE")
WHOLE = re.compile(r"[+-]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
HEXADECIMAL = re.compile(
    r"0x[0-9a-fA-F]{1,16}|(?:[0-9a-fA-F]{2}:){7}[0-9a-fA-F]{2}"
    r"|0[0-9a-fA-F]{15}|(?=[0-9]*[a-fA-F])[0-9a-fA-F]{16}"
)
NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
PLAIN_TAGS = frozenset(
    {"", "!", *(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))}
)
_ANY_NUMBER = re.compile(f"{WHOLE.pattern}|{NUMBER.pattern}")
_NO_BARE_TEXT = re.compile(
    "|".join(p.pattern for p in (_NOTHING, _YES_NO, _ANY_NUMBER))
)


def locate(node: yaml.Node, value: Any = None) -> Located[Any]:
    """``value`` at the position of ``node``, counted from 1."""
    mark = node.start_mark
    return Located(value, mark.line + 1, mark.column + 1)


def describe(node: yaml.Node) -> str:
    """The node for messages: ``the number 5``, ``a list``, ``nothing``."""
    if node.tag not in PLAIN_TAGS:
        return f"the YAML tag {short(node.tag.replace('tag:yaml.org,2002:', '!!'))}"
    if isinstance(node, yaml.MappingNode):
        return "a group of keys"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    text = str(node.value)
    if is_plain(node) and not is_bare_text(text):
        if _NOTHING.fullmatch(text):
            return "nothing"
        return (
            text.lower()
            if _YES_NO.fullmatch(text)
            else f"the number {short(text)}"
        )
    return f"the text {short(text)!r}"


def is_bare_text(text: str) -> bool:
    """Whether unquoted ``text`` is read as text, not as a number, boolean or null."""
    return not _NO_BARE_TEXT.fullmatch(text)


def is_plain(node: yaml.Node) -> bool:
    """Whether a scalar has no quotes and no tag."""
    return (
        isinstance(node, yaml.ScalarNode)
        and not node.style
        and node.tag in PLAIN_TAGS
    )


class OneLine(dict[Any, Any]):
    """A mapping written as ``{a: 1, b: 2}``."""


class Listed(list[Any]):
    """A list written as ``[a, b]``."""


class Hexadecimal(int):
    """A whole number written as ``0x…``."""


class Fields(dict[str, Located[Any]]):
    """The keys of a group that could be read; ``broken`` are those with mistakes.

    ``make`` converts values without positions into the group's model.
    """

    def __init__(
        self, make: Callable[[dict[str, Any]], Any] | None = None
    ) -> None:
        super().__init__()
        self.broken: set[str] = set()
        self.make = make

    def value_of(self, key: str, default: Any = None) -> Any:
        """The value of a key."""
        return self[key].value if key in self else default

    def listed(self, key: str) -> list[Any]:
        """The items of a list; empty without the key."""
        return [item.value for item in self[key].value] if key in self else []


def plain(value: Any) -> Any:
    """The plain value: lists as tuples, groups as models or dicts."""
    if isinstance(value, list):
        return tuple(plain(item.value) for item in value)
    if not isinstance(value, dict):
        return value
    said = {key: plain(item.value) for key, item in value.items()}
    return (
        value.make(said) if isinstance(value, Fields) and value.make else said
    )


class FieldType(ABC):
    """A type of values; ``_read`` of a subclass raises ``BadInput`` for a wrong node."""

    what: str
    suffix: str = (
        ""  # the unit suffix of a field: key ``rate`` fills ``rate_bps``
    )

    def read(self, node: yaml.Node, issues: FileIssues) -> Located[Any] | None:
        """The value with its position, or ``None`` after noting mistakes."""
        try:
            return self._read(node, issues)
        except BadInput as error:
            issues.at(locate(node), error.message)
            return None

    def parse(self, text: str, issues: FileIssues) -> Any:
        """The value in a YAML text, or ``None``; the caller raises the noted mistakes."""
        root = compose(
            text,
            issues,
            self.what,
            self.expected(),
        )
        located = None if root is None else self.read(root, issues)
        return None if located is None else located.value

    @abstractmethod
    def _read(
        self, node: yaml.Node, issues: FileIssues
    ) -> Located[Any] | None: ...

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """The JSON Schema (draft 2020-12) of the type."""

    @abstractmethod
    def sample(self) -> str:
        """An example of the type in YAML."""

    def written(self, value: Any) -> Any:
        """A value as plain YAML data."""
        return value

    def expected(self) -> str:
        """What the type accepts, for messages."""
        return self.what


@dataclass(frozen=True)
class Text(FieldType):
    """A text that ``take`` converts to a value or refuses with ``BadInput``.

    ``units`` may follow its number; with ``numbers``, a bare number is accepted too.
    """

    what: str
    take: Callable[[str], object]
    json: Mapping[str, Any] = field(default_factory=dict)
    numbers: bool = False
    example: str = ""
    units: tuple[str, ...] = ()
    write: Callable[[Any], Any] = str
    suffix: str = ""

    def _read(self, node: yaml.Node, issues: FileIssues) -> Located[Any]:
        if isinstance(node, yaml.ScalarNode) and node.tag in PLAIN_TAGS:
            is_text = bool(node.style) or is_bare_text(node.value)
            if is_text or (self.numbers and _ANY_NUMBER.fullmatch(node.value)):
                return locate(node, self.take(node.value))
        shown = describe(node)
        is_bare = shown.startswith("the number ") or shown in ("true", "false")
        hint = ": put it in quotes" if is_bare and not self.units else ""
        raise BadInput(f"expected {self.expected()}, found {shown}{hint}")

    def schema(self) -> dict[str, Any]:
        examples = {"examples": [self.example]} if self.example else {}
        kind: Any = ["string", "number"] if self.numbers else "string"
        return {"type": kind, **examples, **self.json}

    def written(self, value: Any) -> Any:
        return self.write(value)

    def sample(self) -> str:
        return self.example or str(self.json.get("enum", [""])[0])

    def expected(self) -> str:
        return (
            f"{self.what}, like {self.example!r}"
            if self.example
            else self.what
        )


def matching(
    regex: str,
    what: str,
    expected: str,
    example: str,
    longest: int = 255,
) -> Text:
    """A text of at most ``longest`` characters that matches a pattern; ``what`` names it."""
    compiled = re.compile(regex)

    def take(text: str) -> str:
        if compiled.fullmatch(text) and len(text) <= longest:
            return text
        raise BadInput(
            f"{short(text)!r} is not {what}: expected {expected}, like {example!r}"
        )

    return Text(
        what,
        take,
        {"pattern": f"^{regex}$", "maxLength": longest},
        example=example,
    )


def choice(what: str, *choices: str) -> Text:
    """One of several words."""

    def take(text: str) -> str:
        if text in choices:
            return text
        raise BadInput(
            f"{short(text)!r} is not {what}: {nearest(text, choices)}"
        )

    return Text(
        f"{what}: {' or '.join(choices)}", take, {"enum": list(choices)}
    )


@dataclass(frozen=True)
class Whole(FieldType):
    """A whole number within bounds, decimal or ``0x…``; with ``grouped`` also ``14_000_000``.

    With ``hexadecimal`` also as switches print a datapath id: "0x2", ``00:00:00:00:00:00:00:02``,
    or ``0000000000000002``.
    """

    what: str
    lowest: int
    highest: int
    grouped: bool = False
    hexadecimal: bool = False

    def _read(self, node: yaml.Node, issues: FileIssues) -> Located[Any]:
        text = str(node.value)
        if self.grouped and re.fullmatch(
            r"[+-]?[0-9]{1,3}(?:_[0-9]{3})+", text
        ):
            text = text.replace("_", "")
        if (
            self.hexadecimal
            and isinstance(node, yaml.ScalarNode)
            and HEXADECIMAL.fullmatch(text)
        ):
            value = int(text.replace(":", ""), 16)
            if self.lowest <= value <= self.highest:
                return locate(node, value)
        elif is_plain(node) and WHOLE.fullmatch(text):
            # Python refuses to convert thousands of digits; no such number is in range anyway.
            value = (
                int(text, 0 if text[:2] in ("0x", "0o") else 10)
                if len(text) < 40
                else -1
            )
            # YAML 1.1 reads 010 as 8, YAML 1.2 as 10: it is ambiguous.
            if (
                not re.match(r"[+-]?0[0-9]", text)
                and self.lowest <= value <= self.highest
            ):
                return locate(node, value)
        bounds = f"a whole number from {self.lowest} to {self.highest}"
        raise BadInput(
            f"expected {self.what}, {bounds}, found {describe(node)}"
        )

    def schema(self) -> dict[str, Any]:
        number = {
            "type": "integer",
            "minimum": self.lowest,
            "maximum": self.highest,
        }
        text = {"type": "string", "pattern": f"^({HEXADECIMAL.pattern})$"}
        return {"anyOf": [number, text]} if self.hexadecimal else number

    def written(self, value: Any) -> Any:
        return Hexadecimal(value) if self.hexadecimal else value

    def sample(self) -> str:
        return str(self.lowest)


@dataclass(frozen=True)
class ListOf(FieldType):
    """A list of one type; ``count`` fixes its length if needed."""

    item: FieldType
    what: str
    count: int | None = None

    def _read(self, node: yaml.Node, issues: FileIssues) -> Located[Any]:
        if (
            not isinstance(node, yaml.SequenceNode)
            or node.tag not in PLAIN_TAGS
        ):
            raise BadInput(
                f"expected {self.expected()}, found {describe(node)}"
            )
        if self.count is not None and len(node.value) != self.count:
            issues.at(
                locate(node),
                f"expected {self.count} {self.what}, found {len(node.value)}",
            )
        items = [self.item.read(child, issues) for child in node.value]
        read = [item for item in items if item is not None]
        return replace(locate(node, read), whole=len(read) == len(items))

    def schema(self) -> dict[str, Any]:
        bounds = (
            {}
            if self.count is None
            else {"minItems": self.count, "maxItems": self.count}
        )
        return {"type": "array", "items": self.item.schema(), **bounds}

    def written(self, value: Any) -> Any:
        items = map(self.item.written, value)
        return list(items) if isinstance(self.item, Group) else Listed(items)

    def sample(self) -> str:
        return f"[{', '.join([self.item.sample()] * (self.count or 1))}]"

    def expected(self) -> str:
        return f"a list of {self.what}"


@dataclass(frozen=True)
class Key:
    """One key of a group; ``about`` describes it to users.

    ``default`` describes its absence. ``example`` is a YAML value, by default the type's. ``of`` is
    the model's field, by default the name with the unit of the type.
    """

    name: str
    type: FieldType
    about: str
    default: str | None = None
    example: str = ""
    required: bool = False
    of: str = ""

    @property
    def field(self) -> str:
        """The field of the model that it fills."""
        return self.of or f"{self.name}{self.type.suffix}"

    @property
    def sample(self) -> str:
        """An example of the key's value in YAML."""
        return self.example or self.type.sample()

    @property
    def description(self) -> str:
        """Its description and default."""
        return (
            self.about
            if self.default is None
            else f"{self.about} (default: {self.default})"
        )


def required(
    name: str,
    type: FieldType,
    about: str,
    example: str = "",
) -> Key:
    """Whether the group requires the key."""
    return Key(
        name,
        type,
        about,
        example=example,
        required=True,
    )


class Group(FieldType):
    """A mapping with known keys; unknown keys are mistakes.

    The keys fill the dataclass ``model`` and share its defaults. If fields differ from keys,
    ``make`` builds the model and ``said`` returns the values by key (``None``: omitted). A group is
    written on one line unless it is a ``block``.
    """

    def __init__(
        self,
        what: str,
        *keys: Key,
        model: type[Any] | None = None,
        make: Callable[..., Any] | None = None,
        said: Callable[[Any], Mapping[str, Any]] | None = None,
        block: bool = False,
    ) -> None:
        self.what = what
        self._make = make or model
        self._said = said
        self._block = block
        self._usual: dict[str, Any] = {}  # the defaults of the model's fields
        for each in fields(model) if model else ():
            if each.default is not MISSING:
                self._usual[each.name] = each.default
            elif each.default_factory is not MISSING:
                self._usual[each.name] = each.default_factory()
        self.keys = tuple(map(self._with_default, keys))

    def _with_default(self, key: Key) -> Key:
        """The key, with the field's default as text if it has no description and the default is a
        value."""
        if key.required or key.default is not None:
            return key
        value = self._usual.get(key.field)
        written = None if value is None else key.type.written(value)
        text = (
            str(written).lower() if isinstance(written, bool) else str(written)
        )
        is_value = isinstance(written, str | int | float) and written != ""
        return replace(key, default=text) if is_value else key

    def _made(self, values: dict[str, Any]) -> Any:
        field_of = {key.name: key.field for key in self.keys}
        named = {field_of[name]: value for name, value in values.items()}
        return named if self._make is None else self._make(**named)

    def _read(self, node: yaml.Node, issues: FileIssues) -> Located[Any]:
        if (
            not isinstance(node, yaml.MappingNode)
            or node.tag not in PLAIN_TAGS
        ):
            raise BadInput(
                f"expected {self.expected()}, found {describe(node)}"
            )
        known = {key.name: key for key in self.keys}
        fields = Fields(self._made if self._make else None)
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            position = locate(key_node)
            name = (
                str(key_node.value)
                if isinstance(key_node, yaml.ScalarNode)
                else None
            )
            if name is None or name not in known:
                shown = (
                    describe(key_node) if name is None else f"{short(name)!r}"
                )
                hint = nearest(name or "", known)
                issues.at(
                    position, f"unknown key {shown} in {self.what}: {hint}"
                )
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
                issues.at(
                    locate(node),
                    f"{self.what} lacks {key.name!r}: expected {key.about}",
                )
        return locate(node, fields)

    def written(self, value: Any) -> Any:
        """The keys of a model, without those that have their default."""
        said = self._said(value) if self._said else {}
        document: dict[str, Any] = {} if self._block else OneLine()
        for key in self.keys:
            item = (
                said[key.name]
                if key.name in said
                else getattr(value, key.field, None)
            )
            as_usual = key.name not in said and item == self._usual.get(
                key.field, MISSING
            )
            written = {} if item is None else key.type.written(item)
            if written != {} and (key.required or not as_usual):
                document[key.name] = written
        return document

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {
                key.name: {**key.type.schema(), "description": key.description}
                for key in self.keys
            },
            "required": [key.name for key in self.keys if key.required],
            "additionalProperties": False,
        }

    def sample(self) -> str:
        required = (
            f"{key.name}: {key.sample}" for key in self.keys if key.required
        )
        return f"{{{', '.join(required)}}}"

    def expected(self) -> str:
        names = ", ".join(key.name for key in self.keys if key.required)
        return f"{self.what} with keys {names}" if names else self.what
