"""Talking to the circuit switches without a controller, in this process.

The same transactions, journal, locks and routes as a controller has; only that nobody is
asked to pause and no flow table follows the light.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from patchlight.controller.api.circuits import circuit_routes, explain
from patchlight.controller.changes.committed_maps import CommittedMaps
from patchlight.controller.changes.device_maps import DeviceMonitor
from patchlight.controller.circuits.contract import Alarm, CircuitDriver
from patchlight.controller.circuits.device_lock import (
    CONTROLLER,
    DIRECT,
    DeviceLocked,
    device_lock,
    refuse_beside,
)
from patchlight.controller.circuits.registry import open_driver, password_of
from patchlight.controller.client import ControllerClient, ControllerError
from patchlight.controller.operations import CircuitOperations
from patchlight.controller.store import Store, open_store
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab import Endpoint, Lab
from patchlight.testbed.portmap import PortMap
from patchlight.testbed.wiring import Links

Event = dict[str, Any]

_READ_EVERY_S = 2.0


@contextlib.contextmanager
def watching(
    lab: Lab, names: Collection[str], state_dir: Path
) -> Iterator[Callable[[float], list[Event]]]:
    """A function that waits so many seconds, then gives what happened, in order.

    Alarms of these circuit switches (all if none are named), differences between their maps
    as read every other second, who stopped answering or is back, and what commands with
    ``--direct`` did on the same journal meanwhile. ``DeviceLocked`` beside a controller.
    """
    switches = [s for s in lab.circuit_switches if not names or s.name in names]
    refuse_beside_a_controller(lab)
    refuse_beside(switches, CONTROLLER)
    with contextlib.ExitStack() as stack:
        store = open_store(state_dir)
        stack.callback(store.close)
        runner = stack.enter_context(asyncio.Runner())
        loop = runner.get_loop()
        drivers = {s.name: open_driver(s, password_of(s)) for s in switches}
        for driver in drivers.values():
            stack.callback(lambda closing: loop.run_until_complete(closing()), driver.close)
        watch = _Watch(lab, drivers, store)
        loop.run_until_complete(watch.begin())

        def happened(wait_s: float) -> list[Event]:
            return loop.run_until_complete(watch.happened(wait_s))

        yield happened


class _Watch:
    def __init__(self, lab: Lab, drivers: dict[str, CircuitDriver], store: Store) -> None:
        self._drivers, self._store = drivers, store
        # A memory of its own for who is lost: the journal is told nothing of what we see.
        self._events = Store(":memory:")
        self._reach = DeviceMonitor(lab, drivers, CommittedMaps(store), self._events)
        self._maps: dict[str, PortMap] = {}
        self._heard: dict[str, Alarm] = {}
        self._journal, self._own, self._read_at = store.last_event(), 0, 0.0
        self._returning: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Read what there is, so that only what happens from now on is told."""
        await self._reach.open()
        self._maps = dict(await self._reach.read_maps())

    async def happened(self, wait_s: float) -> list[Event]:
        await asyncio.sleep(wait_s)
        found: list[Event] = []
        for name in self._drivers.keys() - self._reach.unread.keys():
            found += await self._alarms(name)
        if time.monotonic() - self._read_at >= _READ_EVERY_S:
            self._read_at = time.monotonic()
            self._bring_back()
            found += self._differences(await self._reach.read_maps())
        journal, own = self._store.events(self._journal), self._events.events(self._own)
        self._journal = journal[-1]["number"] if journal else self._journal
        self._own = own[-1]["number"] if own else self._own
        return sorted([*found, *journal, *own], key=lambda event: float(event["at"]))

    def _bring_back(self) -> None:
        # Beside the rest: some devices take 15 s to be known as silent.
        if self._reach.unread and (self._returning is None or self._returning.done()):
            self._returning = asyncio.create_task(self._reach.open())

    async def _alarms(self, name: str) -> list[Event]:
        alarms = await self._reach.ask(name, self._drivers[name].alarms()) or ()
        last = self._heard.get(name)
        new = alarms[alarms.index(last) + 1 :] if last in alarms else alarms
        if alarms:
            self._heard[name] = alarms[-1]
        return [{"kind": "alarm", "ocs": name, **asdict(alarm)} for alarm in new]

    def _differences(self, now: dict[str, PortMap]) -> list[Event]:
        events: list[Event] = []
        for name, port_map in now.items():
            change = self._maps.get(name, port_map).diff(port_map)
            if change:
                texts = {
                    "breaks": [str(c) for c in change.breaks],
                    "makes": [str(c) for c in change.makes],
                }
                events.append(
                    {"at": time.time(), "kind": "map", "ocs": name, "changes": {name: texts}}
                )
            self._maps[name] = port_map
        return events


