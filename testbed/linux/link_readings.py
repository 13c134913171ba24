"""What the kernel says of an interface: its carrier, its MAC and MTU, what it has counted."""

import struct
from dataclasses import dataclass

from patchlight.testbed.linux.netlink import Netlink, Request, attribute, attributes

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
