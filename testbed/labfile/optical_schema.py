"""Defines the keys of a lab file for wavelengths, and for faults of emulated optical switches."""

import re
from dataclasses import replace
from typing import Annotated, Any

from patchlight.testbed.errors import BadInput, short
from patchlight.testbed.io.keys import (
    Keys,
    OneLine,
    Text,
    YesNo,
    choice,
    key,
    listing,
    mapping,
    needed,
    number,
    whole,
)
from patchlight.testbed.lab import spectrum, wavelengths
from patchlight.testbed.lab.portmap import parse_cross_connects
from patchlight.testbed.labfile import values as v

MOST_PORTS = 4096
_MOST = 100_000

TRIGGERS = ("after", "after_changes")


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


_PORT_KEY = Text(
    "a port number",
    _port,
    {"pattern": "^[1-9][0-9]{0,8}$"},
    numbers=True,
    write=int,
)
_Ports = Annotated[
    tuple[Annotated[int, whole("a port number", 1, _MOST)], ...],
    listing("port numbers"),
]
_Count = Annotated[int, whole("a number", 1, _MOST)]
_Words = Annotated[str, Text("the device's message", _words)]


def _fault(
    after_s: float = 0.0, after_changes: int = 0, **said: Any
) -> wavelengths.OcsFault:
    return wavelengths.OcsFault.of(
        said,
        after_s=after_s,
        after_changes=after_changes,
    )


class FaultKeys(
    Keys,
    title="a fault",
    json_schema_extra={"minProperties": 1},
):
    """At least one fault; the keys of ``TRIGGERS`` say when it happens."""

    makes = _fault

    refuse_ports: _Ports = key("ports that are locked")
    fail_ports: _Ports = key("ports with stuck mirrors")
    dark_ports: _Ports = key("ports that report circuits but pass no light")
    drift_db: Annotated[
        dict[
            # Keys of JSON objects are texts, also on the control socket.
            Annotated[str, _PORT_KEY],
            Annotated[float, number("dB")],
        ],
        mapping("dB by port", "{3: 1.5}"),
    ] = key("additional loss", alias="drift_db")
    read_only: YesNo = key("all users are read-only")
    repeat_pages: YesNo = key("long replies are split into several replies")
    monitors: Annotated[
        str,
        choice(
            "a place of power monitors",
            "both",
            "out",
            "none",
        ),
    ] = key("the places of its power monitors", "both")
    groups: Annotated[
        str,
        choice(
            "groups of ports",
            "any",
            "three",
            "fabrics",
        ),
    ] = key("which ports can be connected (OCP)")
    acknowledge: YesNo = key(
        "keep reporting that a stalled command is in progress"
    )
    names: Annotated[
        str, Text("a name", _name, example="x;DLT-CRS-ALL:::7")
    ] = key("the name of every circuit")
    refuse_next: _Words = key(
        "refuse the next change with this message", example="busy"
    )
    cut: Annotated[str, choice("a time of the cut", "before", "after")] = key(
        "drop the connection before or after the next change"
    )
    stall_s: Annotated[float, number("seconds", ge=0)] = key(
        "delay the next change by this time", alias="stall_s"
    )
    meddle: Annotated[
        str, Text("cross-connects", _circuits, example="1>7,3>9")
    ] = key(
        "cross-connects that another client breaks, or makes if missing, just before the next "
        "change"
    )
    garble: _Count = key("the number of next answers that are corrupted")
    answer_twice: _Count = key(
        "the number of next answers that are sent twice"
    )
    truncate: _Count = key("the number of next answers that are truncated")
    strays: _Count = key(
        "the number of next answers after an unsolicited one (TL1)"
    )
    flood: _Count = key("the number of alarms before the next answer")
    report: _Words = key(
        "send this as an alarm", example="power supply 2 failed"
    )
    lose: Annotated[str, Text("a cross-connect", _circuit, example="3>9")] = (
        key("the cross-connect disappears without an event")
    )
    reboot: Annotated[
        str, choice("an effect on the map", "keep", "forget")
    ] = key("restart the device")
    after_s: Annotated[float, replace(v.TIME, example="30s")] = key(
        "the time after its start", "immediately"
    )
    after_changes: _Count = key("the number of changing commands before")

    @staticmethod
    def said(value: wavelengths.OcsFault) -> dict[str, Any]:
        """Its settings, and when it happens."""
        return {
            **value.control,
            "after": value.after_s or None,
            "after_changes": value.after_changes or None,
        }

    @classmethod
    def written(cls, value: wavelengths.OcsFault) -> dict[str, Any]:
        """Its keys in the order of its settings."""
        made = super().written(value)
        order = (*value.control, *TRIGGERS)
        return OneLine({key: made[key] for key in order if key in made})


class EmulatedUserKeys(Keys, title="a user"):
    """A user of an emulated switch."""

    makes = wavelengths.OcsUser

    name: v.UserName = needed("the login")
    password_env: v.VariableName = key(
        "the environment variable that holds the password",
        "any password is accepted",
    )
    read_only: YesNo = key("may make changes")


class EmulatedKeys(Keys, title="an emulated optical switch"):
    """What only the emulation of a switch has."""

    makes = wavelengths.Emulation
    block = True

    faults: Annotated[tuple[FaultKeys, ...], listing("faults")] = key(
        "faults, and when they happen",
        example="[{fail_ports: [3], after: 30s}]",
    )
    users: Annotated[tuple[EmulatedUserKeys, ...], listing("users")] = key(
        "users in addition to 'user'"
    )
    conflict_time_s: Annotated[float, replace(v.TIME, example="500ms")] = key(
        "time of a new circuit that disconnects busy ports of an emulated Calient",
        "the circuit is refused",
    )


