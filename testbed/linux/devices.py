"""Reads devices from the kernel: ``/sys``, link counters, ethtool, RDMA. A sysfs shows the network
devices of the namespace in which it was mounted."""

import array
import ctypes
import errno
import fcntl
import itertools
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Literal

from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux import netlink as rtnetlink
from patchlight.testbed.linux.netlink import (
    KernelRefused,
    Netlink,
    Request,
    attribute,
    attributes,
)

# Equal on all architectures: these numbers were added after unification.
_FSOPEN = 430
_FSCONFIG = 431
_FSMOUNT = 432
_CLOEXEC = 1
_CREATE = 6
_libc = ctypes.CDLL(None, use_errno=True)


class NoSysfs(PatchlightError):
    """A namespace's sysfs could not be read."""


@contextmanager
def sysfs() -> Iterator[Path]:
    """Mount the ``/sys`` of the calling thread's namespace for the block; returns its path."""
    opened = _call(_FSOPEN, b"sysfs", _CLOEXEC)
    try:
        _call(
            _FSCONFIG,
            opened,
            _CREATE,
            None,
            None,
            0,
        )
        mounted = _call(
            _FSMOUNT,
            opened,
            _CLOEXEC,
            0,
        )
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
        hint = (
            "run it as root"
            if code == errno.EPERM
            else "Linux 5.2 or newer is needed"
        )
        raise NoSysfs(
            f"reading the /sys of a network namespace: {os.strerror(code)}",
            hint=hint,
        )
    return result


class Distance(IntEnum):
    """How close two devices are, nearest first."""

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
    path: Sequence[str],
    node: int | None,
    other: Sequence[str],
    other_node: int | None,
) -> Distance | None:
    """From their common ancestors in ``/sys/devices`` (folders, root first, device last) and NUMA
    nodes; ``None`` if unknown."""
    above = zip(path[:-1], other[:-1], strict=False)
    shared = len(
        list(itertools.takewhile(lambda pair: pair[0] == pair[1], above))
    )
    if shared > 1:
        return Distance.SWITCH
    known = node is not None and other_node is not None
    if known and node != other_node:
        return Distance.FAR
    if shared:
        return Distance.ROOT
    return Distance.NODE if known else None


_RTM_GETLINK = 18
_IFINFOMSG = struct.Struct("=BxHiII")
_ADDRESS = 1
_NAME = 3
_MTU = 4
_STATS = 23
_CARRIER = 33
_CARRIER_CHANGES = 35
_COUNTERS = struct.Struct("=8Q")


@dataclass(
    frozen=True,
    slots=True,
)
class LinkReading:
    """An interface and its counters since it was created. ``carrier_changes`` counts ups and downs,
    so short outages between two readings show."""

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
    body = _IFINFOMSG.pack(
        0,
        0,
        0,
        0,
        0,
    ) + attribute(_NAME, interface.encode() + b"\0")
    with Netlink() as netlink:
        ((_, answer),) = netlink.ask(
            Request(
                _RTM_GETLINK,
                0,
                body,
                f"reading {interface}",
            )
        )
    said = dict(attributes(answer[_IFINFOMSG.size :]))
    number = struct.Struct("=I").unpack
    return LinkReading(
        said[_ADDRESS].hex(":"),
        number(said[_MTU])[0],
        bool(said[_CARRIER][0]),
        number(said[_CARRIER_CHANGES])[0],
        *_COUNTERS.unpack_from(said[_STATS]),
    )


# RDMA devices are shared by all namespaces (``shared``), or each is visible in one only
# (``exclusive``). Functions work in the calling thread's namespace.

NamespaceMode = Literal["shared", "exclusive"]

_NETLINK_RDMA = 20
_NLDEV = 5 << 10
_GET = _NLDEV | 1
_SET = _NLDEV | 2
_SYS_GET = _NLDEV | 6
_INDEX = 1
_DEVICE_NAME = 2
_NETNS_MODE = 66
_NETNS_FD = 68
_MODES: tuple[NamespaceMode, NamespaceMode] = ("exclusive", "shared")
HOW_TO_CHANGE = (
    "'rdma system set netns exclusive' (or shared) changes it while the machine has no other "
    "network namespace: stop all containers and workers first, or set it at boot with 'options "
    "ib_core netns_mode=0' (exclusive; 1: shared) in /etc/modprobe.d"
)


