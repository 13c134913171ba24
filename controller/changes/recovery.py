"""Back to the map before: after a step that failed, and after a controller that died."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from patchlight.controller.changes.locks import Locks
from patchlight.controller.changes.record import Reconfiguration, StepFailed
from patchlight.controller.circuits.contract import CircuitDriver, DeviceUnreachable, Refusal
from patchlight.testbed.errors import OutcomeUnknown
from patchlight.testbed.portmap import PortMap, PortMapChange

# A device that just dropped the connection gets a moment to take a new one.
_PAUSES_S = (0.05, 0.5, 2.0)
# After this long no new attempt begins: jobs pause meanwhile, and some devices take 15 s to
# be known as silent.
_GIVE_UP_S = 20.0


async def restore(
    drivers: Mapping[str, CircuitDriver], changes: Mapping[str, PortMapChange]
) -> None:
    """Undo these changes as far as the devices show them done; touch nothing else.

    Raises what the device said last if it cannot be brought about and read back.
    """
    loop = asyncio.get_running_loop()
    for name, change in changes.items():
        began = loop.time()
        for pause_s in (*_PAUSES_S, None):
            try:
                await _restore(drivers[name], change)
                break
            except (OutcomeUnknown, DeviceUnreachable):
                if pause_s is None or loop.time() - began > _GIVE_UP_S:
                    raise
                await asyncio.sleep(pause_s)


async def _restore(driver: CircuitDriver, change: PortMapChange) -> None:
    # Also those that the map does not show: one that was entered and not activated
    # holds its ports all the same. Breaking what is not there is no error.
    if change.makes:
        raise_refusals(driver.name, "break", (await driver.disconnect(change.makes)).refused)
    now = frozenset(await driver.read_map())
    makes = tuple(c for c in change.breaks if c not in now)
    if makes:
        raise_refusals(driver.name, "make", (await driver.connect(makes)).refused)
    if not is_done(change.inverse, await driver.read_map()):
        raise StepFailed(f"{driver.name} does not read back as it was before")


def raise_refusals(ocs: str, verb: str, refused: Iterable[Refusal]) -> None:
    """``StepFailed`` in the device's words if it refused anything."""
    if refused:
        raise StepFailed(f"{ocs} refused to {verb} {'; '.join(map(str, refused))}")


def is_done(change: PortMapChange, now: PortMap) -> bool:
    """Whether a map shows this change as made."""
    there = frozenset(now)
    return there.issuperset(change.makes) and there.isdisjoint(change.breaks)


def changes_of(record: Reconfiguration) -> dict[str, PortMapChange]:
    """What a journalled change was to do, by OCS."""
    before = {name: PortMap.parse(texts) for name, texts in record.before.items()}
    wanted = {name: PortMap.parse(texts) for name, texts in record.wanted.items()}
    return {n: before[n].diff(wanted[n]) for n in before if before[n] != wanted[n]}


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
        return
    await restore(drivers, changed)
    record.state = "rolled-back"
    record.message = "cut short by the controller's end; the map before stands"
