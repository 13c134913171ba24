"""What stands in a YAML file, told from its nodes: what it is, where, and in the user's words."""

import re
from typing import Any

import yaml

from patchlight.testbed.io.issues import Located, short

_NOTHING = re.compile(r"|~|null|Null|NULL")
_YES_NO = re.compile(r"true|True|TRUE|false|False|FALSE")
WHOLE = re.compile(r"[+-]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
PLAIN_TAGS = frozenset({"", "!", *(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))})
_NO_BARE_TEXT = re.compile("|".join(p.pattern for p in (_NOTHING, _YES_NO, WHOLE, NUMBER)))


def locate(node: yaml.Node, value: Any = None) -> Located[Any]:
    """``value`` at the position of ``node``, counted from 1 as editors do."""
    mark = node.start_mark
    return Located(value, mark.line + 1, mark.column + 1)


def describe(node: yaml.Node) -> str:
    """What stands there, in the user's words: ``the number 5``, ``a list``, ``nothing``."""
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
        return text.lower() if _YES_NO.fullmatch(text) else f"the number {short(text)}"
    return f"the text {short(text)!r}"


def is_bare_text(text: str) -> bool:
    """Whether ``text`` without quotes is read as text, not as a number, yes or no, or nothing."""
    return not _NO_BARE_TEXT.fullmatch(text)


def is_plain(node: yaml.Node) -> bool:
    """Whether a scalar stands there without quotes and without a tag."""
    scalar = isinstance(node, yaml.ScalarNode) and not node.style
    return scalar and node.tag in PLAIN_TAGS
