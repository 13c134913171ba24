"""The keys of a lab file, each with its type: one declaration for the reader and for editors."""

import difflib
import re
from dataclasses import replace
from importlib.metadata import entry_points
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from typing import Any

from patchlight.testbed import units
from patchlight.testbed.errors import BadInput
from patchlight.testbed.files.fields import (
    Group,
    Key,
    ListOf,
    Number,
    Text,
    Whole,
    choice,
    matching,
    quantity,
    required,
    short,
)
from patchlight.testbed.lab import Endpoint
from patchlight.testbed.labfile.emulated_schema import emulated_group
from patchlight.testbed.labfile.queue_schema import queue_group
from patchlight.testbed.labfile.ranges import ITEMS, RANGE_PATTERN, RANGED
from patchlight.testbed.ocs_drivers import DRIVER_GROUP, OCS_DRIVERS
from patchlight.testbed.portmap import CrossConnect, parse_cross_connects

# An OpenFlow 1.3 switch numbers its ports below OFPP_MAX; Open vSwitch ends at 65279.
MOST_PACKET_PORTS = 65279
MOST_CIRCUIT_PORTS = 4096
FABRICS = ("openvswitch", "bridge")
# What ships with Patchlight, for editors; others come by entry point, and are taken as well.
KNOWN_DRIVERS = tuple(driver.name for driver in OCS_DRIVERS.values() if driver.device)

_NAME = "[A-Za-z][A-Za-z0-9_-]*"
_MAC = "(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}"
_HOST_PORT = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?):([0-9]{1,5})"


def _name(what: str, example: str, longest: int) -> Text:
    expected = f"a letter, then letters, digits, '-' or '_', at most {longest} in all"
    return matching(_NAME, what, expected, example, longest)


def _address(text: str) -> IPv4Address:
    try:
        return IPv4Address(text)
    except AddressValueError as error:
        message = f"{short(text)!r} is not an IPv4 address: expected one like '192.168.10.11'"
        raise BadInput(message) from error


def _network(text: str) -> IPv4Network:
    address, slash, prefix = text.partition("/")
    if slash and re.fullmatch("[0-9]{1,2}", prefix) and int(prefix) <= 32:
        network = IPv4Network((_address(address), int(prefix)), strict=False)
        if str(network.network_address) != address:
            raise BadInput(f"{text!r} is a host's address, not a network: expected '{network}'")
        return network
    raise BadInput(f"{short(text)!r} is not a network: expected one like '192.168.10.0/24'")


def _mac(text: str) -> str:
    if not re.fullmatch(_MAC, text):
        message = f"{short(text)!r} is not a MAC address: expected one like '02:4c:c0:a8:0a:0b'"
        raise BadInput(message)
    if int(text[:2], 16) & 1 or set(text) <= set("0:"):
        raise BadInput(f"{text!r} is not the MAC address of one NIC: expected a unicast one")
    return text.lower()


def _model(text: str) -> str:
    if text.strip() and text.isprintable() and len(text) <= 64:
        return text
    raise BadInput(
        f"{short(text)!r} is not a GPU model: expected 1 to 64 printable characters, "
        "like 'Tesla M40'"
    )


def _host_port(text: str) -> str:
    match = re.fullmatch(_HOST_PORT, text)
    if match and 1 <= int(match[3]) <= 65535:
        return text
    raise BadInput(
        f"{short(text)!r} is not a TCP address: expected host:port, like '10.0.0.5:3082'"
    )


def _management(text: str) -> str:
    if text.startswith("unix:"):
        if re.fullmatch(r"unix:/[^\x00-\x1f]{1,100}", text):
            return text
        raise BadInput(f"{short(text)!r} is not a Unix socket: expected 'unix:/' and its path")
    try:
        return _host_port(text)
    except BadInput as error:
        raise BadInput(
            f"{short(text)!r} is not where an agent can answer: expected host:port, like "
            "'10.0.0.11:8471', or 'unix:/path'"
        ) from error


def _cross_connects(text: str) -> tuple[CrossConnect, ...]:
    both = parse_cross_connects(text)
    if both[0].inp == both[0].out:
        raise BadInput(
            f"{text!r} sends light back where it came from: expected two different ports"
        )
    return both


def _driver(text: str) -> str:
    _DRIVER_NAME.take(text)
    if text in OCS_DRIVERS:
        return text
    known = (*OCS_DRIVERS, *sorted(point.name for point in entry_points(group=DRIVER_GROUP)))
    if text in known:
        return text
    near = difflib.get_close_matches(text, known, n=1)
    hint = f"did you mean {near[0]!r}? the drivers are" if near else "expected one of"
    raise BadInput(f"no driver is called {short(text)!r}: {hint} {', '.join(known)}")


