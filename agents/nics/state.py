"""Describes a NIC's state, how a worker gets it, and its RDMA device; wraps rtnetlink.

A GID's index differs between hosts and namespaces and may change during an outage, so it is read
again after each change. A GID is usable if it is RoCE v2, holds an IPv4-mapped address, and its
network device is in the worker's namespace, whose ``/sys`` is ``root``.
"""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from pathlib import Path
from typing import Any, Self

from patchlight.agents.errors import NicError, NicGone
from patchlight.testbed.errors import reason
from patchlight.testbed.lab.model import Lab, Nic, NicMode, Rendezvous
from patchlight.testbed.linux import devices
from patchlight.testbed.linux.devices import NamespaceMode, NoSysfs, RdmaError
from patchlight.testbed.linux.netlink import KernelRefused
from patchlight.testbed.linux.rate_limits import LimitNotKept, SavedLimit
from patchlight.testbed.wire.worker_api import (
    GidStatus,
    SyntheticTask,
    WorkerSpec,
)

SYSFS = Path("/sys")
_CLASS = Path("class/infiniband")
_RDMA_CM = "/dev/infiniband/rdma_cm"


@dataclass(
    frozen=True,
    slots=True,
)
class RdmaDevice:
    """An RDMA device: its name, its port (from 1), and the device files that programs open;
    ``is_soft``: it is in software (``rxe``)."""

    name: str
    port: int = 1
    files: tuple[str, ...] = ()
    is_soft: bool = False


def rdma_device_of(interface: str, root: Path = SYSFS) -> RdmaDevice | None:
    """The RDMA device on the interface's PCI device, or a software device (``rxe``) on it."""
    nic = root / "class/net" / interface
    for device in sorted((root / _CLASS).glob("*")):
        both = [each / "device" for each in (nic, device)]
        on_same = all(each.exists() for each in both) and both[0].samefile(
            both[1]
        )
        is_soft = _read(device / "parent") == interface
        if on_same or is_soft:
            port = int(_read(nic / "dev_port") or 0) + 1
            if not (device / "ports" / str(port)).exists():
                port = 1  # one device per port, as with ConnectX-5 and newer
            verbs = [
                f"/dev/infiniband/{each.name}"
                for each in sorted(
                    (root / "class/infiniband_verbs").glob("uverbs*")
                )
                if _read(each / "ibdev") == device.name
            ]
            return RdmaDevice(
                device.name,
                port,
                (*verbs, _RDMA_CM) if verbs else (),
                is_soft,
            )
    return None


def has_rdma_device(name: str, root: Path = SYSFS) -> bool:
    """Whether an RDMA device of that name exists."""
    return (root / _CLASS / name).exists()


def is_rdma_active(device: RdmaDevice, root: Path = SYSFS) -> bool:
    """Whether the device's port is in the kernel's state ``4: ACTIVE``."""
    state = _read(
        root / _CLASS / device.name / "ports" / str(device.port) / "state"
    )
    return state is not None and state.endswith("ACTIVE")


def rdma_counters(device: RdmaDevice, root: Path = SYSFS) -> dict[str, int]:
    """The counters of a device's port, as its driver calls them."""
    folder = (
        root
        / _CLASS
        / device.name
        / "ports"
        / str(device.port)
        / "hw_counters"
    )
    found = {each.name: _read(each) for each in sorted(folder.glob("*"))}
    found.pop("lifespan", None)  # how long they are cached
    return {
        name: int(text)
        for name, text in found.items()
        if text and text.isdecimal()
    }


def gid_of(
    interface: str,
    address: IPv4Address,
    root: Path = SYSFS,
) -> GidStatus | None:
    """The RoCEv2 GID of an interface and its IPv4 address, or ``None``."""
    wanted = IPv6Address(f"::ffff:{address}")
    for entry in sorted(
        (root / _CLASS).glob("*/ports/*/gids/*"),
        key=lambda each: int(each.name),
    ):
        port = entry.parents[1]
        kind = _read(port / "gid_attrs" / "types" / entry.name)
        place = _read(port / "gid_attrs" / "ndevs" / entry.name)
        if kind not in ("RoCE v2", "RoCE V2") or place != interface:
            continue
        with suppress(AddressValueError):
            if IPv6Address(_read(entry) or "") == wanted:
                device = port.parents[1].name
                index = int(entry.name)
                return GidStatus(
                    device=device,
                    port=int(port.name),
                    index=index,
                    gid=f"::ffff:{address}",
                )
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (
        OSError,
        UnicodeDecodeError,
    ):  # the kernel returns EINVAL for an empty slot
        return None