class RdmaError(PatchlightError):
    """An RDMA device does not exist or cannot be moved."""


def namespace_mode() -> NamespaceMode | None:
    """The RDMA sharing mode; ``None`` on a kernel without RDMA."""
    try:
        with Netlink(family=_NETLINK_RDMA) as netlink:
            answers = netlink.ask(
                Request(
                    _SYS_GET,
                    0,
                    b"",
                    "reading the mode of RDMA",
                )
            )
    except OSError as error:
        if error.errno in (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT):
            return None
        raise RdmaError(
            f"reading the mode of RDMA: {error.strerror}"
        ) from error
    except KernelRefused as error:
        raise RdmaError(error.message, hint=error.hint) from error
    return mode_in(answers[0][1]) if answers else "shared"


def mode_in(body: bytes) -> NamespaceMode:
    """The mode in the kernel's answer; old kernels, with one mode only, report none."""
    mode = dict(attributes(body)).get(_NETNS_MODE, b"\1")
    return _MODES[mode[0]]


def move_device(name: str, namespace: Path) -> None:
    """Move a device from this namespace to another; only in exclusive mode."""
    doing = f"moving the RDMA device {name} to {namespace}"
    try:
        with (
            Netlink(family=_NETLINK_RDMA) as netlink,
            namespace.open("rb") as opened,
        ):
            found = netlink.ask(
                Request(
                    _GET,
                    rtnetlink.F_DUMP,
                    b"",
                    doing,
                )
            )
            index = index_of(name, [body for _, body in found])
            if index is None:
                raise RdmaError(f"{doing}: device not found")
            netlink.run(
                [
                    Request(
                        _SET,
                        0,
                        move_body(index, opened.fileno()),
                        doing,
                    )
                ]
            )
    except KernelRefused as error:
        hint = HOW_TO_CHANGE if error.code == errno.EOPNOTSUPP else error.hint
        raise RdmaError(error.message, hint=hint) from error
    except OSError as error:
        raise RdmaError(f"{doing}: {error.strerror}") from error


def index_of(name: str, bodies: list[bytes]) -> int | None:
    """The index of the device of that name in the kernel's list."""
    for body in bodies:
        said = dict(attributes(body))
        if said.get(_DEVICE_NAME, b"").rstrip(b"\0").decode() == name:
            return int(struct.unpack("=I", said[_INDEX])[0])
    return None


def move_body(index: int, descriptor: int) -> bytes:
    """The message that moves device ``index`` to an open namespace."""
    number = struct.Struct("=I").pack
    return attribute(_INDEX, number(index)) + attribute(
        _NETNS_FD, number(descriptor)
    )


_SIOCETHTOOL = 0x8946
_GET_LINK = 0x0A
_GET_TX_CHECKSUM = 0x16
_SET_TX_CHECKSUM = 0x17
_GET_NAMES = 0x1B
_GET_VALUES = 0x1D
_GET_COUNT = 0x37
_STATISTICS = 1
_NAME_BYTES = 32


class OffloadNotSet(PatchlightError):
    """An interface's checksum offload could not be read or set."""


def tx_checksum(interface: str) -> bool | None:
    """Whether the NIC computes checksums; ``None`` if its driver does not report it."""
    try:
        return bool(_ethtool(interface, _GET_TX_CHECKSUM, 0))
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return None
        raise OffloadNotSet(
            f"reading the tx checksum offload of {interface}: {error.strerror}"
        ) from error


def set_tx_checksum(interface: str, on: bool) -> None:
    """Let the NIC or the kernel compute checksums; ``OffloadNotSet`` if that fails. A veth and a
    kernel bridge leave TCP checksums to the hardware; a userspace Open vSwitch forwards such frames
    unchanged, and the receiver drops them: ping works, TCP hangs."""
    doing = f"turning the tx checksum offload of {interface} {'on' if on else 'off'}"
    try:
        _ethtool(interface, _SET_TX_CHECKSUM, int(on))
    except OSError as error:
        raise OffloadNotSet(f"{doing}: {error.strerror}") from error
    if tx_checksum(interface) is not on:
        hint = None if on else "TCP would hang on a userspace switch."
        raise OffloadNotSet(f"{doing}: the setting did not change", hint=hint)


