"""What tests of OCS drivers share: drivers by name, an open one, and servers that are no switch."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from pkgutil import resolve_name
from typing import TypeVar, cast

import pytest

from patchlight.controller.circuits.contract import CircuitDriver
from patchlight.controller.circuits.dialect import Timeouts
from patchlight.controller.circuits.drivers.telescent import TELESCENT
from patchlight.emulation.optical.crossbar import NoCrossbar
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.protocols.server import ProtocolServer
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.ocs_drivers import OCS_DRIVERS
from patchlight.testbed.lab.portmap import CrossConnect, PortMap

SESSION_DRIVERS: Mapping[str, Callable[..., CircuitDriver]] = {
    row.name: cast(Callable[..., CircuitDriver], resolve_name(row.place))
    for row in OCS_DRIVERS.values()
    if row.device and not row.dials_in
}
"""Every driver that connects to its device: tests of what goes wrong run on each of them."""
S = TypeVar("S", bound=ProtocolServer)
FIRST_MAP = PortMap.duplex([(1, 7)])
PASSWORD = 'pa;ss"wörd:/1'


def password_for(driver: str) -> str:
    """``PASSWORD``; gRPC carries only ASCII."""
    return PASSWORD.replace("ö", "o") if driver == "ocp-gnmi" else PASSWORD


def circuit(text: str) -> CrossConnect:
    """``3>9`` → a cross-connect."""
    inp, _, out = text.partition(">")
    return CrossConnect(int(inp), int(out))


def circuits(*texts: str) -> list[CrossConnect]:
    return [circuit(text) for text in texts]


def driver_of(
    switch: CircuitSwitch, password: str = PASSWORD, **timeouts: float
) -> CircuitDriver:
    """The driver of the switch, with timeouts of its own (see ``Timeouts``)."""
    dialect = None
    if password == PASSWORD:
        password = password_for(switch.driver)
    if switch.driver == "telescent-ssh" and "answer_s" in timeouts:
        dialect = replace(TELESCENT, move_timeout_s=timeouts["answer_s"])
    return SESSION_DRIVERS[switch.driver](
        switch, password, dialect, Timeouts(**timeouts)
    )


@contextlib.asynccontextmanager
async def opened(
    switch: CircuitSwitch, password: str = PASSWORD, **timeouts: float
) -> AsyncIterator[CircuitDriver]:
    driver = driver_of(switch, password, **{"answer_s": 5.0, **timeouts})
    await driver.open()
    try:
        yield driver
    finally:
        await driver.close()


async def restore(
    driver: CircuitDriver, port_map: PortMap = FIRST_MAP
) -> None:
    """Bring the device's map back to this one."""
    change = (await driver.read_map()).diff(port_map)
    assert (await driver.disconnect(change.breaks)).complete
    assert (await driver.connect(change.makes)).complete


@contextlib.asynccontextmanager
async def listening(
    serve: Callable[
        [asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]
    ],
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[str]:
    """The address of a server in this process."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@contextlib.asynccontextmanager
async def emulated(
    server: type[S], switch: CircuitSwitch
) -> AsyncIterator[tuple[CircuitSwitch, EmulatedOcs, S]]:
    """A device in this process: its switch with its address, itself, and its server."""
    device = EmulatedOcs(switch, {1: 0.0}, NoCrossbar())
    await device.open()
    front = server(device)
    async with listening(front.serve, front.tls) as address:
        yield replace(switch, address=address), device, front
    await device.close()


def drivers(*names: str) -> pytest.MarkDecorator:
    """For tests of ``device``: with these drivers only."""
    return pytest.mark.parametrize("shared", names, indirect=True)
