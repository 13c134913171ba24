"""The keys of a lab file under ``emulated:``, each with its kind.

The names of faults are those of an emulated device's control socket, one for one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from patchlight.testbed import units
from patchlight.testbed.errors import BadInput
from patchlight.testbed.labfile.errors import FileIssues, Located, nearest
from patchlight.testbed.labfile.yaml_schema import (
    Fields,
    FieldType,
    Group,
    Key,
    ListOf,
    Text,
    Whole,
    describe,
    is_plain,
    place,
)
from patchlight.testbed.portmap import parse_cross_connects

_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,9}\.?[0-9]{0,9}|\.[0-9]{1,9})")
_YES_NO = {"true": True, "True": True, "false": False, "False": False}
_MOST = 100_000

TRIGGERS = ("after", "after_changes")


@dataclass(frozen=True)
class YesNo:
    """``true`` or ``false``."""

    what: str

    def read(self, node: yaml.Node, mistakes: FileIssues) -> Located[Any] | None:
        """See ``FieldType``."""
        if is_plain(node) and str(node.value) in _YES_NO:
            return place(node, _YES_NO[str(node.value)])
        mistakes.at(
            place(node, None), f"expected {self.what}, true or false, found {describe(node)}"
        )
        return None

    def schema(self) -> dict[str, Any]:
        """See ``FieldType``."""
        return {"type": "boolean"}


@dataclass(frozen=True)
class Number:
    """A number, from ``lowest`` on if that is given."""

    what: str
    lowest: float | None = None

    def read(self, node: yaml.Node, mistakes: FileIssues) -> Located[Any] | None:
        """See ``FieldType``."""
        if is_plain(node) and _NUMBER.fullmatch(str(node.value)):
            value = float(node.value)
            if self.lowest is None or value >= self.lowest:
                return place(node, value)
        bound = "" if self.lowest is None else f" from {self.lowest:g} on"
        message = f"expected {self.what}, a number{bound}, found {describe(node)}"
        mistakes.at(place(node, None), message)
        return None

    def schema(self) -> dict[str, Any]:
        """See ``FieldType``."""
        bound = {} if self.lowest is None else {"minimum": self.lowest}
        return {"type": "number", **bound}


@dataclass(frozen=True)
class ByPort:
    """A mapping from port numbers to one kind of value."""

    item: FieldType
    what: str

    def read(self, node: yaml.Node, mistakes: FileIssues) -> Located[Any] | None:
        """See ``FieldType``. The value is a mapping from texts, as JSON has keys, to places."""
        if not isinstance(node, yaml.MappingNode):
            message = f"expected {self.what} by port, like {{3: 1.5}}, found {describe(node)}"
            mistakes.at(place(node, None), message)
            return None
        found: dict[str, Located[Any]] = {}
        for key, child in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
            value = self.item.read(child, mistakes)
            if not re.fullmatch("[1-9][0-9]{0,8}", name):
                mistakes.at(place(key, None), f"expected a port number, found {describe(key)}")
            elif value is not None:
                found[name] = Located(
                    value.value, key.start_mark.line + 1, key.start_mark.column + 1
                )
        return place(node, found)

    def schema(self) -> dict[str, Any]:
        """See ``FieldType``."""
        pattern = {"^[1-9][0-9]{0,8}$": self.item.schema()}
        return {"type": "object", "patternProperties": pattern, "additionalProperties": False}


@dataclass(frozen=True)
class FaultKind:
    """A group of at least one fault; the keys of ``TRIGGERS`` say when it comes."""

    group: Group
    json: Mapping[str, Any] = field(default_factory=dict)

    def read(self, node: yaml.Node, mistakes: FileIssues) -> Located[Any] | None:
        """See ``FieldType``."""
        found = self.group.read(node, mistakes)
        if found is None:
            return None
        fields: Fields = found.value
        written = {str(key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)}
        if not written - set(TRIGGERS):
            kinds = [key.name for key in self.group.keys if key.name not in TRIGGERS]
            mistakes.at(found, f"a fault lacks what goes wrong: {nearest('', kinds)}")
        if all(key in fields for key in TRIGGERS):
            message = "a fault comes 'after' a time or 'after_changes': expected one of the two"
            mistakes.at(fields["after_changes"], message)
        return found

    def schema(self) -> dict[str, Any]:
        """See ``FieldType``."""
        return {**self.group.schema(), **self.json}


def _choice(what: str, *choices: str) -> Text:
    def take(text: str) -> str:
        if text in choices:
            return text
        raise BadInput(f"{text!r} is not {what}: {nearest(text, choices)}")

    return Text(f"{what}: {' or '.join(choices)}", take, {"enum": list(choices)})


def _words(text: str) -> str:
    if text.strip() and text.isprintable() and len(text) <= 200:
        return text
    raise BadInput(
        f"{text[:60]!r} is not what a device says: expected 1 to 200 printable characters"
    )


def _circuit(text: str) -> str:
    found = parse_cross_connects(text)
    return str(found[0]) if len(found) == 1 else f"{found[0].inp}-{found[0].out}"


_PORT = Whole("a port number", 1, _MOST)
_COUNT = Whole("how many", 1, _MOST)
_WORDS = Text("the words of the device", _words)

FAULT = FaultKind(
    Group(
        "a fault",
        (
            Key("refuse_ports", ListOf(_PORT, "port numbers"), "ports that are locked"),
            Key("fail_ports", ListOf(_PORT, "port numbers"), "ports whose mirrors are stuck"),
            Key("drift_db", ByPort(Number("dB"), "dB"), "more loss at these outputs, in dB"),
            Key("read_only", YesNo("whether nobody may change anything"),
                "whoever logs in may only look"),
            Key("repeat_pages", YesNo("whether long replies come as several whole ones"),
                "long replies come as several whole ones"),
            Key("monitors", _choice("where power monitors are", "both", "out", "none"),
                "where there are power monitors", default="both"),
            Key("acknowledge", YesNo("whether a stalled command is acknowledged"),
                "keep saying that a stalled command is in progress"),
            Key("refuse_next", _WORDS, "refuse the next change with these words"),
            Key("cut", _choice("when the connection is cut", "before", "after"),
                "drop the connection before or after doing the next change"),
            Key("stall_s", Number("seconds", 0), "do the next change so many seconds later"),
            Key("garble", _COUNT, "so many of the next answers come broken"),
            Key("answer_twice", _COUNT, "so many of the next answers come twice"),
            Key("flood", _COUNT, "so many alarms come before the next answer"),
            Key("report", _WORDS, "say this unasked, as an alarm"),
            Key("lose", Text("a cross-connect, like '3>9'", _circuit),
                "a cross-connect that is gone without a word"),
            Key("reboot", _choice("what becomes of the map", "keep", "forget"),
                "restart, with or without its map"),
            Key("after", Text("a time with its unit, like '30s'", units.parse_time,
                              {"pattern": units.TIME_PATTERN}, quotable=False),
                "so long after the device began to answer", default="at once"),
            Key("after_changes", _COUNT, "once so many commands that change something have come"),
        ),
    ),
    {"minProperties": 1},
)  # fmt: skip


def emulated_group(name: FieldType, variable: FieldType) -> Group:
    """The keys under ``emulated:``, given the kinds of a user's and a variable's name."""
    user = Group(
        "a user",
        (
            Key("name", name, "whom to log in as", required=True),
            Key("password_env", variable, "the environment variable that holds the password",
                default="any password will do"),
            Key("read_only", YesNo("whether the user may only look"), "may look, not change",
                default="false"),
        ),
    )  # fmt: skip
    return Group(
        "an emulated circuit switch",
        (
            Key("faults", ListOf(FAULT, "faults"), "what goes wrong, and when"),
            Key("users", ListOf(user, "users"), "who may log in besides 'user'"),
            Key("conflict_time", Text("a time with its unit, like '500ms'", units.parse_time,
                                      {"pattern": units.TIME_PATTERN}, quotable=False),
                "a Calient that takes busy ports from their circuits, and how long that takes",
                default="such a circuit is refused"),
        ),
    )  # fmt: skip