def link_local(mac: str) -> str:
    """The IPv6 link-local address that is derived from a MAC (RFC 4291, appendix A)."""
    octets = bytes.fromhex(mac.replace(":", ""))
    interface = bytes([octets[0] ^ 2]) + octets[1:3] + b"\xff\xfe" + octets[3:]
    return str(IPv6Address(b"\xfe\x80" + bytes(6) + interface))


RENDEZVOUS = "rdv0"
"""The name of a worker's second interface, if it has one."""


@dataclass(
    frozen=True,
    slots=True,
)
class FunctionState:
    """A virtual function of the interface ``port``, and its settings at the port."""

    port: str
    number: int
    mac: str = ""
    vlan: int = 0


@dataclass(
    frozen=True,
    slots=True,
)
class NicState:
    """All settings that a NIC may lose when it moves. ``interface`` is the device that moves, or
    the parent of the worker's macvlan; ``rdma`` moves too if ``rdma_moves``."""

    interface: str
    mac: str
    mtu: int
    up: bool
    addresses: tuple[tuple[str, int], ...] = ()
    neighbours: tuple[tuple[str, str], ...] = ()
    routes: tuple[dict[str, Any], ...] = ()
    shaping: SavedLimit | None = None
    tx_checksum: bool | None = None
    sysctls: Mapping[str, str] | None = None
    mode: NicMode = "physical"
    function: FunctionState | None = None
    rdma: RdmaDevice | None = None
    rdma_moves: bool = False

    @property
    def stays(self) -> bool:
        """Whether the NIC stays at home, because its RDMA device is in software."""
        return self.rdma is not None and self.rdma.is_soft


@dataclass(
    frozen=True,
    slots=True,
)
class NicAccess:
    """What a worker gets: ``interface`` or a macvlan on it, and the RDMA device; with
    ``rdma_moves`` it has that device exclusively."""

    mode: NicMode
    interface: str
    function: FunctionState | None = None
    rdma: RdmaDevice | None = None
    rdma_moves: bool = False


def access_of(
    nic: Nic,
    sys: Path,
    sharing: NamespaceMode | None,
) -> NicAccess:
    """How to give a worker the NIC, from the lab file, ``sys`` (its namespace's ``/sys``), and
    the system's RDMA sharing mode (``None``: no RDMA). ``NicError`` if the server does not
    support it."""
    interface = nic.interface or nic.name
    mode = nic.mode
    if mode == "auto":
        virtual = not (sys / "class/net" / interface / "device").exists()
        mode = (
            "veth"
            if virtual
            else "sriov"
            if _functions(interface, sys)
            else "physical"
        )
    function = None
    if mode == "sriov":
        # Free virtual functions, by number and interface: those still in this namespace.
        free = [
            (number, each.name)
            for number, folder in _functions(interface, sys)
            for each in sorted((folder / "net").glob("*"))
        ]
        if not free:
            raise NicError(
                f"{interface} has no free virtual function",
                hint=f"create some: echo 4 > /sys/class/net/{interface}/device/sriov_numvfs; load "
                "their driver",
            )
        number, given = free[0]
        function = FunctionState(interface, number)
        interface = given
    device = None if nic.rdma == "none" else rdma_device_of(interface, sys)
    if device is not None and device.is_soft:
        device = _soft(
            nic,
            mode,
            device,
            sharing,
        )
    moves = _moves(
        nic,
        mode,
        device,
        sharing,
    )
    if device is not None and mode == "macvlan" and sharing == "exclusive":
        device = (
            None  # A device can be in one namespace only: that of its NIC.
        )
    return NicAccess(
        mode,
        interface,
        function,
        device,
        moves,
    )


def _soft(
    nic: Nic,
    mode: NicMode,
    device: RdmaDevice,
    sharing: NamespaceMode | None,
) -> RdmaDevice | None:
    """A soft RoCE device if a worker can use it; ``NicError`` if the lab file says it must."""
    is_possible = (
        mode == "physical" and nic.vlan is None and sharing == "shared"
    )
    if is_possible and nic.rdma != "exclusive":
        return device
    if nic.rdma in ("exclusive", "shared"):
        raise NicError(
            f"{nic.name}: {device.name} is soft RoCE, which works in the server's own network "
            f"namespace only, but the lab file says rdma: {nic.rdma} and mode: {mode}",
            hint="use rdma: shared, mode: physical and no vlan, and 'rdma system set netns shared'",
        )
    return None


