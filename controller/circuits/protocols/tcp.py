"""Handles one TCP connection to a device: messages in, commands out, until it breaks.

Many devices behave like a telnet server: such sequences (RFC 854) are removed from the stream, and
every option is refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from patchlight.controller.circuits.contract import DeviceRefused
from patchlight.testbed.errors import PatchlightError

BUFFER_LIMIT = 3 << 18
"""Bytes of one unfinished message (or noise line) that are kept before giving up.

A flooded connection takes a quarter more memory than that, at most 1 MiB; the table of a switch of
1,000 ports takes a fifth of it.
"""

_UNASKED_PERIOD_S = 60.0

# Telnet (RFC 854).
_IAC = 255
_DONT = 254
_DO = 253
_WONT = 252
_WILL = 251
_SB = 250
_SE = 240
M = TypeVar("M")
R = TypeVar("R")
Take = Callable[[Sequence[M]], R | None]
"""What the messages since the command say; ``None`` while more is to come."""


class FramingError(PatchlightError):
    """The stream is invalid: an unfinished message exceeds the limit."""


class Hearing:
    """Counts unsolicited data: ``FramingError`` past ``BUFFER_LIMIT`` bytes a minute.

    Answers are not counted, and have the same limit.
    """

    def __init__(self) -> None:
        self.wanted = False  # whether an answer is expected
        self._bytes = self._before = 0
        self._since = time.monotonic()

    def begin(self) -> None:
        """From here on data may be an answer."""
        if not self.wanted:
            self.wanted = True
            self._before = self._bytes

    def end(self) -> None:
        """The exchange is over: its data does not count."""
        self.wanted = False
        self._bytes = min(self._bytes, self._before)

    def take(self, count: int) -> None:
        """Count received bytes."""
        if (now := time.monotonic()) - self._since > _UNASKED_PERIOD_S:
            self._since = now
            self._bytes = 0
            self._before = 0
        self._bytes += count
        if self._bytes > BUFFER_LIMIT * (1 + self.wanted):
            raise FramingError(
                f"it sent {self._bytes} bytes of unsolicited data within {_UNASKED_PERIOD_S:.0f} s"
            )


class Framer(Protocol[M]):
    """Bytes in, messages out. After a ``FramingError`` the stream is lost."""

    def feed(self, data: bytes) -> list[M]:
        """Add bytes; returns the messages that they complete."""

    def take_telnet_replies(self) -> bytes:
        """The reply to a telnet server that tried to negotiate."""

    @property
    def buffered(self) -> int:
        """Bytes that are not complete yet."""


class TelnetFilter:
    """Removes IAC sequences and NULs from a byte stream, however it is cut."""

    def __init__(self) -> None:
        self._state = "data"  # data | iac | option | sub | sub-iac
        self._verb = 0
        self._refused = set[tuple[int, int]]()
        self._replies = bytearray()

    def filter(self, data: bytes) -> bytes:
        """The bytes of ``data`` without telnet sequences."""
        out = bytearray()
        at = 0
        while at < len(data):
            # Data without special bytes is passed as a whole.
            if self._state in ("data", "sub"):
                end = data.find(_IAC, at)
                end = len(data) if end < 0 else end
                if self._state == "data":
                    out += data[at:end]
                if (at := end) == len(data):
                    break
            self._take(data[at], out)
            at += 1
        return bytes(out.replace(b"\0", b""))

    def take_replies(self) -> bytes:
        """Refusals of the options offered or requested since the last call."""
        replies = bytes(self._replies)
        self._replies.clear()
        return replies

    def _take(self, byte: int, out: bytearray) -> None:
        if self._state in (
            "data",
            "sub",
        ):  # ``filter`` stops there at IAC alone
            self._state = "iac" if self._state == "data" else "sub-iac"
        elif self._state == "iac":
            self._state = "data"
            if byte == _IAC:
                out.append(byte)
            elif byte in (_DO, _DONT, _WILL, _WONT):
                self._state = "option"
                self._verb = byte
            elif byte == _SB:
                self._state = "sub"
        elif self._state == "option":
            self._state = "data"
            refusal = {_DO: _WONT, _WILL: _DONT}.get(self._verb)
            # Once each: a server that repeats its request would never stop.
            if refusal is not None and (refusal, byte) not in self._refused:
                self._refused.add((refusal, byte))
                self._replies += bytes((_IAC, refusal, byte))
        else:
            self._state = "data" if byte == _SE else "sub"


class TelnetFramer:
    """Shared by framers of streams with telnet noise: a bounded buffer without it.

    After a ``FramingError`` the stream is lost: close the connection.
    """

    def __init__(self, limit: int = BUFFER_LIMIT) -> None:
        self._limit = limit
        self._telnet = TelnetFilter()
        self._buffer = bytearray()

    @property
    def buffered(self) -> int:
        """Bytes that are not complete yet; never more than the limit."""
        return len(self._buffer)

    def take_telnet_replies(self) -> bytes:
        """The reply to a telnet server that tried to negotiate (refusing everything)."""
        return self._telnet.take_replies()

    def _check_limit(
        self,
        held: int,
        protocol: str,
        unit: str,
    ) -> None:
        if held > self._limit:
            self._buffer.clear()
            raise FramingError(
                f"reading {protocol}: {held} bytes came without the end of a {unit}",
                hint=f"the device (or another service) does not use {protocol}; check the address "
                "and port",
            )


class LineFramer(TelnetFramer):
    """Feed it data; it returns complete lines, without their ends.

    Lines end with ``\\n`` or ``\\r\\n`` (as in IEEE 488.2 over a raw socket). ``protocol``: the
    expected protocol in errors.
    """

    def __init__(
        self, limit: int = BUFFER_LIMIT, protocol: str = "a protocol of lines"
    ) -> None:
        super().__init__(limit)
        self._protocol = protocol

    def feed(self, data: bytes) -> list[str]:
        """Add bytes; returns the lines that they complete. ``FramingError`` past the limit."""
        lines: list[str] = []
        # In slices, so that the limit holds for any amount.
        for start in range(0, len(data), 65536):
            *whole, rest = self._telnet.filter(
                data[start : start + 65536]
            ).split(b"\n")
            for piece in whole:
                self._hold(piece)
                text = self._buffer.decode("utf-8", "replace").strip()
                self._buffer.clear()
                if text:
                    lines.append(text)
            self._hold(rest)
        return lines

    def _hold(self, piece: bytes) -> None:
        self._check_limit(
            len(self._buffer) + len(piece), self._protocol, "line"
        )
        self._buffer += piece


_OUTSTANDING = "an answer is outstanding"


class ConnectionLost(Exception):
    """The connection ended; the meaning depends on the command in flight."""


class DeviceConnection(asyncio.Protocol, Generic[M]):
    """Made by ``open``, or by the event loop. ``trouble`` says why it ended, or that an answer is
    outstanding, which must not be taken for that to the next command; else it is empty.

    ``flooded``: whether it was closed because of too much data. ``ending``: the end of each
    command. An answer is parsed as it arrives, without a task in between: exchanges dominate the
    time of a change.
    """

    def __init__(
        self,
        framer: Framer[M],
        unasked: Callable[[M], bool] | None,
        ending: bytes = b"\r\n",
    ) -> None:
        self.flooded = False
        self.trouble = ""
        self._framer = framer
        self._unasked = unasked
        self._ending = ending
        self._inbox: list[M] = []
        self._hearing = Hearing()
        self._take: Take[M, Any] | None = None
        self._answer: asyncio.Future[Any] | None = None
        self._deadline: asyncio.TimerHandle
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._lost = self._loop.create_future()

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        framer: Framer[M],
        unasked: Callable[[M], bool] | None = None,
    ) -> DeviceConnection[M]:
        """Connect; raises ``OSError``. ``unasked`` returns whether a message was unsolicited."""
        loop = asyncio.get_running_loop()
        return (
            await loop.create_connection(
                lambda: cls(framer, unasked), host, port
            )
        )[1]

    @property
    def buffered(self) -> int:
        """Bytes of a message that is not complete yet; never more than the limit."""
        return self._framer.buffered

    def send(self, text: str) -> None:
        """Send a command; ``ConnectionLost`` if the connection is known to have ended."""
        if self.trouble and (self._answer is None or self._answer.done()):
            raise ConnectionLost
        # Replies are kept only from the first command on and while they are read.
        self._hearing.begin()
        self._transport.write(text.encode() + self._ending)

    def listen(self) -> None:
        """Also keep what arrives before the first command."""
        self._hearing.begin()

    def exchange(
        self,
        text: str,
        take: Take[M, R],
        timeout_s: float,
    ) -> asyncio.Future[R]:
        """Send a command without a tag; the future of its parsed answer, as ``answer``."""
        self.send(text)
        return self.answer(take, timeout_s)

    def answer(self, take: Take[M, R], timeout_s: float) -> asyncio.Future[R]:
        """What ``take`` makes of the messages that come, to be awaited at once.

        Fails with ``TimeoutError``, ``ConnectionLost``, or what ``take`` raises. Anything else than
        an answer or a refusal ends the connection.
        """
        answer: asyncio.Future[R] = self._loop.create_future()
        self._answer = answer
        self._take = take
        self.trouble = self.trouble or _OUTSTANDING
        self._deadline = self._loop.call_later(timeout_s, self._give_up)
        if self._lost.done():
            self._fail(ConnectionLost())
        elif self._inbox:
            self._deliver()
        return answer

    def extend(self, timeout_s: float) -> None:
        """Wait for the answer so long from now on."""
        self._deadline.cancel()
        self._deadline = self._loop.call_later(timeout_s, self._give_up)

    def done(self) -> None:
        """The exchange is over: further data for it is dropped."""
        self._deadline.cancel()
        self._take = None
        self._hearing.end()
        self._inbox = []

    async def close(self) -> None:
        """Close the socket."""
        self._transport.close()
        try:
            async with asyncio.timeout(1):
                await asyncio.shield(self._lost)
        except TimeoutError:
            self._transport.abort()  # with what it would not take

    def _deliver(self) -> None:
        answer = self._answer
        take = self._take
        if answer is None or take is None:
            return
        if answer.done():  # its task was cancelled
            self.done()
            return
        try:
            result = take(self._inbox)
        except Exception as error:
            self._fail(error)
        else:
            if result is not None:
                self.trouble = ""
                self.done()
                answer.set_result(result)

    def _give_up(self) -> None:
        self._fail(TimeoutError())

    def _fail(self, error: Exception) -> None:
        answer = self._answer
        if self._take is None or answer is None:
            return
        if isinstance(error, DeviceRefused):
            self.trouble = ""
        self.done()
        if not answer.done():
            answer.set_exception(error)

    # --- what the event loop calls ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is connected."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Parse received data, and answer a telnet server."""
        if self._lost.done():
            return
        try:
            self._hearing.take(len(data))
            messages = self._framer.feed(data)
            if self._unasked is not None:
                messages = [
                    message
                    for message in messages
                    if not self._unasked(message)
                ]
            if self._hearing.wanted:
                self._inbox += messages
        except FramingError as error:
            self.flooded = True
            self._end(str(error))
            self._transport.abort()
            return
        if answer := self._framer.take_telnet_replies():
            self._transport.write(answer)
        if self._inbox:
            self._deliver()

    def connection_lost(self, error: Exception | None) -> None:
        """It ended, from either side."""
        self._end(str(error or "") or "the device closed the connection")

    def _end(self, trouble: str) -> None:
        if self.trouble in ("", _OUTSTANDING):
            self.trouble = trouble
        if not self._lost.done():
            self._lost.set_result(None)
        self._fail(ConnectionLost())
