"""Writes plans to the devices, and brings them back to the map before.

Back it goes after a step that failed, and after a controller that died.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from patchlight.controller.changes.device_maps import Maps
from patchlight.controller.changes.planning import Plan, difference
from patchlight.controller.changes.power import PowerCheck, Readings, Should, Verified, read_back
from patchlight.controller.changes.preflight import Locks, PreflightResult, StopButton
from patchlight.controller.changes.record import Reconfiguration, StepFailed
from patchlight.controller.circuits.contract import CircuitDriver, DeviceUnreachable, Refusal
from patchlight.controller.store import BaselineKey
from patchlight.testbed.errors import OutcomeUnknown
from patchlight.testbed.lab import Lab
from patchlight.testbed.portmap import CrossConnect, PortMap, PortMapChange
from patchlight.testbed.wiring import Links, trace_links

# A device that just dropped the connection gets a moment to take a new one.
_PAUSES_S = (0.05, 0.5, 2.0)
# After this long no new attempt begins: jobs pause meanwhile, and some devices take 15 s to
# be known as silent.
_GIVE_UP_S = 20.0
_UNDER_WAY_S = 0.005  # after this long a device that takes longer has been told what to do


async def restore(
    drivers: Mapping[str, CircuitDriver], changes: Mapping[str, PortMapChange]
) -> dict[str, PortMap]:
    """Undo these changes as far as the devices show them done; touch nothing else.

    Returns the whole map that each device has then: not the one before, where somebody else
    changed something meanwhile. Raises what the device said last if it cannot be brought about
    and read back.
    """
    loop, now = asyncio.get_running_loop(), dict[str, PortMap]()
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


async def _restore(driver: CircuitDriver, change: PortMapChange) -> PortMap:
    # Also those that the map does not show: one that was entered and not activated
    # holds its ports all the same. Breaking what is not there is no error.
    if change.makes:
        raise_refusals(driver.name, "break", (await driver.disconnect(change.makes)).refused)
    now = frozenset(await driver.read_map())
    makes = tuple(c for c in change.breaks if c not in now)
    if makes:
        raise_refusals(driver.name, "make", (await driver.connect(makes)).refused)
    after = await driver.read_map()
    if not is_done(change.inverse, after):
        raise StepFailed(f"{driver.name} does not read back as it was before")
    return after


def raise_refusals(ocs: str, verb: str, refused: Iterable[Refusal[CrossConnect]]) -> None:
    """``StepFailed`` in the device's words if it refused anything."""
    if refused:
        raise StepFailed(f"{ocs} refused to {verb} {'; '.join(map(str, refused))}")


def is_done(change: PortMapChange, now: PortMap) -> bool:
    """Whether a map shows this change as made."""
    there = frozenset(now)
    return there.issuperset(change.makes) and there.isdisjoint(change.breaks)


def changes_of(record: Reconfiguration) -> dict[str, PortMapChange]:
    """What a journalled change was to do, by OCS."""
    before, wanted = parsed(record.before), parsed(record.wanted)
    return {n: before[n].diff(wanted[n]) for n in before if before[n] != wanted[n]}


def parsed(texts: Mapping[str, list[str]]) -> dict[str, PortMap]:
    """Maps as records have them."""
    return {name: PortMap.parse(listed) for name, listed in texts.items()}


def lock_ports(locks: Locks, record: Reconfiguration) -> None:
    """Keep everybody off the ports of a change that could not be undone."""
    for name, change in changes_of(record).items():
        locks.mark_bad(name, change.ports, f"change {record.id} could not be undone")


async def finish_or_undo(
    record: Reconfiguration, drivers: Mapping[str, CircuitDriver], now: Mapping[str, PortMap]
) -> None:
    """Bring a change that was cut short to an end, and write into its record which.

    Raises what the device said last if it cannot be undone.
    """
    changed = changes_of(record)
    if all(is_done(change, now[name]) for name, change in changed.items()):
        record.state, record.message = "committed", "found whole after a restart"
        apart = difference(parsed(record.wanted), {name: now[name] for name in changed})
        record.message += f", but {apart}" if apart else ""
        return
    restored = await restore(drivers, changed)
    record.state = "rolled-back"
    record.message = f"cut short by the controller's end; {undone(record.before, restored)}"


def undone(before: Mapping[str, list[str]], now: Mapping[str, PortMap]) -> str:
    """In words, what devices have whose change was undone: the whole map before, or what else."""
    apart = difference(parsed(before), now)
    return f"this change is undone, but {apart}" if apart else "the map before stands again"


@dataclass(frozen=True)
class PlanExecutor:
    """Breaks, makes and verifies. What goes wrong on one device does not reach the next."""

    lab: Lab
    drivers: Mapping[str, CircuitDriver]
    power_check: PowerCheck
    stop: StopButton

    async def write(
        self,
        plan: Plan,
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
        for name, change in plan.changes.items():
            driver = self.drivers[name]
            self.stop.check()
            if change.breaks:
                with record.stage("break"):
                    outcome = await driver.disconnect(change.breaks)
                    raise_refusals(name, "break", outcome.refused)
                self.stop.check()
            # Paths through devices that are still to change, or do not answer, are not known to
            # be there: no power is expected over them.
            maps = maps.after({name: plan.wanted[name]})
            links = trace_links(self.lab, maps) if several or unread else plan.links_after
            should: list[Should] = []
            if change.makes:
                with record.stage("make"):
                    outcome, should = await asyncio.gather(
                        driver.connect(change.makes), self._meanwhile(links, name, change.makes)
                    )
                    raise_refusals(name, "make", outcome.refused)
                self.stop.check()
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
                links = trace_links(self.lab, maps) if unread else plan.links_after
                for name, change in plan.changes.items():
                    should = self.power_check.should_show(links, name, change.makes)
                    verified = await self.power_check.verify(self.drivers[name], should)
                    record.note(verified.remarks)
                    readings |= self.power_check.baselines.with_readings(name, verified.good)
        self.stop.check()
        return readings

    async def _meanwhile(
        self, links: Links, name: str, makes: Iterable[CrossConnect]
    ) -> list[Should]:
        """What these will have to show, worked out while the mirrors turn."""
        switching_time_s = self.lab.circuit_switch(name).switching_time_s
        await asyncio.sleep(min(switching_time_s / 2, _UNDER_WAY_S))
        return self.power_check.should_show(links, name, makes)
