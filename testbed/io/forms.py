"""Values with a short form beside the whole one, and values that come from a command line."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.fields import FieldType, ListOf, MapOf, Text, plain
from patchlight.testbed.io.issues import FileIssues, Located


@dataclass(frozen=True)
class Either(FieldType):
    """A value that is written short, as one text or number, or as a whole list or group.

    What the short form reads is to be what ``plain`` makes of the whole one.
    """

    brief: FieldType
    whole: FieldType

    @property
    def what(self) -> str:  # type: ignore[override]
        """Both forms."""
        return f"{self.brief.what}, or {self.whole.expected()}"

    def _read(self, node: yaml.Node, issues: FileIssues) -> Located[Any] | None:
        form = self.brief if isinstance(node, yaml.ScalarNode) else self.whole
        return form.read(node, issues)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self.brief.schema(), self.whole.schema()]}

    def sample(self) -> str:
        return self.brief.sample()


@dataclass(frozen=True)
class Spelled(FieldType):
    """A value together with its spelling in the file: ``("553MB", 553000000)``."""

    type: FieldType

    @property
    def what(self) -> str:  # type: ignore[override]
        """The value alone."""
        return self.type.what

    def _read(self, node: yaml.Node, issues: FileIssues) -> Located[Any] | None:
        located = self.type.read(node, issues)
        if located is None:
            return None
        return replace(located, value=(str(node.value), plain(located.value)))

    def schema(self) -> dict[str, Any]:
        return self.type.schema()

    def sample(self) -> str:
        return self.type.sample()


def value_of(type: FieldType, text: str) -> Any:
    """What a text of a command line stands for; commas part the items of a list.

    ``BadInput`` says what is wrong with it.
    """
    return _read(type, _node(type, text))


def mapping_of(type: MapOf, texts: Mapping[str, str]) -> Any:
    """The same of a mapping's keys and values."""
    pairs = [(_node(type.key, key), _node(type.item, value)) for key, value in texts.items()]
    return _read(type, yaml.MappingNode("", pairs, _NOWHERE, _NOWHERE))


_NOWHERE = yaml.Mark("", 0, 0, 0, None, 0)


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
            return yaml.SequenceNode("", nodes, _NOWHERE, _NOWHERE)
    # A shell has taken the quotes away by which a file says that a number is a text.
    style = '"' if isinstance(type, Text) else None
    return yaml.ScalarNode("", text, _NOWHERE, _NOWHERE, style=style)