LAB_NAME = _name("a lab's name", "ofc2022", 24)
DEVICE_NAME = _name("a device name", "server1", 31)
PART_NAME = _name("a GPU's or NIC's name", "nic0", 15)
RATE = quantity(units.parse_rate, units.RATE, "a rate", "40Gbps")
TIME = quantity(units.parse_time, units.TIME, "a time", "25ms")
LOSS = quantity(units.parse_loss, units.LOSS, "a loss", "1.5dB")
POWER = quantity(units.parse_power, units.POWER, "a power", "-3dBm")
ADDRESS = Text("an IPv4 address", _address, example="192.168.10.11")
HOST_PORT = Text(
    "a TCP address", _host_port, {"pattern": f"^{_HOST_PORT}$"}, example="10.0.0.5:3082"
)
USER_NAME = matching(r"[!-~]+", "a user name", "printable characters without blanks", "admin", 64)
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
DRIVER = replace(
    _DRIVER_NAME, take=_driver, json={**_DRIVER_NAME.json, "examples": list(KNOWN_DRIVERS)}
)
MODEL = Text("a GPU model", _model, {"minLength": 1, "maxLength": 64}, example="Tesla M40")
UUID = matching("[A-Za-z0-9-]+", "a GPU's UUID", "what nvidia-smi -L prints", "GPU-6f2a1b3c")
MAC = Text("a MAC address", _mac, {"pattern": f"^{_MAC}$"}, example="02:4c:c0:a8:0a:0b")
INTERFACE = matching(
    r"[^\s/:]{1,15}", "an interface", "a kernel's name of at most 15 characters", "enp3s0f0"
)
MANAGEMENT = Text("where the agent answers", _management, example="10.0.0.11:8471")
DATAPATH_ID = Whole("an OpenFlow datapath id", 1, 2**64 - 1)
PACKET_PORTS = Whole("how many ports it has", 1, MOST_PACKET_PORTS)
CIRCUIT_PORTS = Whole("how many duplex ports it has", 1, MOST_CIRCUIT_PORTS)
CROSS_CONNECT = Text(
    "a cross-connect",
    _cross_connects,
    {"pattern": r"^\s*[0-9]{1,9}\s*[->]\s*[0-9]{1,9}\s*$"},
    example="1-7",
)
SHARE = quantity(units.parse_share, units.SHARE, "a share", "0.1%")
PORT = Text("a port", Endpoint.parse, {"pattern": r"^.+\..+$"}, example="tor1.3")
NETWORK = Text("a network", _network, example="192.168.10.0/24")
LAUNCH_POWER = Key("launch_power", POWER, "optical power its ports send with", default="0dBm")

GPU = Group(
    "a GPU",
    required("name", PART_NAME, "what the GPU is called, like 'gpu0'", example="gpu0"),
    required("model", MODEL, "the model, like 'Tesla M40'"),
    Key("uuid", UUID, "pins the physical GPU on a real server"),
)
NIC = Group(
    "a NIC",
    required("name", PART_NAME, "what the NIC port is called, like 'nic0'"),
    required("address", ADDRESS, "its IPv4 address in the lab's network"),
    Key("rate", RATE, "its line rate", default="no limit"),
    Key("gpu", PART_NAME, "the GPU of the same server that it serves", example="gpu0"),
    Key("mac", MAC, "its MAC address", default="made of the IPv4 address"),
    Key("interface", INTERFACE, "the kernel's name of it on the server", default="its name"),
    LAUNCH_POWER,
)
SERVER = Group(
    "a server",
    required("name", DEVICE_NAME, "what the server is called, like 'server1'"),
    Key("management", MANAGEMENT, "where the server's agent answers: host:port or unix:/path"),
    Key("gpus", ListOf(GPU, "GPUs"), "its GPUs", default="none"),
    required("nics", ListOf(NIC, "NICs"), "its NIC ports in the lab's network"),
)
PACKET_SWITCH = Group(
    "a packet switch",
    required("name", DEVICE_NAME, "what the switch is called, like 'tor1'", example="tor1"),
    required("datapath_id", DATAPATH_ID, "its OpenFlow datapath id, like 0x1", example="0x1"),
    required("ports", PACKET_PORTS, "how many ports it has", example="48"),
    LAUNCH_POWER,
)
CIRCUIT_SWITCH = Group(
    "a circuit switch",
    required("name", DEVICE_NAME, "what the switch is called, like 'ocs1'", example="ocs1"),
    required("driver", DRIVER, "the driver that speaks to it, like 'calient-tl1'"),
    required(
        "address",
        HOST_PORT,
        "where it answers: host:port; with driver openflow, where Patchlight listens for it",
    ),
    Key(
        "datapath_id",
        DATAPATH_ID,
        "its OpenFlow datapath id, like 0x51; only with driver openflow",
        example="0x51",
    ),
    required("ports", CIRCUIT_PORTS, "how many duplex ports it has", example="320"),
    Key("switching_time", TIME, "how long a new circuit stays dark", default="25ms"),
    Key("insertion_loss", LOSS, "what a circuit through it loses", default="1.5dB"),
    Key("user", USER_NAME, "whom to log in as", default="admin"),
    Key("password_env", VARIABLE_NAME, "the environment variable that holds the password"),
    Key(
        "cross_connects",
        ListOf(CROSS_CONNECT, "cross-connects"),
        "the circuits it starts with: a-b both ways, a>b one way",
        default="none",
        example="[1-7, 2>8]",
    ),
    Key(
        "emulated",
        emulated_group(USER_NAME, VARIABLE_NAME),
        "what its emulation alone heeds: faults, more users",
        example="{users: [{name: viewer, read_only: true}]}",
    ),
)
FIBRE = Group(
    "a fibre",
    required(
        "ends",
        ListOf(PORT, "ends", count=2),
        "the two ports it joins, like [server1.nic0, ocs1.1] or server1.nic0 - ocs1.1",
        example="[server1.nic0, ocs1.1]",
    ),
    Key("rate", RATE, "its rate", default="no limit of its own"),
    Key("loss", LOSS, "what light loses in it", default="0.3dB"),
    Key("delay", TIME, "how long an emulation holds each packet, each way", default="0s"),
    Key("jitter", TIME, "by how much that varies, up and down", default="0s"),
    Key("packet_loss", SHARE, "what share of packets an emulation loses in it", default="0%"),
)
# What things of a kind may have in common: nothing that tells them apart.
COMMON: dict[str, tuple[str, ...]] = {
    "gpu": ("model",),
    "nic": ("rate", "launch_power"),
    "packet_switch": ("ports", "launch_power"),
    "circuit_switch": ("driver", "ports", "switching_time", "insertion_loss", "user"),
    "fibre": ("rate", "loss", "delay", "jitter", "packet_loss"),
}


