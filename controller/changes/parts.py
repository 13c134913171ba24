"""What changes of a lab's circuits are made with: devices, checks, and who else they concern."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from patchlight.controller.changes.device_maps import CommittedMaps, DeviceMonitor, MapCache, Maps
from patchlight.controller.changes.power import (
    DEFAULT_TOLERANCES,
    POWER_CEILING_DBM,
    PowerBaselines,
    PowerCheck,
    Readings,
    Should,
    Tolerances,
    Verified,
)
from patchlight.controller.changes.preflight import (
    EmergencyStop,
    PortLocks,
    PortStates,
    PreflightChecks,
    PreflightResult,
)
from patchlight.controller.changes.record import (
    ChangePlan,
    Changes,
    Reconfiguration,
    StepFailed,
    difference,
)
from patchlight.controller.circuits.contract import (
    AnyDriver,
    DeviceUnreachable,
    Drivers,
    Outcome,
    Refusal,
)
from patchlight.controller.storage.store import BaselineKey, Store
from patchlight.testbed.errors import OutcomeUnknown
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.portmap import AnyMap, MapChange
from patchlight.testbed.lab.wiring import Links, lab_links, places_of, recorded_map

# A device that just dropped the connection gets a moment to take a new one.
_PAUSES_S = (0.05, 0.5, 2.0)
# After this long no new attempt begins: jobs pause meanwhile, and some devices take 15 s to
# be known as silent.
_GIVE_UP_S = 20.0
# A switch that takes longer for a circuit is told of one at a time: it can be halted in between.
_LONG_S = 1.0
_UNDER_WAY_S = 0.005  # after this long a device that takes longer has been told what to do


async def restore(drivers: Drivers, changes: Changes) -> dict[str, AnyMap]:
    """Undo these changes as far as the devices show them done; touch nothing else.

    Returns the whole map that each device has then: not the one before, where somebody else
    changed something meanwhile. Raises what the device said last if it cannot be brought about
    and read back.
    """
    loop, now = asyncio.get_running_loop(), dict[str, AnyMap]()
    for name, change in changes.items():
        began = loop.time()
        for pause_s in (*_PAUSES_S, None):
            try:
                now[name] = await _restore(drivers[name], change)
                break
            except (OutcomeUnknown, DeviceUnreachable):
                if pause_s is None or loop.time() - began > _GIVE_UP_S:
                    raise
                await asyncio.sleep(pause_s)
    return now


async def _restore(driver: AnyDriver, change: MapChange[Any]) -> AnyMap:
    # Also those that the map does not show: one that was entered and not activated
    # holds its ports all the same. Breaking what is not there is no error.
    if change.makes:
        raise_refusals(driver.name, "break", (await driver.disconnect(change.makes)).refused)
    now = frozenset(await driver.read_map())
    makes = tuple(c for c in change.breaks if c not in now)
    if makes:
        raise_refusals(driver.name, "make", (await driver.connect(makes)).refused)
    after: AnyMap = await driver.read_map()
    if not is_done(change.inverse, after):
        raise StepFailed(f"{driver.name} does not read back as it was before")
    return after


def raise_refusals(ocs: str, verb: str, refused: Iterable[Refusal[Any]]) -> None:
    """``StepFailed`` in the device's words if it refused anything."""
    if refused:
        raise StepFailed(f"{ocs} refused to {verb} {'; '.join(map(str, refused))}")


def is_done(change: MapChange[Any], now: AnyMap) -> bool:
    """Whether a map shows this change as made."""
    there = frozenset(now)
    return there.issuperset(change.makes) and there.isdisjoint(change.breaks)


def changes_of(lab: Lab, record: Reconfiguration) -> dict[str, MapChange[Any]]:
    """What a journalled change was to do, by switch."""
    before, wanted = parsed(lab, record.before), parsed(lab, record.wanted)
    return {n: before[n].diff(wanted[n]) for n in before if before[n] != wanted[n]}


def parsed(lab: Lab, texts: Mapping[str, list[str]]) -> dict[str, AnyMap]:
    """Maps as records have them."""
    return {name: recorded_map(lab, name, listed) for name, listed in texts.items()}


def lock_places(locks: PortLocks, number: int, changes: Changes) -> None:
    """Keep everybody off what a change touched that could not be undone."""
    for name, change in changes.items():
        places = places_of((*change.breaks, *change.makes))
        locks.mark_bad(name, places, f"change {number} could not be undone")


