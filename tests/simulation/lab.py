"""A whole simulated lab: its plant, its servers, and its controller, which is the real one."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

import httpx

from patchlight.controller.metrics.exposition import ControllerMetrics
from patchlight.controller.parts import (
    Controller,
    ControllerSettings,
    ExternalIO,
)
from patchlight.controller.service import running_parts
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.rules import NOTHING_SAID
from tests.simulation.disk import Disk
from tests.simulation.optical import device_links
from tests.simulation.packet_switches import SimulatedSnmp, open_driver
from tests.simulation.plant import Plant, located
from tests.simulation.servers import Machine, ToProcess, Worker
from tests.simulation.world import Process, World


class SimulatedLab:
    """One lab in a world; ``open`` starts everything."""

    def __init__(self, world: World, lab: Lab) -> None:
        self.world = world
        self.lab = located(lab, world.folder)
        self.plant = Plant(world, self.lab)
        self.machines = {
            server.name: Machine(world, self.plant, server)
            for server in self.lab.servers
        }
        self.controller = Process(world, "controller")
        self.controller.alive = False
        self.app: Any = None
        self.made: Controller | None = None
        """The parts of the latest controller."""
        self.policies = NOTHING_SAID
        self.serving = asyncio.Event()
        self.state = world.folder / "state"
        self.disk = Disk(world, self.state)
        self.disks = [
            self.disk,
            *(machine.disk for machine in self.machines.values()),
        ]
        self.on_worker: list[Callable[[Worker, str], None]] = []
        """Called with each worker that is launched, told to start, or in a new state."""
        for machine in self.machines.values():
            machine.on_worker = self.on_worker

    async def open(self) -> None:
        """Start devices, agents and the controller, and wait until it serves."""
        for device in self.plant.devices.values():
            device.start()
        for switch in self.plant.switches.values():
            switch.start()
        for machine in self.machines.values():
            machine.start()
        self.start_controller()
        await self.until_served()

    def start_controller(self) -> Process:
        """Start the controller's process on what is on its disk."""
        self.controller = Process(self.world, "controller")
        self.controller.at_end.append(self._stopped)
        self.world.log("controller", "starts")
        self.controller.start(self._run(self.controller))
        return self.controller

    def _stopped(self) -> None:
        self.app = None
        self.serving.clear()
        for process in self.plant.speaker_processes:
            # Its standard input closes with the controller.
            process.end()

    async def _run(self, process: Process) -> None:
        process.disk = self.disk
        process.at_end.append(lambda: self.disk.close(process))
        external = ExternalIO(
            transport_to=lambda server: self.way_to(process, server),
            launch_speaker=self.plant.launch_speaker,
            open_packet_driver=lambda switch, password: open_driver(
                self.plant.switches[switch.name], password
            ),
            open_snmp=SimulatedSnmp,
            device_links=device_links(self.plant),
            device_locks=self.world.folder,
        )
        settings = ControllerSettings(
            state_dir=self.state,
            api=f"unix:{self.state}/api.sock",
            openflow="127.0.0.1:6653",
            policies=self.policies,
        )
        try:
            self.made = controller = Controller(self.lab, settings, external)
            async with running_parts(
                controller, ControllerMetrics(controller)
            ) as app:
                self.world.log(process.name, "serves")
                if process is self.controller:
                    self.app = app
                    self.serving.set()
                await asyncio.Event().wait()
        except PatchlightError as error:
            self.world.log(process.name, f"cannot start: {error.message}")
            process.end()
            if process is self.controller:  # as systemd does
                self.world.loop.call_later(
                    5.0, self.restart, context=contextvars.Context()
                )

    def way_to(
        self, process: Process, server: str
    ) -> httpx.AsyncBaseTransport:
        """What carries a controller's requests to an agent."""
        machine = self.machines[server]
        return ToProcess(
            self.world, process, lambda: (machine.agent, machine.app)
        )

    def restart(self) -> None:
        """Start the controller unless it runs."""
        if not self.controller.alive:
            self.start_controller()

    def try_second(self) -> Process:
        """Start another controller for the same lab, which must not run."""
        second = Process(self.world, "second-controller")
        second.start(self._run(second))
        return second

    async def until_served(self) -> None:
        """Wait until the controller's API answers."""
        await self.serving.wait()

    def client(self, name: str, user: int = 0) -> httpx.AsyncClient:
        """An HTTP client of the API: root's, or another user's by number."""
        process = Process(self.world, name)
        transport = ToProcess(
            self.world, process, lambda: (self.controller, self.app), user
        )
        return httpx.AsyncClient(
            base_url="http://localhost/v1", transport=transport, timeout=60
        )
