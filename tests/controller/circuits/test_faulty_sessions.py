"""Random faulty sessions: a connection to the emulated device that garbles, cuts and repeats.

Whatever comes over it: a driver ends within its deadlines, raises nothing but our errors,
keeps at most the bound of bytes, and works again as soon as the connection does.
"""

import asyncio
import random
import socket
import time
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from patchlight.controller.circuits.contract import DirectedPort
from patchlight.controller.circuits.drivers.base import SessionTable
from patchlight.controller.circuits.protocols.session import DeviceSession
from patchlight.controller.circuits.protocols.tcp import BUFFER_LIMIT
from patchlight.emulation.optical.crossbar import NoCrossbar
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.protocols.server import server_class
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.ocs_drivers import OCS_DRIVERS
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from tests.support.ocs_drivers import (
    SESSION_DRIVERS,
    driver_of,
    listening,
    opened,
)

TIMEOUT_S = 0.15
# An operation takes some exchanges, each at most two timeouts and a reconnect; and as long again
# on a machine that is busy with other things.
LONGEST_S = 200 * TIMEOUT_S


@dataclass
class BadConnection:
    """Between a client and a front: what the front says is spoilt as long as ``bad``."""

    front: Any
    rng: random.Random
    bad: bool = True
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        here, there = socket.socketpair()
        theirs, ours = await asyncio.open_connection(sock=here)
        front = asyncio.create_task(
            self.front.serve(*await asyncio.open_connection(sock=there))
        )
        back = asyncio.create_task(self._back(theirs, writer))
        # The event loop holds neither: streams of our own making keep only weak references.
        self.tasks += front, back
        try:
            while data := await reader.read(65536):
                ours.write(data)
                await ours.drain()
        except OSError:
            pass
        finally:
            ours.close()
            await asyncio.gather(front, back)

    async def _back(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while data := await reader.read(65536):
                if self.bad and self.rng.random() < 0.1:
                    if (spoilt := self._spoil(data)) is None:
                        break
                    data = spoilt
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    def _spoil(self, data: bytes) -> bytes | None:
        """The bytes as they arrive; ``None`` cuts the connection."""
        rng = self.rng
        at = self.rng.randrange(len(data) + 1)
        match rng.randrange(9):
            case 0:
                return None
            case 1:
                return b""
            case 2:
                return data[:at]
            case 3:
                return data * rng.randrange(2, 5)
            case 4:
                return (
                    data[:at] + rng.randbytes(rng.randrange(1, 40)) + data[at:]
                )
            case 5:
                return bytes(
                    b ^ (rng.random() < 0.05) * rng.randrange(256)
                    for b in data
                )
            case 6:
                return (
                    data[:at]
                    + rng.choice(
                        [b'"', b"\n", b";", b"(", b"/*", b"\xff", b">"]
                    )
                    * 50
                )
            case 7:
                return b"x" * (BUFFER_LIMIT + 10)
            case _:
                return (
                    data
                    + b'\r\n\n   X 01-01-01 00:00:00\r\nM  1 COMPLD\r\n;0,"No error"\n1\n'
                )


async def session(driver_name: str, seed: int) -> str:
    """Operations over the bad connection, then over the good one. How it went."""
    rng = random.Random(seed)
    switch = CircuitSwitch(
        "ocs1", driver_name, "", 16, 0.0, initial=PortMap.of([(1, 7)])
    )
    device = EmulatedOcs(switch, {1: 0.0}, NoCrossbar())
    await device.open()
    connection = BadConnection(server_class(driver_name)(device), rng)
    async with listening(connection.serve, connection.front.tls) as address:
        ended = await over_the_bad_connection(
            connection, replace(switch, address=address)
        )
        # Only what was learnt on the bad connection may be wrong: a new driver sees what is so.
        async with opened(
            replace(switch, address=address), answer_s=10.0
        ) as fresh:
            assert await fresh.read_map() == device.map
    await asyncio.gather(*connection.tasks)
    await device.close()
    return ended


async def over_the_bad_connection(
    connection: BadConnection, switch: CircuitSwitch
) -> str:
    rng = connection.rng
    driver = driver_of(switch, answer_s=TIMEOUT_S)
    assert isinstance(driver, SessionTable)
    client = driver.client
    ended = "well"
    for _ in range(4):
        pairs = [
            CrossConnect(n, rng.randrange(1, 17))
            for n in rng.sample(range(1, 17), 1)
        ]
        operations = (
            driver.open,
            driver.identify,
            driver.read_map,
            driver.port_states,
            driver.alarms,
            lambda: driver.power([DirectedPort("out", 7)]),
            lambda pairs=pairs: driver.connect(pairs),
            lambda pairs=pairs: driver.disconnect(pairs),
        )
        began = time.monotonic()
        try:
            await rng.choice(operations)()
        except PatchlightError:
            ended = "badly"
        assert time.monotonic() - began < LONGEST_S
        assert (
            not isinstance(client, DeviceSession)
            or client.buffered <= BUFFER_LIMIT
        )
    connection.bad = False
    await driver.close()
    return ended


# What is garbled here are bytes of TCP or TLS; inside SSH they would meet its own checksums.
OVER_TCP = [
    name
    for name in SESSION_DRIVERS
    if "SSH" not in OCS_DRIVERS[name].transport
]


@pytest.mark.parametrize("driver", OVER_TCP)
async def test_faulty_sessions_end_in_time_and_in_our_errors(
    driver: str,
) -> None:
    # Many sessions at once would lack processor time at their deadlines, with TLS even more.
    transport = OCS_DRIVERS[driver].transport
    sessions, at_once = (24, 8) if "HTTPS" in transport else (60, 10)
    if "gNMI" in transport:
        sessions, at_once = 12, 4
    ended: list[str] = []
    for start in range(0, sessions, at_once):
        seeds = range(start, start + at_once)
        ended += await asyncio.gather(
            *(session(driver, seed) for seed in seeds)
        )
    # The connection is bad enough to matter, and not so bad that nothing passes.
    assert min(ended.count("well"), ended.count("badly")) > sessions // 20
