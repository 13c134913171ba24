"""Serves a vendor's protocol for an emulated device, in its own process.

A package can add one with an entry point in the group ``patchlight.emulated_ocs``: its name is the
driver's, and it loads a subclass of ``ProtocolServer``.
"""

import asyncio
import contextlib
import json
import logging
import signal
import ssl
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

from patchlight.controller.circuits.registry import PlugIns
from patchlight.emulation.json_lines import answer_lines
from patchlight.emulation.optical.emulated_switch import EmulatedSwitch
from patchlight.emulation.optical.matrices import Reason, RequestRefused
from patchlight.testbed.errors import BadInput, nearest
from patchlight.testbed.lab.ocs_drivers import OCS_DRIVERS, WSS_DRIVERS
from patchlight.testbed.lab.wavelengths import OcsFault
from patchlight.testbed.linux.sockets import (
    bind_unix,
    free_ports,
    listen,
    split_address,
)

log = logging.getLogger("patchlight.optical")
_ACTIONS = ("report", "lose", "reboot")
_DIALS_AGAIN_S = 0.1


class ProtocolServer(ABC):
    """Serves one device to all its clients.

    A server calls methods that change the device, awaits ``device.settle`` and then answers; the
    device refuses with ``RequestRefused``. It must also use:

    - users: ``device.lets_in`` before anything else, ``device.may_change`` before a change, where
      its protocol has logins;
    - ``device.faults.around_command`` around each command, and the words it gives as a refusal: it
      cuts, stalls, meddles and refuses; meanwhile ``faults.acknowledge``, if there is such a word;
    - ``faults.spoilt`` on each answer, ``take_stray`` before it and ``take_flood`` at it;
    - ``faults.monitors`` and ``repeat_pages``, where the vendor has such models and such replies;
    - ``device.name_of`` for each circuit whose name it sends, and ``faults.names`` for ports;
    - ``report``, by which an alarm comes, or ``BadInput``.

    ``port``: where such devices listen by default. ``by_hand``: a shell command that reads the
    map, with ``{host}``, ``{port}``, ``{user}`` and ``{password}`` to fill in. ``dials``: the
    device connects to its client, rather than listen, and sends ``datapath_id`` where the lab file
    gives it none. ``tls``: what clients connect with. ``refusals``: the vendor's code and words for
    a refusal, with ``{port}`` and ``{reason}`` to fill in; ``refused`` where there are none.
    """

    port: ClassVar[int] = 0
    by_hand: ClassVar[str] = ""
    dials: ClassVar[bool] = False
    datapath_id: ClassVar[int | None] = None
    refusals: ClassVar[Mapping[Reason, tuple[Any, str]]] = {}
    refused: ClassVar[tuple[Any, str]] = ("", "failed")
    tls: ssl.SSLContext | None = None

    def __init__(self, device: EmulatedSwitch) -> None:
        self._device = device
        self.writers: set[asyncio.StreamWriter] = set()

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One client, until its connection ends; the circuits stay."""
        self.writers.add(writer)
        try:
            await self._converse(reader, writer)
        except OSError:
            return
        finally:
            self.writers.discard(writer)
            writer.close()

    def cut(self) -> None:
        """Close every connection."""
        for writer in tuple(self.writers):
            writer.transport.abort()

    async def reboot(self, *, keep_map: bool) -> None:
        """Power cycle: connections and circuits go down, then the circuits return, or none."""
        self.cut()
        await self._device.reboot(keep_map=keep_map)

    @abstractmethod
    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one connection until it returns. ``OSError``: the client disconnected."""

    @abstractmethod
    def report(self, text: str) -> None:
        """Raise an alarm with this message, if the protocol supports it; else ``BadInput``."""

    def _refusal(self, refusal: RequestRefused) -> tuple[Any, str]:
        code, words = self.refusals.get(refusal.reason, self.refused)
        reason = refusal.reason.value
        return code, refusal.message or words.format(
            port=refusal.port,
            reason=reason,
        )


DEVICE_GROUP = "patchlight.emulated_ocs"
_SERVERS = PlugIns(
    DEVICE_GROUP,
    {
        driver.name: f"patchlight.emulation.optical.vendors.{driver.device}"
        for driver in (*OCS_DRIVERS.values(), *WSS_DRIVERS.values())
        if driver.device
    },
)
emulated_drivers = _SERVERS.names


