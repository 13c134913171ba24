"""Checks a lab file as a whole, as far as it could be read, so that no mistake hides another."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from itertools import chain
from typing import Any

from patchlight.testbed.errors import BadInput, nearest
from patchlight.testbed.io.keys import Keys
from patchlight.testbed.io.reader import FileIssues, Located
from patchlight.testbed.lab.model import Endpoint, default_mac
from patchlight.testbed.lab.ocs_drivers import (
    OCS_DRIVERS,
    WSS_DRIVERS,
    OcsDriver,
    check_shape,
)
from patchlight.testbed.lab.packet_drivers import (
    DEFAULT_DRIVER,
    PACKET_DRIVERS,
)
from patchlight.testbed.lab.portmap import CrossConnect, parse_cross_connects
from patchlight.testbed.lab.spectrum import (
    ChannelConnect,
    Grid,
    SpectrumMap,
    clashes,
)
from patchlight.testbed.lab.wavelengths import Transceiver, WavelengthSwitch
from patchlight.testbed.labfile.optical_schema import (
    TRIGGERS,
    FaultKeys,
    part_channels,
)
from patchlight.testbed.labfile.schema import LabKeys

SWITCHES = (
    "packet_switches",
    "circuit_switches",
    "wavelength_switches",
    "passive_parts",
)
"""The lists of devices with fibres, except servers."""
_NO_KEYS = Keys()
# Keys with a default may stand in the lab's defaults for switches of any driver.
_KEYS_OF_OTHERS = frozenset({"datapath_id", "address", "vlan"})


def repeated(
    values: Iterable[Located[Any]],
) -> Iterator[tuple[Located[Any], Located[Any]]]:
    """Each repeated value, and where it first appeared."""
    first: dict[Any, Located[Any]] = {}
    for value in values:
        before = first.setdefault(value.value, value)
        if before is not value:
            yield value, before


# An agent's reply to the release of a worker waits for it.
MOST_RELOCK_S = 20.0


def _check_emulated(
    switch: Keys,
    drivers: Mapping[str, OcsDriver],
    issues: FileIssues,
    mark: str = "",
) -> None:
    # ``mark`` is in every map entry of a switch of its kind, and in no other.
    emulated: Keys = switch.value_of("emulated", _NO_KEYS)
    driver = switch.value_of("driver")
    known = drivers.get(driver or "")
    if "users" in emulated:
        users = emulated["users"]
        if known is not None and not known.has_users and users.value:
            issues.at(users, f"a {known.name} has no logins: leave out users")
        names = (
            user["name"]
            for user in emulated.list_of("users")
            if "name" in user
        )
        for name, before in repeated(names):
            message = (
                f"duplicate user {name.value}, first on line {before.line}"
            )
            issues.at(name, f"{message}: expected each once")
    faults: list[Keys] = emulated.list_of("faults")
    for fault in faults:
        _check_fault(fault, issues)
    for entry in (
        fault[key]
        for fault in faults
        for key in ("lose", "meddle")
        if key in fault
    ):
        if any(("@" in c) != (mark == "@") for c in entry.value.split(",")):
            example = "3>9@193.100" if mark else "3>9"
            issues.at(
                entry,
                f"invalid entry for this switch: expected e.g. {example}",
            )
    if (
        driver is not None
        and not (known and known.makes_room)
        and "conflict_time" in emulated
    ):
        message = f"an emulated {driver} has no conflict_time: only Calient drivers take it"
        issues.at(emulated["conflict_time"], message)
    counts = [
        switch[key].value
        for key in ("ports", "inputs", "outputs")
        if key in switch
    ]
    for port, position in (each for fault in faults for each in _ports(fault)):
        if counts and port > max(counts):
            message = f"port {port} is outside the switch: expected 1 to {max(counts)}"
            issues.at(position, message)


def _check_fault(fault: Keys, issues: FileIssues) -> None:
    if not fault.written_keys - set(TRIGGERS):
        kinds = [kind for kind in FaultKeys.field_of if kind not in TRIGGERS]
        issues.at(fault.place, f"a fault needs a kind: {nearest('', kinds)}")
    if all(key in fault for key in TRIGGERS):
        message = "expected 'after' or 'after_changes', not both"
        issues.at(fault["after_changes"], message)


def _ports(fault: Keys) -> Iterator[tuple[int, Located[Any]]]:
    for key in ("refuse_ports", "fail_ports", "dark_ports"):
        yield from ((item.value, item) for item in fault.items_of(key))
    yield from ((int(port), item) for port, item in fault.pairs_of("drift_db"))
    if "lose" in fault:
        lost = parse_cross_connects(fault["lose"].value.partition("@")[0])[0]
        yield from ((port, fault["lose"]) for port in (lost.inp, lost.out))


def check_lab(lab: LabKeys, issues: FileIssues) -> None:
    """Note every mistake that only appears when parts of the file are combined."""
    servers, *switches = (lab.list_of(key) for key in ("servers", *SWITCHES))
    packet_switches, circuit_switches, wavelength_switches, parts = switches
    devices = list(chain(servers, *switches))
    _once(
        "device",
        "name",
        devices,
        issues,
    )
    _once(
        "datapath id",
        "datapath_id",
        [*packet_switches, *circuit_switches],
        issues,
    )
    addressed = [*packet_switches, *circuit_switches, *wavelength_switches]
    _once(
        "address of a switch",
        "address",
        addressed,
        issues,
    )
    _once(
        "management address",
        "management",
        servers,
        issues,
    )
    nics = list[Keys]()
    gpus = list[Keys]()
    ports: dict[str, float | list[str] | None] = {}
    for server in servers:
        its_nics = server.list_of("nics")
        its_gpus = server.list_of("gpus")
        nics += its_nics
        gpus += its_gpus
        _check_server(
            server,
            its_nics,
            its_gpus,
            issues,
        )
        if "name" in server:
            ports.setdefault(server["name"].value, _names_of(server, its_nics))
    for switch in chain(*switches):
        if "name" in switch:
            ports.setdefault(switch["name"].value, _port_count(switch))
    _once(
        "GPU UUID",
        "uuid",
        gpus,
        issues,
    )
    _once(
        "address",
        "address",
        nics,
        issues,
    )
    _each_once("MAC address", _macs(nics), issues)
    for nic in nics:
        _check_way(nic, issues)
        if "network" in lab:
            _check_address(nic, lab["network"].value, issues)
        if "transceiver" in nic:
            _check_transceiver(nic["transceiver"], issues)
    ways = [nic["rendezvous"].value for nic in nics if "rendezvous" in nic]
    _once(
        "address of a rendezvous",
        "address",
        ways,
        issues,
    )
    if nics and "network" not in {*lab.there, *lab.broken}:
        issues.at(
            lab["servers"],
            "a lab with servers needs 'network': expected the IPv4 network of their NICs, like "
            "'192.168.10.0/24'",
        )
    for switch in circuit_switches:
        _check_datapath_id(switch, issues)
        _check_cross_connects(switch, issues)
        _check_emulated(switch, OCS_DRIVERS, issues)
    telemetry = [
        s["telemetry"].value for s in packet_switches if "telemetry" in s
    ]
    by_snmp = [each["snmp"].value for each in telemetry if "snmp" in each]
    _once(
        "SNMP address of a switch",
        "address",
        by_snmp,
        issues,
    )
    for switch in packet_switches:
        _check_packet_switch(switch, issues)
        _check_transceivers(switch, issues)
        _check_snmp(switch, issues)
    for switch in wavelength_switches:
        _check_wavelength_switch(switch, issues)
        _check_emulated(
            switch,
            WSS_DRIVERS,
            issues,
            "@",
        )
    for part in parts:
        _check_passive_part(part, issues)
    named = not lab.broken & {"servers", *SWITCHES} and all(
        "name" in each for each in devices
    )
    _check_fibres(
        lab.list_of("fibres"),
        ports,
        issues,
        every_device_named=named,
    )
    if "queue" in lab:
        _once(
            "user",
            "name",
            lab["queue"].value.list_of("users"),
            issues,
        )
    controller: Keys = lab.value_of("controller", _NO_KEYS)
    addresses = [
        controller[key] for key in ("api", "openflow") if key in controller
    ]
    _each_once("controller address", addresses, issues)


def _once(
    what: str,
    key: str,
    owners: Iterable[Keys],
    issues: FileIssues,
) -> None:
    _each_once(what, (owner[key] for owner in owners if key in owner), issues)


def _each_once(
    what: str,
    values: Iterable[Located[Any]],
    issues: FileIssues,
) -> None:
    for value, before in repeated(values):
        shown = (
            hex(value.value) if isinstance(value.value, int) else value.value
        )
        message = f"duplicate {what} {shown}, first on line {before.line}"
        issues.at(value, f"{message}: expected a unique one")


def _check_server(
    server: Keys,
    nics: list[Keys],
    gpus: list[Keys],
    issues: FileIssues,
) -> None:
    ssh: Keys = server.value_of("ssh", _NO_KEYS)
    if (
        "jump_host_key" in ssh
        and "jump" not in ssh.broken
        and ssh.value_of("jump") is None
    ):
        message = "a jump host's key without the host: expected 'jump' too"
        issues.at(ssh["jump_host_key"], message)
    owner = (
        f"server {server['name'].value}" if "name" in server else "the server"
    )
    _once(
        f"in {owner}, the name",
        "name",
        [*gpus, *nics],
        issues,
    )
    interfaces = [
        nic["interface" if "interface" in nic else "name"]
        for nic in nics
        if "interface" in nic or "name" in nic
    ]
    # Duplicate names of NICs have been noted already.
    given = {nic["name"].value: nic for nic in nics if "name" in nic}.values()
    if len(given) == sum("name" in nic for nic in nics):
        _each_once(
            f"in {owner}, the interface",
            interfaces,
            issues,
        )
    names = [gpu["name"].value for gpu in gpus if "name" in gpu]
    all_gpus_known = "gpus" not in server.broken and len(names) == len(gpus)
    served = [nic["gpu"] for nic in nics if "gpu" in nic]
    for gpu in served:
        if gpu.value not in names and all_gpus_known:
            hint = nearest(gpu.value, names, "it has")
            issues.at(gpu, f"{owner} has no GPU {gpu.value!r}: {hint}")
    for gpu, before in repeated(served):
        message = f"GPU {gpu.value} already has the NIC on line {before.line}"
        issues.at(gpu, f"{message}: expected one NIC per GPU")
    # A NIC that could not be read may be the missing one.
    if (
        "nics" not in server
        or "nics" in server.broken
        or any("gpu" in n.broken for n in nics)
    ):
        return
    with_nic = {gpu.value for gpu in served}
    for name in (gpu["name"] for gpu in gpus if "name" in gpu):
        if name.value not in with_nic:
            message = f"GPU {name.value} has no NIC: expected a NIC of the same server"
            issues.at(name, f"{message} with 'gpu: {name.value}'")


def _macs(nics: list[Keys]) -> Iterator[Located[str]]:
    # Duplicate addresses cause duplicate default MACs: note them once.
    addresses: set[IPv4Address] = set()
    for nic in nics:
        if "mac" in nic and nic["mac"].value not in ("hardware", "lab"):
            yield nic["mac"]
        elif "address" in nic and nic["address"].value not in addresses:
            address = nic["address"]
            addresses.add(address.value)
            yield replace(address, value=default_mac(address.value))


def _check_way(nic: Keys, issues: FileIssues) -> None:
    mode = nic.value_of("mode", "auto")
    mac = nic.value_of("mac")
    if mode == "macvlan" and mac == "hardware":
        message = "a macvlan cannot use the NIC's MAC: expected mac: lab, or an address"
        issues.at(nic["mac"], message)
    rdma = nic.value_of("rdma", "auto")
    if mode == "macvlan" and rdma == "exclusive":
        message = (
            "a macvlan cannot own an RDMA device: "
            "expected rdma: auto, shared or none"
        )
        issues.at(nic["rdma"], message)
    if mode == "veth" and rdma in ("exclusive", "shared"):
        issues.at(
            nic["rdma"],
            "a veth has no RDMA device: expected rdma: auto or none",
        )
    if "relock" in nic and nic["relock"].value > MOST_RELOCK_S:
        message = (
            f"relock is more than {MOST_RELOCK_S:g} s: "
            "expected less, as jobs wait for it"
        )
        issues.at(nic["relock"], message)
    way: Keys = nic.value_of("rendezvous", _NO_KEYS)
    if (
        "interface" in nic
        and way.value_of("interface") == nic["interface"].value
    ):
        message = (
            "the rendezvous uses the NIC itself: expected another interface"
        )
        issues.at(way["interface"], message)


def _check_address(
    nic: Keys,
    network: IPv4Network,
    issues: FileIssues,
) -> None:
    if "address" not in nic:
        return
    position = nic["address"]
    address = nic["address"].value
    if address not in network:
        message = f"address {address} is outside the lab's network: expected one in {network}"
    elif network.prefixlen < 31 and address == network.network_address:
        message = f"address {address} is the network address: expected a host's in {network}"
    elif network.prefixlen < 31 and address == network.broadcast_address:
        message = f"address {address} is the broadcast address: expected a host's in {network}"
    else:
        return
    issues.at(position, message)


def _check_datapath_id(switch: Keys, issues: FileIssues) -> None:
    driver = OCS_DRIVERS.get(switch.value_of("driver", ""))
    if driver is None or "datapath_id" in switch.broken:
        return
    if driver.dials_in and "datapath_id" not in switch:
        message = f"a switch with driver {driver.name} needs 'datapath_id'"
        issues.at(
            switch["driver"],
            f"{message}: expected the id that it reports, like 0x51",
        )
    # A rehearsal may be for any switch.
    elif driver.device and not driver.dials_in and "datapath_id" in switch:
        message = f"driver {driver.name} has no datapath id: leave it out"
        issues.at(switch["datapath_id"], message)


def _check_packet_switch(switch: Keys, issues: FileIssues) -> None:
    name = switch.value_of("driver", DEFAULT_DRIVER)
    driver = PACKET_DRIVERS.get(name)
    if driver is not None and "driver" not in switch.broken:
        for key in driver.needs:
            if "name" in switch and key not in {*switch.there, *switch.broken}:
                message = f"a packet switch with driver {name} needs {key!r}"
                issues.at(
                    switch["name"],
                    f"{message}: expected it, or another driver",
                )
        taken = {*driver.needs, *driver.takes}
        for key in sorted(_KEYS_OF_OTHERS & switch.there.keys() - taken):
            message = f"driver {name} does not take {key!r}: leave it out"
            issues.at(switch[key], message)
    if "interfaces" in switch and "ports" in switch:
        names = switch["interfaces"].value
        ports = switch["ports"].value
        if len(names) != ports:
            message = f"{len(names)} interfaces of {ports} ports: expected the name of each port"
            issues.at(switch["interfaces"], message)
        names = switch.items_of("interfaces")
        _each_once("interface of the switch", names, issues)


def _check_snmp(switch: Keys, issues: FileIssues) -> None:
    snmp: Keys = switch.value_of("telemetry", _NO_KEYS).value_of(
        "snmp", _NO_KEYS
    )
    if "community_env" in snmp and "user" in snmp:
        issues.at(
            snmp["user"],
            "expected 'community_env' (version 2c) or 'user' (version 3)",
        )
    for key, needs in (
        ("auth_env", "user"),
        ("auth", "auth_env"),
        ("priv_env", "auth_env"),
    ):
        if key in snmp and needs not in snmp:
            issues.at(
                snmp[key],
                f"{key!r} needs {needs!r}: expected both (SNMP version 3)",
            )


def _check_cross_connects(switch: Keys, issues: FileIssues) -> None:
    taken: dict[tuple[str, int], tuple[CrossConnect, int]] = {}
    for item in switch.items_of("cross_connects"):
        ways: tuple[CrossConnect, ...] = item.value
        count = switch.value_of("ports")
        outside = [
            port
            for port in ways[0]
            if count is not None and not 1 <= port <= count
        ]
        for port in outside:
            issues.at(
                item,
                f"port {port} is outside the switch: expected 1 to {count}",
            )
        sides = [
            (side, way)
            for way in ways
            for side in (("in", way.inp), ("out", way.out))
        ]
        clash = next((side for side, _ in sides if side in taken), None)
        if clash is not None and not outside:
            side, port = clash
            other, line = taken[clash]
            message = f"{side}put port {port} is used twice, first by {other} on line {line}"
            issues.at(
                item, f"{message}: expected each input and each output once"
            )
        elif not outside:
            taken.update({side: (way, item.line) for side, way in sides})


def _check_transceivers(switch: Keys, issues: FileIssues) -> None:
    for port, transceiver in switch.pairs_of("transceivers"):
        if "ports" in switch and port > switch["ports"].value:
            message = f"port {port} is outside the switch: expected 1 to {switch['ports'].value}"
            issues.at(transceiver, message)
        _check_transceiver(transceiver, issues)


def _names_of(server: Keys, nics: list[Keys]) -> list[str] | None:
    """The names of its NICs; ``None`` if one is unknown."""
    whole = (
        "nics" in server
        and "nics" not in server.broken
        and all("name" in n for n in nics)
    )
    return [nic["name"].value for nic in nics] if whole else None


def _port_count(switch: Keys) -> float:
    """How many ports a switch has; ``inf`` if that is not known."""
    count: float = switch.value_of("ports", math.inf)
    if "inputs" in switch and "outputs" not in switch.broken:
        count = max(switch["inputs"].value, switch.value_of("outputs", 0))
    elif switch.value_of("kind", "") == "multiplexer" and count == math.inf:
        with suppress(BadInput):
            count = len(part_channels(switch)) + 1
    return count


def _check_fibres(
    fibres: Iterable[Keys],
    ports: Mapping[str, float | list[str] | None],
    issues: FileIssues,
    *,
    every_device_named: bool,
) -> None:
    plugged: list[Located[Endpoint]] = []
    for fibre in fibres:
        if "jitter" in fibre and fibre["jitter"].value > fibre.value_of(
            "delay", 0.0
        ):
            message = "jitter is more than the delay: expected at most as much"
            issues.at(fibre["jitter"], message)
        ends: list[Located[Endpoint]] = fibre.items_of("ends")
        if len(ends) == 2 and ends[0].value.device == ends[1].value.device:
            message = f"fibre from {ends[0].value.device} to itself: expected two devices"
            issues.at(ends[1], message)
        for end in (
            ends
            if every_device_named
            else [e for e in ends if e.value.device in ports]
        ):
            if problem := _wrong_end(end.value, ports):
                issues.at(end, problem)
            else:
                plugged.append(end)
    for end, before in repeated(plugged):
        message = (
            f"port {end.value} is used twice, first on line {before.line}"
        )
        issues.at(end, f"{message}: expected one fibre for each port")


def _wrong_end(
    end: Endpoint, ports: Mapping[str, float | list[str] | None]
) -> str | None:
    if end.device not in ports:
        return f"unknown device {end.device!r}: {nearest(end.device, ports)}"
    known = ports[end.device]
    if not isinstance(known, int | float):
        if known is None or end.port in known:
            return None
        hint = nearest(end.port, known, "it has")
        return f"server {end.device} has no NIC {end.port!r}: {hint}"
    bound = f"1 to {known}" if known < math.inf else "a port number"
    if not re.fullmatch("[1-9][0-9]*", end.port):
        return f"{end.port!r} is not a port of {end.device}: expected {bound}"
    if known < math.inf and (len(end.port) > 9 or int(end.port) > known):
        return f"port {end.port} is outside {end.device}: expected {bound}"
    return None


def _check_transceiver(located: Located[Any], issues: FileIssues) -> None:
    fields: Keys = located.value
    if fields.broken:
        return
    if "channel" not in fields and "tunable" not in fields:
        message = "a transceiver needs a channel: expected 'channel', or 'tunable' with a band"
        issues.at(located, message)
        return
    place = fields["channel"] if "channel" in fields else fields["tunable"]
    try:
        transceiver: Transceiver = fields.made()
        transceiver.check(transceiver.channel)
        transceiver.grid.check(transceiver.channel)
    except BadInput as error:
        issues.at(place, error.message)
    if "tuning_time" in fields and "tunable" not in fields:
        message = (
            "a fixed transceiver has no tuning time: expected 'tunable' too"
        )
        issues.at(fields["tuning_time"], message)


def _check_wavelength_switch(switch: Keys, issues: FileIssues) -> None:
    whole = "inputs" in switch and not switch.broken & {"outputs", "grid"}
    inputs = switch.value_of("inputs", 0)
    outputs = switch.value_of("outputs", inputs)
    grid = switch.value_of("grid", Grid())
    before: list[tuple[ChannelConnect, int]] = []
    for item in switch.items_of("cross_connects"):
        ways: tuple[ChannelConnect, ...] = item.value
        try:
            if whole:
                SpectrumMap(ways).check(inputs, outputs, grid)
            for words, line in (
                (w, n)
                for way in ways
                for o, n in before
                for w in clashes([o, way])
            ):
                raise BadInput(
                    f"{words} of line {line}: expected other ports or channels"
                )
        except BadInput as error:
            issues.at(item, error.message)
        else:
            before += [(way, item.line) for way in ways]
    if "driver" in switch and whole:
        initial = SpectrumMap(tuple(way for way, _ in before))
        driver = switch["driver"]
        try:
            check_shape(
                WavelengthSwitch(
                    "",
                    inputs,
                    outputs,
                    grid,
                    0,
                    0,
                    initial,
                    driver.value,
                )
            )
        except BadInput as error:
            issues.at(driver, error.message)
    for key, other in (("driver", "address"), ("address", "driver")):
        if (
            key in switch
            and other not in switch
            and other not in switch.broken
        ):
            message = f"a wavelength switch with {key!r} needs {other!r}: expected both or neither"
            issues.at(switch[key], message)


def _check_passive_part(part: Keys, issues: FileIssues) -> None:
    if "kind" not in part or part.broken & {"ports", "channels", "grid"}:
        return
    kind = part["kind"]
    if kind.value == "coupler":
        for key in ("channels", "grid"):
            if key in part:
                issues.at(
                    part[key],
                    f"a coupler does not sort channels: leave out {key!r}",
                )
    elif "channels" not in part:
        issues.at(
            kind,
            f"a part of kind {kind.value} needs 'channels': expected the band it sorts",
        )
        return
    if kind.value != "multiplexer" and "ports" not in part:
        issues.at(
            kind,
            f"a part of kind {kind.value} needs 'ports': expected their number",
        )
    try:
        count = len(part_channels(part))
    except BadInput as error:
        issues.at(part["channels"], error.message)
        return
    if (
        kind.value == "multiplexer"
        and "ports" in part
        and part["ports"].value != count + 1
    ):
        message = f"a multiplexer of {count} channels has {count + 1} ports"
        issues.at(
            part["ports"], f"{message}: expected that number, or no 'ports'"
        )
