"""The keys of a lab file about wavelengths, and about faults of emulated optical switches."""

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
        f"{text[:60]!r} is not what a device says: expected 1 to 200 printable characters"
    )


def _circuit(text: str) -> str:
    # Which of the two fits is for the check of the whole file, as is which ports there are.
    one_way, *back = (spectrum.parse_channel_connects if "@" in text else parse_cross_connects)(
        text
    )
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
_PORT_KEY = Text("a port number", _port, {"pattern": "^[1-9][0-9]{0,8}$"}, numbers=True, write=int)
_PORT = Whole("a port number", 1, _MOST)
_COUNT = Whole("how many", 1, _MOST)
_WORDS = Text("the words of the device", _words)

FAULT = _Fault(
    "a fault",
    Key("refuse_ports", ListOf(_PORT, "port numbers"), "ports that are locked"),
    Key("fail_ports", ListOf(_PORT, "port numbers"), "ports whose mirrors are stuck"),
    Key(
        "drift_db", MapOf(_PORT_KEY, Number("dB"), "dB by port", "{3: 1.5}"), "more loss at outputs"
    ),
    Key("read_only", YesNo(), "whoever logs in may only look"),
    Key("repeat_pages", YesNo(), "long replies come as several whole ones"),
    Key(
        "monitors",
        choice("where power monitors are", "both", "out", "none"),
        "on which side",
        "both",
    ),
    Key("acknowledge", YesNo(), "keep saying that a stalled command is in progress"),
    Key("names", Text("a name", _name, example="x;DLT-CRS-ALL:::7"), "the name of each circuit"),
    Key("refuse_next", _WORDS, "refuse the next change with these words", example="busy"),
    Key(
        "cut", choice("when the connection is cut", "before", "after"), "drop it at the next change"
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
    Key("lose", Text("a cross-connect", _circuit, example="3>9"), "it is gone without a word"),
    Key("reboot", choice("what becomes of the map", "keep", "forget"), "restart"),
    Key("after", replace(v.TIME, example="30s"), "so long after its start", default="at once"),
    Key("after_changes", _COUNT, "once so many commands that change something have come"),
    make=lambda after_s=0.0, after_changes=0, **said: wavelengths.OcsFault.of(
        said, after_s=after_s, after_changes=after_changes
    ),
    said=lambda fault: {
        **fault.control,
        "after": fault.after_s or None,
        "after_changes": fault.after_changes or None,
    },
)
_EMULATED_USER = Group(
    "a user",
    required("name", v.USER_NAME, "whom to log in as"),
    Key(
        "password_env",
        v.VARIABLE_NAME,
        "the environment variable that holds the password",
        default="any password will do",
    ),
    Key("read_only", YesNo(), "may look, not change"),
    model=wavelengths.OcsUser,
)
EMULATED = Key(
    "emulated",
    Group(
        "an emulated optical switch",
        Key(
            "faults",
            ListOf(FAULT, "faults"),
            "what goes wrong, and when",
            example="[{fail_ports: [3], after: 30s}]",
        ),
        Key("users", ListOf(_EMULATED_USER, "users"), "who may log in besides 'user'"),
        Key(
            "conflict_time",
            replace(v.TIME, example="500ms"),
            "a Calient that takes busy ports from their circuits, and how long that takes",
            default="such a circuit is refused",
        ),
        model=wavelengths.Emulation,
        block=True,
    ),
    "what its emulation alone heeds: faults, more users",
    example="{users: [{name: viewer, read_only: true}]}",
)
LOGIN = (
    Key("user", v.USER_NAME, "whom to log in as"),
    Key("password_env", v.VARIABLE_NAME, "the variable with the password", "any password will do"),
    Key("legacy_ssh", YesNo(), "it may use old SSH algorithms"),
)

_CHANNEL = Text("a channel", spectrum.Channel.parse, numbers=True, example="193.100")
_BAND = Text("a band", spectrum.Band.parse, example="191.350-196.100")
_GRID = Text("a grid", spectrum.Grid.parse, {"enum": list(spectrum.GRIDS)}, example="50GHz")
_TIME, _LOSS = replace(v.TIME, example="50ms"), replace(v.LOSS, example="6dB")
_PORTS = Whole("how many there are", 1, MOST_PORTS)
_PART_PORTS = Whole("how many ports it has", 2, MOST_PORTS)
_CROSS_CONNECT = Text(
    "the way of a channel", spectrum.parse_channel_connects, example="1>3@193.100"
)


def _transceiver(**said: Any) -> wavelengths.Transceiver:
    if "channel" not in said:
        grid, first = said.get("grid", spectrum.Grid()), said["tunable"].first
        wide = grid.spacing_ghz is not None
        said["channel"] = first._replace(slots=int(grid.spacing_ghz / 12.5)) if wide else first
    return wavelengths.Transceiver(**said)


TRANSCEIVER = Group(
    "a transceiver",
    Key(
        "channel",
        _CHANNEL,
        "the channel that it sends, in THz; of a tunable one at the start",
        default="of a tunable one, the first of its band",
        example="193.100",
    ),
    Key("tunable", _BAND, "the channels that it can be tuned to, from and to", default="none"),
    Key("grid", _GRID, "which channels there are; flexible takes any"),
    Key("tuning_time", _TIME, "how long it is dark while it is tuned"),
    Key("launch_power", v.POWER, "optical power it sends with", default="as its NIC or switch"),
    Key("sensitivity", v.POWER, "the least power that it receives", default="not known"),
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


def _wavelength_switch(*, cross_connects: Any = (), **said: Any) -> wavelengths.WavelengthSwitch:
    ways = [way for item in cross_connects for way in item]
    return wavelengths.WavelengthSwitch(
        **{"outputs": said["inputs"], "initial": spectrum.SpectrumMap.of(ways), **said}
    )


WAVELENGTH_SWITCH = Group(
    "a wavelength switch",
    required("name", v.DEVICE_NAME, "what it is called, like 'wss1'", example="wss1"),
    required("inputs", _PORTS, "how many inputs it has: of ports 1, 2, …", example="4"),
    Key("outputs", _PORTS, "how many outputs it has", default="as many as inputs", example="4"),
    Key("grid", _GRID, "which channels there are; flexible takes any"),
    Key("switching_time", _TIME, "how long a channel that moves stays dark"),
    Key("insertion_loss", _LOSS, "what a channel through it loses"),
    Key(
        "cross_connects",
        ListOf(_CROSS_CONNECT, "ways of channels"),
        "which channels go where at the start: a-b@THz both ways, a>b@THz-2dB one way and 2 dB "
        "weaker",
        default="none",
        example='["1-3@193.100", "1>2@193.150-2dB"]',
    ),
    Key("driver", v.WSS_DRIVER, "the driver that speaks to it", default="none: nobody changes it"),
    Key("address", v.HOST_PORT, "where it answers: host:port; needed with a driver"),
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
    """The channels of a passive part's group; ``BadInput`` where its band is not on its grid."""
    band = part.value_of("channels")
    return (
        ()
        if band is None
        else wavelengths.channels_in(band, part.value_of("grid", spectrum.Grid()))
    )


def _passive_part(
    *, ports: int = 0, channels: Any = None, grid: Any = None, loss_db: Any = None, **said: Any
) -> wavelengths.PassivePart:
    sorted_ = () if channels is None else wavelengths.channels_in(channels, grid or spectrum.Grid())
    return wavelengths.PassivePart(
        ports=ports or len(sorted_) + 1, channels=sorted_, own_loss_db=loss_db, **said
    )


def _said_of_part(part: wavelengths.PassivePart) -> dict[str, Any]:
    first, last = (part.channels or (None,))[0], (part.channels or (None,))[-1]
    band = f"{first.thz_text}-{last.thz_text}" if first and last else None
    grid = spectrum.Grid(first.width_ghz) if first else spectrum.Grid()
    return {
        "ports": None if part.kind == "multiplexer" else part.ports,
        "channels": band,
        "grid": None if grid == spectrum.Grid() else grid,
        "loss": part.own_loss_db,
    }


PASSIVE_PART_LOSS = "of a coupler what it splits into, and 0.5dB; 4dB (awg), 3dB (multiplexer)"
PASSIVE_PART = Group(
    "a passive part",
    required("name", v.DEVICE_NAME, "what it is called, like 'mux1'", example="mux1"),
    required(
        "kind",
        choice("a kind of passive part", *wavelengths.PART_KINDS),
        "coupler (a port's light leaves at all others), awg (the k-th channel leaves k ports "
        "further on, k from 0) or multiplexer (port 1 has all channels, port k + 2 the k-th)",
        example="multiplexer",
    ),
    Key("ports", _PART_PORTS, "how many it has", "of a multiplexer one more than channels"),
    Key(
        "channels",
        _BAND,
        "the channels that it sorts, from and to: those of the grid between",
        default="none",
        example="193.100-193.250",
    ),
    Key("grid", _GRID, "how far apart its channels are", default="50GHz"),
    Key("loss", _LOSS, "what light loses in it", default=PASSIVE_PART_LOSS, example="3dB"),
    model=wavelengths.PassivePart,
    make=_passive_part,
    said=_said_of_part,
)
