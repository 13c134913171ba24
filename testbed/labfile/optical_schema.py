"""Defines the keys of a lab file for wavelengths, and for faults of emulated optical switches."""

import re
from dataclasses import replace
from typing import Any

import yaml

from patchlight.testbed.errors import BadInput, nearest, short
from patchlight.testbed.io.fields import (
    Fields,
    Group,
    Key,
    ListOf,
    OneLine,
    Text,
    Whole,
    choice,
    required,
)
from patchlight.testbed.io.forms import MapOf, Number, YesNo
from patchlight.testbed.io.reader import FileIssues, Located
from patchlight.testbed.lab import spectrum, wavelengths
from patchlight.testbed.lab.portmap import parse_cross_connects
from patchlight.testbed.labfile import values as v

MOST_PORTS = 4096
_MOST = 100_000

TRIGGERS = ("after", "after_changes")


class _Fault(Group):
    """A group of at least one fault; the keys of ``TRIGGERS`` say when it happens."""

    def _read(self, node: yaml.Node, issues: FileIssues) -> Located[Any]:
        located = super()._read(node, issues)
        fields: Fields = located.value
        written = {
            str(key.value)
            for key, _ in node.value
            if isinstance(key, yaml.ScalarNode)
        }
        if not written - set(TRIGGERS):
            kinds = [key.name for key in self.keys if key.name not in TRIGGERS]
            issues.at(located, f"a fault needs a kind: {nearest('', kinds)}")
        if all(key in fields for key in TRIGGERS):
            message = "expected 'after' or 'after_changes', not both"
            issues.at(fields["after_changes"], message)
        return located

    def written(self, value: wavelengths.OcsFault) -> Any:
        written = super().written(value)
        order = (*value.control, *TRIGGERS)
        return OneLine({key: written[key] for key in order if key in written})

    def schema(self) -> dict[str, Any]:
        return {**super().schema(), "minProperties": 1}


def _words(text: str) -> str:
    if text.strip() and text.isprintable() and len(text) <= 200:
        return text
    raise BadInput(
        f"{text[:60]!r} is not a device message: expected 1 to 200 printable characters"
    )


def _circuit(text: str) -> str:
    # The check of the whole file decides which form fits, and which ports exist.
    one_way, *back = (
        spectrum.parse_channel_connects
        if "@" in text
        else parse_cross_connects
    )(text)
    return str(one_way).replace(">", "-" if back else ">", 1)


def _circuits(text: str) -> str:
    return ",".join(_circuit(part) for part in text.split(","))


def _name(text: str) -> str:
    # Any text that an operator may have entered, including line ends.
    if 1 <= len(text) <= 200:
        return text
    raise BadInput(f"a name has 1 to 200 characters, not {len(text)}")


def _port(text: str) -> str:
    if re.fullmatch("[1-9][0-9]{0,8}", text):
        return text
    raise BadInput(f"expected a port number, found the text {short(text)!r}")


# Keys of JSON objects are texts, also on the control socket.
_PORT_KEY = Text(
    "a port number",
    _port,
    {"pattern": "^[1-9][0-9]{0,8}$"},
    numbers=True,
    write=int,
)
_PORT = Whole("a port number", 1, _MOST)
_COUNT = Whole("how many", 1, _MOST)
_WORDS = Text("the device's message", _words)

