"""What can only be wrong in a lab file as a whole: names, addresses and ports against each other.

Every check works on what could be read, so that one mistake never hides another.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network
from typing import Any, TypeVar

from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.fields import Fields
from patchlight.testbed.io.issues import FileIssues, Located, nearest
from patchlight.testbed.lab.model import Endpoint, default_mac
from patchlight.testbed.lab.ocs_drivers import OCS_DRIVERS, WSS_DRIVERS, OcsDriver
from patchlight.testbed.lab.portmap import CrossConnect, parse_cross_connects
from patchlight.testbed.labfile.optical_check import (
    check_passive_part,
    check_transceiver,
    check_wavelength_switch,
)
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


# An agent's answer to the release of a worker waits for it.
MOST_RELOCK_S = 20.0


def _check_emulated(
    switch: Fields, drivers: Mapping[str, OcsDriver], issues: FileIssues, mark: str = ""
) -> None:
    """Faults of ports that are not there, and what the driver's device cannot do.

    ``mark`` is in every entry of the map of a switch of its kind, and in none of others.
    """
    if "emulated" not in switch:
        return
    emulated: Fields = switch["emulated"].value
    driver = switch.value_of("driver")
    known = drivers.get(driver or "")
    if "users" in emulated:
        _check_users(known, emulated["users"], issues)
    for fault in emulated.listed("faults"):
        for key in ("lose", "meddle"):
            if key in fault and any(
                ("@" in c) != (mark == "@") for c in fault[key].value.split(",")
            ):
                example = "3>9@193.100" if mark else "3>9"
                issues.at(
                    fault[key], f"that is no entry of this switch: expected one like {example}"
                )
    if driver is not None and not (known and known.makes_room) and "conflict_time" in emulated:
        message = f"an emulated {driver} has no conflict_time: expected it with a Calient's driver"
        issues.at(emulated["conflict_time"], message)
    counts = [switch[key].value for key in ("ports", "inputs", "outputs") if key in switch]
    if counts and "faults" in emulated:
        count = max(counts)
        for fault in emulated["faults"].value:
            for port, position in _ports(fault.value):
                if port > count:
                    message = f"port {port} is outside the switch: expected 1 to {count}"
                    issues.at(position, message)


def _check_users(known: OcsDriver | None, users: Located[Any], issues: FileIssues) -> None:
    if known is not None and not known.has_users and users.value:
        issues.at(users, f"nobody logs in to a {known.name}: expected no users")
    names = (item.value["name"] for item in users.value if "name" in item.value)
    for name, before in repeated(names):
        message = f"user {name.value} is listed twice, first on line {before.line}"
        issues.at(name, f"{message}: expected each once")


def _ports(fault: Fields) -> Iterator[tuple[int, Located[Any]]]:
    for key in ("refuse_ports", "fail_ports"):
        if key in fault:
            yield from ((item.value, item) for item in fault[key].value)
    if "drift_db" in fault:
        yield from ((int(port), item) for port, item in fault["drift_db"].value.items())
    if "lose" in fault:
        lost = parse_cross_connects(fault["lose"].value.partition("@")[0])[0]
        yield from ((port, fault["lose"]) for port in (lost.inp, lost.out))


def check_lab(lab: Fields, issues: FileIssues) -> None:
    """Note every mistake that only shows when parts of the file are seen together."""
    _once("device", "name", devices(lab), issues)
    switches = [*lab.listed("packet_switches"), *lab.listed("circuit_switches")]
    _once("datapath id", "datapath_id", switches, issues, show=hex)
    driven = [*lab.listed("circuit_switches"), *lab.listed("wavelength_switches")]
    _once("address of a switch", "address", driven, issues)
    _once("management address", "management", lab.listed("servers"), issues)
    for server in lab.listed("servers"):
        _check_server(server, issues)
    nics = [nic for server in lab.listed("servers") for nic in server.listed("nics")]
    gpus = [gpu for server in lab.listed("servers") for gpu in server.listed("gpus")]
    _once("GPU UUID", "uuid", gpus, issues)
    _once("address", "address", nics, issues)
    _each_once("MAC address", _macs(nics), issues)
    for nic in nics:
        _check_way(nic, issues)
    ways = [nic["rendezvous"].value for nic in nics if "rendezvous" in nic]
    _once("address of a rendezvous", "address", ways, issues)
    if "network" in lab:
        for nic in nics:
            _check_address(nic, lab["network"].value, issues)
    elif nics and "network" not in lab.broken:
        issues.at(
            lab["servers"],
            "a lab with servers lacks 'network': expected the IPv4 network of their NICs, like "
            "'192.168.10.0/24'",
        )
    for switch in lab.listed("circuit_switches"):
        _check_datapath_id(switch, issues)
        _check_cross_connects(switch, issues)
        _check_emulated(switch, OCS_DRIVERS, issues)
    for nic in nics:
        if "transceiver" in nic:
            check_transceiver(nic["transceiver"], issues)
    for packet_switch in lab.listed("packet_switches"):
        _check_transceivers(packet_switch, issues)
    for wavelength_switch in lab.listed("wavelength_switches"):
        check_wavelength_switch(wavelength_switch, issues)
        _check_emulated(wavelength_switch, WSS_DRIVERS, issues, "@")
    for part in lab.listed("passive_parts"):
        check_passive_part(part, issues)
    if "fibres" in lab:
        check_fibres(lab, issues)
    queue: Fields = lab.value_of("queue", Fields())
    _once("user", "name", queue.listed("users"), issues)
    controller: Fields = lab.value_of("controller", Fields())
    addresses = [controller[key] for key in ("api", "openflow") if key in controller]
    _each_once("controller address", addresses, issues)


def _once(
    what: str, key: str, owners: Iterable[Fields], issues: FileIssues, show: Any = str
) -> None:
    _each_once(what, (owner[key] for owner in owners if key in owner), issues, show)


def _each_once(
    what: str, values: Iterable[Located[Any]], issues: FileIssues, show: Any = str
) -> None:
    for value, before in repeated(values):
        message = f"{what} {show(value.value)} is used twice, first on line {before.line}"
        issues.at(value, f"{message}: expected one of its own")


def _check_server(server: Fields, issues: FileIssues) -> None:
    if "ssh" in server:
        _check_jump(server["ssh"].value, issues)
    gpus, nics = server.listed("gpus"), server.listed("nics")
    owner = f"server {server['name'].value}" if "name" in server else "the server"
    _once(f"in {owner}, the name", "name", [*gpus, *nics], issues)
    interfaces = (nic.get("interface", nic.get("name")) for nic in nics)
    # Two NICs of one name are already noted as that.
    given = {nic["name"].value: nic for nic in nics if "name" in nic}.values()
    if len(given) == sum("name" in nic for nic in nics):
        _each_once(f"in {owner}, the interface", (i for i in interfaces if i is not None), issues)
    names = [gpu["name"].value for gpu in gpus if "name" in gpu]
    all_gpus_known = "gpus" not in server.broken and len(names) == len(gpus)
    served = [nic["gpu"] for nic in nics if "gpu" in nic]
    for gpu in served:
        if gpu.value not in names and all_gpus_known:
            hint = nearest(gpu.value, names, "it has")
            issues.at(gpu, f"{owner} has no GPU called {gpu.value!r}: {hint}")
    for gpu, before in repeated(served):
        message = f"GPU {gpu.value} already has the NIC of line {before.line}"
        issues.at(gpu, f"{message}: expected one NIC for each GPU")
    # A NIC that could not be read may be the one that is missed here.
    if "nics" not in server or "nics" in server.broken or any("gpu" in n.broken for n in nics):
        return
    with_nic = {gpu.value for gpu in served}
    for name in (gpu["name"] for gpu in gpus if "name" in gpu):
        if name.value not in with_nic:
            message = f"GPU {name.value} has no NIC: expected a NIC of the same server"
            issues.at(name, f"{message} with 'gpu: {name.value}'")


def _check_jump(ssh: Fields, issues: FileIssues) -> None:
    if "jump_host_key" not in ssh or "jump" in ssh.broken:
        return
    if "jump" not in ssh or ssh["jump"].value is None:
        message = "there is no host to go through whose key this is: expected 'jump' beside it"
        issues.at(ssh["jump_host_key"], message)


def _macs(nics: list[Fields]) -> Iterator[Located[str]]:
    # Addresses used twice give default MACs used twice: that is one mistake, not two.
    addresses: set[IPv4Address] = set()
    for nic in nics:
        if "mac" in nic and nic["mac"].value not in ("hardware", "lab"):
            yield nic["mac"]
        elif "address" in nic and nic["address"].value not in addresses:
            address = nic["address"]
            addresses.add(address.value)
            yield replace(address, value=default_mac(address.value))


def _check_way(nic: Fields, issues: FileIssues) -> None:
    """Note where the ways to give a NIC do not go together."""
    mode, mac = nic.value_of("mode", "auto"), nic.value_of("mac")
    if mode == "macvlan" and mac == "hardware":
        message = "a macvlan has no MAC of its own: expected mac: lab, or an address"
        issues.at(nic["mac"], message)
    rdma = nic.value_of("rdma", "auto")
    if mode == "macvlan" and rdma == "exclusive":
        message = "a macvlan has no RDMA device to itself: expected rdma: auto, shared or none"
        issues.at(nic["rdma"], message)
    if mode == "veth" and rdma in ("exclusive", "shared"):
        issues.at(nic["rdma"], "a veth has no RDMA device: expected rdma: auto or none")
    if "relock" in nic and nic["relock"].value > MOST_RELOCK_S:
        message = f"relock is more than {MOST_RELOCK_S:g} s: expected less, as jobs wait for it"
        issues.at(nic["relock"], message)
    if "interface" in nic and "rendezvous" in nic:
        way: Fields = nic["rendezvous"].value
        if "interface" in way and way["interface"].value == nic["interface"].value:
            message = "the rendezvous is over the NIC itself: expected another interface"
            issues.at(way["interface"], message)


def _check_address(nic: Fields, network: IPv4Network, issues: FileIssues) -> None:
    if "address" not in nic:
        return
    position, address = nic["address"], nic["address"].value
    if address not in network:
        message = f"address {address} is outside the lab's network: expected one in {network}"
    elif network.prefixlen < 31 and address == network.network_address:
        message = f"address {address} is the network's own: expected a host's in {network}"
    elif network.prefixlen < 31 and address == network.broadcast_address:
        message = f"address {address} is the broadcast one: expected a host's in {network}"
    else:
        return
    issues.at(position, message)


def _check_datapath_id(switch: Fields, issues: FileIssues) -> None:
    if "driver" not in switch or "datapath_id" in switch.broken:
        return
    name = switch["driver"]
    driver = OCS_DRIVERS.get(name.value)
    if driver is None:
        return
    if driver.dials_in and "datapath_id" not in switch:
        message = f"a switch with driver {driver.name} lacks 'datapath_id'"
        issues.at(name, f"{message}: expected the id that it says, like 0x51")
    # A rehearsal may be of any switch.
    elif driver.device and not driver.dials_in and "datapath_id" in switch:
        message = f"driver {driver.name} knows no datapath id: expected one with driver openflow"
        issues.at(switch["datapath_id"], message)


def _check_cross_connects(switch: Fields, issues: FileIssues) -> None:
    by_input: dict[int, tuple[CrossConnect, int]] = {}
    by_output: dict[int, tuple[CrossConnect, int]] = {}
    for item in switch.value_of("cross_connects", []):
        ways: tuple[CrossConnect, ...] = item.value
        if "ports" in switch:
            count = switch["ports"].value
            outside = [p for p in (ways[0].inp, ways[0].out) if not 1 <= p <= count]
            for port in outside:
                issues.at(item, f"port {port} is outside the switch: expected 1 to {count}")
            if outside:
                continue
        clash = _clash(ways, by_input, by_output)
        if clash:
            issues.at(item, clash)
        else:
            by_input.update({way.inp: (way, item.line) for way in ways})
            by_output.update({way.out: (way, item.line) for way in ways})


def _clash(
    ways: Iterable[CrossConnect],
    by_input: Mapping[int, tuple[CrossConnect, int]],
    by_output: Mapping[int, tuple[CrossConnect, int]],
) -> str | None:
    for way in ways:
        for side, port, taken in (("in", way.inp, by_input), ("out", way.out, by_output)):
            if port in taken:
                other, line = taken[port]
                return (
                    f"{side}:{port} is used twice, first by {other} on line {line}: expected "
                    "each input and each output once"
                )
    return None


def _check_transceivers(switch: Fields, issues: FileIssues) -> None:
    for port, transceiver in switch.value_of("transceivers", {}).items():
        if "ports" in switch and port > switch["ports"].value:
            message = f"port {port} is outside the switch: expected 1 to {switch['ports'].value}"
            issues.at(transceiver, message)
        check_transceiver(transceiver, issues)


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
