"""The keys of a lab file that are about wavelengths: to read, and to write again."""

from collections.abc import Mapping
from typing import Any

from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.fields import FieldType, ListOf, MapOf, Text, Whole, choice, quantity
from patchlight.testbed.io.groups import Fields, Group, Key, required
from patchlight.testbed.lab.spectrum import (
    GRIDS,
    Band,
    Channel,
    Grid,
    SpectrumMap,
    parse_channel_connects,
)
from patchlight.testbed.lab.wavelengths import (
    PART_KINDS,
    Emulation,
    PassivePart,
    Transceiver,
    WavelengthSwitch,
    channels_in,
)
from patchlight.testbed.units import (
    LOSS,
    POWER,
    TIME,
    parse_loss,
    parse_power,
    parse_time,
    write_loss,
    write_power,
    write_time,
)

MOST_PORTS = 4096

_CHANNEL = Text("a channel", Channel.parse, numbers=True, example="193.100")
_BAND = Text("a band", Band.parse, example="191.350-196.100")
_GRID = Text("a grid", Grid.parse, {"enum": list(GRIDS)}, example="50GHz")
_TIME = quantity(parse_time, TIME, "a time", "50ms")
_LOSS = quantity(parse_loss, LOSS, "a loss", "6dB")
_POWER = quantity(parse_power, POWER, "a power", "-3dBm")
_PORTS = Whole("how many there are", 1, MOST_PORTS)
_PART_PORTS = Whole("how many ports it has", 2, MOST_PORTS)
_CROSS_CONNECT = Text("the way of a channel", parse_channel_connects, example="1>3@193.100")

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
    Key("grid", _GRID, "which channels there are; flexible takes any", default="50GHz"),
    Key("tuning_time", _TIME, "how long it is dark while it is tuned", default="0s"),
    Key("launch_power", _POWER, "optical power it sends with", default="as its NIC or switch"),
    Key("sensitivity", _POWER, "the least power that it receives", default="not known"),
)


def _port_key(text: str) -> int:
    if text.isascii() and text.isdigit() and not text.startswith("0") and len(text) < 9:
        return int(text)
    raise BadInput(f"expected a port number, found the text {text[:40]!r}")


TRANSCEIVERS = MapOf(
    Text("a port number", _port_key, {"pattern": "^[1-9][0-9]{0,7}$"}, numbers=True),
    TRANSCEIVER,
    "transceivers by port",
    "{1: {channel: 193.100}}",
)
PASSIVE_PART_LOSS = "of a coupler what it splits into, and 0.5dB; 4dB (awg), 3dB (multiplexer)"


def wavelength_switch_group(device_name: FieldType, *driven: Key) -> Group:
    """The keys of a wavelength switch, given the type of a device's name, and how it is driven."""
    return Group(
        "a wavelength switch",
        required("name", device_name, "what it is called, like 'wss1'", example="wss1"),
        required("inputs", _PORTS, "how many inputs it has: of ports 1, 2, …", example="4"),
        Key("outputs", _PORTS, "how many outputs it has", default="as many as inputs", example="4"),
        Key("grid", _GRID, "which channels there are; flexible takes any", default="50GHz"),
        Key("switching_time", _TIME, "how long a channel that moves stays dark", default="50ms"),
        Key("insertion_loss", _LOSS, "what a channel through it loses", default="6dB"),
        Key(
            "cross_connects",
            ListOf(_CROSS_CONNECT, "ways of channels"),
            "which channels go where at the start: a-b@THz both ways, a>b@THz-2dB one way and 2 dB "
            "weaker",
            default="none",
            example='["1-3@193.100", "1>2@193.150-2dB"]',
        ),
        *driven,
    )


def passive_part_group(device_name: FieldType) -> Group:
    """The keys of a passive part, given the type of a device's name."""
    return Group(
        "a passive part",
        required("name", device_name, "what it is called, like 'mux1'", example="mux1"),
        required(
            "kind",
            choice("a kind of passive part", *PART_KINDS),
            "coupler (a port's light leaves at all others), awg (the k-th channel leaves k ports "
            "further on, k from 0) or multiplexer (port 1 has all channels, port k + 2 the k-th)",
            example="multiplexer",
        ),
        Key(
            "ports",
            _PART_PORTS,
            "how many ports it has",
            default="of a multiplexer one more than channels",
        ),
        Key(
            "channels",
            _BAND,
            "the channels that it sorts, from and to: those of the grid between",
            default="none",
            example="193.100-193.250",
        ),
        Key("grid", _GRID, "how far apart its channels are", default="50GHz"),
        Key("loss", _LOSS, "what light loses in it", default=PASSIVE_PART_LOSS, example="3dB"),
    )


