"""Watches alarms and drift of optical switches in the background, and reads power on request."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from patchlight.controller.changes.device_maps import Drift, Maps
from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.power import (
    PortReading,
    PowerVerdict,
    measures_each,
)
from patchlight.controller.changes.record import Notifier
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.circuits.contract import (
    Alarm,
    DirectedPort,
    PortState,
)
from patchlight.testbed.errors import in_words

log = logging.getLogger("patchlight.circuits")

# In a lab that polls every second.
_ALARMS_EVERY_S = 0.5
_LOOK_EVERY_S = 30.0
# A flood of alarms must not fill the journal.
_EVENTS_AT_ONCE = 20


class DeviceWatch:
    """Makes events of alarms (counted by switch and severity) and of the last known ``drift``."""

    def __init__(
        self, parts: CircuitParts, transactions: Transactions
    ) -> None:
        self._parts = parts
        self._transactions = transactions
        self.drift: dict[str, Drift] = {}
        self.alarms: Counter[tuple[str, str]] = Counter()
        self.looked = Notifier()
        self._look_now = False
        transactions.on_end.append(lambda _: self.look_soon())

    def look_soon(self) -> None:
        """Read the maps next time: something has changed."""
        self._look_now = True

    async def begin(self) -> None:
        """Finish or undo what a dead controller left, then report drift, which is not repaired."""
        await self._transactions.resume()
        await self._report_drift()

    async def run(self) -> None:
        """Make events of alarms and drift, and reopen devices that do not answer."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen_and_look())
            group.create_task(self._parts.devices.watch(self._returned))

    async def _returned(self, name: str) -> None:
        self._parts.port_states.forget(name)
        self.drift.pop(name, None)
        await self.begin()
        await self._transactions.settle_flows()

    async def _listen_and_look(self) -> None:
        drivers = self._parts.drivers
        devices = self._parts.devices
        looked_at = time.monotonic()
        poll_s = self._parts.lab.controller_poll_s
        while True:
            await asyncio.sleep(_ALARMS_EVERY_S * poll_s)
            for name in drivers:
                if name in devices.unread:
                    continue
                try:
                    await self.report_alarms(name)
                except Exception as error:
                    log.warning(
                        "%s: reading its alarms: %s", name, in_words(error)
                    )
            is_time = time.monotonic() - looked_at > _LOOK_EVERY_S
            if is_time or self._look_now:
                self._look_now = False
                try:
                    # A switch may be back before anyone noticed that it was away.
                    if await self._transactions.settle():
                        await self._transactions.settle_flows()
                    await self._report_drift()
                    answering = [
                        name for name in drivers if name not in devices.unread
                    ]
                    for name in answering if is_time else ():
                        await self._parts.port_states.read(name)
                except Exception as error:
                    log.warning(
                        "checking the circuit switches: %s", in_words(error)
                    )
                looked_at = time.monotonic() if is_time else looked_at
                self.looked.tell()

    async def report_alarms(self, name: str) -> None:
        """Make events of a device's new alarms; of a flood only for the first ones."""
        # Notices report Patchlight's own actions; ``patchlight ocs show --alarms`` shows them.
        new = await self._parts.devices.new_alarms(name)
        alarms = [alarm for alarm in new if alarm.severity != "notice"]
        if not alarms:
            return
        self._parts.port_states.forget(name)
        self.look_soon()
        self.alarms.update((name, alarm.severity) for alarm in alarms)
        left_out = len(alarms) - _EVENTS_AT_ONCE
        if left_out > 0:
            message = (
                f"and {left_out} more: patchlight ocs show --alarms {name}"
            )
            alarms = [
                *alarms[:_EVENTS_AT_ONCE],
                Alarm(
                    time.time(),
                    "minor",
                    "flood",
                    message,
                ),
            ]
        self._parts.store.add_events(
            "alarm", [(a.at, {"ocs": name, **asdict(a)}) for a in alarms]
        )

    async def _report_drift(self) -> None:
        for name, drift in (await self._transactions.drift()).items():
            if drift != self.drift.get(name, Drift((), ())):
                event = {"ocs": name, **drift.as_texts()}
                self._parts.store.add_event(time.time(), "drift", event)
            self.drift[name] = drift


@dataclass(frozen=True)
class PowerReport:
    """The power of each circuit of one OCS, and its ports that are not ready.

    ``monitored``: whether the device measures at its outputs. ``unreachable`` says why nothing is
    known, or is empty.
    """

    monitored: bool = False
    readings: list[PortReading] = field(default_factory=list)
    ports: Mapping[DirectedPort, PortState] = field(default_factory=dict)
    unreachable: str = ""


async def power_report(
    parts: CircuitParts,
    name: str,
    maps: Maps,
) -> PowerReport:
    """The power of each circuit in a switch's present map, and its closed ports."""
    if name in maps.unread:
        return PowerReport(unreachable=maps.unread[name])
    driver = parts.drivers[name]
    check = parts.power_check
    monitored = measures_each(parts.lab.optical_switch(name), driver)
    if driver.capabilities.power_out or driver.capabilities.power_in:
        expected = check.expected(parts.maps.links(maps), name, maps[name])
        readings = await check.judge(driver, expected)
        words = (
            "" if monitored else "unverified, no power monitor at the outputs"
        )
    else:
        readings = [
            PortReading(
                c,
                None,
                None,
                None,
                None,
                PowerVerdict("ok"),
            )
            for c in maps[name]
        ]
        words = "unverified, no power monitor"
    if words:
        verdict = PowerVerdict("unverified", words)
        readings = [replace(reading, verdict=verdict) for reading in readings]
    states = await parts.port_states.of(name, age_s=1.0)
    closed = {
        port: state
        for port, state in states.items()
        if state.condition != "ready"
    }
    return PowerReport(monitored, readings, closed)
