"""Changes of circuits against an emulated Calient with the OFC 2022 lab's cross-connects."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from patchlight.controller.changes.device_maps import Decide, MapCache
from patchlight.controller.changes.device_watch import DeviceWatch
from patchlight.controller.changes.parts import CircuitParts, NoHooks
from patchlight.controller.changes.record import Reconfiguration
from patchlight.controller.changes.service import CircuitService
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.circuits.contract import CircuitDriver
from patchlight.controller.circuits.registry import open_driver
from patchlight.controller.packet_switches.openflow.flowtable import FlowTable
from patchlight.controller.packet_switches.openflow.forwarding import (
    flow_tables,
)
from patchlight.controller.policies.topology import regroup
from patchlight.controller.storage.store import Store
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import Links
from patchlight.testbed.labfile.reader import builtin_lab, read_lab
from tests.support.emulated_devices import ROOT, Running, running
from tests.support.waiting import PATIENCE_S

LAB = read_lab(builtin_lab("ofc2022"))
START = LAB.initial_maps["ocs1"]
JOBS = [["gpu0", "gpu2", "gpu4", "gpu5"], ["gpu1", "gpu3"]]


def joined(*pairs: tuple[int, int]) -> Decide:
    """The map that is there, with these cross-connects both ways."""
    return lambda maps: {"ocs1": maps["ocs1"].joined(PortMap.duplex(pairs))}


class Network(NoHooks):
    """Packet switches and traffic that keep what they were told, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.tables: Mapping[str, FlowTable] = {}
        self.jobs: list[str] = []

    async def follow(self, links: Links) -> list[str]:
        self.tables = flow_tables(LAB, links)
        self.calls.append(("follow", len(links.pairs())))
        return []

    def jobs_using(self, moved: frozenset[Endpoint]) -> list[str]:
        return self.jobs if moved else []

    async def drain(self, moved: frozenset[Endpoint]) -> list[str]:
        self.calls.append(("drain", {str(end) for end in moved}))
        return []

    async def undrain(self, maps: MapCache) -> None:
        self.calls.append(("undrain",))


@dataclass
class CircuitsOf:
    """All that a controller has of circuits; a second one on the same store is a restart."""

    lab: Lab
    drivers: Mapping[str, CircuitDriver]
    store: Store
    network: Network = field(default_factory=Network)
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.parts = CircuitParts(
            self.lab,
            self.drivers,
            self.store,
            self.network,
            self.network,
            **self.options,
        )
        self.transactions = Transactions(self.parts)
        self.watch = DeviceWatch(self.parts, self.transactions)
        self.service = CircuitService(self.parts, self.transactions)
        self.change = self.transactions.change


@dataclass
class ChangeBench(CircuitsOf):
    """The circuits of the OFC 2022 lab, whose OCS is an emulated device."""

    device: Running = field(kw_only=True)

    @property
    def driver(self) -> CircuitDriver:
        return self.drivers["ocs1"]

    def restarted(self, **options: Any) -> CircuitsOf:
        """What a controller finds that starts now, with these options of ``CircuitParts``."""
        return CircuitsOf(LAB, self.drivers, self.store, self.network, options)

    async def regroup(self) -> Reconfiguration:
        return await self.change(lambda maps: regroup(LAB, maps, JOBS), "test")


@asynccontextmanager
async def change_bench(folder: Path) -> AsyncIterator[ChangeBench]:
    with running(folder, builtin_lab("ofc2022"), "--no-fabric") as device:
        driver = open_driver(device.switch, "")
        await driver.open()
        yield ChangeBench(
            LAB,
            {"ocs1": driver},
            Store(folder / "controller.db"),
            device=device,
        )
        await driver.close()


async def _regroup_and_die(address: str, journal: str, point: str) -> None:
    """What a crash leaves in the journal: this process is killed at a point of its change."""
    driver = open_driver(
        replace(LAB.circuit_switch("ocs1"), address=address), ""
    )
    await driver.open()
    circuits = CircuitsOf(LAB, {"ocs1": driver}, Store(journal))
    when, step = point.split()
    owner, name = {
        "drain": (circuits.network, "drain"),
        "break": (driver, "disconnect"),
        "make": (driver, "connect"),
        "undrain": (circuits.network, "undrain"),
    }[step]
    method = getattr(owner, name)

    async def die(*arguments: Any) -> None:
        if when == "after":
            await method(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, die)
    await circuits.change(lambda maps: regroup(LAB, maps, JOBS), "test")


async def kill_a_change(device: Running, journal: Path, point: str) -> None:
    """Have a process regroup ``JOBS`` that dies ``before`` or ``after`` a step of it."""
    command = [
        sys.executable,
        "-m",
        __name__,
        device.switch.address,
        str(journal),
        point,
    ]
    killed = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await asyncio.wait_for(killed.communicate(), PATIENCE_S)
    assert killed.returncode == -signal.SIGKILL, errors.decode()


if __name__ == "__main__":
    asyncio.run(_regroup_and_die(*sys.argv[1:]))
