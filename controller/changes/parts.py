"""Assembles what changes of circuits need: devices, checks, flow tables and jobs."""

import asyncio
import time
from collections import defaultdict
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, Protocol

from patchlight.controller.changes import power, preflight
from patchlight.controller.changes.device_maps import (
    CommittedMaps,
    DeviceMonitor,
    MapCache,
    Maps,
)
from patchlight.controller.changes.record import (
    ChangePlan,
    Reconfiguration,
    StepFailed,
    difference,
)
from patchlight.controller.circuits import contract
from patchlight.controller.storage.store import BaselineKey, Store
from patchlight.testbed.errors import OutcomeUnknown
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.portmap import AnyMap, MapChange
from patchlight.testbed.lab.reach import Reach
from patchlight.testbed.lab.wiring import Links, lab_links, recorded_map
from patchlight.testbed.tasks import run_all

PortsByOcs = Mapping[str, Collection[int]]

# A device that just dropped the connection needs a moment.
_PAUSES_S = (0.05, 0.5, 2.0)
# The limit for starting attempts: jobs are paused meanwhile, and some devices are silent for 15 s.
_GIVE_UP_S = 20.0
# A slower switch makes one circuit at a time, so that it can be stopped.
_LONG_S = 1.0
_UNDER_WAY_S = 0.005  # by then a device has its command


@dataclass(frozen=True)
class PlanExecutor:
    """Breaks, makes, verifies and undoes. Failures of one device do not affect the next."""

    lab: Lab
    drivers: contract.Drivers
    power_check: power.PowerCheck
    stop: preflight.EmergencyStop

    async def write(
        self,
        plan: ChangePlan,
        checked: preflight.PreflightResult,
        record: Reconfiguration,
        maps: Maps,
        *,
        judged: bool = True,
    ) -> power.Readings:
        """Carry out the plan; returns the powers to store if it is committed.

        ``maps`` were just read. Unless ``judged``, circuits only have to read back. Raises errors
        of devices, and ``StepFailed`` for a refusal, a wrong map, wrong power, and the stop button.
        """
        several = len(plan.changes) > 1
        unread = maps.unread
        readings: dict[BaselineKey, tuple[float, ...]] = {}
        # With wavelengths, everything breaks first, so that no two signals collide.
        first = plan.changes if several and self.lab.coloured else {}
        for name, change in first.items():
            await self._break(name, change, record)
        for name, change in plan.changes.items():
            driver = self.drivers[name]
            if name not in first:
                await self._break(name, change, record)
            # Power is not expected through devices that change later, or do not answer.
            maps = maps.after({name: plan.wanted[name]})
            links = (
                lab_links(self.lab, maps)
                if several or unread
                else plan.links_after
            )
            should: list[power.Should] = []
            if change.makes:
                record.enter("make")
                making = self._tell(
                    "make",
                    name,
                    driver.connect,
                    change.makes,
                    record,
                )
                # It is made or has failed before anything is rolled back.
                answers: list[Any] = await run_all(
                    (making, self._expected(links, name, change.makes))
                )
                should = answers[1]
                self.check(record)
            record.enter("verify")
            if not judged:
                await _read_back(driver, plan.wanted[name])
                continue
            arriving_dbm = checked.arriving_dbm.get(name)
            results = await asyncio.gather(
                _read_back(driver, plan.wanted[name]),
                self.power_check.verify(driver, should, arriving_dbm),
                return_exceptions=True,
            )
            for result in results:
                if isinstance(result, BaseException):
                    raise result
                if isinstance(result, power.Verified) and not several:
                    record.note(result.remarks)
                    readings |= self.power_check.baselines.with_readings(
                        name, result.good
                    )
        if several and judged:
            links = lab_links(self.lab, maps) if unread else plan.links_after
            for name, change in plan.changes.items():
                should = self.power_check.should_show(
                    links, name, change.makes
                )
                verified = await self.power_check.verify(
                    self.drivers[name], should
                )
                record.note(verified.remarks)
                readings |= self.power_check.baselines.with_readings(
                    name, verified.good
                )
        self.check(record)
        return readings

    async def _break(
        self,
        name: str,
        change: MapChange[Any],
        record: Reconfiguration,
    ) -> None:
        self.check(record)
        if change.breaks:
            record.enter("break")
            await self._tell(
                "break",
                name,
                self.drivers[name].disconnect,
                change.breaks,
                record,
            )
            self.check(record)

    async def _tell(
        self,
        verb: str,
        name: str,
        tell: Callable[[Sequence[Any]], Awaitable[contract.Outcome[Any]]],
        entries: Sequence[Any],
        record: Reconfiguration,
    ) -> None:
        """Let a device make or break these, and count them; ``StepFailed`` if it refuses any."""
        groups = [entries]
        done = 0
        if self.lab.optical_switch(name).switching_time_s >= _LONG_S:
            by_circuit = defaultdict[frozenset[int], list[Any]](list)
            for entry in entries:
                by_circuit[frozenset((entry.inp, entry.out))].append(entry)
            groups = list(by_circuit.values())
        for each in groups:
            if done:
                self.check(record)
            record.progress.count(name, done, len(entries))
            _raise_refusals(name, verb, (await tell(each)).refused)
            done += len(each)

    def check(self, record: Reconfiguration) -> None:
        """``StepFailed`` if the stop button is pressed, or the change is cancelled."""
        self.stop.check()
        if record.progress.cancelled:
            raise StepFailed(record.progress.cancelled)

    async def _expected(
        self,
        links: Links,
        name: str,
        makes: Iterable[Any],
    ) -> list[power.Should]:
        # Computed while the mirrors turn.
        switching_time_s = self.lab.optical_switch(name).switching_time_s
        await asyncio.sleep(min(switching_time_s / 2, _UNDER_WAY_S))
        return self.power_check.should_show(links, name, makes)

    async def undo(
        self,
        before: Mapping[str, AnyMap],
        changes: Mapping[str, MapChange[Any]],
    ) -> tuple[dict[str, AnyMap], str]:
        """Undo these changes where the devices show them done.

        Returns each device's whole map afterwards, and a text on whether it equals the one
        ``before``. Raises the first device's last error if one fails, after the others.
        """
        now = dict[str, AnyMap]()
        failed = list[Exception]()
        for name, change in changes.items():
            try:
                now[name] = await self._undo_patiently(name, change)
            except Exception as error:
                failed.append(error)
        if failed:
            raise failed[0]
        apart = difference(before, now)
        return now, (
            f"this change is undone, but {apart}"
            if apart
            else "the previous map is restored"
        )

    async def _undo_patiently(
        self, name: str, change: MapChange[Any]
    ) -> AnyMap:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for pause_s in _PAUSES_S:
            try:
                return await _undo(self.drivers[name], change)
            except (OutcomeUnknown, contract.DeviceUnreachable):
                if loop.time() - began > _GIVE_UP_S:
                    raise
                await asyncio.sleep(pause_s)
        return await _undo(self.drivers[name], change)

    def changes_of(self, record: Reconfiguration) -> dict[str, MapChange[Any]]:
        """The intended changes of a journalled change, by switch."""
        before = self._parsed(record.before)
        wanted = self._parsed(record.wanted)
        return {
            n: before[n].diff(wanted[n])
            for n in before
            if before[n] != wanted[n]
        }

    async def settle(
        self,
        record: Reconfiguration,
        now: Mapping[str, AnyMap],
        *,
        interrupted: bool,
    ) -> None:
        """Settle a change by its devices' maps ``now``, and record it; raises a device's error.

        If all devices show all of it, it is committed. If each shows all or nothing of it, if the
        controller's end ``interrupted`` it, or if a device was late, it is undone. Otherwise it
        stays as it is.
        """
        changed = self.changes_of(record)
        when = (
            "after a restart"
            if interrupted
            else "when its switches answered again"
        )
        if record.late_until is not None:
            when = "when its switches were read again"
        if all(
            _is_done(change, now[name]) for name, change in changed.items()
        ):
            record.state = "committed"
            record.message = f"found complete {when}"
            apart = difference(
                self._parsed(record.wanted),
                {name: now[name] for name in changed},
            )
            record.message += f", but {apart}" if apart else ""
            return
        whole = all(
            _is_done(change, now[name]) or _is_done(change.inverse, now[name])
            for name, change in changed.items()
        )
        if interrupted or whole or record.late_until is not None:
            _, became = await self.undo(self._parsed(record.before), changed)
            why = (
                "interrupted when the controller ended"
                if interrupted
                else f"found undone {when}"
            )
            record.state = "rolled-back"
            record.message = f"{why}; {became}"

    def _parsed(self, texts: Mapping[str, list[str]]) -> dict[str, AnyMap]:
        return {
            name: recorded_map(self.lab, name, listed)
            for name, listed in texts.items()
        }