async def finish_or_undo(
    lab: Lab, record: Reconfiguration, drivers: Drivers, now: Mapping[str, AnyMap]
) -> None:
    """Bring a change that was cut short to an end, and write into its record which.

    Raises what the device said last if it cannot be undone.
    """
    changed = changes_of(lab, record)
    if all(is_done(change, now[name]) for name, change in changed.items()):
        record.state, record.message = "committed", "found whole after a restart"
        apart = difference(parsed(lab, record.wanted), {name: now[name] for name in changed})
        record.message += f", but {apart}" if apart else ""
        return
    became = undone(parsed(lab, record.before), await restore(drivers, changed))
    record.state = "rolled-back"
    record.message = f"cut short by the controller's end; {became}"


def undone(before: Mapping[str, AnyMap], now: Mapping[str, AnyMap]) -> str:
    """In words, what devices have whose change was undone: the whole map before, or what else."""
    apart = difference(before, now)
    return f"this change is undone, but {apart}" if apart else "the map before stands again"


def by_circuit(entries: Iterable[Any]) -> list[Sequence[Any]]:
    """Entries of a map, those between the same two ports together."""
    found = defaultdict[frozenset[int], list[Any]](list)
    for entry in entries:
        found[frozenset((entry.inp, entry.out))].append(entry)
    return list(found.values())


async def read_back(driver: AnyDriver, wanted: AnyMap) -> AnyMap:
    """The device's map; ``StepFailed`` if it is not the one wanted."""
    now: AnyMap = await driver.read_map()
    if now != wanted:
        left = now.diff(wanted)
        raise StepFailed(
            f"{driver.name} reads back differently: "
            + ", ".join(
                [f"{c} is there" for c in left.breaks] + [f"{c} is missing" for c in left.makes]
            )
        )
    return now


@dataclass(frozen=True)
class PlanExecutor:
    """Breaks, makes and verifies. What goes wrong on one device does not reach the next."""

    lab: Lab
    drivers: Drivers
    power_check: PowerCheck
    stop: EmergencyStop

    async def write(
        self,
        plan: ChangePlan,
        preflight: PreflightResult,
        record: Reconfiguration,
        maps: Maps,
        *,
        judged: bool = True,
    ) -> Readings:
        """Bring the plan about; the powers to remember if it is committed.

        ``maps`` are those just read. What is not ``judged`` has only to read back. Raises what a
        device said, ``StepFailed`` where it refused, where it reads back differently or the power
        is wrong, and at the stop button.
        """
        several, unread = len(plan.changes) > 1, maps.unread
        readings: dict[BaselineKey, tuple[float, ...]] = {}
        # Where wavelengths matter, all that is to go goes first: on the way to maps under which no
        # two signals meet, none can.
        first = plan.changes if several and self.lab.coloured else {}
        for name, change in first.items():
            await self._break(name, change, record)
        for name, change in plan.changes.items():
            driver = self.drivers[name]
            if name not in first:
                await self._break(name, change, record)
            # Paths through devices that are still to change, or do not answer, are not known to
            # be there: no power is expected over them.
            maps = maps.after({name: plan.wanted[name]})
            links = lab_links(self.lab, maps) if several or unread else plan.links_after
            should: list[Should] = []
            if change.makes:
                with record.stage("make"):
                    _, should = await asyncio.gather(
                        self._tell("make", name, driver.connect, change.makes, record),
                        self._meanwhile(links, name, change.makes),
                    )
                self._check(record)
            with record.stage("verify"):
                if not judged:
                    await read_back(driver, plan.wanted[name])
                    continue
                arriving_dbm = preflight.arriving_dbm.get(name)
                # Both at once: the device answers the one while the other is understood.
                results = await asyncio.gather(
                    read_back(driver, plan.wanted[name]),
                    self.power_check.verify(driver, should, arriving_dbm),
                    return_exceptions=True,
                )
                for result in results:
                    if isinstance(result, BaseException):
                        raise result
                    if isinstance(result, Verified) and not several:
                        record.note(result.remarks)
                        readings |= self.power_check.baselines.with_readings(name, result.good)
        if several and judged:
            with record.stage("verify"):
                links = lab_links(self.lab, maps) if unread else plan.links_after
                for name, change in plan.changes.items():
                    should = self.power_check.should_show(links, name, change.makes)
                    verified = await self.power_check.verify(self.drivers[name], should)
                    record.note(verified.remarks)
                    readings |= self.power_check.baselines.with_readings(name, verified.good)
        self._check(record)
        return readings

    async def _break(self, name: str, change: MapChange[Any], record: Reconfiguration) -> None:
        self._check(record)
        if change.breaks:
            with record.stage("break"):
                tell = self.drivers[name].disconnect
                await self._tell("break", name, tell, change.breaks, record)
            self._check(record)

    async def _tell(
        self,
        verb: str,
        name: str,
        tell: Callable[[Sequence[Any]], Awaitable[Outcome[Any]]],
        entries: Sequence[Any],
        record: Reconfiguration,
    ) -> None:
        """Have a device make or break these, and count them; ``StepFailed`` if it refuses any."""
        takes_long = self.lab.optical_switch(name).switching_time_s >= _LONG_S
        done = 0
        for each in by_circuit(entries) if takes_long else [entries]:
            if done:
                self._check(record)
            record.progress.count(name, done, len(entries))
            raise_refusals(name, verb, (await tell(each)).refused)
            done += len(each)

    def _check(self, record: Reconfiguration) -> None:
        """``StepFailed`` if the stop button is pressed, or the change is cancelled."""
        self.stop.check()
        if record.progress.cancelled:
            raise StepFailed(record.progress.cancelled)

    async def _meanwhile(self, links: Links, name: str, makes: Iterable[Any]) -> list[Should]:
        """What these will have to show, worked out while the mirrors turn."""
        switching_time_s = self.lab.optical_switch(name).switching_time_s
        await asyncio.sleep(min(switching_time_s / 2, _UNDER_WAY_S))
        return self.power_check.should_show(links, name, makes)