def _moves(
    nic: Nic,
    mode: NicMode,
    device: RdmaDevice | None,
    sharing: NamespaceMode | None,
) -> bool:
    """Whether the RDMA device moves to the worker; ``NicError`` if that is not possible."""
    wanted = nic.rdma
    if wanted in ("exclusive", "shared"):
        if device is None:
            raise NicError(
                f"{nic.name} has no RDMA device, and the lab file says rdma: {wanted}",
                hint="check that its driver is loaded (mlx5_ib, bnxt_re, irdma): rdma link",
            )
        if sharing != wanted:
            raise NicError(
                f"{nic.name}: the lab file says rdma: {wanted}, but RDMA devices are {sharing} on "
                "this server",
                hint=devices.HOW_TO_CHANGE,
            )
        if wanted == "exclusive" and mode == "macvlan":
            raise NicError(
                f"{nic.name}: a macvlan cannot own an RDMA device",
                hint="use mode: sriov or physical, or rdma: shared",
            )
    return device is not None and sharing == "exclusive" and mode != "macvlan"


def _functions(port: str, sys: Path) -> list[tuple[int, Path]]:
    folders = (sys / "class/net" / port / "device").glob("virtfn*")
    return sorted(
        (int(each.name.removeprefix("virtfn")), each) for each in folders
    )


@dataclass(
    frozen=True,
    slots=True,
)
class WorkerNetwork:
    """Settings for a worker's NIC: ``mac`` and ``mtu`` (``None``: unchanged), static ``neighbours``
    (address, MAC), ``routes`` (network, gateway), and the TCP window in bytes."""

    address: str
    prefix: int
    mac: str | None = None
    neighbours: tuple[tuple[str, str], ...] = ()
    mtu: int | None = None
    vlan: int | None = None
    routes: tuple[tuple[str, str], ...] = ()
    rendezvous: Rendezvous | None = None
    window_bytes: int | None = None

    @classmethod
    def of(
        cls,
        lab: Lab,
        nic: Nic,
        spec: WorkerSpec,
    ) -> Self:
        """The lab file's settings combined with the worker's needs."""
        # The trainer sets its window itself.
        is_ours = isinstance(spec.task, SyntheticTask)
        return cls(
            address=str(nic.address),
            prefix=lab.network.prefixlen,
            mac=None if nic.keeps_mac else nic.mac,
            neighbours=tuple(
                (str(each.address), each.mac) for each in spec.neighbours
            ),
            mtu=nic.mtu,
            vlan=nic.vlan,
            routes=tuple(
                (str(route.network), str(route.gateway))
                for route in nic.routes
            ),
            rendezvous=nic.rendezvous,
            window_bytes=None if is_ours else spec.task.window_bytes,
        )


def name_inside(
    interface: str,
    mode: NicMode,
    vlan: int | None,
) -> str:
    """The name of the worker's interface that has the address. Virtual functions are put into their
    VLAN by the port; others get a tagged interface."""
    return interface if vlan is None or mode == "sriov" else f"vlan{vlan}"


@contextmanager
def rtnetlink(interface: str, doing: str) -> Iterator[Any]:
    """pyroute2's ``IPRoute`` in the calling thread's namespace; errors become ``NicError``."""
    # Imported here to save 9 MiB in an idle agent.
    from pyroute2 import IPRoute, NetlinkError

    try:
        with IPRoute() as ip:
            yield ip
    except NetlinkError as exc:
        hint = "run it as root" if exc.code == errno.EPERM else None
        raise NicError(
            f"{doing} {interface}: {os.strerror(exc.code)}", hint=hint
        ) from exc
    except OSError as exc:
        raise NicError(f"{doing} {interface}: {reason(exc)}") from exc
    except (
        KernelRefused,
        LimitNotKept,
        devices.OffloadNotSet,
        RdmaError,
        NoSysfs,
    ) as exc:
        raise NicError(exc.message, hint=exc.hint) from exc


def index_of(ip: Any, interface: str) -> int:
    """The kernel's index of an interface; ``NicGone`` if this namespace lacks it."""
    indices = ip.link_lookup(ifname=interface)
    if not indices:
        raise NicGone(
            f"interface {interface} not found in this network namespace",
            hint="if the interface differs from the NIC's name, set 'interface:' in the lab file",
        )
    return int(indices[0])


@contextmanager
def allowing(*codes: int) -> Iterator[None]:
    """Ignore kernel errors with these ``errno``: the state is already the wanted one."""
    from pyroute2 import NetlinkError

    try:
        yield
    except NetlinkError as exc:
        if exc.code not in codes:
            raise
