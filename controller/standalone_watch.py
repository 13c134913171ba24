"""Watching circuit switches without a controller: what happens on them and on the journal."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from patchlight.controller.changes.committed_maps import CommittedMaps
from patchlight.controller.changes.device_maps import DeviceMonitor
from patchlight.controller.changes.record import change_as_texts
from patchlight.controller.circuits.contract import CircuitDriver
from patchlight.controller.circuits.device_lock import CONTROLLER, refuse_beside
from patchlight.controller.standalone import drivers_on_loop, refuse_beside_a_controller
from patchlight.controller.store import Store, open_store
from patchlight.testbed.lab import Lab
from patchlight.testbed.portmap import PortMap

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
        loop, drivers = stack.enter_context(drivers_on_loop(switches))
        watch = _Watch(lab, drivers, store)
        loop.run_until_complete(watch.begin())
        yield lambda wait_s: loop.run_until_complete(watch.happened(wait_s))


class _Watch:
    def __init__(self, lab: Lab, drivers: Mapping[str, CircuitDriver], store: Store) -> None:
        self._drivers, self._journal = drivers, store
        # Events of its own for who does not answer: the journal is told nothing of what we see.
        self._events = Store(":memory:")
        self._devices = DeviceMonitor(lab, drivers, CommittedMaps(store), self._events)
        self._maps: dict[str, PortMap] = {}
        self._last_in = {self._journal: store.last_event(), self._events: 0}
        self._read_at = 0.0
        self._returning: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Read what there is, so that only what happens from now on is told."""
        await self._devices.open()
        self._maps = dict(await self._devices.read_maps())

    async def happened(self, wait_s: float) -> list[Event]:
        """The events of the next ``wait_s`` seconds, in the order of time."""
        await asyncio.sleep(wait_s)
        events: list[Event] = []
        for name in self._drivers.keys() - self._devices.unread.keys():
            alarms = await self._devices.new_alarms(name)
            events += [{"kind": "alarm", "ocs": name, **asdict(alarm)} for alarm in alarms]
        if time.monotonic() - self._read_at >= _READ_EVERY_S:
            self._read_at = time.monotonic()
            self._bring_back()
            events += self._differences(await self._devices.read_maps())
        for store, last in self._last_in.items():
            if new := store.events(last):
                self._last_in[store] = new[-1]["number"]
                events += new
        return sorted(events, key=lambda event: float(event["at"]))

    def _bring_back(self) -> None:
        # Beside the rest: some devices take 15 s to be known as silent.
        if self._devices.unread and (self._returning is None or self._returning.done()):
            self._returning = asyncio.create_task(self._devices.open())

    def _differences(self, maps: Mapping[str, PortMap]) -> list[Event]:
        events: list[Event] = []
        for name, port_map in maps.items():
            if change := self._maps.get(name, port_map).diff(port_map):
                changes = {name: change_as_texts(change)}
                events.append({"at": time.time(), "kind": "map", "ocs": name, "changes": changes})
            self._maps[name] = port_map
        return events
