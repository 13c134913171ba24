"""An emulated device in one process with the test, and a client that talks to it by hand."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from patchlight.emulation.optical.crossbar import NoCrossbar
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.protocols.server import (
    ProtocolServer,
    server_class,
)
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.portmap import PortMap
from tests.support.waiting import PATIENCE_S

Say = Callable[[str], Awaitable[str]]

# A question that the SCPI device always answers shows where the first one's answer ends.
_LAST = ":oxc:swit:port:stat? (@1,1,1)"
_LAST_ANSWER = b"(E,E,E)\n"


@asynccontextmanager
async def serving(
    switch: CircuitSwitch,
) -> AsyncIterator[tuple[ProtocolServer, EmulatedOcs, int]]:
    """The switch's server, its device, and the port of 127.0.0.1 where it answers.

    Light comes in at every port that the map has as an input; ``admin`` logs in with ``pw``.
    """
    arriving_dbm = {c.inp: 0.0 for c in switch.initial}
    device = EmulatedOcs(
        switch, arriving_dbm, NoCrossbar(), users={"admin": "pw"}
    )
    await device.open()
    protocol = server_class(switch.driver)(device)
    server = await asyncio.start_server(
        protocol.serve, "127.0.0.1", 0, ssl=protocol.tls
    )
    try:
        yield protocol, device, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await device.close()


@asynccontextmanager
async def conversation(
    driver: str, ports: int, *, log_in: bool = True
) -> AsyncIterator[tuple[Say, EmulatedOcs]]:
    """``say`` of a client, as ``client`` gives it, and the device that it talks to."""
    switch = CircuitSwitch(
        "ocs1", driver, "", ports, 0.0, initial=PortMap.of([(1, 7)])
    )
    async with (
        serving(switch) as (_, device, port),
        client(port, scpi=driver.endswith("scpi"), log_in=log_in) as say,
    ):
        yield say, device


async def expect_denials(say: Say, denials: Mapping[str, str]) -> None:
    """Each of these TL1 commands is denied with its words."""
    for command, words in denials.items():
        reply = await say(command)
        assert "DENY" in reply
        assert words in reply


@asynccontextmanager
async def client(
    port: int, *, scpi: bool = False, log_in: bool = True
) -> AsyncIterator[Say]:
    """``say`` sends one TL1 or SCPI command; it gives back what came until that was done."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def say(command: str) -> str:
        writer.write(
            f"{command}\n{_LAST}\n".encode() if scpi else command.encode()
        )
        async with asyncio.timeout(PATIENCE_S):
            if scpi:
                text = (await reader.readuntil(_LAST_ANSWER)).decode()
                return text.removesuffix(_LAST_ANSWER.decode()).strip()
            # A line that begins with ">" says that more comes, with ";" that this is all.
            return (
                (await reader.readuntil(b"\r\n;")).decode().replace("\r", "")
            )

    try:
        if log_in and not scpi:
            assert "COMPLD" in await say("ACT-USER::admin:1::pw;")
            assert "COMPLD" in await say("INH-MSG:::2;")
        yield say
    finally:
        writer.close()
