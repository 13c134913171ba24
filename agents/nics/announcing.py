"""Announces a worker's NIC to the network, and checks that the job's other workers hear it.

A switch that learns sends frames to a NIC's old port until it receives one from the new port, or
its entry ages (300 s). Gratuitous ARP (RFC 5227) is flooded to all of them. Greetings go from one
worker's NIC to another's, like their data, but need no program that is held. They say whether the
receiver's own was heard.
"""

import asyncio
import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import IPv4Address

from patchlight.agents.nics.status import NicPlace
from patchlight.testbed.linux import namespaces

# The second EtherType for local experiments (IEEE 802); the first is that of fibre probes.
_ETHERTYPE = 0x88B6
_ETHERTYPE_ARP = 0x0806
_BROADCAST = b"\xff" * 6
# Ethernet and IPv4 addresses, their lengths, and a request.
_ARP_REQUEST = bytes.fromhex("0001080006040001")
# Reserved addresses (RFC 1112): no host answers.
_UNUSED = bytes((240,))
_MAGIC = b"patchlight-greeting\0"
_HEADER_BYTES = 14
_LEAST_BYTES = 60
_LARGEST_FRAME = 1 << 16
# Other workers begin a little later, and a port of a switch may need a moment.
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.1
_LAST_WAIT_S = 0.2
Neighbours = Mapping[str, str]
"""The addresses of a job's other workers, by MAC in lower case."""


def announce_once(place: NicPlace) -> None:
    """Announce a worker's NIC, whatever the others hear."""
    with namespaces.inside(
        place.namespace, lambda: _opened(place.inside)
    ) as line:
        _announce(line, place.address)


async def announce(
    place: NicPlace,
    neighbours: Neighbours,
    token: str,
    wait_s: float,
    mtu: int | None = None,
) -> list[str]:
    """Announce a worker's NIC, and exchange greetings of this ``token`` with all ``neighbours``.

    Returns the addresses of those that were not heard within ``wait_s``. Greetings are packets of
    ``mtu`` bytes, if given.
    """

    def opened() -> socket.socket:
        return namespaces.inside(
            place.namespace, lambda: _opened(place.inside)
        )

    with await asyncio.to_thread(opened) as line:
        greetings = _Greetings(
            line,
            neighbours,
            token,
            mtu or 0,
        )
        await greetings.exchange(place.address, wait_s)
        return sorted(
            neighbours[mac] for mac in neighbours.keys() - greetings.heard
        )


def _opened(interface: str) -> socket.socket:
    line = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        line.bind((interface, _ETHERTYPE))
        line.setblocking(False)
    except BaseException:
        line.close()
        raise
    return line


def _announce(line: socket.socket, address: IPv4Address) -> None:
    interface, _, _, _, mac = line.getsockname()
    head = _BROADCAST + mac + _ETHERTYPE_ARP.to_bytes(2, "big") + _ARP_REQUEST
    # Open vSwitch learns once a second from frames whose path it has in its cache, as after two
    # moves in 10 s. Therefore it also gets a request that it has never seen.
    for asked in (address.packed, _UNUSED + secrets.token_bytes(3)):
        frame = head + mac + address.packed + bytes(6) + asked
        with suppress(OSError):  # the NIC is down, or its queue is full
            line.sendto(
                frame.ljust(_LEAST_BYTES, b"\0"), (interface, _ETHERTYPE_ARP)
            )


class _Greetings:
    """The greetings of one worker; ``heard``: the MACs whose greetings arrived."""

    def __init__(
        self,
        line: socket.socket,
        peers: Neighbours,
        token: str,
        mtu: int,
    ) -> None:
        self._line = line
        self._peers = peers
        self._mac: bytes = line.getsockname()[4]
        self._mark = _MAGIC + token.encode() + b"\0"
        self._frame_bytes = max(_LEAST_BYTES, _HEADER_BYTES + mtu)
        self._answered: set[str] = set()
        self._is_settled = asyncio.Event()
        self.heard: set[str] = set()

    async def exchange(self, address: IPv4Address, wait_s: float) -> None:
        """Announce and greet until all have heard each other, for at most ``wait_s``."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        pause_s = _FIRST_PAUSE_S
        end = now + wait_s
        loop.add_reader(self._line, self._receive)
        try:
            while True:
                _announce(self._line, address)
                for mac in self._peers:
                    if mac not in self._answered:
                        self._greet(mac)
                if self.heard == self._peers.keys():
                    # The others may have heard this one, and their answers were lost.
                    end = min(end, now + _LAST_WAIT_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(pause_s, end - now)):
                        await self._is_settled.wait()
                now = loop.time()
                pause_s = min(1.3 * pause_s, _LONGEST_PAUSE_S)
                if now >= end or self._answered == self._peers.keys():
                    return
        finally:
            loop.remove_reader(self._line)

    def _greet(self, mac: str) -> None:
        addresses = bytes.fromhex(mac.replace(":", "")) + self._mac
        text = self._mark + (b"heard" if mac in self.heard else b"hello")
        frame = addresses + _ETHERTYPE.to_bytes(2, "big") + text
        with suppress(OSError):
            self._line.send(frame.ljust(self._frame_bytes, b"\0"))

    def _receive(self) -> None:
        while True:
            try:
                frame = self._line.recv(_LARGEST_FRAME)
            except OSError:  # nothing more, or the NIC went down
                return
            mac = frame[6:12].hex(":")
            text = frame[_HEADER_BYTES:]
            if mac not in self._peers or not text.startswith(self._mark):
                continue
            was_heard = text.removeprefix(self._mark).startswith(b"heard")
            is_new = mac not in self.heard
            self.heard.add(mac)
            if was_heard:
                self._answered.add(mac)
            if is_new or not was_heard:
                self._greet(mac)
            if self._answered == self._peers.keys():
                self._is_settled.set()
