"""A lab file for people who write their first: each key explained by what the schema says of it.

The first item of each list has every key, those that may be left out behind a ``#``; the other
items are as ``write_lab`` writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

from patchlight.testbed.files.fields import Group, Key, ListOf
from patchlight.testbed.files.issues import FileIssues
from patchlight.testbed.files.reader import parse
from patchlight.testbed.lab import Lab
from patchlight.testbed.labfile.schema import LAB
from patchlight.testbed.labfile.writer import lab_document, to_yaml

_WIDTH = 100
_HEAD = (
    "# A Patchlight lab file. Keys behind a # may be left out: what stands there is the default or",
    "# an example. To see what is wrong: patchlight lab check FILE",
    "",
)


def write_commented_lab(lab: Lab) -> str:
    """YAML text that ``parse_lab`` reads back equal, with comments."""
    return "".join(f"{line}\n" for line in (*_HEAD, *_group(LAB, lab_document(lab))))


def _group(group: Group, values: Mapping[str, Any]) -> Iterator[str]:
    """The lines of one group, not indented."""
    for key in group.keys:
        default = "" if key.default is None else f" (default: {key.default})"
        comment = f"{key.about[0].upper()}{key.about[1:]}{default}."
        yield from wrap(comment, _WIDTH - 12, initial_indent="# ", subsequent_indent="# ")
        value = values.get(key.name)
        if value is None:
            yield f"# {key.name}: {_left_out(key)}"
        elif isinstance(key.type, ListOf) and isinstance(key.type.item, Group):
            yield f"{key.name}:"
            yield from _items(key.type.item, value)
        else:
            yield from to_yaml({key.name: value}).splitlines()


def _items(group: Group, items: list[Mapping[str, Any]]) -> Iterator[str]:
    starts = True
    for line in _group(group, items[0]):
        indent = "    " if not starts else "  " if line.startswith("#") else "  - "
        starts = starts and line.startswith("#")
        yield f"{indent}{line}"
    for item in items[1:]:
        yield from (f"  {line}" for line in to_yaml([item]).splitlines())


def _left_out(key: Key) -> str:
    """The default, if it is a value and no description of it, else an example."""
    if key.default is not None:
        issues = FileIssues(key.name)
        parse(key.default, key.type, issues)
        if not issues:
            return key.default
    return key.sample