def settle_link(interface: str) -> bool:
    """Whether the interface has a carrier. The kernel handles link changes in batches; this query
    makes it handle this one now."""
    return bool(_ethtool(interface, _GET_LINK, 0))


def pause_frames(interface: str) -> dict[str, int]:
    """The driver's counters of pause frames, sent and received, by its names."""
    try:
        count = _ask(
            interface,
            struct.pack(
                "=IIQI",
                _GET_COUNT,
                0,
                1 << _STATISTICS,
                0,
            ),
        )
        (counters,) = struct.unpack_from("=I", count, 16)
        room = bytes(counters * _NAME_BYTES)
        names = _ask(
            interface,
            struct.pack(
                "=III",
                _GET_NAMES,
                _STATISTICS,
                counters,
            )
            + room,
        )
        values = _ask(
            interface,
            struct.pack("=II", _GET_VALUES, counters) + bytes(8 * counters),
        )
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return {}
        raise
    found = {}
    for number in range(counters):
        start = 12 + number * _NAME_BYTES
        name = (
            names[start : start + _NAME_BYTES]
            .partition(b"\0")[0]
            .decode("ascii", "replace")
        )
        if "pause" in name:
            (found[name],) = struct.unpack_from("=Q", values, 8 + 8 * number)
    return found


def _ethtool(
    interface: str,
    command: int,
    value: int,
) -> int:
    (result,) = struct.unpack_from(
        "=I", _ask(interface, struct.pack("=II", command, value)), 4
    )
    return int(result)


def _ask(interface: str, question: bytes) -> bytes:
    """The driver's answer, of the same length as the question."""
    data = array.array("B", question)
    request = struct.pack("16sP", interface.encode(), data.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCETHTOOL, request)
    return data.tobytes()


_GET_DCB = 78
_IEEE_GET = 21
_IFNAME = 1
_IEEE = 13
_PFC = 2
_APP_TABLE = 3
_APP = 1
_SELECTOR_DSCP = 5
_DCBMSG = struct.Struct("=BBH")
_APP_ENTRY = struct.Struct("=BBH")
_ABSENT = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV)


@dataclass(
    frozen=True,
    slots=True,
)
class Priorities:
    """``paused``: the priorities with priority flow control (PFC); ``of_dscp``: each DSCP's."""

    paused: tuple[int, ...] = ()
    of_dscp: Mapping[int, int] = field(default_factory=dict)


def read_priorities(interface: str) -> Priorities | None:
    """The priorities of an interface of the calling thread's namespace; ``None`` if it has none."""
    body = _DCBMSG.pack(0, _IEEE_GET, 0) + attribute(
        _IFNAME, interface.encode() + b"\0"
    )
    try:
        with Netlink() as netlink:
            answers = netlink.ask(
                Request(
                    _GET_DCB,
                    0,
                    body,
                    f"reading priorities of {interface}",
                )
            )
    except KernelRefused as refused:
        if refused.code in _ABSENT:
            return None
        raise
    return priorities_in(answers[0][1]) if answers else None


def priorities_in(body: bytes) -> Priorities | None:
    """The priorities in the kernel's answer."""
    said = dict(attributes(body[_DCBMSG.size :]))
    if _IEEE not in said:
        return None
    ieee = dict(attributes(said[_IEEE]))
    enabled = ieee[_PFC][1] if len(ieee.get(_PFC, b"")) > 1 else 0
    of_dscp = {}
    for kind, entry in attributes(ieee.get(_APP_TABLE, b"")):
        if kind == _APP:
            selector, priority, protocol = _APP_ENTRY.unpack_from(entry)
            if selector == _SELECTOR_DSCP:
                of_dscp[protocol] = priority
    return Priorities(tuple(p for p in range(8) if enabled >> p & 1), of_dscp)
