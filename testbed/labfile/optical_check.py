"""What is wrong between the parts of a lab file: fibres, wavelengths; and what seems forgotten."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, TypeVar

from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.fields import Fields, plain
from patchlight.testbed.io.issues import FileIssues, Located, nearest
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.ocs_drivers import OCS_DRIVERS, check_shape
from patchlight.testbed.lab.optical_links import Light, Meeting
from patchlight.testbed.lab.spectrum import ChannelConnect, Grid, SpectrumMap, clashes
from patchlight.testbed.lab.wavelengths import Transceiver, WavelengthSwitch
from patchlight.testbed.labfile.optical_schema import part_channels

T = TypeVar("T")

SWITCHES = ("packet_switches", "circuit_switches", "wavelength_switches", "passive_parts")
"""The lists of what fibres end on, but for servers."""


def devices(lab: Fields) -> list[Fields]:
    """Everything that has ports."""
    return [device for kind in ("servers", *SWITCHES) for device in lab.listed(kind)]


def repeated(values: Iterable[Located[T]]) -> Iterator[tuple[Located[T], Located[T]]]:
    """Each value that was there before, and where it was first."""
    first: dict[T, Located[T]] = {}
    for value in values:
        before = first.setdefault(value.value, value)
        if before is not value:
            yield value, before


@dataclass(frozen=True)
class _Ports:
    """The ports a device has: a count, or names; ``None`` where its own mistakes hide them."""

    kind: str
    count: int | None = None
    names: tuple[str, ...] | None = None


def _ports_of(lab: Fields) -> dict[str, _Ports]:
    ports: dict[str, _Ports] = {}
    for server in lab.listed("servers"):
        if "name" in server:
            nics = server.listed("nics")
            whole = "nics" in server and "nics" not in server.broken
            whole = whole and all("name" in nic for nic in nics)
            names = tuple(nic["name"].value for nic in nics) if whole else None
            ports.setdefault(server["name"].value, _Ports("server", names=names))
    for key in SWITCHES:
        for switch in lab.listed(key):
            if "name" in switch:
                count = _port_count(switch)
                ports.setdefault(switch["name"].value, _Ports("switch", count=count))
    return ports


def _port_count(switch: Fields) -> int | None:
    """How many ports a switch or part has; ``None`` where it does not say, or wrongly."""
    count: int | None = switch.value_of("ports")
    if "inputs" in switch and "outputs" not in switch.broken:
        count = max(switch["inputs"].value, switch.value_of("outputs", 0))
    elif switch.value_of("kind", "") == "multiplexer" and count is None:
        try:
            count = len(part_channels(switch)) + 1
        except BadInput:
            return None
    return count


def check_fibres(lab: Fields, issues: FileIssues) -> None:
    """Note ends that no device has, fibres from a device to itself, and ports used twice."""
    ports = _ports_of(lab)
    unread = lab.broken & {"servers", *SWITCHES}
    every_device_named = not unread and all("name" in device for device in devices(lab))
    plugged: list[Located[Endpoint]] = []
    for fibre in lab.listed("fibres"):
        if "jitter" in fibre and fibre["jitter"].value > fibre.value_of("delay", 0.0):
            message = "jitter is more than the delay that it varies: expected at most as much"
            issues.at(fibre["jitter"], message)
        ends: list[Located[Endpoint]] = fibre.value_of("ends", [])
        if len(ends) == 2 and ends[0].value.device == ends[1].value.device:
            message = f"fibre from {ends[0].value.device} to itself: expected two devices"
            issues.at(ends[1], message)
        for end in ends:
            if end.value.device not in ports and not every_device_named:
                continue
            problem = _wrong_end(end.value, ports)
            if problem:
                issues.at(end, problem)
            else:
                plugged.append(end)
    for end, before in repeated(plugged):
        message = f"port {end.value} is used twice, first on line {before.line}"
        issues.at(end, f"{message}: expected one fibre for each port")


def _wrong_end(end: Endpoint, ports: dict[str, _Ports]) -> str | None:
    device = ports.get(end.device)
    if device is None:
        return f"unknown device {end.device!r}: {nearest(end.device, ports)}"
    if device.kind == "server":
        if device.names is None or end.port in device.names:
            return None
        hint = nearest(end.port, device.names, "it has")
        return f"server {end.device} has no NIC called {end.port!r}: {hint}"
    count = device.count
    bound = f"1 to {count}" if count is not None else "a port number"
    # ASCII digits without leading zeros only: a port has one spelling.
    if not (end.port.isascii() and end.port.isdigit()) or end.port.startswith("0"):
        return f"{end.port!r} is not a port of {end.device}: expected {bound}"
    if count is not None and (len(end.port) > 9 or int(end.port) > count):
        return f"port {end.port} is outside {end.device}: expected {bound}"
    return None


def check_transceiver(located: Located[Any], issues: FileIssues) -> None:
    """Note a transceiver without a channel, and one that cannot send its channel."""
    fields: Fields = located.value
    if fields.broken:
        return
    if "channel" not in fields and "tunable" not in fields:
        message = "a transceiver lacks its channel: expected 'channel', or 'tunable' with a band"
        issues.at(located, message)
        return
    place = fields["channel"] if "channel" in fields else fields["tunable"]
    try:
        transceiver: Transceiver = plain(fields)
        transceiver.check(transceiver.channel)
        transceiver.grid.check(transceiver.channel)
    except BadInput as error:
        issues.at(place, error.message)
    if "tuning_time" in fields and "tunable" not in fields:
        message = "a transceiver of one channel takes no time to tune: expected 'tunable' beside it"
        issues.at(fields["tuning_time"], message)


def check_wavelength_switch(switch: Fields, issues: FileIssues) -> None:
    """Note ports and channels that it has not, and signals that would meet."""
    whole = "inputs" in switch and not switch.broken & {"outputs", "grid"}
    inputs = switch.value_of("inputs", 0)
    outputs = switch.value_of("outputs", inputs)
    grid = switch.value_of("grid", Grid())
    before: list[tuple[ChannelConnect, int]] = []
    for item in switch.value_of("cross_connects", []):
        ways: tuple[ChannelConnect, ...] = item.value
        try:
            if whole:
                SpectrumMap(ways).check(inputs, outputs, grid)
            _check_apart(ways, before)
        except BadInput as error:
            issues.at(item, error.message)
        else:
            before += [(way, item.line) for way in ways]
    if "driver" in switch and whole:
        initial = SpectrumMap(tuple(way for way, _ in before))
        driver = switch["driver"]
        try:
            check_shape(WavelengthSwitch("", inputs, outputs, grid, 0, 0, initial, driver.value))
        except BadInput as error:
            issues.at(driver, error.message)
    for key, other in (("driver", "address"), ("address", "driver")):
        if key in switch and other not in switch and other not in switch.broken:
            message = f"a wavelength switch with {key!r} lacks {other!r}: expected both or neither"
            issues.at(switch[key], message)


def _check_apart(ways: Iterable[ChannelConnect], before: list[tuple[ChannelConnect, int]]) -> None:
    for way in ways:
        for other, line in before:
            for words in clashes([other, way]):
                raise BadInput(f"{words} of line {line}: expected other ports or channels")


def check_passive_part(part: Fields, issues: FileIssues) -> None:
    """Note what a part of its kind cannot have, and what it lacks."""
    if "kind" not in part or part.broken & {"ports", "channels", "grid"}:
        return
    kind = part["kind"]
    if kind.value == "coupler":
        for key in ("channels", "grid"):
            if key in part:
                issues.at(part[key], f"a coupler sorts no channels: expected no {key!r}")
    elif "channels" not in part:
        issues.at(kind, f"a part of kind {kind.value} lacks 'channels': expected the band it sorts")
        return
    if kind.value != "multiplexer" and "ports" not in part:
        issues.at(kind, f"a part of kind {kind.value} lacks 'ports': expected how many it has")
    try:
        count = len(part_channels(part))
    except BadInput as error:
        issues.at(part["channels"], error.message)
        return
    if kind.value == "multiplexer" and "ports" in part and part["ports"].value != count + 1:
        message = f"a multiplexer of {count} channels has {count + 1} ports"
        issues.at(part["ports"], f"{message}: expected that, or no 'ports'")


def check_meetings(lab: Lab, fields: Fields, issues: FileIssues) -> None:
    """Note where two signals of one channel meet at the start, at the fibre where they do."""
    by_fibre: dict[Endpoint, list[Meeting]] = {}
    for meeting in Light(lab, lab.initial_maps).meetings:
        by_fibre.setdefault(meeting.at, []).append(meeting)
    for at, meetings in by_fibre.items():
        others = f" (pairs that meet there: {len(meetings)})" if len(meetings) > 1 else ""
        message = f"{meetings[0]}{others}: expected other channels, or other ways for them"
        issues.at(_fibre(lab, fields, at), message)


def note_weak_signals(lab: Lab, fields: Fields, issues: FileIssues) -> None:
    """Note receivers at which too little optical power arrives at the start."""
    weak = Light(lab, lab.initial_maps).weak if lab.coloured else ()
    for path, power_dbm in weak:
        message = f"{power_dbm:.1f} dBm of {path.source} arrive at {path.sink}"
        issues.at(_fibre(lab, fields, path.sink), f"{message}: expected its sensitivity or more")


def _fibre(lab: Lab, fields: Fields, end: Endpoint) -> Located[object]:
    """Where the fibre at that end stands in the file."""
    fibre = lab.fibre_ends[end][1]
    located: Located[object] = fields["fibres"].value[lab.fibres.index(fibre)]
    return located


def note_oversights(lab: Fields, issues: FileIssues) -> None:
    """Note what a good lab file seems to lack."""
    servers, *kinds = (lab.listed(key) for key in ("servers", *SWITCHES))
    switches = [switch for kind in kinds for switch in kind]
    if not (servers or switches):
        issues.at(lab["name"], "the lab has nothing but a name: expected servers or switches")
    user = lab["workers"].value.get("user") if "workers" in lab else None
    if user is not None and user.value == "root":
        message = "workers run as root: whoever may submit jobs can read all files of the servers"
        issues.at(user, f"{message}; expected dynamic, or a user by name")
    plugged: set[Endpoint] = {
        end.value for fibre in lab.listed("fibres") for end in fibre["ends"].value
    }
    for server in servers:
        _note_server(server, plugged, issues)
    joined = {end.device for end in plugged}
    # A switch alone is a lab for whoever tries a driver.
    if servers or len(switches) > 1:
        for name in (switch["name"] for switch in switches):
            if name.value not in joined:
                message = f"nothing joins {name.value}: expected a fibre to it in 'fibres'"
                issues.at(name, message)
    emulated = {driver.name for driver in OCS_DRIVERS.values() if driver.device}
    emulated |= {point.name for point in entry_points(group="patchlight.emulated_ocs")}
    for switch in lab.listed("circuit_switches"):
        driver = switch["driver"]
        if driver.value not in emulated:
            message = f"no emulated device speaks {driver.value}: the lab cannot be emulated"
            issues.at(driver, f"{message}; expected one of {', '.join(sorted(emulated))}")


def _note_server(server: Fields, plugged: set[Endpoint], issues: FileIssues) -> None:
    name: Located[str] = server["name"]
    if "management" not in server:
        message = f"server {name.value} has no management address, at which its agent answers"
        issues.at(name, f"{message}: expected 'management: {name.value}:8471'")
    for nic in (nic["name"] for nic in server.listed("nics")):
        if Endpoint(name.value, nic.value) not in plugged:
            message = f"NIC {name.value}.{nic.value} has no fibre: expected one in 'fibres'"
            issues.at(nic, message)
