"""Names that the kernel takes: at most 15 bytes for an interface, unique in its namespace."""

from __future__ import annotations

import hashlib

from patchlight.testbed.lab import Endpoint, Lab, PacketSwitch, Server

LONGEST = 15


def namespace_name(lab: str, device: str) -> str:
    """The namespace of a server, an OCS, or the ``fabric``: ``pl.<lab>.<device>``."""
    return f"{namespace_prefix(lab)}{device}"


def namespace_prefix(lab: str) -> str:
    """What the name of every namespace of a lab begins with."""
    return f"pl.{lab}."


def fabric_namespace(lab: str) -> str:
    """The namespace that holds the lab's packet switches."""
    return namespace_name(lab, "fabric")


def switch_port_name(switch: str, port: str) -> str:
    """``tor1-3``; a long switch name is cut and told apart by a hash of the whole name."""
    return fitted(switch, f"-{port}")


def bridge_name(switch: str) -> str:
    """The bridge of a packet switch."""
    return fitted(switch, "")


def fitted(name: str, ending: str) -> str:
    """``name + ending`` in 15 bytes: the same names always give the same result."""
    if len((name + ending).encode()) <= LONGEST:
        return name + ending
    digest = hashlib.sha256(name.encode()).hexdigest()[:4]
    kept = name.encode()[: LONGEST - len(ending) - len(digest) - 1].decode(errors="ignore")
    return f"{kept}~{digest}{ending}"


def interface_name(lab: Lab, endpoint: Endpoint) -> str:
    """What the emulated lab calls the interface at ``endpoint``, in its device's namespace."""
    device = lab.device(endpoint.device)
    if isinstance(device, Server):
        return endpoint.port
    if isinstance(device, PacketSwitch):
        return switch_port_name(device.name, endpoint.port)
    return f"p{endpoint.port}"