def _defaults(kind: str, group: Group) -> Key:
    keys = [replace(key, required=False) for key in group.keys if key.name in COMMON[kind]]
    about = f"of each {kind.replace('_', ' ')} that says nothing else"
    return Key(kind, Group(f"what {group.what} has", *keys), about)


DEFAULTS = Group(
    "the defaults",
    _defaults("gpu", GPU),
    _defaults("nic", NIC),
    _defaults("packet_switch", PACKET_SWITCH),
    _defaults("circuit_switch", CIRCUIT_SWITCH),
    _defaults("fibre", FIBRE),
)
CONTROLLER = Group(
    "the controller",
    Key(
        "api",
        HOST_PORT,
        "where its REST API answers",
        example="127.0.0.1:8470",
        default="a Unix socket of the lab's own",
    ),
    Key(
        "openflow",
        HOST_PORT,
        "where it listens for OpenFlow",
        example="10.0.0.1:6653",
        default="127.0.0.1:6653",
    ),
)
LAB = Group(
    "a lab",
    required("name", LAB_NAME, "what the lab is called"),
    Key(
        "network",
        NETWORK,
        "the IPv4 network of the NICs, like '192.168.10.0/24'; needed with servers",
        default="none",
    ),
    Key(
        "fabric",
        choice("a fabric", *FABRICS),
        "what an emulation makes packet switches of",
        default="openvswitch",
    ),
    Key(
        "scale",
        Number("a scale", above=0),
        "what an emulation divides rates and bytes by",
        default="1",
        example="1000",
    ),
    Key("controller", CONTROLLER, "where the controller answers", example="{api: 127.0.0.1:8470}"),
    Key("queue", queue_group(USER_NAME), "how jobs wait", example="{backfill: true}"),
    Key(
        "defaults",
        DEFAULTS,
        "what equal things have in common, written once",
        example="{gpu: {model: Tesla M40}, nic: {rate: 40Gbps}}",
    ),
    Key(
        "servers",
        ListOf(SERVER, "servers"),
        "the servers, with their GPUs and NICs",
        default="none: a lab of switches alone",
    ),
    Key(
        "packet_switches",
        ListOf(PACKET_SWITCH, "packet switches"),
        "the switches that forward packets (ToR, aggregator, core)",
        default="none",
    ),
    Key(
        "circuit_switches",
        ListOf(CIRCUIT_SWITCH, "circuit switches"),
        "the optical circuit switches",
        default="none",
    ),
    Key("fibres", ListOf(FIBRE, "fibres"), "the fibre pairs between ports", default="none"),
)


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a lab file, for editors.

    It knows keys and the form of values. What needs the whole file (a port used twice, an
    address outside the network) only ``read_lab`` finds.
    """
    lab = LAB.schema()
    for name in ITEMS:
        if name in lab["properties"]:
            _with_short_forms(name, lab["properties"][name])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Patchlight lab file",
        **lab,
    }


def _with_short_forms(name: str, items: dict[str, Any]) -> None:
    """Let the schema of a list take ranges, fibres in a line, and what defaults may stand for."""
    group = items["items"]
    several = {"type": "string", "pattern": RANGE_PATTERN}
    common = COMMON.get(ITEMS[name], ())
    group["required"] = [key for key in group["required"] if key not in common]
    for key, value in group["properties"].items():
        about = value.pop("description", None)
        if key == "cross_connects":
            value["items"] = {"anyOf": [value["items"], several]}
        elif key == "ends":
            value = {"anyOf": [value, {"type": "string"}]}
        elif key in RANGED:
            value = {"anyOf": [value, several]}
        group["properties"][key] = value | {"description": about}
        if key in ITEMS:
            _with_short_forms(key, value)
    if name == "fibres":
        items["items"] = {"anyOf": [group, {"type": "string"}]}
