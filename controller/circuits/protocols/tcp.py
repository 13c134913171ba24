"""One TCP connection to a device: messages in, commands out, until it breaks.

Many devices talk as a telnet server does: that noise (RFC 854) is taken out of the stream,
and every option politely refused.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from patchlight.controller.circuits.contract import DeviceRefused
from patchlight.testbed.errors import PatchlightError

BUFFER_LIMIT = 3 << 18
"""Bytes of one unfinished message (or line of noise) that are kept before giving up.

A connection that is flooded takes a quarter more memory than that, so 1 MiB at most; the table
of a switch of 1,000 ports takes a fifth of it.
"""

_UNASKED_PERIOD_S = 60.0

# Telnet (RFC 854).
_IAC, _DONT, _DO, _WONT, _WILL, _SB, _SE = 255, 254, 253, 252, 251, 250, 240
M = TypeVar("M")
R = TypeVar("R")
Take = Callable[[Sequence[M]], R | None]
"""What the messages say that came so far; ``None`` while more is to come."""


class FramingError(PatchlightError):
    """The stream cannot be what it should: an unfinished message grew past the bound."""


class Hearing:
    """Counts what a device says: ``FramingError`` past ``BUFFER_LIMIT`` bytes a minute.

    What comes in answer is not counted, and may be as long again.
    """

    def __init__(self) -> None:
        self.wanted = False  # whether an answer is
        self._bytes = self._before = 0
        self._since = time.monotonic()

    def begin(self) -> None:
        """What comes from here on may answer something."""
        if not self.wanted:
            self.wanted, self._before = True, self._bytes

    def end(self) -> None:
        """The exchange is over: what came in it does not count."""
        self.wanted, self._bytes = False, min(self._bytes, self._before)

    def take(self, count: int) -> None:
        """So many bytes came."""
        if (now := time.monotonic()) - self._since > _UNASKED_PERIOD_S:
            self._since, self._bytes, self._before = now, 0, 0
        self._bytes += count
        if self._bytes > BUFFER_LIMIT * (1 + self.wanted):
            raise FramingError(
                f"{self._bytes} bytes came within {_UNASKED_PERIOD_S:.0f} s that answer nothing"
            )


class Framer(Protocol[M]):
    """Bytes in, messages out. ``FramingError`` past its bound: the stream is lost then."""

    def feed(self, data: bytes) -> list[M]:
        """Add bytes; returns the messages they complete."""

    def take_telnet_replies(self) -> bytes:
        """What to send back to a telnet server that tried to negotiate."""

    @property
    def buffered(self) -> int:
        """Bytes held of what is not yet complete."""


class TelnetFilter:
    """Removes IAC sequences and NULs from a byte stream, across any cut of it."""

    def __init__(self) -> None:
        self._state = "data"  # data | iac | option | sub | sub-iac
        self._verb = 0
        self._refused = set[tuple[int, int]]()
        self._replies = bytearray()

    def filter(self, data: bytes) -> bytes:
        """The bytes of ``data`` that are no telnet."""
        out, at = bytearray(), 0
        while at < len(data):
            # What no sequence begins or ends in is passed over as a whole.
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
        """Refusals of the options offered or asked for since the last call."""
        replies = bytes(self._replies)
        self._replies.clear()
        return replies

    def _take(self, byte: int, out: bytearray) -> None:
        if self._state in ("data", "sub"):  # ``filter`` stops there at IAC alone
            self._state = "iac" if self._state == "data" else "sub-iac"
        elif self._state == "iac":
            self._state = "data"
            if byte == _IAC:
                out.append(byte)
            elif byte in (_DO, _DONT, _WILL, _WONT):
                self._state, self._verb = "option", byte
            elif byte == _SB:
                self._state = "sub"
        elif self._state == "option":
            self._state = "data"
            refusal = {_DO: _WONT, _WILL: _DONT}.get(self._verb)
            # Once each: a server that answers a refusal by asking again would never end.
            if refusal is not None and (refusal, byte) not in self._refused:
                self._refused.add((refusal, byte))
                self._replies += bytes((_IAC, refusal, byte))
        else:
            self._state = "data" if byte == _SE else "sub"


class TelnetFramer:
    """What framers share whose stream may hold telnet noise: a bounded buffer without it.

    After a ``FramingError`` the stream is lost: close the connection.
    """

    def __init__(self, limit: int = BUFFER_LIMIT) -> None:
        self._limit = limit
        self._telnet = TelnetFilter()
        self._buffer = bytearray()

    @property
    def buffered(self) -> int:
        """Bytes held of what is not yet complete; never more than the limit."""
        return len(self._buffer)

    def take_telnet_replies(self) -> bytes:
        """What to send back to a telnet server that tried to negotiate (refusing it all)."""
        return self._telnet.take_replies()

    def _check_limit(self, held: int, protocol: str, unit: str) -> None:
        if held > self._limit:
            self._buffer.clear()
            raise FramingError(
                f"reading {protocol}: {held} bytes came without the end of a {unit}",
                hint=f"the device (or what listens there) does not speak {protocol}; "
                "check the address and port",
            )


class LineFramer(TelnetFramer):
    """Feed it what arrives; it hands back the lines that are complete, without their ends.

    Lines end with ``\\n`` or ``\\r\\n`` (as in IEEE 488.2 over a raw socket). ``protocol``: what
    errors call what should come.
    """

    def __init__(self, limit: int = BUFFER_LIMIT, protocol: str = "a protocol of lines") -> None:
        super().__init__(limit)
        self._protocol = protocol

    def feed(self, data: bytes) -> list[str]:
        """Add bytes; returns the lines they complete. ``FramingError`` past the bound."""
        lines: list[str] = []
        # In slices, so that the bound holds however much is fed at once.
        for start in range(0, len(data), 65536):
            *whole, rest = self._telnet.filter(data[start : start + 65536]).split(b"\n")
            for piece in whole:
                self._hold(piece)
                text = self._buffer.decode("utf-8", "replace").strip()
                self._buffer.clear()
                if text:
                    lines.append(text)
            self._hold(rest)
        return lines

    def _hold(self, piece: bytes) -> None:
        self._check_limit(len(self._buffer) + len(piece), self._protocol, "line")
        self._buffer += piece


class ConnectionLost(Exception):
    """The connection ended; what that means depends on the command in flight."""


class DeviceConnection(asyncio.Protocol, Generic[M]):
    """Made by ``open`` or ``over``. ``trouble`` says why it ended; empty while it lives.

    ``flooded``: whether it was hung up on for saying too much. ``ending``: what ends each
    command. Whatever comes is understood as it comes, without a task between: the time of a
    change is mostly such exchanges.
    """

    def __init__(
        self, framer: Framer[M], unasked: Callable[[M], bool] | None, ending: bytes = b"\r\n"
    ) -> None:
        self.trouble, self.flooded = "", False
        self._framer, self._unasked, self._ending = framer, unasked, ending
        self._inbox: list[M] = []
        self._hearing = Hearing()
        self._waiting: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport
        self._lost = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(
        cls, host: str, port: int, framer: Framer[M], unasked: Callable[[M], bool] | None = None
    ) -> DeviceConnection[M]:
        """Connect; raises ``OSError``. ``unasked`` takes what answers nothing, and says so."""
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(lambda: cls(framer, unasked), host, port))[1]

    @classmethod
    async def over(
        cls, sock: socket.socket, framer: Framer[M], unasked: Callable[[M], bool], ending: bytes
    ) -> DeviceConnection[M]:
        """A connection over a socket that is joined already."""
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(lambda: cls(framer, unasked, ending), sock=sock))[1]

    @property
    def buffered(self) -> int:
        """Bytes held of a message that is not yet complete; never more than the limit."""
        return self._framer.buffered

    def send(self, text: str) -> None:
        """Send a command; ``ConnectionLost`` if the connection is known to have ended."""
        if self.trouble:
            raise ConnectionLost
        # Replies are kept only from the first command on and while somebody reads them.
        self._hearing.begin()
        self._transport.write(text.encode() + self._ending)

    def listen(self) -> None:
        """Keep what comes before the first command, too."""
        self._hearing.begin()

    async def receive(self) -> list[M]:
        """The next messages that answer something; ``ConnectionLost`` at the end."""
        while not self._inbox:
            if self._lost.done():
                raise ConnectionLost
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        messages, self._inbox = self._inbox, []
        return messages

    async def exchange(self, text: str, take: Take[M, R], timeout_s: float) -> R:
        """Send a command without a tag; what its answer says.

        Where that is neither an answer nor a refusal, the connection ends.
        """
        try:
            async with asyncio.timeout(timeout_s):
                self.send(text)
                messages = await self.receive()
                while (answer := take(messages)) is None:
                    messages += await self.receive()
                return answer
        except DeviceRefused:
            raise
        except BaseException:
            # What comes of it later must not be taken for the answer to the next command.
            self.trouble = self.trouble or "an answer is outstanding"
            raise
        finally:
            self.done()

    def done(self) -> None:
        """The exchange is over: what still comes in answer to it is dropped."""
        self._hearing.end()
        self._inbox.clear()

    async def close(self) -> None:
        """Let go of the socket."""
        self._transport.close()
        try:
            async with asyncio.timeout(1):
                await asyncio.shield(self._lost)
        except TimeoutError:
            self._transport.abort()  # with what it would not take

    # --- what the event loop calls ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It stands."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Take the messages out of what came, and answer a telnet server."""
        if self._lost.done():
            return
        try:
            self._hearing.take(len(data))
            messages = self._framer.feed(data)
            if self._unasked is not None:
                messages = [message for message in messages if not self._unasked(message)]
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
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """It ended, from either side."""
        self._end(str(error or "") or "the device closed the connection")

    def _end(self, trouble: str) -> None:
        self.trouble = self.trouble or trouble
        if not self._lost.done():
            self._lost.set_result(None)
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
