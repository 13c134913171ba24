"""Counts the packets of RoCE v2 among all that pass the servers' optical ports."""

import select
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Thread
from types import TracebackType
from typing import Self

from patchlight.emulation.fabric.plan import PlannedEnd
from patchlight.testbed.linux import namespaces

_ROCE_V2_PORT = 4791
_HEADERS_BYTES = 64
_ETH_P_ALL = 0x0003
_SOL_PACKET = 263
_STATISTICS = 6
_SO_RCVBUFFORCE = 33
_POLL_MS = 100
# Ethernet type, IP protocol and UDP destination port of a frame without a VLAN tag.
_FIELDS = struct.Struct("!12xH9xB12xH")
_IPV4 = 0x0800


@dataclass(
    frozen=True,
    slots=True,
)
class RoceShare:
    """IPv4 packets and bytes of frames, both ways, those of RoCE v2 among them, and frames that
    were not counted."""

    packets: int
    roce_packets: int
    bytes: int
    roce_bytes: int
    missed: int

    @property
    def of_packets(self) -> float:
        """The share of packets, 0…1."""
        return self.roce_packets / max(1, self.packets)

    @property
    def of_bytes(self) -> float:
        """The share of bytes, 0…1."""
        return self.roce_bytes / max(1, self.bytes)


class RoceMeter:
    """Counts while the block runs; ``share`` is complete after it."""

    def __init__(self, ends: Sequence[PlannedEnd]) -> None:
        self._ends = ends
        self._is_over = False
        self._thread = Thread(
            target=self._count,
            daemon=True,
        )
        self._sockets: list[socket.socket] = []
        self.share = RoceShare(
            0,
            0,
            0,
            0,
            0,
        )

    def __enter__(self) -> Self:
        for end in self._ends:
            with namespaces.entered(namespaces.namespace_path(end.namespace)):
                opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
                self._sockets.append(opened)
                opened.bind((end.name, _ETH_P_ALL))
            opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 16 << 20)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over = True
        if self._thread.ident is not None:
            self._thread.join()
        for each in self._sockets:
            each.close()

    def _count(self) -> None:
        packets = [0, 0]
        sizes = [0, 0]
        poller = select.poll()
        by_number = {each.fileno(): each for each in self._sockets}
        for number in by_number:
            poller.register(number, select.POLLIN)
        head = bytearray(_HEADERS_BYTES)
        while (ready := poller.poll(_POLL_MS)) or not self._is_over:
            for number, _ in ready:
                size = by_number[number].recv_into(head, 0, socket.MSG_TRUNC)
                kind, protocol, port = _FIELDS.unpack_from(head)
                if kind == _IPV4:
                    is_roce = (
                        protocol == socket.IPPROTO_UDP
                        and port == _ROCE_V2_PORT
                    )
                    packets[is_roce] += 1
                    sizes[is_roce] += size
        missed = 0
        for each in self._sockets:
            missed += struct.unpack(
                "=II", each.getsockopt(_SOL_PACKET, _STATISTICS, 8)
            )[1]
        self.share = RoceShare(
            sum(packets),
            packets[True],
            sum(sizes),
            sizes[True],
            missed,
        )
