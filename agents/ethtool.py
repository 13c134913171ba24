"""A NIC's transmit checksum offload, through the ethtool ioctl.

Userspace packet switches need it off on virtual NICs: they drop what has no checksum yet.
"""

from __future__ import annotations

import array
import errno
import fcntl
import socket
import struct

from patchlight.agents.errors import NicError

_SIOCETHTOOL = 0x8946
_GET_TX_CHECKSUM, _SET_TX_CHECKSUM = 0x16, 0x17


def tx_checksum(interface: str) -> bool | None:
    """Whether the NIC makes checksums; ``None`` where the driver cannot tell."""
    try:
        return bool(_ioctl(interface, _GET_TX_CHECKSUM, 0))
    except OSError as exc:
        if exc.errno == errno.EOPNOTSUPP:
            return None
        raise NicError(f"reading the checksum offload of {interface}: {exc.strerror}") from exc


def set_tx_checksum(interface: str, on: bool) -> None:
    """Switch it; ``NicError`` if the NIC does not obey."""
    try:
        _ioctl(interface, _SET_TX_CHECKSUM, int(on))
    except OSError as exc:
        raise NicError(f"setting the checksum offload of {interface}: {exc.strerror}") from exc
    if tx_checksum(interface) is not on:
        raise NicError(f"setting the checksum offload of {interface}: the NIC did not take it")


def _ioctl(interface: str, command: int, value: int) -> int:
    data = array.array("B", struct.pack("II", command, value))
    request = struct.pack("16sP", interface.encode(), data.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCETHTOOL, request)
    return int(struct.unpack("II", data.tobytes())[1])
