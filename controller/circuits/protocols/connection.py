"""One TCP connection to a device: messages in, commands out, until it breaks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from patchlight.testbed.errors import PatchlightError

BUFFER_LIMIT = 3 << 18
"""Bytes of one unfinished message (or line of noise) that are kept before giving up.

A connection that is flooded takes a quarter more memory than that, so 1 MiB at most; the table
of a switch of 1,000 ports takes a fifth of it.
"""

M = TypeVar("M")


class FramingError(PatchlightError):
    """The stream cannot be what it should: an unfinished message grew past the bound."""


class Framer(Protocol[M]):
    """Bytes in, messages out. ``FramingError`` past its bound: the stream is lost then."""

    def feed(self, data: bytes) -> list[M]:
        """Add bytes; returns the messages they complete."""

    def take_telnet_replies(self) -> bytes:
        """What to send back to a telnet server that tried to negotiate."""

    @property
    def buffered(self) -> int:
        """Bytes held of what is not yet complete."""


class ConnectionLost(Exception):
    """The connection ended; what that means depends on the command in flight."""


class Connection(Generic[M]):
    """Made by ``Connection.open``. ``trouble`` says why it ended; empty while it lives.

    ``ending``: what ends each command.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        framer: Framer[M],
        unasked: Callable[[M], bool],
        *,
        ending: bytes = b"\r\n",
    ) -> None:
        self.trouble = ""
        self._reader, self._writer = reader, writer
        self._framer, self._unasked, self._ending = framer, unasked, ending
        self._inbox: asyncio.Queue[M | None] = asyncio.Queue()
        self._listening = False
        self._task = asyncio.create_task(self._read())

    @classmethod
    async def open(
        cls, host: str, port: int, framer: Framer[M], unasked: Callable[[M], bool]
    ) -> Connection[M]:
        """Connect; raises ``OSError``. ``unasked`` takes what answers nothing, and says so."""
        reader, writer = await asyncio.open_connection(host, port)
        return cls(reader, writer, framer, unasked)

    @property
    def buffered(self) -> int:
        """Bytes held of a message that is not yet complete; never more than the limit."""
        return self._framer.buffered

    async def send(self, text: str) -> None:
        """Send a command; ``ConnectionLost`` if it cannot be known to be on its way."""
        if self.trouble:
            raise ConnectionLost
        # Replies are kept only from the first command on and while somebody reads them.
        self._listening = True
        try:
            self._writer.write(text.encode() + self._ending)
            await self._writer.drain()
        except OSError as error:
            self.trouble = self.trouble or str(error)
            raise ConnectionLost from error

    def listen(self) -> None:
        """Keep what comes before the first command, too."""
        self._listening = True

    async def receive(self) -> M:
        """The next message that answers something; ``ConnectionLost`` at the end."""
        message = await self._inbox.get()
        if message is None:
            raise ConnectionLost
        return message

    def done(self) -> None:
        """The exchange is over: what still comes in answer to it is dropped."""
        self._listening = False
        while not self._inbox.empty():
            if self._inbox.get_nowait() is None:
                self._inbox.put_nowait(None)
                return

    async def close(self) -> None:
        """Let go of the socket."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                await self._writer.wait_closed()

    async def _read(self) -> None:
        trouble = "the device closed the connection"
        try:
            while data := await self._reader.read(65536):
                for message in self._framer.feed(data):
                    if not self._unasked(message) and self._listening:
                        self._inbox.put_nowait(message)
                if answer := self._framer.take_telnet_replies():
                    self._writer.write(answer)
        except (OSError, FramingError) as error:
            trouble = str(error)
        self.trouble = self.trouble or trouble
        self._inbox.put_nowait(None)
