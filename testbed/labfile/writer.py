"""A ``Lab`` as the YAML text of a lab file, short and in the order people write it."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

import yaml

from patchlight.testbed.io.issues import is_bare_text
from patchlight.testbed.lab.model import (
    NO_NETWORK,
    CircuitSwitch,
    Emulation,
    Fibre,
    Lab,
    Nic,
    OcsFault,
    PacketSwitch,
    Server,
    default_mac,
)
from patchlight.testbed.lab.wavelengths import WavelengthSwitch
from patchlight.testbed.labfile.access_schema import access_document
from patchlight.testbed.labfile.colours_schema import (
    passive_part_document,
    transceiver_document,
    wavelength_switch_document,
)
from patchlight.testbed.labfile.policies_schema import policies_document
from patchlight.testbed.labfile.queue_schema import queue_document
from patchlight.testbed.labfile.workers_schema import worker_policy_document
from patchlight.testbed.units import write_loss, write_power, write_rate, write_share, write_time

# Keys of the file whose field in the model carries its unit in its name.
_QUANTITIES: Mapping[str, tuple[str, Any]] = {
    "rate": ("rate_bps", write_rate),
    "loss": ("loss_db", write_loss),
    "delay": ("delay_s", write_time),
    "jitter": ("jitter_s", write_time),
    "relock": ("relock_s", write_time),
    "packet_loss": ("packet_loss", write_share),
    "launch_power": ("launch_power_dbm", write_power),
    "switching_time": ("switching_time_s", write_time),
    "insertion_loss": ("insertion_loss_db", write_loss),
}
_SSH_KEYS = ("address", "port", "user", "identity", "host_key", "legacy", "jump", "jump_host_key")
FIELD_OF = {key: name for key, (name, _) in _QUANTITIES.items()}
_Base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
V = TypeVar("V")
_MAP, _SEQ, _STR, _INT = (f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int"))


class _OnOneLine(dict[Any, V]):
    """A mapping written as ``{a: 1, b: 2}``."""


class _Listed(list[V]):
    """A list written as ``[a, b]``."""


class _Hex(int):
    """A whole number written as ``0x…``."""


class _Dumper(_Base):  # type: ignore[misc]
    """PyYAML's safe dumper, told which parts go on one line; without anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: Any, text: str) -> Any:
    # PyYAML quotes what YAML 1.1 would misread; the reader knows some more numbers than that.
    return dumper.represent_scalar(_STR, text, style=None if is_bare_text(text) else '"')


_Dumper.add_representer(str, _text)
_Dumper.add_representer(_OnOneLine, lambda d, v: d.represent_mapping(_MAP, v, flow_style=True))
_Dumper.add_representer(_Listed, lambda d, v: d.represent_sequence(_SEQ, v, flow_style=True))
_Dumper.add_representer(_Hex, lambda d, v: d.represent_scalar(_INT, hex(v)))


_OF_CONTROLLER = ("controller_api", "controller_openflow", "controller_openflow_tls")


def write_lab(lab: Lab) -> str:
    """YAML text that ``parse_lab`` reads back equal; what has its default is left out."""
    return to_yaml(lab_document(lab))


def lab_document(lab: Lab) -> dict[str, Any]:
    """The keys and values of a lab's file, for ``to_yaml``."""
    document: dict[str, Any] = {"name": lab.name}
    if lab.network != NO_NETWORK:
        document["network"] = str(lab.network)
    document |= _set(lab, "fabric", "paths")
    if lab.scale != 1:
        document["scale"] = int(lab.scale) if float(lab.scale).is_integer() else lab.scale
    controller = {
        key.removeprefix("controller_"): value for key, value in _set(lab, *_OF_CONTROLLER).items()
    }
    if access := access_document(lab.access):
        controller["access"] = access
    if controller:
        document["controller"] = _OnOneLine(controller)
    if queue := queue_document(lab.queue):
        users = [_OnOneLine(user) for user in queue.pop("users", ())]
        groups = {k: _OnOneLine(v) if isinstance(v, dict) else v for k, v in queue.items()}
        document["queue"] = {**groups, **({"users": users} if users else {})}
    if policies := policies_document(lab.policies):
        document["policies"] = policies
    if workers := worker_policy_document(lab.workers):
        document["workers"] = workers
    if lab.servers:
        document["servers"] = [_server(server) for server in lab.servers]
    if lab.packet_switches:
        document["packet_switches"] = [_packet_switch(switch) for switch in lab.packet_switches]
    if lab.circuit_switches:
        document["circuit_switches"] = [_circuit_switch(switch) for switch in lab.circuit_switches]
    if lab.wavelength_switches:
        switches = lab.wavelength_switches
        document["wavelength_switches"] = [_wavelength_switch(switch) for switch in switches]
    if lab.passive_parts:
        parts = map(passive_part_document, lab.passive_parts)
        document["passive_parts"] = [_OnOneLine(part) for part in parts]
    if lab.fibres:
        document["fibres"] = [_fibre(fibre) for fibre in lab.fibres]
    return document


