"""Devices and cables as files of other programs describe them, and the lab that they make."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.ocs_drivers import OCS_DRIVERS
from patchlight.testbed.labfile.reader import LabFileError, parse_lab
from patchlight.testbed.labfile.writer import to_yaml
from patchlight.testbed.units import write_rate, write_time

_LONGEST_NAME = 31
_LONGEST_PORT = 15
_LONGEST_LAB = 24
_SHOWN = 5


class PlantPort(NamedTuple):
    """A port of a device, by the name that the file gives it."""

    device: str
    name: str

    def __str__(self) -> str:
        return f"{self.device} {self.name}"


@dataclass(frozen=True)
class PlantDevice:
    """A server, a packet switch or an OCS.

    ``ports`` are all ports in order: those of a server become NICs, those of a switch get the
    numbers 1, 2, …. ``gpus`` is the number of a server's GPUs; ``gpu_of`` gives the index of the
    GPU that a NIC serves. ``circuits`` are cross-connects of an OCS as lab files write them.
    """

    name: str
    kind: Literal["server", "switch", "ocs"]
    ports: tuple[str, ...]
    gpus: int = 0
    gpu_model: str = "Generic"
    gpu_of: Mapping[str, int] = field(default_factory=dict)
    driver: str = "calient-tl1"
    address: str = ""
    circuits: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cable:
    """A cable between two ports; rate in bit/s, ``None`` if the file has none; delay in s."""

    a: PlantPort
    b: PlantPort
    rate_bps: int | None = None
    delay_s: float = 0.0


@dataclass(frozen=True)
class Plant:
    """All devices and cables of a file; ``left_out`` says what of the file is not in them."""

    name: str
    devices: tuple[PlantDevice, ...]
    cables: tuple[Cable, ...]
    left_out: tuple[str, ...] = ()


def lab_of(
    plant: Plant,
    *,
    name: str | None = None,
    rate_bps: int | None = None,
) -> Lab:
    """The lab with these devices and cables; ``BadInput`` with all that is wrong.

    ``rate_bps`` is the rate of cables without one. NICs get addresses in the order of the
    devices, from 10.0.0.1 on.
    """
    devices = {device.name: device for device in plant.devices}
    names = _unique_names(devices)
    mistakes = list(_wrong_cables(plant, devices))
    nics = sum(len(d.ports) for d in plant.devices if d.kind == "server")
    if not nics:
        mistakes.append("no server has a cable: a lab needs at least one NIC")
    if mistakes:
        raise BadInput(f"{plant.name}: {_listed(mistakes)}")
    ports = {
        PlantPort(device.name, port): made
        for device in plant.devices
        for port, made in _port_names(device).items()
    }
    prefix = min(16, 32 - (nics + 1).bit_length())
    addresses = (f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in count(1))
    rates = {
        end: cable.rate_bps or rate_bps
        for cable in plant.cables
        for end in (cable.a, cable.b)
    }
    document: dict[str, Any] = {
        "name": name or _clean(plant.name, "lab")[:_LONGEST_LAB],
        "network": f"10.0.0.0/{prefix}",
    }
    for device in plant.devices:
        made = names[device.name]
        if device.kind == "server":
            key = "servers"
            written = _server(device, made, ports, addresses, rates)
        elif device.kind == "switch":
            key = "packet_switches"
            number = len(document.get(key, ())) + 1
            written = {
                "name": made,
                "datapath_id": number,
                "ports": max(len(device.ports), 1),
            }
        else:
            key = "circuit_switches"
            written = _ocs(device, made)
        document.setdefault(key, []).append(written)
    document["fibres"] = [
        _fibre(cable, names, ports, rate_bps) for cable in plant.cables
    ]
    try:
        return parse_lab(to_yaml(document), plant.name)
    except LabFileError as error:
        # Positions in generated text would not help.
        found = [issue.message for issue in error.issues]
        raise BadInput(f"{plant.name}: {_listed(found)}") from error


def wrong_shape(what: str, error: ValidationError) -> BadInput:
    """What pydantic found, as one message that names each place in the file."""
    found = []
    for issue in error.errors(include_url=False, include_input=False):
        place = "".join(
            f"[{step}]" if isinstance(step, int) else f".{step}"
            for step in issue["loc"]
        )
        found.append(f"{place.lstrip('.') or 'the file'}: {issue['msg']}")
    return BadInput(f"{what}: {_listed(found)}")


def in_order(names: Iterable[str]) -> list[str]:
    """Names in the order of the numbers in them: eth2 before eth10."""
    return sorted(
        names,
        key=lambda name: [
            (0, int(part), "") if part.isdecimal() else (1, 0, part)
            for part in re.split(r"(\d+)", name)
        ],
    )


def _listed(mistakes: Sequence[str]) -> str:
    more = len(mistakes) - _SHOWN
    shown = "; ".join(mistakes[:_SHOWN])
    return f"{shown}; and {more} more" if more > 0 else shown


def _clean(text: str, otherwise: str) -> str:
    """The text as a name of lab files: letters, digits, ``-`` and ``_``, a letter first."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")
    if not name:
        return otherwise
    return name if name[0].isalpha() else f"{otherwise[0]}{name}"


