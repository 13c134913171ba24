"""What stands between a client and an emulated device: the server of a vendor's protocol."""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from typing import ClassVar

from patchlight.emulation.optical.device import EmulatedOcs

Users = dict[str, str | None]
"""Who may log in, with their passwords; ``None``: any will do."""


class ProtocolServer(ABC):
    """Serves one device to all its clients.

    A server calls what changes the device, awaits ``device.settle`` and only then answers; what
    the device refuses comes as ``RequestRefused``. What goes wrong on purpose is in
    ``device.faults``: ``mishap`` before each command, ``spoilt`` on each answer.

    ``port``: where such devices listen by default. ``by_hand``: a shell command that reads the
    map, with ``{host}``, ``{port}``, ``{user}`` and ``{password}`` to fill in. ``dials``: the
    device connects to its client, rather than listen. ``tls``: what clients connect with.
    """

    port: ClassVar[int] = 0
    by_hand: ClassVar[str] = ""
    dials: ClassVar[bool] = False
    tls: ssl.SSLContext | None = None

    def __init__(self, device: EmulatedOcs, users: Users) -> None:
        self._device = device
        self._users = users

    @abstractmethod
    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, until it goes; the circuits stay."""

    @abstractmethod
    def report(self, text: str) -> None:
        """Raise an alarm with these words, as far as the protocol can; ``BadInput`` if not."""
