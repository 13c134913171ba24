"""The reference of lab files as Markdown, made from their schema.

``python -m patchlight.testbed.labfile.reference`` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator

from patchlight.testbed.files.fields import (
    FieldType,
    Group,
    Key,
    ListOf,
    Number,
    Text,
    Whole,
    YesNo,
)
from patchlight.testbed.labfile.commented import write_commented_lab
from patchlight.testbed.labfile.reader import load_lab
from patchlight.testbed.labfile.schema import LAB

_HEAD = """\
# Lab files

A lab file is YAML in UTF-8. Every key that is not listed here is a mistake, as is a key that stands
twice; `patchlight lab check FILE` names all mistakes with line and column, `patchlight lab schema`
prints a JSON Schema for editors, and `patchlight lab init` writes a first file with comments. What
looks like a number but is a name stands in quotes: `"3090"`.
"""


_TABLE = """\
| key | what it is | type | default | example |
|---|---|---|---|---|
"""


def lab_file_reference() -> str:
    """Each group of keys as a table, and a whole file, as Markdown."""
    sections = [_HEAD, *_sections("", LAB)]
    example = write_commented_lab(load_lab("ofc2022"))
    sections.append(f"## A whole file\n\n```yaml\n{example}```\n")
    return "\n".join(sections)


def group_of(type: FieldType) -> Group | None:
    """The group that a type is, or is a list of."""
    item = type.item if isinstance(type, ListOf) else type
    return item if isinstance(item, Group) else None


def _sections(path: str, group: Group) -> Iterator[str]:
    title = f"`{path}`: {group.what}" if path else "The top of the file"
    rows = "".join(map(_row, group.keys))
    yield f"## {title}\n\n{_TABLE}{rows}"
    for key in group.keys:
        inner = group_of(key.type)
        if inner is not None:
            brackets = "[]" if isinstance(key.type, ListOf) else ""
            yield from _sections(f"{path}.{key.name}{brackets}".lstrip("."), inner)


def _row(key: Key) -> str:
    default = "**required**" if key.required else key.default or "—"
    cells = (f"`{key.name}`", key.about, _kind(key.type), default, f"`{key.name}: {key.sample}`")
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
            return type.expected() if type.count is None else f"{type.expected()}, {type.count}"
    return type.what


if __name__ == "__main__":
    print(lab_file_reference())
