"""Adds types of fields, parses them from command lines, and prints tables of a file's keys."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from patchlight.testbed.errors import BadInput, short
from patchlight.testbed.io import fields
from patchlight.testbed.io.fields import (
    FieldType,
    Group,
    Key,
    ListOf,
    Text,
    Whole,
    locate,
    plain,
)
from patchlight.testbed.io.reader import FileIssues, Located, stands_twice
from patchlight.testbed.units import WRITTEN, Units, pattern


def printable(longest: int, refusal: str) -> Callable[[str], str]:
    """A parser of printable, non-blank texts that refuses others with ``refusal``."""

    def take(text: str) -> str:
        if text.strip() and text.isprintable() and len(text) <= longest:
            return text
        raise BadInput(f"{short(text)!r} {refusal}")

    return take


def quantity(
    parse: Callable[[str], object],
    known: Units,
    what: str,
    example: str,
) -> Text:
    """A number with one of the ``known`` units."""
    json = {"pattern": pattern(known)}
    names = tuple(known)
    return Text(
        f"{what} with its unit",
        parse,
        json,
        False,
        example,
        names,
        *WRITTEN[names[0]],
    )


@dataclass(frozen=True)
class Number(FieldType):
    """A finite number of at least ``lowest``, or more than ``above``."""

    what: str
    lowest: float | None = None
    highest: float | None = None
    above: float | None = None

    def _read(self, node: yaml.Node, issues: FileIssues) -> Located[Any]:
        if fields.is_plain(node) and fields.NUMBER.fullmatch(str(node.value)):
            value = float(node.value)
            if (
                math.isfinite(value)
                and (self.lowest is None or value >= self.lowest)
                and (self.highest is None or value <= self.highest)
                and (self.above is None or value > self.above)
            ):
                return locate(node, value)
        raise BadInput(
            f"expected {self.what}, a number{self.range}, found {fields.describe(node)}"
        )

    @property
    def range(self) -> str:
        """The bounds as text, after a space."""
        if self.above is not None:
            return f" above {self.above:g}" + self._upto(", at most")
        if self.lowest is not None:
            return f" from {self.lowest:g}" + (self._upto(" to") or " on")
        return self._upto(" of at most")

    def _upto(self, before: str) -> str:
        return "" if self.highest is None else f"{before} {self.highest:g}"

    def schema(self) -> dict[str, Any]:
        bounds = {
            "minimum": self.lowest,
            "maximum": self.highest,
            "exclusiveMinimum": self.above,
        }
        return {
            "type": "number",
            **{key: b for key, b in bounds.items() if b is not None},
        }

    def written(self, value: Any) -> Any:
        return int(value) if float(value).is_integer() else value

    def sample(self) -> str:
        return f"{1.5 if self.highest is None else self.highest:g}"


@dataclass(frozen=True)
class YesNo(FieldType):
    """``true`` or ``false``."""

    what: str = "true or false"

    def _read(self, node: yaml.Node, issues: FileIssues) -> Located[Any]:
        if fields.is_plain(node) and node.value in (
            "true",
            "True",
            "false",
            "False",
        ):
            return locate(node, node.value in ("true", "True"))
        raise BadInput(f"expected {self.what}, found {fields.describe(node)}")

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}

    def sample(self) -> str:
        return "true"


@dataclass(frozen=True)
class MapOf(FieldType):
    """A mapping from texts to one type; each value has the position of its key."""

    key: Text
    item: FieldType
    what: str
    example: str

    def _read(self, node: yaml.Node, issues: FileIssues) -> Located[Any]:
        if not isinstance(node, yaml.MappingNode):
            raise BadInput(
                f"expected {self.what}, like {self.example}, found {fields.describe(node)}"
            )
        values: dict[Any, Located[Any]] = {}
        first: dict[Any, Located[Any]] = {}
        for key_node, value_node in node.value:
            key = self.key.read(key_node, issues)
            value = self.item.read(value_node, issues)
            if key is None:
                continue
            if first.setdefault(key.value, key) is not key:
                issues.at(
                    key,
                    stands_twice(str(key_node.value), first[key.value].line),
                )
            elif value is not None:
                values[key.value] = replace(key, value=value.value)
        return locate(node, values)

    def schema(self) -> dict[str, Any]:
        values = {self.key.json.get("pattern", ".*"): self.item.schema()}
        return {
            "type": "object",
            "patternProperties": values,
            "additionalProperties": False,
        }

    @property
    def suffix(self) -> str:  # type: ignore[override]
        """The type of the values."""
        return self.item.suffix

    def written(self, value: Any) -> Any:
        pairs = dict(value).items()
        return fields.OneLine(
            {
                self.key.written(key): self.item.written(item)
                for key, item in pairs
            }
        )

    def sample(self) -> str:
        return self.example


@dataclass(frozen=True)
class Either(FieldType):
    """A value in a short form (scalar) or a whole form; ``plain`` makes both equal."""

    brief: FieldType
    whole: FieldType

    @property
    def what(self) -> str:  # type: ignore[override]
        """What both forms accept."""
        return f"{self.brief.what}, or {self.whole.expected()}"

    def _read(
        self, node: yaml.Node, issues: FileIssues
    ) -> Located[Any] | None:
        form = self.brief if isinstance(node, yaml.ScalarNode) else self.whole
        return form.read(node, issues)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self.brief.schema(), self.whole.schema()]}

    def sample(self) -> str:
        return self.brief.sample()


@dataclass(frozen=True)
class Spelled(FieldType):
    """A value with its spelling in the file: ``("553MB", 553000000)``."""

    type: FieldType

    @property
    def what(self) -> str:  # type: ignore[override]
        """The value alone."""
        return self.type.what

    def _read(
        self, node: yaml.Node, issues: FileIssues
    ) -> Located[Any] | None:
        read = self.type.read(node, issues)
        return read and replace(
            read, value=(str(node.value), plain(read.value))
        )

    def schema(self) -> dict[str, Any]:
        return self.type.schema()

    def sample(self) -> str:
        return self.type.sample()


def value_of(type: FieldType, text: str) -> Any:
    """A command-line text as a value, or ``BadInput``; commas separate list items."""
    return _read(type, _node(type, text))


def mapping_of(type: MapOf, texts: Mapping[str, str]) -> Any:
    """The same for a mapping's keys and values."""
    pairs = [
        (_node(type.key, key), _node(type.item, value))
        for key, value in texts.items()
    ]
    return _read(
        type,
        yaml.MappingNode(
            "",
            pairs,
            _NOWHERE,
            _NOWHERE,
        ),
    )