FAULT = _Fault(
    "a fault",
    Key(
        "refuse_ports", ListOf(_PORT, "port numbers"), "ports that are locked"
    ),
    Key(
        "fail_ports", ListOf(_PORT, "port numbers"), "ports with stuck mirrors"
    ),
    Key(
        "dark_ports",
        ListOf(_PORT, "port numbers"),
        "ports that report circuits and pass nothing",
    ),
    Key(
        "drift_db",
        MapOf(
            _PORT_KEY,
            Number("dB"),
            "dB by port",
            "{3: 1.5}",
        ),
        "additional loss",
    ),
    Key("read_only", YesNo(), "all users are read-only"),
    Key(
        "repeat_pages",
        YesNo(),
        "long replies are sent as several whole replies",
    ),
    Key(
        "monitors",
        choice(
            "where the power monitors are",
            "both",
            "out",
            "none",
        ),
        "where it has power monitors",
        default="both",
    ),
    Key(
        "groups",
        choice(
            "groups of ports",
            "any",
            "three",
            "fabrics",
        ),
        "which ports may be joined (OCP)",
    ),
    Key(
        "acknowledge",
        YesNo(),
        "keep reporting that a stalled command is in progress",
    ),
    Key(
        "names",
        Text("a name", _name, example="x;DLT-CRS-ALL:::7"),
        "the name of every circuit",
    ),
    Key(
        "refuse_next",
        _WORDS,
        "refuse the next change with this message",
        example="busy",
    ),
    Key(
        "cut",
        choice("when the connection is cut", "before", "after"),
        "drop the connection before or after the next change",
    ),
    Key(
        "stall_s",
        Number("seconds", lowest=0),
        "delay the next change by this time",
    ),
    Key(
        "meddle",
        Text("cross-connects", _circuits, example="1>7,3>9"),
        "cross-connects that another client breaks, or makes if missing, just before the next "
        "change",
    ),
    Key("garble", _COUNT, "how many of the next answers are corrupted"),
    Key("answer_twice", _COUNT, "how many of the next answers are sent twice"),
    Key("truncate", _COUNT, "how many of the next answers end half-way"),
    Key(
        "strays",
        _COUNT,
        "how many of the next answers follow an unsolicited one (TL1)",
    ),
    Key("flood", _COUNT, "how many alarms are sent before the next answer"),
    Key(
        "report",
        _WORDS,
        "say this unasked, as an alarm",
        example="power supply 2 failed",
    ),
    Key(
        "lose",
        Text("a cross-connect", _circuit, example="3>9"),
        "it disappears without an event",
    ),
    Key(
        "reboot",
        choice("what happens to the map", "keep", "forget"),
        "restart the device",
    ),
    Key(
        "after",
        replace(v.TIME, example="30s"),
        "how long after its start",
        "immediately",
    ),
    Key(
        "after_changes",
        _COUNT,
        "after how many commands that change something",
    ),
    make=lambda after_s=0.0, after_changes=0, **said: wavelengths.OcsFault.of(
        said,
        after_s=after_s,
        after_changes=after_changes,
    ),
    said=lambda fault: {
        **fault.control,
        "after": fault.after_s or None,
        "after_changes": fault.after_changes or None,
    },
)
_EMULATED_USER = Group(
    "a user",
    required("name", v.USER_NAME, "the login"),
    Key(
        "password_env",
        v.VARIABLE_NAME,
        "the environment variable that holds the password",
        default="any password is accepted",
    ),
    Key("read_only", YesNo(), "may make changes"),
    model=wavelengths.OcsUser,
)
EMULATED = Key(
    "emulated",
    Group(
        "an emulated optical switch",
        Key(
            "faults",
            ListOf(FAULT, "faults"),
            "faults, and when they happen",
            example="[{fail_ports: [3], after: 30s}]",
        ),
        Key(
            "users",
            ListOf(_EMULATED_USER, "users"),
            "users in addition to 'user'",
        ),
        Key(
            "conflict_time",
            replace(v.TIME, example="500ms"),
            "lets an emulated Calient disconnect busy ports for a new circuit, which then takes "
            "this long",
            default="such a circuit is refused",
        ),
        model=wavelengths.Emulation,
        block=True,
    ),
    "settings of its emulation only: faults, more users",
    example="{users: [{name: viewer, read_only: true}]}",
)
LOGIN = (
    Key("user", v.USER_NAME, "the login"),
    Key(
        "password_env",
        v.VARIABLE_NAME,
        "the variable with the password",
        "any is accepted",
    ),
    Key("legacy_ssh", YesNo(), "it may use old SSH algorithms"),
)

_CHANNEL = Text(
    "a channel",
    spectrum.Channel.parse,
    numbers=True,
    example="193.100",
)
_BAND = Text("a band", spectrum.Band.parse, example="191.350-196.100")
_GRID = Text(
    "a grid",
    spectrum.Grid.parse,
    {"enum": list(spectrum.GRIDS)},
    example="50GHz",
)
_TIME = replace(v.TIME, example="50ms")
_LOSS = replace(v.LOSS, example="6dB")
_PORTS = Whole("how many it has", 1, MOST_PORTS)
_PART_PORTS = Whole("how many ports it has", 2, MOST_PORTS)
_CROSS_CONNECT = Text(
    "the way of a channel",
    spectrum.parse_channel_connects,
    example="1>3@193.100",
)


def _transceiver(**said: Any) -> wavelengths.Transceiver:
    if "channel" not in said:
        grid = said.get("grid", spectrum.Grid())
        first = said["tunable"].first
        wide = grid.spacing_ghz is not None
        said["channel"] = (
            first._replace(slots=int(grid.spacing_ghz / 12.5))
            if wide
            else first
        )
    return wavelengths.Transceiver(**said)


TRANSCEIVER = Group(
    "a transceiver",
    Key(
        "channel",
        _CHANNEL,
        "the channel that it sends, in THz; of a tunable one the initial one",
        default="of a tunable one, the first of its band",
        example="193.100",
    ),
    Key(
        "tunable",
        _BAND,
        "its tuning band",
        default="none",
    ),
    Key("grid", _GRID, "its channels; flexible takes any"),
    Key("tuning_time", _TIME, "how long it is off while it is tuned"),
    Key(
        "launch_power",
        v.POWER,
        "optical power it sends with",
        default="as its NIC or switch",
    ),
    Key(
        "sensitivity",
        v.POWER,
        "the least power that it can receive",
        default="not known",
    ),
    model=wavelengths.Transceiver,
    make=_transceiver,
)