def server_class(driver: str) -> type[ProtocolServer]:
    """The server for this driver's protocol; ``BadInput`` if there is none."""
    try:
        return cast(type[ProtocolServer], _SERVERS.load(driver))
    except KeyError:
        known = nearest(driver, emulated_drivers(), "known:")
        raise BadInput(
            f"no emulated switch for driver {driver!r}: {known}"
        ) from None


async def serve_until_stopped(
    device: EmulatedSwitch,
    protocol: ProtocolServer,
    address: str,
    *,
    control: Path | None = None,
    ready: Callable[[str, int], Awaitable[None]],
) -> None:
    """Serve clients at ``host:port`` until SIGTERM or SIGINT.

    A device that connects to its client dials there instead, repeatedly. ``ready`` is called with
    host and port once it answers, or dials. Raises ``PortTaken`` or ``PatchlightError`` if it
    cannot listen.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await device.open()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(device.close)
        if protocol.dials:
            host, port = split_address(address)
            port = port or free_ports(1)[0]
            dialling = asyncio.create_task(_dial(protocol, host, port))
            stack.callback(protocol.cut)
            stack.callback(dialling.cancel)
        else:
            opened = await asyncio.to_thread(listen, address)
            server = await asyncio.start_server(
                protocol.serve,
                sock=opened,
                ssl=protocol.tls,
            )
            stack.callback(protocol.cut)
            stack.callback(server.close)
            host, port = server.sockets[0].getsockname()[:2]
        requests = FaultRequests(device, protocol)
        stack.callback(requests.end)
        if control is not None:
            stack.callback((await requests.listen(control)).close)
        await requests.schedule(device.switch.emulated.faults)
        await ready(host, port)
        await stop.wait()


async def _dial(
    protocol: ProtocolServer,
    host: str,
    port: int,
) -> None:
    while True:
        with contextlib.suppress(OSError):
            await protocol.serve(*await asyncio.open_connection(host, port))
        await asyncio.sleep(_DIALS_AGAIN_S)


class FaultRequests:
    """Triggers faults and actions.

    Keys are the fields of ``EmulatedFaults``, whose values they replace, and the actions ``report``
    (an alarm), ``lose`` (a cross-connect) and ``reboot`` (``"keep"`` or ``"forget"`` the map). The
    control socket takes one JSON object per line and answers each with one.
    """

    def __init__(
        self, device: EmulatedSwitch, protocol: ProtocolServer
    ) -> None:
        self._device = device
        self._protocol = protocol
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, path: Path) -> asyncio.Server:
        """Listen on a Unix socket, replacing a dead process's."""
        serve = partial(answer_lines, answer=self._answer)
        return await asyncio.start_unix_server(
            serve, sock=bind_unix(path, "emulated switch")
        )

    async def schedule(self, faults: Sequence[OcsFault]) -> None:
        """Schedule a lab file's faults: immediately, after a time, or before a change.

        Immediate ones are active on return.
        """
        counted = [fault for fault in faults if fault.after_changes]

        def before_change(changes: int) -> None:
            for fault in [
                fault for fault in counted if fault.after_changes <= changes
            ]:
                counted.remove(fault)
                # Faults apply now, actions soon after.
                self._start(self._act(self._begin(fault.control)))

        self._device.faults.before_change = before_change
        for fault in faults:
            if fault.after_s:
                self._start(self._later(fault))
            elif not fault.after_changes:
                await self._act(self._begin(fault.control))

    def end(self) -> None:
        """Cancel scheduled faults."""
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _later(self, fault: OcsFault) -> None:
        await asyncio.sleep(fault.after_s)
        try:
            await self._act(self._begin(fault.control))
        except BadInput as error:
            log.warning(
                "fault %s of the lab file failed: %s",
                fault.control,
                error.message,
            )

    def _begin(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Set the faults; returns the actions to do."""
        self._device.faults.update(
            {k: v for k, v in request.items() if k not in _ACTIONS}
        )
        self._device.apply_faults()
        return {k: v for k, v in request.items() if k in _ACTIONS}

    async def _act(self, actions: Mapping[str, Any]) -> None:
        await self._device.settle()
        for name, value in actions.items():
            if name == "report":
                self._protocol.report(str(value))
            elif name == "lose":
                await self._device.lose(str(value))
            elif value in ("keep", "forget"):
                await self._protocol.reboot(keep_map=value == "keep")
            else:
                raise BadInput(
                    f"reboot cannot be {value!r}: expected 'keep' or 'forget' (the map)"
                )

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise BadInput("expected a JSON object")
            await self._act(self._begin(request))
        except (BadInput, ValueError) as error:
            return {"ok": False, "error": str(error)}
        return {"ok": True, "faults": asdict(self._device.faults)}
