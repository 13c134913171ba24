"""Runs one emulated OCS: listens, takes faults, and ends cleanly when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.faults import Action, FaultRequests
from patchlight.emulation.optical.protocols.server import ProtocolServer
from patchlight.testbed.errors import BadInput
from patchlight.testbed.linux.sockets import free_ports, listen, split_address
from patchlight.testbed.portmap import parse_cross_connects

_DIALS_AGAIN_S = 0.1


async def serve_until_stopped(
    device: EmulatedOcs,
    protocol: ProtocolServer,
    address: str,
    *,
    control: Path | None = None,
    ready: Callable[[str, int], Awaitable[None]],
) -> None:
    """Serve clients at ``host:port`` until SIGTERM or SIGINT.

    A device that connects to its client goes there instead, again and again. ``ready`` gets
    host and port once it answers, or begins to connect. Raises ``PortTaken`` or ``PatchlightError``
    if it cannot listen.
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
            server = await asyncio.start_server(protocol.serve, sock=opened, ssl=protocol.tls)
            stack.callback(protocol.cut)
            stack.callback(server.close)
            host, port = server.sockets[0].getsockname()[:2]
        requests = FaultRequests(
            device.faults, device.apply_faults, device.settle, _actions(device, protocol)
        )
        stack.callback(requests.end)
        if control is not None:
            stack.callback((await requests.listen(control)).close)
        await requests.schedule(device.switch.emulated.faults)
        await ready(host, port)
        await stop.wait()


async def _dial(protocol: ProtocolServer, host: str, port: int) -> None:
    """Connect, serve, and begin anew when that ends, until cancelled."""
    while True:
        with contextlib.suppress(OSError):
            await protocol.serve(*await asyncio.open_connection(host, port))
        await asyncio.sleep(_DIALS_AGAIN_S)


def _actions(device: EmulatedOcs, protocol: ProtocolServer) -> dict[str, Action]:
    async def lose(text: object) -> None:
        for c in parse_cross_connects(str(text)):
            await device.lose(c)

    async def reboot(how: object) -> None:
        if how not in ("keep", "forget"):
            raise BadInput(f"reboot cannot be {how!r}: 'keep' or 'forget', meaning the map")
        protocol.cut()
        await device.reboot(keep_map=how == "keep")

    return {"report": lambda text: protocol.report(str(text)), "lose": lose, "reboot": reboot}
