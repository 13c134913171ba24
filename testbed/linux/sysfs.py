"""What the kernel shows of devices: ``/sys`` of a network namespace, PCI distances, link counters.

Interfaces and RDMA devices are shown by the namespace that a sysfs was mounted in. One is mounted
here for the calling thread's namespace, and nowhere else visible.
"""

import ctypes
import errno
import itertools
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Literal

from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux.netlink import (
    F_ACK,
    F_DUMP,
    KernelRefused,
    Netlink,
    Request,
    attribute,
    attributes,
)

# The same numbers on every architecture that got them after they were unified.
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CLOEXEC, _CREATE = 1, 6
_libc = ctypes.CDLL(None, use_errno=True)


class NoSysfs(PatchlightError):
    """A namespace's sysfs could not be read."""


@contextmanager
def sysfs() -> Iterator[Path]:
    """Where the calling thread's namespace has its ``/sys``, for the length of the block."""
    opened = _call(_FSOPEN, b"sysfs", _CLOEXEC)
    try:
        _call(_FSCONFIG, opened, _CREATE, None, None, 0)
        mounted = _call(_FSMOUNT, opened, _CLOEXEC, 0)
    finally:
        os.close(opened)
    try:
        yield Path(f"/proc/self/fd/{mounted}")
    finally:
        os.close(mounted)


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        hint = "run it as root" if code == errno.EPERM else "Linux 5.2 or newer is needed"
        raise NoSysfs(f"reading the /sys of a network namespace: {os.strerror(code)}", hint=hint)
    return result


class Distance(IntEnum):
    """From one device to another, the nearest first."""

    SWITCH = 0
    ROOT = 1
    NODE = 2
    FAR = 3

    @property
    def in_words(self) -> str:
        """As part of a sentence."""
        return (
            "under one PCIe switch",
            "under one PCIe root",
            "at one NUMA node",
            "at different NUMA nodes",
        )[self]


def distance(
    path: Sequence[str], node: int | None, other: Sequence[str], other_node: int | None
) -> Distance | None:
    """By what is above both; ``None`` where the machine does not say.

    ``path``: the folders in ``/sys/devices``, the bus's root first and the device last; ``node`` is
    the NUMA node.
    """
    above = zip(path[:-1], other[:-1], strict=False)
    shared = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], above)))
    if shared > 1:
        return Distance.SWITCH
    known = node is not None and other_node is not None
    if known and node != other_node:
        return Distance.FAR
    if shared:
        return Distance.ROOT
    return Distance.NODE if known else None


_GET_LINK = 18
_HEADER = struct.Struct("=BxHiII")
_ADDRESS, _NAME, _MTU, _STATS, _CARRIER, _CARRIER_CHANGES = 1, 3, 4, 23, 33, 35
_COUNTERS = struct.Struct("=8Q")


@dataclass(frozen=True, slots=True)
class LinkReading:
    """An interface now, and its counters since it was made.

    ``carrier_changes`` counts ups and downs: one that was down between two looks shows.
    """

    mac: str
    mtu: int
    carrier: bool
    carrier_changes: int
    rx_packets: int = 0
    tx_packets: int = 0
    rx_bytes: int = 0
    tx_bytes: int = 0
    rx_errors: int = 0
    tx_errors: int = 0
    rx_dropped: int = 0
    tx_dropped: int = 0


def read_link(interface: str) -> LinkReading:
    """An interface of the calling thread's namespace; ``KernelRefused`` (ENODEV) if it is gone."""
    body = _HEADER.pack(0, 0, 0, 0, 0) + attribute(_NAME, interface.encode() + b"\0")
    with Netlink() as netlink:
        ((_, answer),) = netlink.ask(Request(_GET_LINK, 0, body, f"reading {interface}"))
    said = dict(attributes(answer[_HEADER.size :]))
    number = struct.Struct("=I").unpack
    return LinkReading(
        said[_ADDRESS].hex(":"),
        number(said[_MTU])[0],
        bool(said[_CARRIER][0]),
        number(said[_CARRIER_CHANGES])[0],
        *_COUNTERS.unpack_from(said[_STATS]),
    )


# They are shared by all namespaces of a machine (``shared``), or each is in one and only that
# one sees it (``exclusive``). Functions work in the calling thread's namespace.

NamespaceMode = Literal["shared", "exclusive"]

_NETLINK_RDMA = 20
_NLDEV = 5 << 10
_GET, _SET, _SYS_GET = _NLDEV | 1, _NLDEV | 2, _NLDEV | 6
_INDEX, _DEVICE_NAME, _NETNS_MODE, _NETNS_FD = 1, 2, 66, 68
_MODES: tuple[NamespaceMode, NamespaceMode] = ("exclusive", "shared")
HOW_TO_CHANGE = (
    "'rdma system set netns exclusive' (or shared) changes it, but only while the machine has no "
    "other network namespace: stop all containers and workers first, or have it so from boot on: "
    "'options ib_core netns_mode=0' (exclusive; 1: shared) in a file of /etc/modprobe.d"
)


class RdmaError(PatchlightError):
    """An RDMA device is not there, or cannot go where it should."""


def namespace_mode() -> NamespaceMode | None:
    """How namespaces share RDMA devices; ``None`` on a kernel without RDMA."""
    try:
        with Netlink(family=_NETLINK_RDMA) as netlink:
            answers = netlink.ask(Request(_SYS_GET, 0, b"", "reading the mode of RDMA"))
    except OSError as error:
        if error.errno in (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT):
            return None
        raise RdmaError(f"reading the mode of RDMA: {error.strerror}") from error
    except KernelRefused as error:
        raise RdmaError(error.message, hint=error.hint) from error
    return mode_in(answers[0][1]) if answers else "shared"


def mode_in(body: bytes) -> NamespaceMode:
    """The mode in the kernel's answer; one of before there were two says nothing of it."""
    mode = dict(attributes(body)).get(_NETNS_MODE, b"\1")
    return _MODES[mode[0]]


def move_device(name: str, namespace: Path) -> None:
    """Move a device from here to another namespace; only in the exclusive mode."""
    doing = f"moving the RDMA device {name} to {namespace}"
    try:
        with Netlink(family=_NETLINK_RDMA) as netlink, namespace.open("rb") as opened:
            found = netlink.ask(Request(_GET, F_DUMP, b"", doing))
            index = index_of(name, [body for _, body in found])
            if index is None:
                raise RdmaError(f"{doing}: there is none of that name")
            netlink.run([Request(_SET, F_ACK, move_body(index, opened.fileno()), doing)])
    except KernelRefused as error:
        hint = HOW_TO_CHANGE if error.code == errno.EOPNOTSUPP else error.hint
        raise RdmaError(error.message, hint=hint) from error
    except OSError as error:
        raise RdmaError(f"{doing}: {error.strerror}") from error


def index_of(name: str, bodies: list[bytes]) -> int | None:
    """The number of the device of that name, in what the kernel said of each."""
    for body in bodies:
        said = dict(attributes(body))
        if said.get(_DEVICE_NAME, b"").rstrip(b"\0").decode() == name:
            return int(struct.unpack("=I", said[_INDEX])[0])
    return None


def move_body(index: int, descriptor: int) -> bytes:
    """The message that moves device ``index`` to an open namespace."""
    number = struct.Struct("=I").pack
    return attribute(_INDEX, number(index)) + attribute(_NETNS_FD, number(descriptor))