TRANSCEIVERS = MapOf(
    Text(
        "a port number",
        lambda text: int(_port(text)),
        {"pattern": "^[1-9][0-9]{0,7}$"},
        numbers=True,
        write=int,
    ),
    TRANSCEIVER,
    "transceivers by port",
    "{1: {channel: 193.100}}",
)


def _wavelength_switch(
    *, cross_connects: Any = (), **said: Any
) -> wavelengths.WavelengthSwitch:
    ways = [way for item in cross_connects for way in item]
    return wavelengths.WavelengthSwitch(
        **{
            "outputs": said["inputs"],
            "initial": spectrum.SpectrumMap.of(ways),
            **said,
        }
    )


WAVELENGTH_SWITCH = Group(
    "a wavelength switch",
    required(
        "name",
        v.DEVICE_NAME,
        "its name, like 'wss1'",
        example="wss1",
    ),
    required(
        "inputs",
        _PORTS,
        "how many inputs it has: of ports 1, 2, …",
        example="4",
    ),
    Key(
        "outputs",
        _PORTS,
        "how many outputs it has",
        default="as many as inputs",
        example="4",
    ),
    Key("grid", _GRID, "its channels; flexible takes any"),
    Key(
        "switching_time",
        _TIME,
        "how long the outage of a channel that moves lasts",
    ),
    Key("insertion_loss", _LOSS, "its insertion loss"),
    Key(
        "cross_connects",
        ListOf(_CROSS_CONNECT, "ways of channels"),
        "the initial cross-connects of channels: a-b@THz both ways, a>b@THz-2dB one way with 2 "
        "dB of attenuation",
        default="none",
        example='["1-3@193.100", "1>2@193.150-2dB"]',
    ),
    Key(
        "driver",
        v.WSS_DRIVER,
        "its driver",
        default="none: its map cannot change",
    ),
    Key(
        "address", v.HOST_PORT, "its address, host:port; needed with a driver"
    ),
    *LOGIN,
    EMULATED,
    model=wavelengths.WavelengthSwitch,
    make=_wavelength_switch,
    said=lambda switch: {
        "outputs": switch.outputs if switch.outputs != switch.inputs else None,
        "cross_connects": switch.initial.texts or None,
    },
    block=True,
)


def part_channels(part: Fields) -> tuple[spectrum.Channel, ...]:
    """The channels of a passive part's group; ``BadInput`` if its band is not on its grid."""
    band = part.value_of("channels")
    return (
        ()
        if band is None
        else wavelengths.channels_in(
            band, part.value_of("grid", spectrum.Grid())
        )
    )


def _passive_part(
    *,
    ports: int = 0,
    channels: Any = None,
    grid: Any = None,
    loss_db: Any = None,
    **said: Any,
) -> wavelengths.PassivePart:
    sorted_ = (
        ()
        if channels is None
        else wavelengths.channels_in(channels, grid or spectrum.Grid())
    )
    return wavelengths.PassivePart(
        ports=ports or len(sorted_) + 1,
        channels=sorted_,
        own_loss_db=loss_db,
        **said,
    )


def _said_of_part(part: wavelengths.PassivePart) -> dict[str, Any]:
    first = (part.channels or (None,))[0]
    last = (part.channels or (None,))[-1]
    band = f"{first.thz_text}-{last.thz_text}" if first and last else None
    grid = spectrum.Grid(first.width_ghz) if first else spectrum.Grid()
    return {
        "ports": None if part.kind == "multiplexer" else part.ports,
        "channels": band,
        "grid": None if grid == spectrum.Grid() else grid,
        "loss": part.own_loss_db,
    }


PASSIVE_PART_LOSS = (
    "of a coupler its splitting loss and 0.5dB; 4dB (awg), 3dB (multiplexer)"
)
PASSIVE_PART = Group(
    "a passive part",
    required(
        "name",
        v.DEVICE_NAME,
        "its name, like 'mux1'",
        example="mux1",
    ),
    required(
        "kind",
        choice("a kind of passive part", *wavelengths.PART_KINDS),
        "coupler (signals of a port leave at all others), awg (the k-th channel, from 0, leaves "
        "k ports further on) or multiplexer (port 1 has all channels, port k + 2 the k-th)",
        example="multiplexer",
    ),
    Key(
        "ports",
        _PART_PORTS,
        "how many ports it has",
        "of a multiplexer one more than channels",
    ),
    Key(
        "channels",
        _BAND,
        "the band that it sorts",
        default="none",
        example="193.100-193.250",
    ),
    Key(
        "grid",
        _GRID,
        "its channel spacing",
        default="50GHz",
    ),
    Key(
        "loss",
        _LOSS,
        "its insertion loss",
        default=PASSIVE_PART_LOSS,
        example="3dB",
    ),
    model=wavelengths.PassivePart,
    make=_passive_part,
    said=_said_of_part,
)
