"""Changes of two wavelength switches whose entries outlive the process that changes them."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from patchlight.controller.changes.parts import CircuitParts, NoHooks
from patchlight.controller.changes.record import Reconfiguration
from patchlight.controller.changes.service import CircuitService
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.circuits.contract import (
    Capabilities,
    DirectedPort,
    Outcome,
)
from patchlight.controller.circuits.drivers.dry_run import DryRunWavelengths
from patchlight.controller.circuits.drivers.table import UP, Row
from patchlight.controller.storage.store import Store
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.spectrum import (
    Channel,
    ChannelConnect,
    SpectrumMap,
)
from patchlight.testbed.lab.wavelengths import WavelengthSwitch
from patchlight.testbed.lab.wiring import Links
from patchlight.testbed.labfile.reader import parse_lab
from tests.support.waiting import PATIENCE_S

# server1 and server2 at wss1, server3 and server4 at wss2, one fibre between the two; what leaves
# at port 4 of either comes to server5, through one coupler.
LAB_FILE = """
name: colours
network: 10.0.0.0/24
servers:
  - {name: server1, nics: [{name: nic0, address: 10.0.0.1, transceiver: {channel: 193.1}}]}
  - {name: server2, nics: [{name: nic0, address: 10.0.0.2, transceiver: {channel: 193.15}}]}
  - {name: server3, nics: [{name: nic0, address: 10.0.0.3, transceiver: {channel: 193.1}}]}
  - {name: server4, nics: [{name: nic0, address: 10.0.0.4, transceiver: {channel: 193.15}}]}
  - {name: server5, nics: [{name: nic0, address: 10.0.0.5, transceiver: {channel: 193.3}}]}
wavelength_switches:
  - {name: wss1, driver: dry-run, address: "127.0.0.1:1", inputs: 4,
     switching_time: 10ms, insertion_loss: 5dB,
     cross_connects: ["1-3@193.100", "2-3@193.150"]}
  - {name: wss2, driver: dry-run, address: "127.0.0.1:2", inputs: 4,
     switching_time: 10ms, insertion_loss: 5dB,
     cross_connects: ["1-3@193.100", "2-3@193.150"]}
passive_parts: [{name: star, kind: coupler, ports: 3}]
fibres:
  - server[1-2].nic0 - wss1.[1-2]
  - server[3-4].nic0 - wss2.[1-2]
  - wss1.3 - wss2.3
  - wss1.4 - star.1
  - wss2.4 - star.2
  - server5.nic0 - star.3
