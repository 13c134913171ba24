"""What stands between a client and an emulated device: the server of a vendor's protocol.

A package adds one with an entry point in the group ``patchlight.emulated_ocs``: its name is the
driver's, and it loads a subclass of ``ProtocolServer``.
"""

import asyncio
import ssl
from abc import ABC, abstractmethod
from typing import ClassVar, cast

from patchlight.controller.circuits.registry import PlugIns
from patchlight.emulation.optical.emulated_switch import EmulatedSwitch
from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.issues import nearest
from patchlight.testbed.lab.ocs_drivers import OCS_DRIVERS, WSS_DRIVERS


class ProtocolServer(ABC):
    """Serves one device to all its clients.

    A server calls what changes the device, awaits ``device.settle`` and only then answers; what
    the device refuses comes as ``RequestRefused``. Beside that it has to honour:

    - users: ``device.lets_in`` before anything else, ``device.may_change`` before a change, where
      its protocol has logins;
    - ``device.faults.around_command`` around each command, and the words it gives as a refusal: it
      cuts, stalls, meddles and refuses; meanwhile ``faults.acknowledge``, if there is such a word;
    - ``faults.spoilt`` on each answer, ``take_stray`` before it and ``take_flood`` at it;
    - ``faults.monitors`` and ``repeat_pages``, where the vendor has such models and such replies;
    - ``device.name_of`` for each circuit whose name it tells, and ``faults.names`` for ports;
    - ``report``, by which an alarm comes, or ``BadInput``.

    ``port``: where such devices listen by default. ``by_hand``: a shell command that reads the
    map, with ``{host}``, ``{port}``, ``{user}`` and ``{password}`` to fill in. ``dials``: the
    device connects to its client, rather than listen, and says ``datapath_id`` where the lab file
    gives it none. ``tls``: what clients connect with.
    """

    port: ClassVar[int] = 0
    by_hand: ClassVar[str] = ""
    dials: ClassVar[bool] = False
    datapath_id: ClassVar[int | None] = None
    tls: ssl.SSLContext | None = None

    def __init__(self, device: EmulatedSwitch) -> None:
        self._device = device
        self.writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, until it goes or is cut off; the circuits stay."""
        self.writers.add(writer)
        try:
            await self._converse(reader, writer)
        except OSError:
            return
        finally:
            self.writers.discard(writer)
            writer.close()

    def cut(self) -> None:
        """Drop every connection without a word."""
        for writer in tuple(self.writers):
            writer.transport.abort()

    @abstractmethod
    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """All of one connection, which ends when it returns. ``OSError``: the client went."""

    @abstractmethod
    def report(self, text: str) -> None:
        """Raise an alarm with these words, as far as the protocol can; ``BadInput`` if not."""


_SERVERS = PlugIns(
    "patchlight.emulated_ocs",
    {
        driver.name: f"patchlight.emulation.optical.vendors.{driver.device}"
        for driver in (*OCS_DRIVERS.values(), *WSS_DRIVERS.values())
        if driver.device
    },
)
emulated_drivers = _SERVERS.names


def server_class(driver: str) -> type[ProtocolServer]:
    """The server that speaks to this driver; ``BadInput`` if there is none."""
    try:
        return cast(type[ProtocolServer], _SERVERS.load(driver))
    except KeyError:
        known = nearest(driver, emulated_drivers(), "there are")
        raise BadInput(f"no emulated switch speaks {driver!r}: {known}") from None
