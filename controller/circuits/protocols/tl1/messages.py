"""What a TL1 network element says: responses, acknowledgements, autonomous messages (GR-831)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from patchlight.controller.circuits.contract import Severity

_BODY_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"|/\*(.*?)\*/', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_PLAIN_VALUE = re.compile(r"[\w.@%+-]*", re.ASCII)

SEVERITIES: dict[str, Severity] = {"*C": "critical", "**": "major", "*": "minor", "A": "notice"}
"""Alarm code of an autonomous message → severity."""
NOTIFICATIONS: dict[str, Severity] = {"CR": "critical", "MJ": "major", "MN": "minor"}
"""Notification code in a list of alarms → severity; all others are notices."""


@dataclass(frozen=True)
class Body:
    """The text block of a message, as it came: quoted lines, comments, and bare words."""

    text: str

    @cached_property
    def _parts(self) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        if "/*" not in self.text and "\\" not in self.text and self.text.count('"') % 2 == 0:
            # Nothing but quoted lines and bare words, as in every long table.
            pieces = self.text.split('"')
            return tuple(pieces[1::2]), (), " ".join(" ".join(pieces[::2]).split())
        quoted: list[str] = []
        comments: list[str] = []
        bare: list[str] = []
        end = 0
        for match in _BODY_TOKEN.finditer(self.text):
            bare.append(self.text[end : match.start()])
            end = match.end()
            if match[1] is not None:
                quoted.append(_ESCAPED.sub(r"\1", match[1]) if "\\" in match[1] else match[1])
            else:
                comments.append(match[2].strip())
        bare.append(self.text[end:])
        return tuple(quoted), tuple(comments), " ".join(" ".join(bare).split())

    @property
    def quoted(self) -> tuple[str, ...]:
        """The quoted lines without their quotes, escapes undone."""
        return self._parts[0]

    @property
    def comments(self) -> tuple[str, ...]:
        """The texts of the comments."""
        return self._parts[1]

    @property
    def bare(self) -> str:
        """Everything else, white space made single: a denial's error code stands here."""
        return self._parts[2]

    @property
    def words(self) -> str:
        """All of it in reading order of weight: bare words, comments, quoted lines."""
        return "; ".join(part for part in (self.bare, *self.comments, *self.quoted) if part)


@dataclass(frozen=True)
class Acknowledgement:
    """``IP 123``: the reply will take a while (or, ``NA``/``NG``, will not come)."""

    code: str
    ctag: str


@dataclass(frozen=True)
class Response:
    """One part of the reply to a command. ``more``: the device announced another part."""

    ctag: str
    code: str
    body: Body
    more: bool = False
    sid: str = ""


@dataclass(frozen=True)
class Autonomous:
    """Something the element says unasked, like ``*C 17 REPT ALM EQPT``."""

    alarm_code: str
    atag: str
    verb: str
    body: Body
    more: bool = False
    sid: str = ""


Message = Acknowledgement | Response | Autonomous


def quote(value: str) -> str:
    """A parameter value as it may stand in a command: quoted where it holds more than a word."""
    if _PLAIN_VALUE.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