"""
LAB = parse_lab(LAB_FILE)
START = {switch.name: switch.initial for switch in LAB.wavelength_switches}
# server1 and server2 turn to each other: their light no longer goes over the fibre.
LOCAL = SpectrumMap.parse(["1>2@193.100", "2>1@193.150"])


class KeptWss(DryRunWavelengths):
    """A wavelength switch in a file; ``told`` are the entries of each command, in turn."""

    def __init__(
        self, switch: WavelengthSwitch, file: Path, told: list[str]
    ) -> None:
        super().__init__(switch)
        self._file = file
        self.told = told
        self.refuses = False
        if not file.exists():
            self._keep(SpectrumMap(tuple(switch.initial)))

    def entries(self) -> SpectrumMap:
        return SpectrumMap.parse(self._file.read_text().split())

    def _keep(self, entries: SpectrumMap) -> None:
        self._file.write_text("\n".join(entries.one_way_texts))

    async def _table(self) -> Mapping[ChannelConnect, Row]:
        return dict.fromkeys(self.entries(), UP)

    async def connect(
        self, pairs: Iterable[ChannelConnect]
    ) -> Outcome[ChannelConnect]:
        pairs = tuple(pairs)
        self.told += [f"{self.name} + {way}" for way in pairs]
        return await super().connect(pairs)

    async def disconnect(
        self, pairs: Iterable[ChannelConnect]
    ) -> Outcome[ChannelConnect]:
        pairs = tuple(pairs)
        self.told += [f"{self.name} - {way}" for way in pairs]
        return await super().disconnect(pairs)

    async def _make(self, pairs: Sequence[ChannelConnect]) -> None:
        if not self.refuses:
            self._keep(self.entries().joined(SpectrumMap.of(pairs)))

    async def _break(
        self,
        pairs: Sequence[ChannelConnect],
        table: Mapping[ChannelConnect, Row],
    ) -> None:
        self._keep(self.entries().without(pairs))


class MeasuredWss(KeptWss):
    """One with channel monitors: inputs have -0.3 dBm, outputs what ``dbm`` says of their entry."""

    capabilities = Capabilities(power_in=True, power_out=True)
    dbm: Mapping[str, float] = {}

    async def channel_powers(
        self, ports: Iterable[DirectedPort]
    ) -> Mapping[DirectedPort, Mapping[Channel, float | None]]:
        lit: dict[DirectedPort, dict[Channel, float | None]] = {
            port: {} for port in ports
        }
        for way in self.entries():
            lit.get(DirectedPort("in", way.inp), {})[way.channel] = -0.3
            lit.get(DirectedPort("out", way.out), {})[way.channel] = (
                self.dbm.get(str(way))
            )
        return lit


class Network(NoHooks):
    """Keeps what it is told of links and of ports that move."""

    def __init__(self) -> None:
        self.links: list[Links] = []
        self.moved: list[set[str]] = []
        self.jobs: dict[str, str] = {}

    async def follow(self, links: Links) -> list[str]:
        self.links.append(links)
        return []

    def jobs_using(self, moved: frozenset[Endpoint]) -> list[str]:
        return [
            job
            for end, job in self.jobs.items()
            if Endpoint.parse(end) in moved
        ]

    async def drain(self, moved: frozenset[Endpoint]) -> list[str]:
        self.moved.append({str(end) for end in moved})
        return []


class WssBench:
    """All that a controller has of the lab; a second one on the same folder is a restart."""

    def __init__(
        self, folder: Path, device: type[KeptWss] = KeptWss, lab: Lab = LAB
    ) -> None:
        self.told: list[str] = []
        self.devices = {
            switch.name: device(switch, folder / switch.name, self.told)
            for switch in lab.wavelength_switches
            if switch.driver
        }
        self.store = Store(folder / "controller.db")
        self.network = Network()
        self.parts = CircuitParts(
            lab, self.devices, self.store, self.network, self.network
        )
        self.transactions = Transactions(self.parts)
        self.service = CircuitService(self.parts, self.transactions)
        self.change = self.transactions.change

    async def join(self, **additions: Sequence[str]) -> Reconfiguration:
        """Add these to what is there, by switch."""
        wanted = {
            name: SpectrumMap.parse(texts) for name, texts in additions.items()
        }
        return await self.change(
            lambda maps: {
                name: maps[name].joined(new) for name, new in wanted.items()
            },
            "test",
        )

    async def turn_inwards(self) -> Reconfiguration:
        """Have both switches join the two servers that they have."""
        return await self.change(lambda _: dict.fromkeys(START, LOCAL), "test")

    def maps(self) -> dict[str, SpectrumMap]:
        return {
            name: device.entries() for name, device in self.devices.items()
        }


async def _change_and_die(
    folder: Path, when: str, name: str, step: str
) -> None:
    bench = WssBench(folder)
    device = bench.devices[name]
    method = getattr(device, step)

    async def die(*arguments: Any) -> None:
        if when == "after":
            await method(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(device, step, die)
    await bench.turn_inwards()


async def kill_a_change(folder: Path, point: str) -> None:
    """Have a process begin ``turn_inwards`` that dies, like ``after wss2 disconnect``."""
    killed = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        __name__,
        str(folder),
        *point.split(),
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await asyncio.wait_for(killed.communicate(), PATIENCE_S)
    assert killed.returncode == -signal.SIGKILL, errors.decode()


if __name__ == "__main__":
    asyncio.run(_change_and_die(Path(sys.argv[1]), *sys.argv[2:]))
