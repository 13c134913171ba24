"""Two things that only the ethtool call does: checksum offload off, and link state now.

A veth leaves a TCP checksum for "the hardware". A kernel bridge carries that promise along;
a userspace Open vSwitch reads the frame as it is and its receiver drops it: ping works, TCP
hangs. Off at the NIC, every frame is complete from the start.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct

from patchlight.testbed.errors import PatchlightError

_SIOCETHTOOL = 0x8946
_GET_LINK, _GET_TX_CHECKSUM, _SET_TX_CHECKSUM = 0x0A, 0x16, 0x17


class OffloadNotSet(PatchlightError):
    """An interface would not give up its checksum offload."""


def turn_off_tx_checksum(name: str) -> None:
    """Have the kernel itself complete checksums on this interface of the thread's namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        try:
            _ethtool(control, name, _SET_TX_CHECKSUM, 0)
            still_on = _ethtool(control, name, _GET_TX_CHECKSUM, 0)
        except OSError as error:
            raise OffloadNotSet(
                f"turning off tx checksum offload of {name}: {error.strerror}"
            ) from error
    if still_on:
        raise OffloadNotSet(
            f"turning off tx checksum offload of {name}: it is still on when read back, and TCP "
            "would hang on the userspace switch"
        )


def settle_link(name: str) -> bool:
    """Have the kernel act on the interface's carrier now; whether it has one.

    The kernel notes that a link came up and acts on it (opens its queue, lets a bridge port
    forward) later, in lots of a hundred a second. Asking for the link state makes it act at once.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        return bool(_ethtool(control, name, _GET_LINK, 0))


def _ethtool(control: socket.socket, name: str, command: int, value: int) -> int:
    data = array.array("I", [command, value])
    address, _ = data.buffer_info()
    fcntl.ioctl(control, _SIOCETHTOOL, struct.pack("=16sQ", name.encode(), address))
    return data[1]
