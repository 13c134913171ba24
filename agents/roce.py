"""A NIC's RDMA device, and which RoCEv2 GID a worker's RDMA traffic has to use.

The index of a GID differs between hosts and namespaces, and a port that was dark may have its table
anew: so it is looked up for each NIC, again after each change of its light, and never set for
all. A GID is usable if its type is RoCE v2, it holds an IPv4-mapped address, and its
network device is in the worker's own namespace. ``root`` is the ``/sys`` of that namespace.
"""

from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from pathlib import Path

from patchlight.testbed.wire.worker_api import GidStatus

SYSFS = Path("/sys")
_CLASS = Path("class/infiniband")
_RDMA_CM = "/dev/infiniband/rdma_cm"


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """An RDMA device by its name, its port (from 1), and the files by which programs reach it."""

    name: str
    port: int = 1
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gid:
    """One usable entry of an RDMA device's GID table."""

    device: str
    port: int
    index: int
    address: IPv4Address
    interface: str

    @property
    def status(self) -> GidStatus:
        """As an agent tells it."""
        return GidStatus(
            device=self.device,
            port=self.port,
            index=self.index,
            gid=str(IPv6Address(f"::ffff:{self.address}")),
        )


def device_of(interface: str, root: Path = SYSFS) -> RdmaDevice | None:
    """The RDMA device of a network interface, if it has one.

    Both are on one PCI device; one made of software (``rxe``) names its interface itself.
    """
    nic = root / "class/net" / interface
    for device in sorted((root / _CLASS).glob("*")):
        both = [each / "device" for each in (nic, device)]
        on_same = all(each.exists() for each in both) and both[0].samefile(both[1])
        if on_same or _read(device / "parent") == interface:
            port = int(_read(nic / "dev_port") or 0) + 1
            if not (device / "ports" / str(port)).exists():
                port = 1  # a device for each port, as ConnectX-5 and later have them
            return RdmaDevice(device.name, port, _files(device.name, root))
    return None


def _files(device: str, root: Path) -> tuple[str, ...]:
    verbs = [
        f"/dev/infiniband/{each.name}"
        for each in sorted((root / "class/infiniband_verbs").glob("uverbs*"))
        if _read(each / "ibdev") == device
    ]
    return (*verbs, _RDMA_CM) if verbs else ()


def has_device(name: str, root: Path = SYSFS) -> bool:
    """Whether an RDMA device of that name is there."""
    return (root / _CLASS / name).exists()


def is_active(device: RdmaDevice, root: Path = SYSFS) -> bool:
    """Whether the device's port can send: ``4: ACTIVE`` in the kernel's words."""
    state = _read(root / _CLASS / device.name / "ports" / str(device.port) / "state")
    return state is not None and state.endswith("ACTIVE")


def gids(root: Path = SYSFS) -> list[Gid]:
    """The RoCEv2 GIDs with an IPv4 address under ``root``; empty without RDMA devices."""
    usable = []
    for table in sorted((root / _CLASS).glob("*/ports/*/gids")):
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
