"""What is wrong with the fibres of a lab file: ends that are not there, ports used twice."""

from dataclasses import dataclass

from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.groups import Fields
from patchlight.testbed.io.issues import FileIssues, Located, nearest
from patchlight.testbed.lab.model import Endpoint
from patchlight.testbed.labfile.colours_schema import part_channels
from patchlight.testbed.labfile.listed import SWITCHES, devices, items, repeated, value_of


@dataclass(frozen=True)
class _Ports:
    """The ports a device has: a count, or names; ``None`` where its own mistakes hide them."""

    kind: str
    count: int | None = None
    names: tuple[str, ...] | None = None


def _ports_of(lab: Fields) -> dict[str, _Ports]:
    ports: dict[str, _Ports] = {}
    for server in items(lab, "servers"):
        if "name" in server:
            nics = items(server, "nics")
            whole = "nics" in server and "nics" not in server.broken
            whole = whole and all("name" in nic for nic in nics)
            names = tuple(nic["name"].value for nic in nics) if whole else None
            ports.setdefault(server["name"].value, _Ports("server", names=names))
    for key in SWITCHES:
        for switch in items(lab, key):
            if "name" in switch:
                count = _port_count(switch)
                ports.setdefault(switch["name"].value, _Ports("switch", count=count))
    return ports


def _port_count(switch: Fields) -> int | None:
    """How many ports a switch or part has; ``None`` where it does not say, or wrongly."""
    count: int | None = value_of(switch, "ports", None)
    if "inputs" in switch and "outputs" not in switch.broken:
        count = max(switch["inputs"].value, value_of(switch, "outputs", 0))
    elif value_of(switch, "kind", "") == "multiplexer" and count is None:
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
    for fibre in items(lab, "fibres"):
        if "jitter" in fibre and fibre["jitter"].value > value_of(fibre, "delay", 0.0):
            message = "jitter is more than the delay that it varies: expected at most as much"
            issues.at(fibre["jitter"], message)
        ends: list[Located[Endpoint]] = fibre["ends"].value if "ends" in fibre else []
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
