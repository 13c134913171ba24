"""The keys of a lab file under ``emulated:``, each with its type.

The names of faults are those of an emulated device's control socket, one for one.
"""

import re
from typing import Any

import yaml

from patchlight.testbed import units
from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.fields import (
    FieldType,
    ListOf,
    MapOf,
    Number,
    Text,
    Whole,
    YesNo,
    choice,
    quantity,
)
from patchlight.testbed.io.groups import Fields, Group, Key, required
from patchlight.testbed.io.issues import FileIssues, Located, nearest, short
from patchlight.testbed.lab.portmap import parse_cross_connects
from patchlight.testbed.lab.spectrum import parse_channel_connects

_MOST = 100_000

TRIGGERS = ("after", "after_changes")


class _Fault(Group):
    """A group of at least one fault; the keys of ``TRIGGERS`` say when it comes."""

    def _read(self, node: yaml.Node, issues: FileIssues) -> Located[Any]:
        located = super()._read(node, issues)
        fields: Fields = located.value
        written = {str(key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)}
        if not written - set(TRIGGERS):
            kinds = [key.name for key in self.keys if key.name not in TRIGGERS]
            issues.at(located, f"a fault lacks what goes wrong: {nearest('', kinds)}")
        if all(key in fields for key in TRIGGERS):
            message = "a fault comes 'after' a time or 'after_changes': expected one of the two"
            issues.at(fields["after_changes"], message)
        return located

    def schema(self) -> dict[str, Any]:
        return {**super().schema(), "minProperties": 1}


def _words(text: str) -> str:
    if text.strip() and text.isprintable() and len(text) <= 200:
        return text
    raise BadInput(
        f"{text[:60]!r} is not what a device says: expected 1 to 200 printable characters"
    )


def _circuit(text: str) -> str:
    # Which of the two fits is for the check of the whole file, as is which ports there are.
    one_way, *back = (parse_channel_connects if "@" in text else parse_cross_connects)(text)
    return str(one_way).replace(">", "-" if back else ">", 1)


def _circuits(text: str) -> str:
    return ",".join(_circuit(part) for part in text.split(","))


def _name(text: str) -> str:
    # Whatever somebody typed there, line ends included.
    if 1 <= len(text) <= 200:
        return text
    raise BadInput(f"a name has 1 to 200 characters, not {len(text)}")


def _port(text: str) -> str:
    if re.fullmatch("[1-9][0-9]{0,8}", text):
        return text
    raise BadInput(f"expected a port number, found the text {short(text)!r}")


# JSON's objects have texts as keys, and so has the control socket's.
_PORT_KEY = Text("a port number", _port, {"pattern": "^[1-9][0-9]{0,8}$"}, numbers=True)
_PORT = Whole("a port number", 1, _MOST)
_COUNT = Whole("how many", 1, _MOST)
_WORDS = Text("the words of the device", _words)

FAULT = _Fault(
    "a fault",
    Key("refuse_ports", ListOf(_PORT, "port numbers"), "ports that are locked"),
    Key("fail_ports", ListOf(_PORT, "port numbers"), "ports whose mirrors are stuck"),
    Key(
        "drift_db",
        MapOf(_PORT_KEY, Number("dB"), "dB by port", "{3: 1.5}"),
        "more loss at these outputs, in dB",
    ),
    Key("read_only", YesNo("whether nobody may change anything"), "whoever logs in may only look"),
    Key(
        "repeat_pages",
        YesNo("whether long replies come as several whole ones"),
        "long replies come as several whole ones",
    ),
    Key(
        "monitors",
        choice("where power monitors are", "both", "out", "none"),
        "where there are power monitors",
        default="both",
    ),
    Key(
        "acknowledge",
        YesNo("whether a stalled command is acknowledged"),
        "keep saying that a stalled command is in progress",
    ),
    Key(
        "names",
        Text("a name", _name, example="x;DLT-CRS-ALL:::7"),
        "what every circuit and port is called (Calient, Glimmerglass)",
    ),
    Key("refuse_next", _WORDS, "refuse the next change with these words", example="busy"),
    Key(
        "cut",
        choice("when the connection is cut", "before", "after"),
        "drop the connection before or after doing the next change",
    ),
    Key("stall_s", Number("seconds", lowest=0), "do the next change so many seconds later"),
    Key(
        "meddle",
        Text("cross-connects", _circuits, example="1>7,3>9"),
        "what another client breaks, or makes if it is not there, just before the next change",
    ),
    Key("garble", _COUNT, "so many of the next answers come broken"),
    Key("answer_twice", _COUNT, "so many of the next answers come twice"),
    Key("strays", _COUNT, "before so many of the next answers comes one to nothing (TL1)"),
    Key("flood", _COUNT, "so many alarms come before the next answer"),
    Key("report", _WORDS, "say this unasked, as an alarm", example="power supply 2 failed"),
    Key(
        "lose",
        Text("a cross-connect", _circuit, example="3>9"),
        "a cross-connect that is gone without a word",
    ),
    Key(
        "reboot",
        choice("what becomes of the map", "keep", "forget"),
        "restart, with or without its map",
    ),
    Key(
        "after",
        quantity(units.parse_time, units.TIME, "a time", "30s"),
        "so long after the device began to answer",
        default="at once",
    ),
    Key("after_changes", _COUNT, "once so many commands that change something have come"),
)


def emulated_group(name: FieldType, variable: FieldType) -> Group:
    """The keys under ``emulated:``, given the types of a user's and a variable's name."""
    user = Group(
        "a user",
        required("name", name, "whom to log in as"),
        Key(
            "password_env",
            variable,
            "the environment variable that holds the password",
            default="any password will do",
        ),
        Key(
            "read_only",
            YesNo("whether the user may only look"),
            "may look, not change",
            default="false",
        ),
    )
    return Group(
        "an emulated optical switch",
        Key(
            "faults",
            ListOf(FAULT, "faults"),
            "what goes wrong, and when",
            example="[{fail_ports: [3], after: 30s}]",
        ),
        Key("users", ListOf(user, "users"), "who may log in besides 'user'"),
        Key(
            "conflict_time",
            quantity(units.parse_time, units.TIME, "a time", "500ms"),
            "a Calient that takes busy ports from their circuits, and how long that takes",
            default="such a circuit is refused",
        ),
    )
