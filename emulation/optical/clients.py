"""Who is connected to an emulated device; a reboot cuts them all off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Clients:
    """Stands between the socket and a front's ``serve``."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, until it goes or is cut off."""
        self._writers.add(writer)
        try:
            await self._serve(reader, writer)
        finally:
            self._writers.discard(writer)

    def cut(self) -> None:
        """Drop every connection without a word."""
        for writer in tuple(self._writers):
            writer.transport.abort()
