"""Dataclasses that a file fills: each field says what it takes, so a group of keys follows."""

import dataclasses
from typing import Any

import yaml

from patchlight.testbed.io.fields import FieldType, plain
from patchlight.testbed.io.groups import Group, Key
from patchlight.testbed.io.issues import FileIssues, Located

_REQUIRED: Any = dataclasses.MISSING


def setting(type: FieldType, about: str, default: Any = _REQUIRED) -> Any:
    """A dataclass field that a file may set: a value of ``type``, ``default`` without the key.

    ``about`` says what it is, for those who edit the file; without a default, the key is
    required. A default that is a dict is copied for each object.
    """
    metadata = {"type": type, "about": about}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


class Record(FieldType):
    """A group of keys, one for each ``setting`` of a dataclass, read into an object of it.

    Lists become tuples and groups inside objects of their own class, as their types say.
    """

    def __init__(self, cls: type[Any], what: str) -> None:
        self.cls, self.what = cls, what
        self.keys = tuple(map(_key, dataclasses.fields(cls)))
        self.group = Group(what, *self.keys)

    def _read(self, node: yaml.Node, issues: FileIssues) -> Located[Any] | None:
        read = self.group.read(node, issues)
        if read is None or any(key.required and key.name not in read.value for key in self.keys):
            return None  # What is wrong has been noted.
        return dataclasses.replace(read, value=self.cls(**plain(read.value)))

    def schema(self) -> dict[str, Any]:
        return self.group.schema()

    def sample(self) -> str:
        return self.group.sample()

    def expected(self) -> str:
        return self.group.expected()


def _key(field: dataclasses.Field[Any]) -> Key:
    required = field.default is _REQUIRED and field.default_factory is _REQUIRED
    factory: Any = field.default_factory
    default = field.default if factory is _REQUIRED else factory()
    shown = None if required or dataclasses.is_dataclass(default) else _shown(default)
    type, about = field.metadata["type"], field.metadata["about"]
    return Key(field.name, type, about, shown, required=required)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return str(value) or "none"
