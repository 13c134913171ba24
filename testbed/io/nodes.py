"""The data of a composed YAML text, which remembers its nodes, and what messages call a node.

Plain scalars are read here, because YAML versions read ``on``, ``010`` or ``12:30`` differently.
"""

import re
from typing import Any

import yaml

from patchlight.testbed.errors import short
from patchlight.testbed.io.reader import FileIssues, Located, stands_twice

_NOTHING = re.compile(r"|~|null|Null|NULL")
_YES_NO = re.compile(r"true|True|TRUE|false|False|FALSE")
_WHOLE = re.compile(r"[+-]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
_REAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NO_BARE_TEXT = re.compile(
    "|".join(p.pattern for p in (_NOTHING, _YES_NO, _WHOLE, _REAL))
)
_PLAIN_TAGS = frozenset(
    {"", "!", *(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))}
)
OPAQUE: Any = object()
"""What no type takes: the value of a foreign tag, or of a recursive alias."""
BROKEN: Any = object()
"""The value of a key with a mistake, once that is noted."""


class Number:
    """A number that knows its spelling."""

    text: str


class WholeNumber(int, Number):
    """A whole number."""


class RealNumber(float, Number):
    """Any other number; also one with leading zeros, which YAML versions read differently."""


class Given(dict[str, Any]):
    """A mapping, with the nodes of each key and its value; ``broken`` keys have mistakes."""

    __slots__ = ("broken", "node", "nodes")

    def __init__(self, node: yaml.Node) -> None:
        self.node = node
        self.nodes: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        self.broken: frozenset[str] = frozenset()


class Items(list[Any]):
    """A list; ``nodes`` has the node of each item."""

    __slots__ = ("node", "nodes")

    def __init__(self, node: yaml.SequenceNode) -> None:
        self.node = node
        self.nodes: list[yaml.Node] = node.value


def locate(node: yaml.Node, value: Any = None) -> Located[Any]:
    """``value`` at the position of ``node``, counted from 1."""
    mark = node.start_mark
    return Located(value, mark.line + 1, mark.column + 1)


def is_bare_text(text: str) -> bool:
    """Whether unquoted ``text`` is read as text, not as a number, boolean or null."""
    return not _NO_BARE_TEXT.fullmatch(text)


def describe(node: yaml.Node) -> str:
    """The node for messages: ``the number 5``, ``a list``, ``nothing``."""
    if node.tag not in _PLAIN_TAGS:
        return f"the YAML tag {short(node.tag.replace('tag:yaml.org,2002:', '!!'))}"
    if isinstance(node, yaml.MappingNode):
        return "a group of keys"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    assert isinstance(node, yaml.ScalarNode)
    text = str(node.value)
    if not node.style and not is_bare_text(text):
        if _NOTHING.fullmatch(text):
            return "nothing"
        return (
            text.lower()
            if _YES_NO.fullmatch(text)
            else f"the number {short(text)}"
        )
    return f"the text {short(text)!r}"


def data_of(
    node: yaml.Node,
    issues: FileIssues,
    inside: tuple[yaml.Node, ...] = (),
) -> Any:
    """The data of a node; notes duplicate keys."""
    if node.tag not in _PLAIN_TAGS or node in inside:
        return OPAQUE
    if isinstance(node, yaml.ScalarNode):
        return node.value if node.style else _bare(node.value)
    inside = (*inside, node)
    if isinstance(node, yaml.SequenceNode):
        items = Items(node)
        items += [data_of(each, issues, inside) for each in node.value]
        return items
    given = Given(node)
    for pair in node.value:
        key, value = pair
        name = (
            key.value
            if isinstance(key, yaml.ScalarNode)
            else f"\0{describe(key)}"
        )
        if name in given:
            line = given.nodes[name][0].start_mark.line + 1
            issues.at(locate(key), stands_twice(name, line))
        else:
            given[name] = data_of(value, issues, inside)
            given.nodes[name] = pair
    return given


def _bare(text: str) -> Any:
    if is_bare_text(text):
        return text
    if _NOTHING.fullmatch(text):
        return None
    if _YES_NO.fullmatch(text):
        return text.lower() == "true"
    return number_of(text)


def number_of(text: str) -> Any:
    """The number that a text is."""
    found: Any
    # Python refuses to convert thousands of digits; no such number is in range anyway.
    if len(text) > 40:
        found = RealNumber("inf")
    elif re.fullmatch(r"0[xo].*|[+-]?(0|[1-9][0-9]*)", text):
        found = WholeNumber(int(text, 0))
    else:
        found = RealNumber(text)
    found.text = text
    return found
