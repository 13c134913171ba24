"""Runs one node of the distributed path protocol over UDP on the control network.

The state machine is in ``patchlight.testbed.paths.agreement``; this module adds the clock, the
socket and the transmitter. The clock is the kernel's monotonic one. Attempt numbers start at the
Unix time in microseconds, which must not run backwards across a restart.
"""

import asyncio
import contextlib
import hashlib
import hmac
import logging
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, get_args

from patchlight.testbed.errors import BadInput, PatchlightError, reason
from patchlight.testbed.linux.sockets import split_address
from patchlight.testbed.paths.agreement import (
    Asking,
    Bounds,
    Kind,
    Lit,
    Message,
    Node,
    Step,
)

_KINDS: tuple[Kind, ...] = get_args(Kind)
_FORMAT = struct.Struct("!4sBIHHQ?i")
_MAGIC = b"PLP1"
_SIGNATURE_BYTES = 16
KEY_BYTES = 32


def packed(message: Message, key: bytes) -> bytes:
    """Encode the datagram: 26 bytes and a signature of 16 (keyed BLAKE2s)."""
    kind = _KINDS.index(message.kind)
    body = _FORMAT.pack(_MAGIC, kind, *message[1:])
    return body + _signature(body, key)


def unpacked(datagram: bytes, key: bytes) -> Message | None:
    """The decoded message; ``None`` if it is malformed or its signature is wrong."""
    body = datagram[: _FORMAT.size]
    signature = datagram[_FORMAT.size :]
    if len(body) < _FORMAT.size or not hmac.compare_digest(
        signature, _signature(body, key)
    ):
        return None
    magic, kind, epoch, sender, to, attempt, receiver, channel = (
        _FORMAT.unpack(body)
    )
    if magic != _MAGIC or kind >= len(_KINDS):
        return None
    return Message(
        _KINDS[kind],
        epoch,
        sender,
        to,
        attempt,
        receiver,
        channel,
    )


def _signature(body: bytes, key: bytes) -> bytes:
    return hashlib.blake2s(
        body,
        digest_size=_SIGNATURE_BYTES,
        key=key,
    ).digest()


_log = logging.getLogger(__name__)
_DATAGRAM_BYTES = 64
_AT_ONCE = 64
Address = str | tuple[str, int]
"""Bind a Unix or UDP socket."""


class LitPath(NamedTuple):
    """A path that may be used until ``until_s`` (``time.monotonic``); ``channel`` is ``NO_CHANNEL``
    if the destination determines it."""

    destination: int
    channel: int
    until_s: float


class PathNotGranted(PatchlightError):
    """No path was granted in time."""


