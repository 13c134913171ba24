"""The controller: makes the parts, joins them, runs them, lets go of them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvicorn

from controller.api.app import create_app
from controller.checks import POWER_CEILING_DBM
from controller.circuits.contract import CircuitDriver
from controller.circuits.registry import open_driver, password_of
from controller.claims import CONTROLLER, claimed
from controller.direct import open_store
from controller.fleet.fleet import Fleet
from controller.jobs.deciders import DEFAULT_POLICIES, PolicyChoice
from controller.jobs.scheduler import Scheduler
from controller.openflow.child import SpeakerOptions
from controller.openflow.client import Speaker
from controller.openflow.listening import listen
from controller.optics import DEFAULT_TOLERANCES, Tolerances
from controller.plant import Plant
from controller.switches import Switches
from testbed.lab import Lab


@dataclass(frozen=True)
class Settings:
    """What the controller is told beside the lab file.

    ``openflow_netns`` is the network namespace that the OpenFlow speaker listens in (a path;
    ``None``: the controller's own). ``token`` opens agents that listen on TCP. Light stronger
    than ``power_ceiling_dbm`` is not switched; ``tolerances`` say how much may be missing.
    ``policies`` say which job is next, and where it runs.
    """

    state_dir: Path
    api: str
    openflow: str
    openflow_netns: Path | None = None
    engine: str | None = None
    ryu_apps: Sequence[str] = ()
    token: str | None = None
    power_ceiling_dbm: float = POWER_CEILING_DBM
    tolerances: Tolerances = DEFAULT_TOLERANCES
    policies: PolicyChoice = DEFAULT_POLICIES


class _Server(uvicorn.Server):
    """Leaves signals to us: uvicorn's own way ends the process before we let go of things."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Controller:
    """All parts of a running controller."""

    def __init__(self, lab: Lab, settings: Settings) -> None:
        self.lab, self.settings = lab, settings
        self.store = open_store(settings.state_dir)
        self.fleet = Fleet(lab, settings.token)
        self.drivers: dict[str, CircuitDriver] = {
            switch.name: open_driver(switch, password_of(switch)) for switch in lab.circuit_switches
        }
        self.speaker = Speaker(
            SpeakerOptions(
                socket=settings.state_dir / "speaker.sock",
                datapath_ids=tuple(switch.datapath_id for switch in lab.packet_switches),
                listen=settings.openflow,
                netns=str(settings.openflow_netns) if settings.openflow_netns else None,
                engine=settings.engine,
                apps=tuple(settings.ryu_apps),
            )
        )
        self.switches = Switches(lab, self.speaker)
        self.scheduler = Scheduler(lab, self.fleet, self.store, settings.policies)
        self.plant = Plant(
            lab, self.drivers, self.switches, self.scheduler, self.store,
            settings.power_ceiling_dbm, settings.tolerances,
        )  # fmt: skip
        self.reconfigurer = self.plant.reconfigurer
        self.scheduler.reconfigurer = self.reconfigurer

    def status(self) -> dict[str, Any]:
        """Who is there and who is not."""
        return {
            "lab": self.lab.name,
            "version": version("patchlight"),
            "engine": self.speaker.info.get("engine"),
            "policies": self.settings.policies.words,
            "switches": [
                {"name": s.name, "datapath_id": s.datapath_id,
                 "connected": self.switches.connected()[s.name]}
                for s in self.lab.packet_switches
            ],
            "circuit_switches": self.plant.reach.status(),
            "agents": [{"server": s, "reachable": r} for s, r in self.fleet.reachable.items()],
        }  # fmt: skip

    def _on_event(self, event: dict[str, Any]) -> None:
        self.switches.on_event(event)
        if event["event"] != "counters":
            self.store.add_event(time.time(), f"openflow-{event['event']}", event)

    async def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C. Circuits and flow entries outlive the controller."""
        api = listen(self.settings.api)
        server = _Server(uvicorn.Config(create_app(self), log_level="warning", lifespan="off"))
        told_to_stop = asyncio.Event()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signal_number, told_to_stop.set)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self.store.close)
            stack.push_async_callback(self.fleet.close)
            holder = f"{CONTROLLER} {self.lab.name}"
            stack.enter_context(claimed(self.lab.circuit_switches, holder))
            for driver in self.drivers.values():
                stack.push_async_callback(driver.close)
            # Who does not answer is left for later: one switch does not keep the lab waiting.
            await self.plant.reach.open()
            stack.push_async_callback(self.speaker.close)
            self.speaker.subscribe(self._on_event)
            await self.speaker.start()
            stack.push_async_callback(self.switches.close)
            await self.switches.look()
            stack.push_async_callback(self.reconfigurer.close)
            await self.plant.begin()
            await self.reconfigurer.settle_flows()
            stack.push_async_callback(self.scheduler.close)
            background = [
                asyncio.create_task(self.scheduler.run(), name="scheduler"),
                asyncio.create_task(self.fleet.watch(), name="fleet"),
                asyncio.create_task(self.plant.watch(), name="plant"),
            ]
            serving = asyncio.create_task(server.serve(sockets=[api]), name="api")
            stopping = asyncio.create_task(told_to_stop.wait(), name="stop")
            try:
                # A background part that fails takes the controller down: half a controller
                # would look well and do nothing.
                done, _ = await asyncio.wait(
                    [serving, stopping, *background], return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
            finally:
                server.should_exit = True
                for task in (stopping, *background):
                    task.cancel()
                await asyncio.gather(serving, stopping, *background, return_exceptions=True)