async def _undo(driver: contract.AnyDriver, change: MapChange[Any]) -> AnyMap:
    # Also those missing in the map: an entered but inactive circuit uses its ports. Breaking a
    # missing entry is not an error.
    if change.makes:
        _raise_refusals(
            driver.name,
            "break",
            (await driver.disconnect(change.makes)).refused,
        )
    now = frozenset(await driver.read_map())
    makes = tuple(c for c in change.breaks if c not in now)
    if makes:
        _raise_refusals(
            driver.name, "make", (await driver.connect(makes)).refused
        )
    after: AnyMap = await driver.read_map()
    if not _is_done(change.inverse, after):
        raise StepFailed(f"{driver.name} does not read back its previous map")
    return after


def _raise_refusals(
    ocs: str,
    verb: str,
    refused: Iterable[contract.Refusal[Any]],
) -> None:
    if refused:
        raise StepFailed(
            f"{ocs} refused to {verb} {'; '.join(map(str, refused))}"
        )


def _is_done(change: MapChange[Any], now: AnyMap) -> bool:
    there = frozenset(now)
    return there.issuperset(change.makes) and there.isdisjoint(change.breaks)


async def _read_back(driver: contract.AnyDriver, wanted: AnyMap) -> None:
    """``StepFailed`` if the device's map is not the wanted one."""
    now: AnyMap = await driver.read_map()
    if now != wanted:
        left = now.diff(wanted)
        apart = [f"{c} still exists" for c in left.breaks] + [
            f"{c} is missing" for c in left.makes
        ]
        raise StepFailed(
            f"{driver.name} reads back differently: {', '.join(apart)}"
        )