def transceiver_of(fields: Fields) -> Transceiver:
    """The transceiver of a group without mistakes."""
    found = {_FIELD_OF.get(key, key): item.value for key, item in fields.items()}
    if "channel" not in found:
        grid = found.get("grid", Grid())
        first = found["tunable"].first
        found["channel"] = first if grid.spacing_ghz is None else _as_wide(first, grid)
    return Transceiver(**found)


def wavelength_switch_of(fields: Fields, emulated: Emulation) -> WavelengthSwitch:
    """The wavelength switch of a group without mistakes, but for ``emulated``."""
    found = {_FIELD_OF.get(key, key): item.value for key, item in fields.items()}
    found["emulated"] = emulated
    ways = [way for item in found.pop("cross_connects", []) for way in item.value]
    found.setdefault("outputs", found["inputs"])
    return WavelengthSwitch(initial=SpectrumMap.of(ways), **found)


def passive_part_of(fields: Fields) -> PassivePart:
    """The passive part of a group without mistakes."""
    name, kind = fields["name"].value, fields["kind"].value
    channels = part_channels(fields)
    ports = fields["ports"].value if "ports" in fields else len(channels) + 1
    loss_db = fields["loss"].value if "loss" in fields else None
    return PassivePart(name, kind, ports, channels, loss_db)


def part_channels(fields: Fields) -> tuple[Channel, ...]:
    """The channels of a passive part's group; ``BadInput`` where its band is not on its grid."""
    if "channels" not in fields:
        return ()
    return channels_in(
        fields["channels"].value, fields["grid"].value if "grid" in fields else Grid()
    )


def _as_wide(channel: Channel, grid: Grid) -> Channel:
    assert grid.spacing_ghz is not None
    return channel._replace(slots=int(grid.spacing_ghz / 12.5))


_FIELD_OF: Mapping[str, str] = {
    "tuning_time": "tuning_time_s",
    "switching_time": "switching_time_s",
    "insertion_loss": "insertion_loss_db",
    "launch_power": "launch_power_dbm",
    "sensitivity": "sensitivity_dbm",
}


def transceiver_document(transceiver: Transceiver) -> dict[str, Any]:
    """The keys and values of a transceiver in a lab file; what has its default is left out."""
    written: dict[str, Any] = {"channel": str(transceiver.channel)}
    if transceiver.tunable is not None:
        written["tunable"] = str(transceiver.tunable)
    if transceiver.grid != Grid():
        written["grid"] = str(transceiver.grid)
    if transceiver.tuning_time_s:
        written["tuning_time"] = write_time(transceiver.tuning_time_s)
    powers = (("launch_power", "launch_power_dbm"), ("sensitivity", "sensitivity_dbm"))
    for key, name in powers:
        if (dbm := getattr(transceiver, name)) is not None:
            written[key] = write_power(dbm)
    return written


def wavelength_switch_document(switch: WavelengthSwitch) -> dict[str, Any]:
    """The same of a wavelength switch."""
    usual = WavelengthSwitch(switch.name, switch.inputs, switch.outputs)
    written: dict[str, Any] = {"name": switch.name, "inputs": switch.inputs}
    if switch.outputs != switch.inputs:
        written["outputs"] = switch.outputs
    if switch.grid != usual.grid:
        written["grid"] = str(switch.grid)
    if switch.switching_time_s != usual.switching_time_s:
        written["switching_time"] = write_time(switch.switching_time_s)
    if switch.insertion_loss_db != usual.insertion_loss_db:
        written["insertion_loss"] = write_loss(switch.insertion_loss_db)
    if switch.initial:
        written["cross_connects"] = list(switch.initial.texts)
    for key in ("driver", "address", "user", "password_env", "legacy_ssh"):
        if (value := getattr(switch, key)) != getattr(usual, key):
            written[key] = value
    return written


def passive_part_document(part: PassivePart) -> dict[str, Any]:
    """The same of a passive part."""
    written: dict[str, Any] = {"name": part.name, "kind": part.kind}
    if part.kind != "multiplexer":
        written["ports"] = part.ports
    if part.channels:
        grid = Grid(part.channels[0].width_ghz)
        band = Band(part.channels[0], part.channels[-1])
        written["channels"] = f"{band.first.thz_text}-{band.last.thz_text}"
        if grid != Grid():
            written["grid"] = str(grid)
    if part.own_loss_db is not None:
        written["loss"] = write_loss(part.own_loss_db)
    return written