Ports = Mapping[str, Collection[int]]
"""Ports by OCS."""


class FlowHook(Protocol):
    """Whoever keeps the packet switches' flow tables in step with the circuits."""

    async def follow(self, links: Links) -> list[str]:
        """Have the switches forward over these links and no others; what failed, in words."""
        return []

    def rates_bps(self) -> Mapping[str, tuple[float, float]]:
        """What each host sent and received lately, by name, where somebody counts that."""
        return {}


class TrafficHook(Protocol):
    """Whoever sends over the network and can be asked to wait."""

    def jobs_using(self, moved: frozenset[Endpoint]) -> list[str]:
        """The running jobs whose traffic uses these ports."""
        return []

    async def drain(self, moved: frozenset[Endpoint]) -> list[str]:
        """Pause the traffic through these ports; who could not be paused, in words."""
        return []

    async def undrain(self) -> None:
        """Let everything that was paused go on."""
        return


class NoHooks(FlowHook, TrafficHook):
    """No packet switches to program and no jobs to pause: both hooks at once."""


NO_HOOKS = NoHooks()


class CircuitParts:
    """The parts that read, check, write and remember the maps of one lab's optical switches.

    The same with a controller and without one; ``flows`` and ``traffic`` say what else a change
    concerns, by default nothing.
    """

    def __init__(
        self,
        lab: Lab,
        drivers: Drivers,
        store: Store,
        flows: FlowHook = NO_HOOKS,
        traffic: TrafficHook = NO_HOOKS,
        power_ceiling_dbm: float = POWER_CEILING_DBM,
        tolerances: Tolerances = DEFAULT_TOLERANCES,
    ) -> None:
        self.lab, self.drivers, self.store = lab, drivers, store
        self.flows, self.traffic = flows, traffic
        self.locks, self.stop = PortLocks(lab, store), EmergencyStop(store)
        self.committed = CommittedMaps(store, lab)
        self.devices = DeviceMonitor(lab, drivers, self.committed, store)
        self.maps = MapCache(lab, self.devices)
        self.port_states = PortStates(drivers)
        self.power_check = PowerCheck(lab, PowerBaselines(store), tolerances)
        self.preflight = PreflightChecks(
            drivers, self.locks, self.stop, self.port_states, traffic.jobs_using, power_ceiling_dbm
        )
        self.executor = PlanExecutor(lab, drivers, self.power_check, self.stop)

    async def closed_ports(self) -> tuple[Ports, Ports]:
        """The ports whose circuits are to stay (locked by us or on the device), and those that
        the device says can carry none; by OCS, of those that answer."""
        away = self.devices.unread
        staying: dict[str, set[int]] = {}
        failed: dict[str, set[int]] = {}
        circuit_switches = [switch.name for switch in self.lab.circuit_switches]
        for lock in self.locks.all():
            if lock.ocs in circuit_switches:
                staying.setdefault(lock.ocs, set()).add(lock.port)
        for name in circuit_switches:
            known = name in self.drivers and name not in away
            states = await self.port_states.of(name) if known else {}
            for port, state in states.items():
                if state.condition == "locked":
                    staying.setdefault(name, set()).add(port.number)
                elif state.condition != "ready":
                    failed.setdefault(name, set()).add(port.number)
        return staying, failed