class FlowHook(Protocol):
    """Keeps the packet switches' flow tables in step with the circuits."""

    async def follow(self, links: Links) -> list[str]:
        """Make the switches forward over these links only; returns failures as text."""
        return []

    def unserved(self) -> Mapping[str, str]:
        """Hosts to which a packet switch does not forward, by name, and the reason."""
        return {}

    def missing_ports(self) -> Mapping[Endpoint, str]:
        """The lab's ports that packet switches lack, and why, as text that follows "tor1 has"."""
        return {}

    def trunks_down(self) -> Collection[Endpoint]:
        """Ports of packet switches to others that have no link, or are missing."""
        return ()

    def rates_bps(self) -> Mapping[str, tuple[float, float]]:
        """The recent rates of each host, by name, if they are counted."""
        return {}


@dataclass(frozen=True)
class Unreached:
    """Workers that do not hear others of their job although there is a path (``silent``), and jobs
    that could not be checked (``unknown``), as texts."""

    silent: Sequence[str] = ()
    unknown: Sequence[str] = ()


class TrafficHook(Protocol):
    """Pauses the traffic of jobs."""

    def jobs_using(self, moved: frozenset[Endpoint]) -> list[str]:
        """The running jobs whose traffic uses these ports."""
        return []

    async def drain(self, moved: frozenset[Endpoint]) -> list[str]:
        """Pause the traffic through these ports; returns failures as text."""
        return []

    async def announce(
        self, moved: frozenset[Endpoint] | None, reach: Reach
    ) -> Unreached:
        """Announce the NICs of the jobs that use these ports (``None``: of all jobs), and check for
        a second, with packets, that the workers of each job hear each other."""
        return Unreached()

    async def undrain(self, maps: MapCache) -> None:
        """Resume what was paused and has a path by these maps."""
        return


class NoHooks(FlowHook, TrafficHook):
    """A lab without packet switches to program, and without jobs."""


NO_HOOKS = NoHooks()


class CircuitParts:
    """What reads, checks, writes and stores the maps of a lab, with or without a controller."""

    def __init__(
        self,
        lab: Lab,
        drivers: contract.Drivers,
        store: Store,
        flows: FlowHook = NO_HOOKS,
        traffic: TrafficHook = NO_HOOKS,
        power_ceiling_dbm: float = power.POWER_CEILING_DBM,
        tolerances: power.Tolerances = power.DEFAULT_TOLERANCES,
    ) -> None:
        self.lab = lab
        self.drivers = drivers
        self.store = store
        self.flows = flows
        self.traffic = traffic
        self.locks = preflight.PortLocks(lab, store)
        self.stop = preflight.EmergencyStop(store)
        self.committed = CommittedMaps(store, lab)
        self.devices = DeviceMonitor(
            lab,
            drivers,
            self.committed,
            store,
        )
        self.maps = MapCache(lab, self.devices)
        self.port_states = preflight.PortStates(drivers)
        self.power_check = power.PowerCheck(
            lab, power.PowerBaselines(store), tolerances
        )
        self.preflight = preflight.PreflightChecks(
            lab,
            drivers,
            self.locks,
            self.stop,
            self.port_states,
            traffic.jobs_using,
            power_ceiling_dbm,
        )
        self.executor = PlanExecutor(
            lab,
            drivers,
            self.power_check,
            self.stop,
        )

    async def closed_ports(self) -> tuple[PortsByOcs, PortsByOcs]:
        """Ports whose circuits stay (locked here or on the device), and failed ports, by OCS: of
        the device, or with a fibre to a port that a packet switch lacks."""
        away = self.devices.unread
        staying: dict[str, set[int]] = {}
        failed: dict[str, set[int]] = {}
        circuit_switches = [
            switch.name for switch in self.lab.circuit_switches
        ]
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
        missing = self.flows.missing_ports()
        for name, fibres in self.lab.circuit_fibres.items():
            gone = {
                number for number, (end, _) in fibres.items() if end in missing
            }
            if gone:
                failed.setdefault(name, set()).update(gone)
        return staying, failed

    def journal_end(
        self,
        record: Reconfiguration,
        committed: Mapping[str, AnyMap],
        readings: power.Readings,
    ) -> None:
        """Store how a change ended, with the maps and powers to keep if it is committed."""
        record.finished_at = record.finished_at or time.time()
        if record.state != "committed":
            committed = {}
            readings = {}
        record.enter("commit")
        origin = {"reconfiguration": record.id, "at": record.finished_at}
        maps = {
            name: {"map": [*m.one_way_texts], **origin}
            for name, m in committed.items()
        }
        self.store.update_reconfiguration(
            record.id,
            record.state,
            record.as_row,
            maps,
            readings,
        )
        self.committed.take(committed)
        self.power_check.baselines.take(readings)
        record.enter("over")
