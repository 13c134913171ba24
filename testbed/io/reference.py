"""The keys of a file as tables in Markdown, for the reference that is made of its schema."""

from collections.abc import Iterator

from patchlight.testbed.io import fields
from patchlight.testbed.io.fields import FieldType, ListOf, MapOf
from patchlight.testbed.io.forms import Either
from patchlight.testbed.io.groups import Group, Key

_TABLE = """\
| key | what it is | type | default | example |
|---|---|---|---|---|
"""


def sections(group: Group, path: str = "") -> Iterator[str]:
    """A table of a group's keys under a heading, and then of each group in it."""
    title = f"`{path}`: {group.what}" if path else "The top of the file"
    yield f"## {title}\n\n{table(group)}"
    for key in group.keys:
        inner = group_of(key.type)
        if inner is not None:
            brackets = "[]" if isinstance(key.type, ListOf) else ""
            yield from sections(inner, f"{path}.{key.name}{brackets}".lstrip("."))


def table(group: Group) -> str:
    """A row for each key of a group."""
    return _TABLE + "".join(map(_row, group.keys))


def group_of(type: FieldType) -> Group | None:
    """The group that a type is, or is a list of."""
    match type:
        case Group():
            return type
        case ListOf(item=inner) | MapOf(item=inner) | Either(whole=inner):
            return group_of(inner)
    return None


def _row(key: Key) -> str:
    default = "**required**" if key.required else key.default or "—"
    cells = (f"`{key.name}`", key.about, _kind(key.type), default, f"`{key.name}: {key.sample}`")
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _kind(type: FieldType) -> str:
    match type:
        case fields.Text(units=(_, *_)):
            return f"{type.what}: {', '.join(type.units)}"
        case fields.Whole():
            return f"whole number, {type.lowest} to {type.highest}"
        case fields.Number():
            return f"number{type.range}"
        case fields.YesNo():
            return "`true` or `false`"
        case ListOf():
            return type.expected() if type.count is None else f"{type.expected()}, {type.count}"
    return type.what
