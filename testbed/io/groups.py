"""Groups of keys in a file: which there are, and what each is about."""

from dataclasses import dataclass
from typing import Any

import yaml

from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.fields import FieldType
from patchlight.testbed.io.issues import (
    PLAIN_TAGS,
    FileIssues,
    Located,
    describe,
    locate,
    nearest,
    short,
    stands_twice,
)


class Fields(dict[str, Located[Any]]):
    """The keys of a group that could be read; ``broken`` are those that not all could be of."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: set[str] = set()


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
        return self.example or self.type.sample()

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
        if not isinstance(node, yaml.MappingNode) or node.tag not in PLAIN_TAGS:
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

    def sample(self) -> str:
        required = (f"{key.name}: {key.sample}" for key in self.keys if key.required)
        return f"{{{', '.join(required)}}}"

    def expected(self) -> str:
        names = ", ".join(key.name for key in self.keys if key.required)
        return f"{self.what} with keys {names}" if names else self.what
