"""What a change takes at least: its own commands by a blocking socket, and one write with fsync.

``RecordingLoop`` is an event loop that keeps what is sent over its connections; ``BareClient``
says the same to the same emulated device over a connection of its own, each command once the one
before is answered.
"""

import asyncio
import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.waiting import PATIENCE_S

_CTAG = re.compile(rb"[^:]*:[^:]*:[^:]*:(\w+)")


class RecordingLoop(asyncio.SelectorEventLoop):
    """Notes what is written to connections made in it, in the order written."""

    def __init__(self) -> None:
        super().__init__()
        self._sent: list[bytes] = []

    async def create_connection(self, *arguments: Any, **options: Any) -> Any:
        """As the loop does it; what the transport is given to send is noted."""
        transport: Any
        transport, protocol = await super().create_connection(
            *arguments, **options
        )
        write = transport.write

        def write_and_note(data: bytes) -> None:
            self._sent.append(bytes(data))
            write(data)

        transport.write = write_and_note
        return transport, protocol

    def take_sent(self) -> list[bytes]:
        """What was sent since this was last called."""
        sent = self._sent
        self._sent = []
        return sent


def _tl1_answered(sent: bytes, come: bytes) -> bool:
    match = _CTAG.match(sent)
    assert match is not None, sent
    begun = come.find(b"\r\nM  %s " % match[1])
    return begun >= 0 and come.find(b"\r\n;", begun) >= 0


def _scpi_answered(sent: bytes, come: bytes) -> bool:
    return come.endswith(b'"No error"\n')


ANSWERED: dict[str, Callable[[bytes, bytes], bool]] = {
    "calient-tl1": _tl1_answered,
    "polatis-scpi": _scpi_answered,
}
"""By driver: whether what has come holds the whole answer to what was sent."""

_TURNING = re.compile(rb"ACT-CRS|ENT-CRS-BULK")
_LOOKING = re.compile(rb"RTRV-")
_ANSWER_S = PATIENCE_S


class BareClient:
    """Replays what a driver said. ``login``: what the driver said first on its connection."""

    def __init__(
        self, driver: str, address: str, login: Sequence[bytes], file: Path
    ) -> None:
        self._answered = ANSWERED[driver]
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection(
            (host, int(port)), timeout=_ANSWER_S
        )
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        for command in login:
            self._ask(command)

    def replay(
        self,
        commands: Sequence[bytes],
        journalled: bytes,
        switching_time_s: float,
    ) -> None:
        """Write down and sync what is ``journalled``, then say the commands.

        Where a device answers before its mirrors rest (TL1), it is left alone for that long
        before the first look, as the driver does.
        """
        os.write(self._file, journalled)
        os.fsync(self._file)
        turning = False
        for command in commands:
            if turning and _LOOKING.match(command):
                # As a script waits that reads nothing back.
                time.sleep(switching_time_s)
            turning = _TURNING.match(command) is not None
            self._ask(command)

    def drop_unread(self) -> None:
        """Pass over what the device told meanwhile, of others' changes say."""
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(1 << 16):
                pass
        self._socket.settimeout(_ANSWER_S)

    def close(self) -> None:
        """Let go of the device and the file."""
        self._socket.close()
        os.close(self._file)

    def _ask(self, command: bytes) -> None:
        self._socket.sendall(command)
        come = b""
        while not self._answered(command, come):
            data = self._socket.recv(1 << 16)
            assert data, "the device hung up"
            come += data
