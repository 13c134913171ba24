"""Following devices without a controller: what they report, and what changes on them.

Nothing is changed and nothing held, so others may work on the devices meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from controller.circuits.contract import Alarm, CircuitDriver
from controller.circuits.registry import open_driver, password_of
from controller.claims import CONTROLLER, refuse_beside
from controller.commitments import Commitments
from controller.direct import open_store, refuse_beside_a_controller
from controller.reach import Reach
from controller.store import Store
from testbed.lab import Lab
from testbed.portmap import PortMap

Event = dict[str, Any]

_READ_EVERY_S = 2.0


@contextlib.contextmanager
def watching(
    lab: Lab, names: Collection[str], state_dir: Path
) -> Iterator[Callable[[float], list[Event]]]:
    """A function that waits so many seconds, then gives what happened, in order.

    Alarms of these circuit switches (all if none are named), differences between their maps
    as read every other second, who stopped answering or is back, and what commands with
    ``--direct`` did on the same journal meanwhile. ``DeviceClaimed`` beside a controller.
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
        self._reach = Reach(lab, drivers, Commitments(store), self._events)
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
                texts = {"breaks": [str(c) for c in change.breaks],
                         "makes": [str(c) for c in change.makes]}  # fmt: skip
                events.append(
                    {"at": time.time(), "kind": "map", "ocs": name, "changes": {name: texts}}
                )
            self._maps[name] = port_map
        return events
