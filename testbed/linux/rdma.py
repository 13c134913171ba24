"""RDMA devices over netlink: how network namespaces share them, and into which one a device goes.

They are shared by all namespaces of a machine (``shared``), or each is in one and only that
one sees it (``exclusive``). Functions work in the calling thread's namespace.
"""

import errno
import struct
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

NamespaceMode = Literal["shared", "exclusive"]

_NETLINK_RDMA = 20
_NLDEV = 5 << 10
_GET, _SET, _SYS_GET = _NLDEV | 1, _NLDEV | 2, _NLDEV | 6
_INDEX, _NAME, _NETNS_MODE, _NETNS_FD = 1, 2, 66, 68
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
        if said.get(_NAME, b"").rstrip(b"\0").decode() == name:
            return int(struct.unpack("=I", said[_INDEX])[0])
    return None


def move_body(index: int, descriptor: int) -> bytes:
    """The message that moves device ``index`` to an open namespace."""
    number = struct.Struct("=I").pack
    return attribute(_INDEX, number(index)) + attribute(_NETNS_FD, number(descriptor))