def _unique_names(devices: Iterable[str]) -> dict[str, str]:
    """For each device its name in a lab file; ``BadInput`` if two would have the same."""
    remedy = "rename one in the file"
    made: dict[str, str] = {}
    owner: dict[str, str] = {}
    for name in devices:
        short = _clean(name, "n")
        if len(short) > _LONGEST_NAME:
            raise BadInput(
                f"the name {name!r} is too long: expected at most {_LONGEST_NAME} characters",
                hint=remedy,
            )
        if other := owner.get(short):
            raise BadInput(
                f"{other!r} and {name!r} would both be named {short!r}",
                hint=remedy,
            )
        owner[short] = name
        made[name] = short
    return made


def _port_names(device: PlantDevice) -> dict[str, str]:
    if device.kind != "server":
        return {port: str(n) for n, port in enumerate(device.ports, 1)}
    stems = Counter(port.rpartition(".")[0] for port in device.ports)
    made = {}
    for port in device.ports:
        stem = port.rpartition(".")[0]
        alone = port.endswith(".0") and stems[stem] == 1 and stem[-1].isdigit()
        made[port] = _nic_name(stem if alone else port)
    fits = len(set(made.values())) == len(made)
    if not fits or max(map(len, made.values()), default=0) > _LONGEST_PORT:
        return {port: f"nic{n}" for n, port in enumerate(device.ports)}
    return made


def _nic_name(port: str) -> str:
    """``nic.0`` → ``nic0``, ``cx5.0.port.1`` → ``cx5-0-port1``."""
    name = re.sub(r"(?<=[0-9])\.(?=[0-9])", "-", port)
    name = re.sub(r"(?<=[^0-9])\.(?=[0-9])", "", name)
    return _clean(name, "nic")


def _wrong_cables(
    plant: Plant, devices: Mapping[str, PlantDevice]
) -> Iterable[str]:
    used: dict[PlantPort, PlantPort] = {}
    for cable in plant.cables:
        if cable.a == cable.b:
            yield f"a cable has {cable.a} at both ends"
            continue
        for end, other in ((cable.a, cable.b), (cable.b, cable.a)):
            if end.device not in devices:
                yield f"the cable {cable.a} – {cable.b}: unknown device {end.device}"
            elif end.name not in devices[end.device].ports:
                yield f"the cable {cable.a} – {cable.b}: {end.device} has no port {end.name}"
            elif end in used:
                yield (
                    f"{end} has two cables, to {used[end]} and to {other}: "
                    "expected one cable on a port"
                )
            else:
                used[end] = other


def _server(
    device: PlantDevice,
    name: str,
    ports: Mapping[PlantPort, str],
    addresses: Iterable[str],
    rates: Mapping[PlantPort, int | None],
) -> dict[str, Any]:
    nics = []
    for port, address in zip(device.ports, addresses, strict=False):
        end = PlantPort(device.name, port)
        nic = {"name": ports[end], "address": address}
        if rate := rates.get(end):
            nic["rate"] = write_rate(rate)
        if port in device.gpu_of:
            nic["gpu"] = f"gpu{device.gpu_of[port]}"
        nics.append(nic)
    written: dict[str, Any] = {"name": name, "management": f"{name}:8471"}
    if device.gpus:
        written["gpus"] = [
            {"name": f"gpu{n}", "model": device.gpu_model}
            for n in range(device.gpus)
        ]
    if nics:
        written["nics"] = nics
    return written


def _ocs(device: PlantDevice, name: str) -> dict[str, Any]:
    row = OCS_DRIVERS.get(device.driver, OCS_DRIVERS["dry-run"])
    written: dict[str, Any] = {
        "name": name,
        "driver": device.driver,
        "address": device.address or f"{name}:{row.port}",
        "ports": max(len(device.ports), 1),
    }
    if device.circuits:
        written["cross_connects"] = list(device.circuits)
    return written


def _fibre(
    cable: Cable,
    names: Mapping[str, str],
    ports: Mapping[PlantPort, str],
    rate_bps: int | None,
) -> dict[str, Any]:
    written: dict[str, Any] = {
        "ends": [
            f"{names[end.device]}.{ports[end]}" for end in (cable.a, cable.b)
        ]
    }
    rate = cable.rate_bps or rate_bps
    if rate:
        written["rate"] = write_rate(rate)
    if cable.delay_s:
        written["delay"] = write_time(cable.delay_s)
    return written
