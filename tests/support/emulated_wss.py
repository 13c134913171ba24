"""An emulated wavelength switch in this process, its open driver, and all light it let pass."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

from patchlight.controller.circuits.dialect import Timeouts
from patchlight.controller.circuits.registry import open_driver
from patchlight.emulation.optical.crossbar import NoChannelCrossbar
from patchlight.emulation.optical.device import EmulatedWss
from patchlight.emulation.optical.protocols.server import (
    ProtocolServer,
    server_class,
)
from patchlight.testbed.lab.spectrum import Channel, Grid, SpectrumMap
from patchlight.testbed.lab.wavelengths import WavelengthSwitch
from tests.support.ocs_drivers import listening

ARRIVING_DBM = -3.0


class Recorder(NoChannelCrossbar):
    """Remembers every map that was lit, in turn. 192.7 and 193.1 THz come in everywhere."""

    def __init__(self, inputs: int) -> None:
        light = dict.fromkeys(
            map(Channel.parse, ("192.700", "193.100")), ARRIVING_DBM
        )
        super().__init__(dict.fromkeys(range(1, inputs + 1), light))
        self.shown: list[SpectrumMap] = []

    async def change(self, lit: SpectrumMap) -> None:
        self.shown.append(lit)


@dataclass
class Bench:
    """A driver and its device; ``switch`` has the device's address."""

    driver: Any
    device: EmulatedWss
    recorder: Recorder
    server: ProtocolServer
    switch: WavelengthSwitch

    async def fault(self, **faults: object) -> None:
        """Set faults of the device."""
        self.device.faults.update(faults)
        await self.device.faults_changed()


@contextlib.asynccontextmanager
async def emulated_wss(
    driver: str,
    *initial: str,
    inputs: int,
    outputs: int,
    grid: str = "50GHz",
    password: str = "",
    timeouts: Timeouts | None = None,
) -> AsyncIterator[Bench]:
    """``password``: what the device asks of ``admin``, if not any will do."""
    switch = WavelengthSwitch(
        "wss1",
        inputs,
        outputs,
        Grid.parse(grid),
        switching_time_s=0.01,
        initial=SpectrumMap.parse(initial),
        driver=driver,
    )
    recorder = Recorder(inputs)
    device = EmulatedWss(
        switch, recorder, users={switch.user: password or None}
    )
    await device.open()
    server = server_class(driver)(device)
    async with listening(server.serve, server.tls) as address:
        switch = replace(switch, address=address)
        opened: Any = open_driver(switch, password)
        if timeouts is not None:
            opened = type(opened)(switch, password, None, timeouts)
        await opened.open()
        try:
            yield Bench(opened, device, recorder, server, switch)
        finally:
            await opened.close()
            server.cut()
            await device.close()
