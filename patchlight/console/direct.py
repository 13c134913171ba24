"""Optical switches changed and watched in this process, without a controller.

Transactions, journal and locks are those of a controller, but no job pauses and no flow table
follows the circuits.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from pydantic import ValidationError

from patchlight.client.client import ControllerClient, ControllerError
from patchlight.controller.changes.device_maps import (
    CommittedMaps,
    DeviceMonitor,
)
from patchlight.controller.changes.parts import CircuitParts, NoHooks
from patchlight.controller.changes.record import ChangeOptions, change_as_texts
from patchlight.controller.changes.service import CircuitService
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.circuits import registry
from patchlight.controller.circuits.contract import AnyDriver, Drivers
from patchlight.controller.circuits.registry import open_driver, password_of
from patchlight.controller.storage.state_folder import open_store
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import (
    BadInput,
    OutcomeUnknown,
    PatchlightError,
    joined,
    mistake_in_words,
)
from patchlight.testbed.lab.model import Endpoint, Lab, OpticalSwitch
from patchlight.testbed.lab.portmap import AnyMap
from patchlight.testbed.wire.lab_api import api_address

T = TypeVar("T")


class _Direct(NoHooks):
    async def drain(self, moved: frozenset[Endpoint]) -> list[str]:
        return [
            "direct: jobs were not paused, and flow tables were not updated"
        ]


# The service's method for each request. In the path, ``*`` is an argument and ``#`` a number.
_CALLS: Mapping[tuple[str, str], str] = {
    ("GET", "/alarms"): "alarms",
    ("GET", "/circuit-switches"): "switches",
    ("GET", "/circuits"): "circuits",
    ("GET", "/circuits/*/light"): "light",
    ("GET", "/drift"): "drift",
    ("GET", "/links"): "links",
    ("GET", "/locks"): "locks",
    ("GET", "/maps"): "saved_maps",
    ("GET", "/reconfigurations"): "changes",
    ("GET", "/reconfigurations/#"): "change",
    ("GET", "/stop"): "stop_button",
    ("DELETE", "/maps/*"): "forget",
    ("PUT", "/maps/*"): "save",
    ("POST", "/baselines"): "accept_power",
    ("POST", "/drift/adopt"): "adopt",
    ("POST", "/drift/repair"): "repair",
    ("POST", "/light-paths"): "light_paths",
    ("POST", "/locks"): "lock",
    ("POST", "/locks/release"): "unlock",
    ("POST", "/maps/*/restore"): "restore",
    ("POST", "/reconfigurations"): "reconfigure",
    ("POST", "/reconfigurations/#/rollback"): "roll_back",
    ("POST", "/stop"): "press_stop",
    ("POST", "/stop/clear"): "clear_stop",
    ("POST", "/together"): "together",
}


class DirectClient(ControllerClient):
    """A client whose calls run in this process, on the given loop."""

    def __init__(
        self,
        service: CircuitService,
        loop: asyncio.AbstractEventLoop,
        user: str = "",
    ) -> None:
        self.address = "direct"
        self.is_logged_in = False
        self._service = service
        self._loop = loop
        shown = user.encode("ascii", "replace").decode()[:80]
        by = "".join(c if c.isprintable() else "?" for c in shown)
        self._who = ChangeOptions(
            by=by,
            origin=self.address,
        )

    def close(self) -> None:
        """Nothing is open."""

    def _call(
        self,
        kind: type[T],
        method: str,
        path: str,
        /,
        body: Any = None,
        prefer: str = "",
        **query: Any,
    ) -> T:
        for (verb, pattern), name in _CALLS.items():
            part = "([0-9]+)" if "#" in pattern else "([^/]+)"
            at = (
                re.fullmatch(re.sub("[*#]", part, pattern), path)
                if verb == method
                else None
            )
            if at is None:
                continue
            places = [
                int(text) if "#" in pattern else unquote(text)
                for text in at.groups()
            ]
            given: tuple[Any, ...] = ()
            method_of = getattr(self._service, name)
            if request := method_of.__annotations__.get("request"):
                try:
                    given = (request.model_validate(body), self._who)
                except ValidationError as error:
                    mistakes = (
                        mistake_in_words(e, e["loc"], "request")
                        for e in error.errors()
                    )
                    words = joined(mistakes)
                    raise BadInput(f"invalid request: {words}") from error
            try:
                work = method_of(*places, *given, **query)
                answer: T = self._loop.run_until_complete(work)
                return answer
            except (BadInput, OutcomeUnknown):
                raise
            except PatchlightError as error:
                raise ControllerError(
                    error.message, hint=error.hint
                ) from error
        raise ControllerError(f"{method} {path} needs a controller")


# A command without a controller prints itself what is logged of devices and changes.
logging.getLogger("patchlight.circuits").addHandler(logging.NullHandler())

Needs = Callable[[Store], Collection[str]]
"""Gets the journal, and returns the names of the optical switches that a command needs."""


@contextlib.contextmanager
def direct_client(
    lab: Lab,
    state_dir: Path,
    user: str = "",
    needs: Needs | None = None,
    *,
    talks: bool = True,
) -> Iterator[ControllerClient]:
    """A client whose requests go directly to the lab's optical switches.

    Only those that the command ``needs`` are opened and locked (default: all); the maps of the
    others come from the journal. Without ``talks`` they are locked and not opened. The journal is
    in ``state_dir``: an unfinished change of these devices is finished or undone first.
    ``DeviceLocked`` if a controller runs for the lab, or one of the devices is locked.
    """
    refuse_beside_a_controller(lab)
    with contextlib.ExitStack() as stack:
        store = open_store(state_dir)
        stack.callback(store.close)
        driven = [switch for switch in lab.optical_switches if switch.driver]
        names = (
            {s.name for s in driven} if needs is None else set(needs(store))
        )
        switches = [switch for switch in driven if switch.name in names]
        stack.enter_context(registry.device_lock(switches, registry.DIRECT))
        loop, drivers = stack.enter_context(
            drivers_on_loop(switches if talks else ())
        )
        hooks = _Direct()
        parts = CircuitParts(
            lab,
            drivers,
            store,
            hooks,
            hooks,
        )
        transactions = Transactions(parts)
        # After Ctrl-C, a change that has begun is finished.
        stack.callback(lambda: loop.run_until_complete(transactions.close()))
        if talks:
            loop.run_until_complete(parts.devices.open())
            loop.run_until_complete(transactions.resume())
        yield DirectClient(CircuitService(parts, transactions), loop, user)


@contextlib.contextmanager
def drivers_on_loop(
    switches: Iterable[OpticalSwitch],
) -> Iterator[tuple[asyncio.AbstractEventLoop, dict[str, AnyDriver]]]:
    """A loop to run, and a driver on it for each of these switches, closed at the end."""
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(asyncio.Runner()).get_loop()
        drivers: dict[str, AnyDriver] = {
            s.name: open_driver(s, password_of(s)) for s in switches
        }
        for driver in drivers.values():
            stack.callback(
                lambda closing: loop.run_until_complete(closing()),
                driver.close,
            )
        yield loop, drivers


def refuse_beside_a_controller(lab: Lab) -> None:
    """``DeviceLocked`` if a controller of the lab answers; another lab's has the devices' locks."""
    address = api_address(lab)
    with ControllerClient(address, deadline_s=2.0) as client:
        try:
            running = client.identity().name
        except ControllerError:
            return
    if running != lab.name:
        return
    raise registry.DeviceLocked(
        f"the controller of lab {running} at {address} controls these switches",
        hint="leave out --direct, or stop the controller first",
    )


Event = dict[str, Any]
_READ_EVERY_S = 2.0


@contextlib.contextmanager
def watching(
    lab: Lab,
    names: Collection[str],
    state_dir: Path,
) -> Iterator[Callable[[float], list[Event]]]:
    """A function that waits so many seconds, then returns the events of that time, in order.

    They are alarms of these optical switches (all if none are named), differences between their
    maps as read every other second, switches that stop or begin to answer, and changes by commands
    with ``--direct`` on the same journal. ``DeviceLocked`` if a controller runs.
    """
    driven = [switch for switch in lab.optical_switches if switch.driver]
    switches = [
        switch for switch in driven if not names or switch.name in names
    ]
    refuse_beside_a_controller(lab)
    registry.refuse_beside(switches, registry.CONTROLLER)
    with contextlib.ExitStack() as stack:
        store = open_store(state_dir)
        stack.callback(store.close)
        loop, drivers = stack.enter_context(drivers_on_loop(switches))
        watch = _Watch(lab, drivers, store)
        loop.run_until_complete(watch.begin())
        yield lambda wait_s: loop.run_until_complete(watch.happened(wait_s))


class _Watch:
    def __init__(
        self,
        lab: Lab,
        drivers: Drivers,
        store: Store,
    ) -> None:
        self._drivers = drivers
        self._journal = store
        # Switches that do not answer: the journal gets no events of what we see.
        self._events = Store(":memory:")
        self._devices = DeviceMonitor(
            lab,
            drivers,
            CommittedMaps(store, lab),
            self._events,
        )
        self._maps: dict[str, AnyMap] = {}
        self._last_in = {self._journal: store.last_event(), self._events: 0}
        self._read_at = 0.0
        self._returning: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Read the maps, so that only later changes are events."""
        await self._devices.open()
        self._maps = dict(await self._devices.read_maps())

    async def happened(self, wait_s: float) -> list[Event]:
        """The events of the next ``wait_s`` seconds, in the order of time."""
        await asyncio.sleep(wait_s)
        events: list[Event] = []
        for name in self._drivers.keys() - self._devices.unread.keys():
            alarms = await self._devices.new_alarms(name)
            events += [
                {"kind": "alarm", "ocs": name, **asdict(alarm)}
                for alarm in alarms
            ]
        if time.monotonic() - self._read_at >= _READ_EVERY_S:
            self._read_at = time.monotonic()
            # Meanwhile, because some devices take 15 s to be known as silent.
            if self._devices.unread and (
                self._returning is None or self._returning.done()
            ):
                self._returning = asyncio.create_task(self._devices.open())
            events += self._differences(await self._devices.read_maps())
        for store, last in self._last_in.items():
            if new := store.events(last):
                self._last_in[store] = new[-1]["number"]
                events += new
        return sorted(events, key=lambda event: float(event["at"]))

    def _differences(self, maps: Mapping[str, AnyMap]) -> list[Event]:
        events: list[Event] = []
        for name, port_map in maps.items():
            if change := self._maps.get(name, port_map).diff(port_map):
                changes = {name: change_as_texts(change)}
                events.append(
                    {
                        "at": time.time(),
                        "kind": "map",
                        "ocs": name,
                        "changes": changes,
                    }
                )
            self._maps[name] = port_map
        return events