_NOWHERE = yaml.Mark(
    "",
    0,
    0,
    0,
    None,
    0,
)


def _read(type: FieldType, node: yaml.Node) -> Any:
    issues = FileIssues("")
    located = type.read(node, issues)
    if located is None or issues:
        raise BadInput("; ".join(issue.message for issue in issues.found))
    return plain(located.value)


def _node(type: FieldType, text: str) -> yaml.Node:
    match type:
        case Either(whole=ListOf() as several):
            return _node(several, text)
        case Either(brief=brief):
            return _node(brief, text)
        case Spelled(type=spelled):
            return _node(spelled, text)
        case ListOf(item=item):
            nodes = [_node(item, part.strip()) for part in text.split(",")]
            return yaml.SequenceNode(
                "",
                nodes,
                _NOWHERE,
                _NOWHERE,
            )
    # The shell has removed the quotes that would mark a number as text.
    style = '"' if isinstance(type, Text) else None
    return yaml.ScalarNode(
        "",
        text,
        _NOWHERE,
        _NOWHERE,
        style=style,
    )


_REQUIRED: Any = dataclasses.MISSING


def setting(
    type: FieldType,
    about: str,
    default: Any = _REQUIRED,
) -> Any:
    """A dataclass field that a file may set; without a default, the key is required.

    ``about`` describes it to users. A dict as default is copied for each object.
    """
    metadata = {"type": type, "about": about}
    if isinstance(default, dict):
        return dataclasses.field(
            default_factory=default.copy,
            metadata=metadata,
        )
    return dataclasses.field(
        default=default,
        metadata=metadata,
    )


class Record(FieldType):
    """A group with a key for each ``setting`` of a dataclass, read into an object."""

    def __init__(self, cls: type[Any], what: str) -> None:
        self.cls = cls
        self.what = what
        self.keys = tuple(map(_key, dataclasses.fields(cls)))
        self.group = Group(what, *self.keys)

    def _read(
        self, node: yaml.Node, issues: FileIssues
    ) -> Located[Any] | None:
        read = self.group.read(node, issues)
        if read is None or any(
            key.required and key.name not in read.value for key in self.keys
        ):
            return None  # The mistakes have been noted.
        return dataclasses.replace(read, value=self.cls(**plain(read.value)))

    def schema(self) -> dict[str, Any]:
        return self.group.schema()

    def sample(self) -> str:
        return self.group.sample()

    def expected(self) -> str:
        return self.group.expected()


def _key(field: dataclasses.Field[Any]) -> Key:
    required = (
        field.default is _REQUIRED and field.default_factory is _REQUIRED
    )
    factory: Any = field.default_factory
    default = field.default if factory is _REQUIRED else factory()
    shown = (
        None
        if required or dataclasses.is_dataclass(default)
        else _shown(default)
    )
    type = field.metadata["type"]
    about = field.metadata["about"]
    return Key(
        field.name,
        type,
        about,
        shown,
        required=required,
    )


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return str(value) or "none"


def sections(group: Group, path: str = "") -> Iterator[str]:
    """A table of a group's keys under a heading, and of each nested group."""
    title = f"`{path}`: {group.what}" if path else "The top of the file"
    yield f"## {title}\n\n{table(group)}"
    for key in group.keys:
        inner = group_of(key.type)
        if inner is not None:
            brackets = "[]" if isinstance(key.type, ListOf) else ""
            yield from sections(
                inner, f"{path}.{key.name}{brackets}".lstrip(".")
            )


def table(group: Group) -> str:
    """A row for each key of a group."""
    head = "| key | what it is | type | default | example |\n|---|---|---|---|---|\n"
    return head + "".join(map(_row, group.keys))


def group_of(type: FieldType) -> Group | None:
    """The group that a type is, or has as list items."""
    match type:
        case Group():
            return type
        case ListOf(item=inner) | MapOf(item=inner) | Either(whole=inner):
            return group_of(inner)
    return None


def _row(key: Key) -> str:
    default = "**required**" if key.required else key.default or "—"
    cells = (
        f"`{key.name}`",
        key.about,
        _kind(key.type),
        default,
        f"`{key.name}: {key.sample}`",
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _kind(type: FieldType) -> str:
    match type:
        case Text(units=(_, *_)):
            return f"{type.what}: {', '.join(type.units)}"
        case Whole():
            return f"whole number, {type.lowest} to {type.highest}"
        case Number():
            return f"number{type.range}"
        case YesNo():
            return "`true` or `false`"
        case ListOf():
            return (
                type.expected()
                if type.count is None
                else f"{type.expected()}, {type.count}"
            )
    return type.what