def to_yaml(document: Any) -> str:
    """A lab's document or a part of it as YAML text."""
    text: str = yaml.dump(
        document,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=1_000_000,
        default_flow_style=False,
    )
    return text


def _set(thing: Any, *keys: str) -> dict[str, Any]:
    """Those of the keys whose value is not the model's default, as the file writes them."""
    defaults = {f.name: f.default for f in fields(thing) if f.default is not MISSING}
    values: dict[str, Any] = {}
    for key in keys:
        name, write = _QUANTITIES.get(key, (key, None))
        value = getattr(thing, name)
        if name not in defaults or value != defaults[name]:
            values[key] = write(value) if write else value
    return values


def _server(server: Server) -> dict[str, Any]:
    written: dict[str, Any] = {"name": server.name}
    if server.management is not None:
        written["management"] = server.management
    if ssh := _set(server.ssh, *_SSH_KEYS):
        written["ssh"] = _OnOneLine(ssh)
    if server.gpus:
        written["gpus"] = [_OnOneLine(_set(gpu, "name", "model", "uuid")) for gpu in server.gpus]
    written |= _set(server, "emulated_gpus")
    return {**written, "nics": [_nic(nic) for nic in server.nics]}


def _nic(nic: Nic) -> dict[str, Any]:
    written: dict[str, Any] = {"name": nic.name, "address": str(nic.address)}
    if nic.mac != default_mac(nic.address):
        written["mac"] = nic.mac
    elif nic.lab_mac:
        written["mac"] = "lab"
    written |= _set(nic, "rate", "gpu", "interface", "mode", "mtu", "vlan", "dscp", "rdma")
    if nic.routes:
        written["routes"] = _Listed(map(str, nic.routes))
    if nic.rendezvous is not None:
        way = nic.rendezvous
        written["rendezvous"] = _OnOneLine(interface=way.interface, address=str(way.address))
    if nic.transceiver is not None:
        written["transceiver"] = _OnOneLine(transceiver_document(nic.transceiver))
    return _OnOneLine({**written, **_set(nic, "relock", "launch_power")})


def _packet_switch(switch: PacketSwitch) -> dict[str, Any]:
    written = {"name": switch.name, "datapath_id": _Hex(switch.datapath_id)}
    written |= _set(switch, "ports", "launch_power")
    if switch.transceivers:
        written["transceivers"] = _OnOneLine(
            {port: _OnOneLine(transceiver_document(one)) for port, one in switch.transceivers}
        )
    return _OnOneLine(written)


def _circuit_switch(switch: CircuitSwitch) -> dict[str, Any]:
    keys = ("name", "driver", "address", "ports", "switching_time", "insertion_loss", "user")
    written = _set(switch, *keys, "password_env", "legacy_ssh")
    if switch.datapath_id is not None:
        written["datapath_id"] = _Hex(switch.datapath_id)
    if switch.initial:
        written["cross_connects"] = _Listed(switch.initial.texts)
    if switch.emulated:
        written["emulated"] = _emulated(switch.emulated)
    return written


def _wavelength_switch(switch: WavelengthSwitch) -> dict[str, Any]:
    written = {key: _inline(value) for key, value in wavelength_switch_document(switch).items()}
    if switch.emulated:
        written["emulated"] = _emulated(switch.emulated)
    return written


def _emulated(emulated: Emulation) -> dict[str, Any]:
    written: dict[str, Any] = {}
    if emulated.users:
        written["users"] = [
            _OnOneLine(_set(user, "name", "password_env", "read_only")) for user in emulated.users
        ]
    if emulated.conflict_time_s is not None:
        written["conflict_time"] = write_time(emulated.conflict_time_s)
    if emulated.faults:
        written["faults"] = [_fault(fault) for fault in emulated.faults]
    return written


def _fault(fault: OcsFault) -> dict[str, Any]:
    written = {key: _inline(value) for key, value in fault.control.items()}
    if fault.after_s:
        written["after"] = write_time(fault.after_s)
    if fault.after_changes:
        written["after_changes"] = fault.after_changes
    return _OnOneLine(written)


def _inline(value: Any) -> Any:
    if isinstance(value, dict):
        return _OnOneLine({int(key): item for key, item in value.items()})
    return _Listed(value) if isinstance(value, list) else value


def _fibre(fibre: Fibre) -> dict[str, Any]:
    ends = _Listed([str(fibre.a), str(fibre.b)])
    keys = ("rate", "loss", "delay", "jitter", "packet_loss")
    return _OnOneLine({"ends": ends, **_set(fibre, *keys)})
