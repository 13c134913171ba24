"""How a NIC treats priorities (IEEE 802.1Qaz, "DCB"): which may be paused, which DSCP is which."""

import errno
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from patchlight.testbed.linux.netlink import KernelRefused, Netlink, Request, attribute, attributes

_GET_DCB, _IEEE_GET = 78, 21
_IFNAME, _IEEE, _PFC, _APP_TABLE, _APP = 1, 13, 2, 3, 1
_SELECTOR_DSCP = 5
_HEADER = struct.Struct("=BBH")
_APP_ENTRY = struct.Struct("=BBH")
_ABSENT = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV)


@dataclass(frozen=True, slots=True)
class Priorities:
    """``paused``: the priorities with priority flow control (PFC); ``of_dscp``: each DSCP's."""

    paused: tuple[int, ...] = ()
    of_dscp: Mapping[int, int] = field(default_factory=dict)


def read_priorities(interface: str) -> Priorities | None:
    """Those of an interface of the calling thread's namespace; ``None`` where it knows none."""
    body = _HEADER.pack(0, _IEEE_GET, 0) + attribute(_IFNAME, interface.encode() + b"\0")
    try:
        with Netlink() as netlink:
            answers = netlink.ask(Request(_GET_DCB, 0, body, f"reading priorities of {interface}"))
    except KernelRefused as refused:
        if refused.code in _ABSENT:
            return None
        raise
    return priorities_in(answers[0][1]) if answers else None


def priorities_in(body: bytes) -> Priorities | None:
    """The same, from the kernel's answer."""
    said = dict(attributes(body[_HEADER.size :]))
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
