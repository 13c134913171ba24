"""A line between a packet switch and the speaker that garbles what the switch answers."""

import asyncio
import os
import socket
import struct
from contextlib import suppress

from patchlight.testbed.linux import namespaces

_HEADER = struct.Struct("!BBHI")
_ERROR = 1
_FLOW_MOD = 14
_MULTIPART_REPLY = 19
_FLOW_MOD_FAILED = 5
_NO_PERMISSION = 4


class OpenFlowLine:
    """Listens in a namespace for a switch, and passes its messages on to a speaker there.

    ``refuses``: flow entries with one of these bytes are refused by the switch, or with
    ``silently`` taken and forgotten. ``garbage``: what it says of its flows is nonsense.
    """

    def __init__(self, netns: str, speaker: str) -> None:
        self.refuses: list[bytes] = []
        self.silently = self.garbage = False
        self._netns = netns
        self._speaker = speaker
        self._server: asyncio.Server
        self._lines = set[asyncio.StreamWriter]()
        self._tasks = set[asyncio.Task[None]]()
        self.address = ""

    async def open(self) -> None:
        listener = namespaces.inside(
            self._netns, lambda: socket.create_server(("127.0.0.1", 0))
        )
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        self._server = await asyncio.start_server(self._serve, sock=listener)

    async def close(self) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def heal(self) -> None:
        self.refuses = []
        self.silently = False
        self.garbage = False

    def cut(self) -> None:
        """End the connection; the switch makes another one."""
        for line in self._lines:
            line.transport.abort()

    async def _serve(
        self, reader: asyncio.StreamReader, switch: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        host, _, port = self._speaker.partition(":")
        try:
            there = namespaces.inside(
                self._netns,
                lambda: socket.create_connection((host, int(port))),
            )
            from_speaker, speaker = await asyncio.open_connection(sock=there)
        except OSError:
            switch.transport.abort()
            return
        self._lines |= {switch, speaker}
        passing = [
            asyncio.create_task(
                self._to_switch(from_speaker, switch, speaker)
            ),
            asyncio.create_task(self._to_speaker(reader, speaker)),
        ]
        await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        for each in (switch, speaker):
            each.transport.abort()
        self._lines -= {switch, speaker}
        await asyncio.gather(*passing, return_exceptions=True)

    async def _to_switch(
        self,
        reader: asyncio.StreamReader,
        switch: asyncio.StreamWriter,
        back: asyncio.StreamWriter,
    ) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                message = await _read(reader)
                kind = message[1]
                xid = message[4:8]
                # The command is the 18th byte of its body: 0 adds.
                adds = kind == _FLOW_MOD and message[8 + 17] == 0
                if adds and any(part in message for part in self.refuses):
                    if not self.silently:
                        body = (
                            struct.pack(
                                "!HH", _FLOW_MOD_FAILED, _NO_PERMISSION
                            )
                            + message[:64]
                        )
                        back.write(
                            struct.pack("!BBH", 4, _ERROR, 8 + len(body))
                            + xid
                            + body
                        )
                    continue
                switch.write(message)
                await switch.drain()

    async def _to_speaker(
        self, reader: asyncio.StreamReader, speaker: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                message = await _read(reader)
                if self.garbage and message[1] == _MULTIPART_REPLY:
                    message = message[:16] + os.urandom(len(message) - 16)
                speaker.write(message)
                await speaker.drain()


async def _read(reader: asyncio.StreamReader) -> bytes:
    header = await reader.readexactly(_HEADER.size)
    return header + await reader.readexactly(
        _HEADER.unpack(header)[2] - _HEADER.size
    )
