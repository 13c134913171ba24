"""Defines the types of values in a lab file, and builds the models of its groups."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.metadata import entry_points
from ipaddress import (
    AddressValueError,
    IPv4Address,
    IPv4Interface,
    IPv4Network,
)
from typing import Annotated, Any, get_args

from patchlight.testbed import units
from patchlight.testbed.errors import BadInput, short
from patchlight.testbed.io.keys import (
    Hexadecimal,
    Text,
    choice,
    matching,
    quantity,
    whole,
)
from patchlight.testbed.lab import model
from patchlight.testbed.lab.ocs_drivers import (
    DRIVER_GROUP,
    KNOWN_DRIVERS,
    OCS_DRIVERS,
    WSS_DRIVER_GROUP,
    WSS_DRIVERS,
)
from patchlight.testbed.lab.packet_drivers import (
    PACKET_DRIVER_GROUP,
    PACKET_DRIVERS,
)
from patchlight.testbed.lab.portmap import (
    CrossConnect,
    PortMap,
    parse_cross_connects,
)
from patchlight.testbed.lab.wavelengths import Transceiver

# OpenFlow 1.3 port numbers are below OFPP_MAX; those of Open vSwitch end at 65279.
MOST_PACKET_PORTS = 65279
MOST_CIRCUIT_PORTS = 4096
_NAME = "[A-Za-z][A-Za-z0-9_-]*"
_MAC = "(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}"
_HOST = "(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|[0-9A-Fa-f]*:[0-9A-Fa-f:.]+)"
_HOST_PORT = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?):([0-9]{1,5})"

_PORT_NUMBER = (
    "[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|"
    "65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
)
_JUMP_HOST = r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_JUMP = f"(?:[^@:/\\s]+@)?(?:{_JUMP_HOST})(?::(?:{_PORT_NUMBER}))?"


def _name(
    what: str,
    example: str,
    longest: int,
) -> Text:
    expected = (
        f"a letter, then letters, digits, '-' or '_', at most {longest} in all"
    )
    return matching(
        _NAME,
        what,
        expected,
        example,
        longest,
    )


def _address(text: str) -> IPv4Address:
    try:
        return IPv4Address(text)
    except AddressValueError as error:
        message = f"{short(text)!r} is not an IPv4 address: expected one like '192.168.10.11'"
        raise BadInput(message) from error


def _with_prefix(
    text: str,
    what: str,
    example: str,
) -> tuple[IPv4Address, int]:
    address, slash, prefix = text.partition("/")
    if slash and re.fullmatch("[0-9]{1,2}", prefix) and int(prefix) <= 32:
        return _address(address), int(prefix)
    raise BadInput(
        f"{short(text)!r} is not {what}: expected one like {example!r}"
    )


def _network(text: str) -> IPv4Network:
    address, prefix = _with_prefix(text, "a network", "192.168.10.0/24")
    network = IPv4Network((address, prefix), strict=False)
    if network.network_address != address:
        raise BadInput(
            f"{text!r} is a host's address, not a network: expected '{network}'"
        )
    return network


def _mac_source(text: str) -> str:
    if text in ("hardware", "lab"):
        return text
    if not re.fullmatch(_MAC, text):
        wrong = f"{short(text)!r} is not a MAC address: expected one like '02:4c:c0:a8:0a:0b'"
    elif int(text[:2], 16) & 1 or set(text) <= set("0:"):
        wrong = f"{text!r} is not the MAC address of one NIC: expected a unicast one"
    else:
        return text.lower()
    raise BadInput(f"{wrong}, 'hardware' or 'lab'")


def _route(text: str) -> model.Route:
    network, via, gateway = text.partition(" via ")
    if not via:
        raise BadInput(
            f"{short(text)!r} is not a route: expected one like {_A_ROUTE!r}"
        )
    return model.Route(_network(network.strip()), _address(gateway.strip()))


def _interface_address(text: str) -> IPv4Interface:
    return IPv4Interface(
        _with_prefix(text, "an address with its network", "10.0.0.51/24")
    )


def _host_port(text: str) -> str:
    match = re.fullmatch(_HOST_PORT, text)
    if match and 1 <= int(match[3]) <= 65535:
        return text
    raise BadInput(
        f"{short(text)!r} is not a TCP address: expected host:port, like '10.0.0.5:3082'"
    )


def _jump(text: str) -> str | None:
    if re.fullmatch(_JUMP, text) and len(text) <= 255:
        return None if text == "none" else text
    raise BadInput(
        f"{short(text)!r} is not a jump host: expected [USER@]HOST[:PORT], like "
        "'me@gateway.example.org', or none"
    )


def _management(text: str) -> str:
    if text.startswith("unix:"):
        if re.fullmatch(r"unix:/[^\x00-\x1f]{1,100}", text):
            return text
        raise BadInput(
            f"{short(text)!r} is not a Unix socket: expected 'unix:/' and its path"
        )
    try:
        return _host_port(text)
    except BadInput as error:
        raise BadInput(
            f"{short(text)!r} is not an agent's address: expected host:port, like "
            "'10.0.0.11:8471', or 'unix:/path'"
        ) from error


def _model(text: str) -> str:
    if (
        re.search("[A-Za-z0-9]", text)
        and text.isprintable()
        and len(text) <= 64
    ):
        return text
    raise BadInput(
        f"{short(text)!r} is not a GPU model: expected 1 to 64 printable characters with a "
        "letter or digit, like 'Tesla M40'"
    )


def _cross_connects(text: str) -> tuple[CrossConnect, ...]:
    both = parse_cross_connects(text)
    if both[0].inp == both[0].out:
        raise BadInput(
            f"{text!r} connects a port to itself: expected two different ports"
        )
    return both


def _taking(
    ours: Mapping[str, object],
    group: str,
    others: Mapping[str, object],
    of_others: str,
) -> Callable[[str], str]:
    def take(text: str) -> str:
        _DRIVER_NAME.take(text)
        if text in ours:
            return text
        known = (
            *ours,
            *sorted(point.name for point in entry_points(group=group)),
        )
        if text in known:
            return text
        if text in others:
            message = f"the driver {text} is for {of_others} switches: expected one of"
            raise BadInput(f"{message} {', '.join(known)}")
        near = difflib.get_close_matches(text, known, n=1)
        hint = (
            f"did you mean {near[0]!r}? the drivers are"
            if near
            else "expected one of"
        )
        raise BadInput(
            f"unknown driver {short(text)!r}: {hint} {', '.join(known)}"
        )

    return take


LAB_NAME = _name("a lab's name", "ofc2022", 24)
TIME = quantity(
    units.parse_time,
    units.TIME,
    "a time",
    "25ms",
)
LOSS = quantity(
    units.parse_loss,
    units.LOSS,
    "a loss",
    "1.5dB",
)
HOST_PORT = Text(
    "a TCP address",
    _host_port,
    {"pattern": f"^{_HOST_PORT}$"},
    example="10.0.0.5:3082",
)
VARIABLE_NAME = matching(
    "[A-Za-z_][A-Za-z0-9_]*",
    "an environment variable's name",
    "letters, digits and '_'",
    "OCS1_PASSWORD",
)
_DRIVER_NAME = matching(
    "[a-z][a-z0-9_-]*",
    "a driver's name",
    "lower-case letters, digits, '-' or '_'",
    "calient-tl1",
    63,
)
MODEL = Text(
    "a GPU model",
    _model,
    {"maxLength": 64, "pattern": "[A-Za-z0-9]"},
    example="Tesla M40",
)
_A_ROUTE = "10.2.0.0/16 via 192.168.10.1"

LabName = Annotated[str, LAB_NAME]
DeviceName = Annotated[str, _name("a device name", "server1", 31)]
PartName = Annotated[str, _name("a GPU's or NIC's name", "nic0", 15)]
Rate = Annotated[
    int,
    quantity(
        units.parse_rate,
        units.RATE,
        "a rate",
        "40Gbps",
    ),
]
Time = Annotated[float, TIME]
Loss = Annotated[float, LOSS]
Power = Annotated[
    float,
    quantity(
        units.parse_power,
        units.POWER,
        "a power",
        "-3dBm",
    ),
]
Share = Annotated[
    float,
    quantity(
        units.parse_share,
        units.SHARE,
        "a share",
        "0.1%",
    ),
]
Address = Annotated[
    IPv4Address, Text("an IPv4 address", _address, example="192.168.10.11")
]
Network = Annotated[
    IPv4Network, Text("a network", _network, example="192.168.10.0/24")
]
HostPort = Annotated[str, HOST_PORT]
UserName = Annotated[
    str,
    matching(
        r"[!-~]+",
        "a user name",
        "printable characters without blanks",
        "admin",
        64,
    ),
]
VariableName = Annotated[str, VARIABLE_NAME]
Driver = Annotated[
    str,
    replace(
        _DRIVER_NAME,
        take=_taking(
            OCS_DRIVERS,
            DRIVER_GROUP,
            WSS_DRIVERS,
            "wavelength",
        ),
        json={**_DRIVER_NAME.json, "examples": list(KNOWN_DRIVERS)},
    ),
]
WssDriver = Annotated[
    str,
    replace(
        _DRIVER_NAME,
        take=_taking(
            WSS_DRIVERS,
            WSS_DRIVER_GROUP,
            OCS_DRIVERS,
            "circuit",
        ),
        json={
            **_DRIVER_NAME.json,
            "examples": [d.name for d in WSS_DRIVERS.values() if d.device],
        },
        example="waveshaper-http",
    ),
]
PacketDriver = Annotated[
    str,
    replace(
        _DRIVER_NAME,
        take=_taking(
            PACKET_DRIVERS,
            PACKET_DRIVER_GROUP,
            OCS_DRIVERS,
            "circuit",
        ),
        json={**_DRIVER_NAME.json, "examples": list(PACKET_DRIVERS)},
        example="linux-bridge",
    ),
]
GpuModel = Annotated[str, MODEL]
Uuid = Annotated[
    str,
    matching(
        "[A-Za-z0-9-]+",
        "a GPU's UUID",
        "what nvidia-smi -L prints",
        "GPU-6f2a1b3c",
    ),
]
Mac = Annotated[
    str,
    Text(
        "where its MAC address comes from",
        _mac_source,
        {"pattern": f"^(hardware|lab|{_MAC})$"},
        example="hardware",
    ),
]
NicMode = Annotated[
    model.NicMode, choice("a NIC mode", *get_args(model.NicMode))
]
RdmaUse = Annotated[
    model.RdmaUse, choice("an RDMA mode", *get_args(model.RdmaUse))
]
Mtu = Annotated[int, whole("an MTU", 576, 65535)]
Vlan = Annotated[int, whole("a VLAN", 1, 4094)]
Dscp = Annotated[int, whole("a DSCP", 0, 63)]
Route = Annotated[
    model.Route,
    Text(
        "a route",
        _route,
        {"pattern": "^.+ via .+$"},
        example=_A_ROUTE,
    ),
]
InterfaceAddress = Annotated[
    IPv4Interface,
    Text(
        "an address with its network",
        _interface_address,
        {"pattern": "^.+/.+$"},
        example="10.0.0.51/24",
    ),
]
Interface = Annotated[
    str,
    matching(
        r"[^\s/:]{1,15}",
        "an interface",
        "a kernel's name of at most 15 characters",
        "enp3s0f0",
    ),
]
SwitchInterface = Annotated[
    str,
    matching(
        "[!-~]{1,64}",
        "an interface",
        "a port's name on the switch",
        "swp1",
    ),
]
Management = Annotated[
    str, Text("the agent's address", _management, example="10.0.0.11:8471")
]
SshHost = Annotated[
    str,
    matching(
        _HOST,
        "a host",
        "a name or an IP address",
        "10.0.0.11",
    ),
]
Jump = Annotated[
    str | None,
    Text(
        "a jump host",
        _jump,
        {"pattern": f"^{_JUMP}$"},
        example="me@gateway.example.org:22",
    ),
]
TcpPort = Annotated[int, whole("a TCP port", 1, 65535)]
FilePath = Annotated[
    str,
    matching(
        r"[^\x00-\x1f\x7f]+",
        "a path",
        "a file's path",
        "~/.ssh/id_ed25519",
        4096,
    ),
]
HostKey = Annotated[
    str,
    matching(
        "SHA256:[A-Za-z0-9+/]{43}",
        "a host key's fingerprint",
        "SHA256: and 43 characters, as ssh-keygen -l prints it",
        "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU",
    ),
]
DatapathId = Annotated[
    int, Hexadecimal("an OpenFlow datapath id", 1, 2**64 - 1)
]
PacketPorts = Annotated[
    int, whole("the number of ports", 1, MOST_PACKET_PORTS)
]
CircuitPorts = Annotated[
    int, whole("the number of duplex ports", 1, MOST_CIRCUIT_PORTS)
]
Circuit = Annotated[
    tuple[CrossConnect, ...],
    Text(
        "a cross-connect",
        _cross_connects,
        {"pattern": r"^\s*[0-9]{1,9}\s*[->]\s*[0-9]{1,9}\s*$"},
        example="1-7",
    ),
]
Port = Annotated[
    model.Endpoint,
    Text(
        "a port",
        model.Endpoint.parse,
        {"pattern": r"^.+\..+$"},
        example="tor1.3",
    ),
]


def nic(
    *,
    address: IPv4Address,
    mac: str = "hardware",
    **said: Any,
) -> model.Nic:
    """A NIC; ``mac`` is ``hardware``, ``lab`` or an address."""
    own = model.default_mac(address)
    given = own if mac in ("hardware", "lab") else mac
    return model.Nic(
        address=address,
        mac=given,
        lab_mac=mac in ("lab", own),
        **said,
    )


def said_mac(nic: model.Nic) -> str | None:
    """The ``mac`` key of a NIC."""
    if nic.mac != model.default_mac(nic.address):
        return nic.mac
    return "lab" if nic.lab_mac else None


def packet_switch(
    *,
    transceivers: Mapping[int, Transceiver] | None = None,
    datapath_id: int | None = None,
    interfaces: Iterable[str] = (),
    **said: Any,
) -> model.PacketSwitch:
    """A packet switch, its transceivers by port number."""
    by_port = tuple(sorted((transceivers or {}).items()))
    said |= {"datapath_id": datapath_id, "interfaces": tuple(interfaces)}
    return model.PacketSwitch(
        transceivers=by_port,
        **said,
    )


def circuit_switch(
    *, cross_connects: Iterable[tuple[CrossConnect, ...]] = (), **said: Any
) -> model.CircuitSwitch:
    """An OCS with these initial circuits."""
    initial = PortMap.of(one for listed in cross_connects for one in listed)
    return model.CircuitSwitch(
        initial=initial,
        **said,
    )


def fibre(
    *, ends: tuple[model.Endpoint, model.Endpoint], **said: Any
) -> model.Fibre:
    """A fibre between two ports."""
    return model.Fibre(*ends, **said)


def lab(
    *,
    controller: Mapping[str, Any] | None = None,
    defaults: object = None,
    **said: Any,
) -> model.Lab:
    """A lab; ``defaults`` have been applied to its parts."""
    return model.Lab(
        **(controller or {}),
        **said,
    )