def emulated() -> Any:
    """The key of a switch for its emulation."""
    return key(
        "settings for its emulation only: faults, more users",
        example="{users: [{name: viewer, read_only: true}]}",
    )


_Band = Annotated[
    spectrum.Band,
    Text("a band", spectrum.Band.parse, example="191.350-196.100"),
]
_Grid = Annotated[
    spectrum.Grid,
    Text(
        "a grid",
        spectrum.Grid.parse,
        {"enum": list(spectrum.GRIDS)},
        example="50GHz",
    ),
]
_Time = Annotated[float, replace(v.TIME, example="50ms")]
_Loss = Annotated[float, replace(v.LOSS, example="6dB")]
_PortCount = Annotated[int, whole("the number of ports", 1, MOST_PORTS)]


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


class TransceiverKeys(Keys, title="a transceiver"):
    """The transceiver of a port."""

    makes = _transceiver
    like = wavelengths.Transceiver

    channel: Annotated[
        spectrum.Channel,
        Text(
            "a channel",
            spectrum.Channel.parse,
            numbers=True,
            example="193.100",
        ),
    ] = key(
        "the channel that it sends, in THz; of a tunable transceiver the initial one",
        "with a band, its first channel",
        "193.100",
    )
    tunable: _Band = key("its tuning band", "none")
    grid: _Grid = key("its channels; flexible takes any")
    tuning_time_s: _Time = key("the time that it is off while it tunes")
    launch_power_dbm: v.Power = key(
        "its launch power", "that of its NIC or switch"
    )
    sensitivity_dbm: v.Power = key(
        "its sensitivity: the least power that it can receive", "not known"
    )


Transceivers = Annotated[
    dict[
        Annotated[
            int,
            Text(
                "a port number",
                lambda text: int(_port(text)),
                {"pattern": "^[1-9][0-9]{0,7}$"},
                numbers=True,
                write=int,
            ),
        ],
        TransceiverKeys,
    ],
    mapping("transceivers by port", "{1: {channel: 193.100}}"),
]


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


class WavelengthSwitchKeys(Keys, title="a wavelength switch"):
    """A wavelength-selective switch."""

    makes = _wavelength_switch
    like = wavelengths.WavelengthSwitch
    block = True

    name: v.DeviceName = needed("its name, like 'wss1'", "wss1")
    inputs: _PortCount = needed("the number of inputs: ports 1, 2, …", "4")
    outputs: _PortCount = key(
        "the number of outputs", "as many as inputs", "4"
    )
    grid: _Grid = key("its channels; flexible takes any")
    switching_time_s: _Time = key("the outage of a channel that moves")
    insertion_loss_db: _Loss = key("its insertion loss")
    cross_connects: Annotated[
        tuple[
            Annotated[
                tuple[spectrum.ChannelConnect, ...],
                Text(
                    "a channel's cross-connect",
                    spectrum.parse_channel_connects,
                    example="1>3@193.100",
                ),
            ],
            ...,
        ],
        listing("channels' cross-connects"),
    ] = key(
        "the initial cross-connects of channels: a-b@THz both ways, a>b@THz-2dB one way with 2 "
        "dB of attenuation",
        "none",
        '["1-3@193.100", "1>2@193.150-2dB"]',
    )
    driver: v.WssDriver = key("its driver", "none: its map is fixed")
    address: v.HostPort = key("its address, host:port; needed with a driver")
    user: v.UserName = key("the login")
    password_env: v.VariableName = key(
        "the variable with the password", "any is accepted"
    )
    legacy_ssh: YesNo = key("allow old SSH algorithms")
    emulated: EmulatedKeys = emulated()

    @staticmethod
    def said(value: wavelengths.WavelengthSwitch) -> dict[str, Any]:
        """How many outputs it has, and its initial map."""
        outputs = value.outputs if value.outputs != value.inputs else None
        return {
            "outputs": outputs,
            "cross_connects": value.initial.texts or None,
        }


def part_channels(part: Keys) -> tuple[spectrum.Channel, ...]:
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
    "coupler: its splitting loss and 0.5dB; 4dB (awg), 3dB (multiplexer)"
)


class PassivePartKeys(Keys, title="a passive part"):
    """A coupler, AWG router or multiplexer."""

    makes = _passive_part
    like = wavelengths.PassivePart

    name: v.DeviceName = needed("its name, like 'mux1'", "mux1")
    kind: Annotated[
        str, choice("a kind of passive part", *wavelengths.PART_KINDS)
    ] = needed(
        "coupler (each port's signals leave at all others), awg (channel k, from 0, leaves k "
        "ports further on) or multiplexer (port 1 has all channels, port k + 2 has channel k)",
        "multiplexer",
    )
    ports: Annotated[int, whole("the number of ports", 2, MOST_PORTS)] = key(
        "the number of ports", "multiplexer: one more than channels"
    )
    channels: _Band = key("the band that it sorts", "none", "193.100-193.250")
    grid: _Grid = key("its channel spacing", "50GHz")
    loss_db: _Loss = key("its insertion loss", PASSIVE_PART_LOSS, "3dB")

    @staticmethod
    def said(value: Any) -> dict[str, Any]:
        """Its ports, its band and its own loss."""
        return _said_of_part(value)
