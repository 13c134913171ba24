"""Runs one emulated OCS: listens, takes faults, and ends cleanly when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from controller.openflow.listening import listen
from emulation.optical.clients import Clients
from emulation.optical.device import EmulatedOcs
from emulation.optical.faults import Action, ControlSocket
from emulation.optical.fronts import Front, tls_of
from testbed.errors import BadInput
from testbed.portmap import parse_cross_connects

Ready = Callable[[str, int], Awaitable[None]]


async def serve_until_stopped(
    device: EmulatedOcs,
    front: Front,
    address: str,
    *,
    control: Path | None = None,
    ready: Ready,
) -> None:
    """Serve clients at ``host:port`` until SIGTERM or SIGINT.

    ``ready`` gets host and port once it answers. Raises ``PortTaken`` or ``PatchlightError``
    if it cannot listen.
    """
    clients = Clients(front.serve)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await device.open()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(device.close)
        opened = await asyncio.to_thread(listen, address)
        server = await asyncio.start_server(clients.serve, sock=opened, ssl=tls_of(front))
        stack.callback(clients.cut)
        stack.callback(server.close)
        if control is not None:
            socket = ControlSocket(
                device.faults, device.faults_changed, _actions(device, front, clients)
            )
            await socket.open(control)
            stack.push_async_callback(socket.close)
        host, port = server.sockets[0].getsockname()[:2]
        await ready(host, port)
        await stop.wait()


def _actions(device: EmulatedOcs, front: Front, clients: Clients) -> dict[str, Action]:
    def report(text: object) -> None:
        front.report(str(text))

    async def lose(text: object) -> None:
        for c in parse_cross_connects(str(text)):
            await device.lose(c)

    async def reboot(how: object) -> None:
        if how not in ("keep", "forget"):
            raise BadInput(f"reboot cannot be {how!r}: 'keep' or 'forget', meaning the map")
        clients.cut()
        await device.reboot(keep_map=how == "keep")

    return {"report": report, "lose": lose, "reboot": reboot}
