"""Settings of a NIC beyond rtnetlink: checksum offload, link state and counters (ethtool), DCB.

A veth leaves a TCP checksum for "the hardware". A kernel bridge carries that promise along;
a userspace Open vSwitch reads the frame as it is and its receiver drops it: ping works, TCP
hangs. Off at the NIC, every frame is complete from the start. Interfaces are those of the
calling thread's network namespace.
"""

import array
import errno
import fcntl
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux.netlink import KernelRefused, Netlink, Request, attribute, attributes

_SIOCETHTOOL = 0x8946
_GET_LINK, _GET_TX_CHECKSUM, _SET_TX_CHECKSUM = 0x0A, 0x16, 0x17
_GET_NAMES, _GET_VALUES, _GET_COUNT = 0x1B, 0x1D, 0x37
_STATISTICS, _NAME_BYTES = 1, 32


class OffloadNotSet(PatchlightError):
    """An interface's checksum offload could not be read, or is not as it was set."""


def tx_checksum(interface: str) -> bool | None:
    """Whether the NIC completes checksums; ``None`` where its driver cannot tell."""
    try:
        return bool(_ethtool(interface, _GET_TX_CHECKSUM, 0))
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return None
        raise OffloadNotSet(
            f"reading the tx checksum offload of {interface}: {error.strerror}"
        ) from error


def set_tx_checksum(interface: str, on: bool) -> None:
    """Have the NIC complete checksums, or the kernel itself; ``OffloadNotSet`` if it stays."""
    doing = f"turning the tx checksum offload of {interface} {'on' if on else 'off'}"
    try:
        _ethtool(interface, _SET_TX_CHECKSUM, int(on))
    except OSError as error:
        raise OffloadNotSet(f"{doing}: {error.strerror}") from error
    if tx_checksum(interface) is not on:
        hint = None if on else "TCP would hang on a userspace switch."
        raise OffloadNotSet(f"{doing}: it is not when read back", hint=hint)


def settle_link(interface: str) -> bool:
    """Have the kernel act on the interface's carrier now; whether it has one.

    The kernel notes that a link came up and acts on it (opens its queue, lets a bridge port
    forward) later, in lots of a hundred a second. Asking for the link state makes it act at once.
    """
    return bool(_ethtool(interface, _GET_LINK, 0))


def pause_frames(interface: str) -> dict[str, int]:
    """What the driver counts of pause frames, sent and received, by its own names for them."""
    try:
        count = _ask(interface, struct.pack("=IIQI", _GET_COUNT, 0, 1 << _STATISTICS, 0))
        (counters,) = struct.unpack_from("=I", count, 16)
        room = bytes(counters * _NAME_BYTES)
        names = _ask(interface, struct.pack("=III", _GET_NAMES, _STATISTICS, counters) + room)
        values = _ask(interface, struct.pack("=II", _GET_VALUES, counters) + bytes(8 * counters))
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return {}
        raise
    found = {}
    for number in range(counters):
        start = 12 + number * _NAME_BYTES
        name = names[start : start + _NAME_BYTES].partition(b"\0")[0].decode("ascii", "replace")
        if "pause" in name:
            (found[name],) = struct.unpack_from("=Q", values, 8 + 8 * number)
    return found


def _ethtool(interface: str, command: int, value: int) -> int:
    (result,) = struct.unpack_from("=I", _ask(interface, struct.pack("=II", command, value)), 4)
    return int(result)


def _ask(interface: str, question: bytes) -> bytes:
    """What the driver makes of the question: an answer of the same length."""
    data = array.array("B", question)
    request = struct.pack("16sP", interface.encode(), data.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCETHTOOL, request)
    return data.tobytes()


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
