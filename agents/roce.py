"""Which RoCEv2 GID a worker's RDMA traffic has to use.

The index differs between hosts and namespaces, so it is looked up for each NIC, never set
for all. A GID is usable if its type is RoCE v2, it holds an IPv4-mapped address, and its
network device is in the worker's own namespace.
"""

from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from pathlib import Path

SYSFS = Path("/sys/class/infiniband")


@dataclass(frozen=True, slots=True)
class Gid:
    """One usable entry of an RDMA device's GID table."""

    device: str
    port: int
    index: int
    address: IPv4Address
    interface: str


def gids(root: Path = SYSFS) -> list[Gid]:
    """The RoCEv2 GIDs with an IPv4 address under ``root``; empty without RDMA devices."""
    usable = []
    for table in sorted(root.glob("*/ports/*/gids")):
        port = table.parent
        for entry in table.iterdir():
            gid = _gid(port, entry)
            if gid is not None:
                usable.append(gid)
    return sorted(usable, key=lambda g: (g.device, g.port, g.index))


def gid_of(interface: str, address: IPv4Address, root: Path = SYSFS) -> Gid | None:
    """The GID of that interface and address, or ``None``."""
    matching = (g for g in gids(root) if (g.interface, g.address) == (interface, address))
    return next(matching, None)


def _gid(port: Path, entry: Path) -> Gid | None:
    kind = _read(port / "gid_attrs" / "types" / entry.name)
    interface = _read(port / "gid_attrs" / "ndevs" / entry.name)
    text = _read(entry)
    if kind not in ("RoCE v2", "RoCE V2") or not interface or not text:
        return None
    try:
        mapped = IPv6Address(text).ipv4_mapped
    except AddressValueError:
        return None
    if mapped is None:
        return None
    return Gid(port.parent.parent.name, int(port.name), int(entry.name), mapped, interface)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):  # the kernel answers EINVAL for an empty slot
        return None