class _Nobody:
    """No packet switches to program, no jobs to pause."""

    async def follow(self, links: Links) -> list[str]:
        return []

    def jobs_using(self, moved: frozenset[Endpoint]) -> list[str]:
        return []

    async def drain(self, moved: frozenset[Endpoint]) -> list[str]:
        return ["direct: no job was asked to pause, and no flow table follows the light"]

    async def undrain(self) -> None:
        return None


class InProcess(httpx.BaseTransport):
    """Requests to an application in this process, on a loop that runs while it answers."""

    def __init__(self, app: FastAPI, loop: asyncio.AbstractEventLoop) -> None:
        self._inner, self._loop = httpx.ASGITransport(app, client=("direct", 0)), loop

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Have the application answer."""
        return self._loop.run_until_complete(self._answer(request))

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        content = request.read()
        asked = httpx.Request(request.method, request.url, headers=request.headers, content=content)
        response = await self._inner.handle_async_request(asked)
        body = await response.aread()
        return httpx.Response(response.status_code, headers=response.headers, content=body)


# What is logged of devices and changes, a command without a controller prints as its own answer.
logging.getLogger("patchlight.circuits").addHandler(logging.NullHandler())

Needs = Callable[[Store], Collection[str]]
"""Which circuit switches a command talks to, given the journal."""


@contextlib.contextmanager
def direct_client(
    lab: Lab, state_dir: Path, user: str = "", needs: Needs | None = None, *, talks: bool = True
) -> Iterator[ControllerClient]:
    """A client whose requests go straight to the lab's circuit switches.

    Only those that the command ``needs`` are opened and held (default: all); what the others
    have is taken from the journal. Without ``talks`` they are held and not opened: for what
    is in the journal alone. The journal is in ``state_dir``: what an earlier one left half done
    is finished or undone first, as far as it concerns these devices. ``DeviceLocked`` if a
    controller runs for the lab or somebody holds one of the devices.
    """
    refuse_beside_a_controller(lab)
    with contextlib.ExitStack() as stack:
        store = open_store(state_dir)
        stack.callback(store.close)
        names = {s.name for s in lab.circuit_switches} if needs is None else set(needs(store))
        switches = [s for s in lab.circuit_switches if s.name in names]
        stack.enter_context(device_lock(switches, DIRECT))
        runner = stack.enter_context(asyncio.Runner())
        loop = runner.get_loop()
        drivers = {s.name: open_driver(s, password_of(s)) for s in switches if talks}
        for driver in drivers.values():
            stack.callback(lambda closing: loop.run_until_complete(closing()), driver.close)
        plant = CircuitOperations(lab, drivers, _Nobody(), _Nobody(), store)
        # After Ctrl-C: a change that has begun comes to its end.
        stack.callback(lambda: loop.run_until_complete(plant.reconfigurer.close()))
        if talks:
            loop.run_until_complete(plant.reach.open())
            loop.run_until_complete(plant.begin())
        app = FastAPI()
        app.exception_handler(PatchlightError)(explain)
        app.include_router(circuit_routes(plant))
        transport = InProcess(app, loop)
        yield stack.enter_context(ControllerClient("direct", user=user, transport=transport))


def refuse_beside_a_controller(lab: Lab) -> None:
    """``DeviceLocked`` if a controller of the lab answers."""
    with ControllerClient(lab.controller_api, deadline_s=2.0) as client:
        try:
            running = client.status()["lab"]
        except ControllerError:
            return
    raise DeviceLocked(
        f"a controller of lab {running} runs at {lab.controller_api}: it holds the switches",
        hint="leave out --direct, or stop the controller first",
    )
