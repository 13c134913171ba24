"""Clients by hand of emulated devices behind SSH: paramiko, nothing of ours."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

import paramiko

from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.portmap import PortMap
from tests.support.protocol_session import serving
from tests.support.waiting import PATIENCE_S


@contextmanager
def logged_in(
    driver: str, ports: int = 16
) -> Iterator[tuple[paramiko.Transport, EmulatedOcs]]:
    """A logged-in transport to a device; the device's event loop has a thread."""
    switch = CircuitSwitch(
        "ocs1", driver, "", ports, 0.0, initial=PortMap.of([(1, 7)])
    )
    served = serving(switch)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        opened = asyncio.run_coroutine_threadsafe(served.__aenter__(), loop)
        _, device, port = opened.result(PATIENCE_S)
        transport = paramiko.Transport(("127.0.0.1", port))
        try:
            transport.connect(username="admin", password="pw")
            yield transport, device
        finally:
            transport.close()
            asyncio.run_coroutine_threadsafe(_end(served), loop).result(
                PATIENCE_S
            )
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()


async def _end(served: AbstractAsyncContextManager[object]) -> None:
    await served.__aexit__(None, None, None)
    sessions = asyncio.all_tasks() - {asyncio.current_task()}
    for session in sessions:
        session.cancel()
    await asyncio.gather(*sessions, return_exceptions=True)


def until(channel: paramiko.Channel, ending: str) -> str:
    channel.settimeout(PATIENCE_S)
    text = ""
    while not text.endswith(ending):
        data = channel.recv(65536)
        assert data, text
        text += data.decode()
    return text