class PathNode:
    """Requests paths for what this node sends and grants paths for what it receives. ``addresses``:
    ``host:port`` or ``unix:PATH`` of all nodes, by number. ``light`` is called with the path to
    transmit on, or with ``None`` to switch off. The transmitter must also switch off by itself at
    ``until_s``, because this process may be late or dead. ``quiet_us``: how long no path is granted
    after paths under other bounds."""

    def __init__(
        self,
        number: int,
        bounds: Bounds,
        addresses: Sequence[str],
        key: bytes,
        light: Callable[[LitPath | None], None],
        retry_s: float = 0.01,
        quiet_us: int = 0,
    ) -> None:
        if len(addresses) != bounds.nodes or len(key) != KEY_BYTES:
            raise BadInput(
                f"got {len(addresses)} addresses and a key of {len(key)} bytes for "
                f"{bounds.nodes} nodes: expected one address each and {KEY_BYTES} bytes"
            )
        self._number = number
        self._addresses: list[Address] = [
            text.removeprefix("unix:")
            if text.startswith("unix:")
            else split_address(text)
            for text in addresses
        ]
        self._key = key
        self._light = light
        self._retry_s = retry_s
        started = Node.started(number, bounds, time.time_ns() // 1000)
        self._node = replace(started, quiet_us=max(started.quiet_us, quiet_us))
        self._us = _now_us()
        self._lit: LitPath | None = None
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._over: set[int] = set()
        self._heard = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._socket: socket.socket | None = None
        light(None)

    @property
    def ready_s(self) -> float:
        """How long the node still grants no path, because earlier grants may be in use."""
        self._elapse()
        return self._node.quiet_us / 1e6

    @property
    def doing(self) -> Asking | Lit | None:
        """The path that it requests or has; ``None`` for neither."""
        self._elapse()
        return self._node.path

    def open(self) -> None:
        """Bind the node's address; ``PatchlightError`` if that fails."""
        address = self._addresses[self._number]
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_DGRAM)
        listening.setblocking(False)
        try:
            if isinstance(
                address, str
            ):  # A killed process leaves its socket behind.
                Path(address).unlink(missing_ok=True)
            listening.bind(address)
        except OSError as error:
            listening.close()
            raise PatchlightError(
                f"listening at {address}: {error.strerror}"
            ) from error
        self._socket = listening
        asyncio.get_running_loop().add_reader(listening, self._read)
        self._set_timer()

    def close(self) -> None:
        """Switch the transmitter off and close the socket."""
        if self._socket is None:
            return
        self._elapse()
        self._take(self._node.done())
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        if isinstance(address := self._addresses[self._number], str):
            Path(address).unlink(missing_ok=True)
        if self._timer is not None:
            self._timer.cancel()

    @asynccontextmanager
    async def path(
        self, destination: int, patience_s: float = 10.0
    ) -> AsyncIterator[LitPath]:
        """A path, valid until it is ended or its lease expires. Flows of one node take turns.
        ``PathNotGranted`` if none is granted in time."""
        async with self._turn:
            try:
                try:
                    # Unlike ``wait_for``, which in Python 3.11 may lose the cancellation.
                    async with asyncio.timeout(patience_s):
                        path = await self._granted(destination)
                except TimeoutError as error:
                    raise PathNotGranted(
                        f"node {self._number} got no path to node {destination} in "
                        f"{patience_s:g} s",
                        hint="check that node's agent and the network between the two",
                    ) from error
                yield path
            finally:
                self._elapse()
                self._take(self._node.done())

    async def drained(self, before: int, patience_s: float) -> None:
        """Wait until the node ``before``, which sends to this one, needs no more acknowledgements
        or has released its path, and tell the receiver the same. Always returns in time."""
        ends_s = time.monotonic() + patience_s
        while isinstance(path := self.doing, Lit):
            word = Message(
                "drained",
                self._node.bounds.epoch,
                self._number,
                path.destination,
                0,
            )
            self._send(
                packed(word, self._key), self._addresses[path.destination]
            )
            left_s = ends_s - time.monotonic()
            if before in self._over or left_s <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(self._retry_s, left_s)):
                    await self._heard.wait()

    async def _granted(self, destination: int) -> LitPath:
        self._elapse()
        self._take(self._node.want(destination))
        while self._lit is None:
            if (
                self._node.path is None
            ):  # the bounds changed, or this process overslept the grant
                self._take(self._node.want(destination))
            try:
                async with asyncio.timeout(self._retry_s):
                    await self._changed.wait()
            except TimeoutError:
                self._elapse()
                if isinstance(self._node.path, Asking):
                    self._take(self._node.again())
        return self._lit

    def _read(self) -> None:
        assert self._socket is not None
        self._elapse()
        for _ in range(_AT_ONCE):
            try:
                datagram = self._socket.recv(_DATAGRAM_BYTES)
            except BlockingIOError:
                return
            except OSError as error:  # ICMP error from a closed port
                _log.debug("reading a datagram: %s", reason(error))
                continue
            message = unpacked(datagram, self._key)
            if message is None or message.to != self._number:
                continue
            if message.sender == self._number or message.sender >= len(
                self._addresses
            ):
                continue
            is_mine = message.epoch == self._node.bounds.epoch
            if is_mine and message.kind in ("drained", "release"):
                self._over.add(message.sender)
                self._heard.set()
                self._heard = asyncio.Event()
            self._take(self._node.hear(message))

    def _elapse(self) -> None:
        now_us = _now_us()
        passed_us = now_us - self._us
        self._us = now_us
        if passed_us:
            self._take(self._node.elapse(passed_us))

    def _take(self, step: Step) -> None:
        self._node, messages = step
        path = self._node.path
        is_lit = isinstance(path, Lit)
        if is_lit != (self._lit is not None):
            self._lit = None
            if isinstance(path, Lit):
                until_s = (self._us + path.left_us) / 1e6
                self._lit = LitPath(path.destination, path.channel, until_s)
                self._over.clear()
            self._light(self._lit)
            self._changed.set()
            self._changed = asyncio.Event()
        for message in messages:
            self._send(packed(message, self._key), self._addresses[message.to])
        self._set_timer()

    def _send(self, datagram: bytes, address: Address) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(datagram, address)
        except OSError as error:
            # Treated as a lost datagram: the request is repeated, or the lease expires.
            _log.debug("sending to %s: %s", address, reason(error))

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        node = self._node
        ends_us = [hold.left_us for hold in node.given] if node.waiting else []
        if isinstance(node.path, Lit):
            ends_us.append(node.path.left_us)
        if node.quiet_us:
            ends_us.append(node.quiet_us)
        if ends_us and self._socket is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(
                max(1, min(ends_us)) / 1e6, self._elapse
            )


def _now_us() -> int:
    return time.monotonic_ns() // 1000
