"""Undoes changes, and settles those of unknown result, after a controller or a switch died."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import TypeAdapter

from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.record import (
    Reconfiguration,
    StepFailed,
    difference,
)
from patchlight.controller.circuits import contract
from patchlight.controller.storage.store import UNREADABLE
from patchlight.testbed.errors import OutcomeUnknown, in_words
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import AnyMap, MapChange
from patchlight.testbed.lab.wiring import recorded_map

log = logging.getLogger("patchlight.circuits")
_RECORD = TypeAdapter(Reconfiguration)
# A device that just dropped the connection needs a moment.
_PAUSES_S = (0.05, 0.5, 2.0)
# The limit for starting attempts: jobs are paused meanwhile, and some devices are silent for 15 s.
_GIVE_UP_S = 20.0


class Recovery:
    """Compares journalled changes with the maps of the devices. Use it only between changes."""

    def __init__(self, parts: CircuitParts) -> None:
        self.parts = parts

    async def resume(
        self, is_under_way: Callable[[int], bool]
    ) -> list[Reconfiguration]:
        """Finish or undo the changes that a dead controller left, settle those with an unknown
        result, and return their records.

        A change found whole on the devices is committed, any other is undone. A change of a device
        that does not answer stays open, and its devices take no other, until this is called again.
        The map of a device that was never seen before counts as committed.
        """
        parts = self.parts
        ended: list[Reconfiguration] = []
        parts.preflight.unfinished.clear()
        for record in parts.store.unfinished_reconfigurations(
            self._read, self._unreadable
        ):
            if is_under_way(record.id):
                continue
            maps = await parts.maps.read()
            changed = changes_of(parts.lab, record)
            if away := [name for name in changed if name not in maps]:
                message = f"change {record.id} is unfinished: it waits for {', '.join(away)}"
                parts.preflight.unfinished.update(
                    dict.fromkeys(changed, message)
                )
                record.message = f"interrupted by the end of the controller; waits for {away[0]}"
                parts.store.update_reconfiguration(
                    record.id, "intent", record.as_row
                )
                continue
            if not record.before:
                record.state = "refused"
                record.message = (
                    "nothing was changed: the change was still waiting when the "
                    "controller ended"
                )
            else:
                try:
                    await _settle(parts, record, maps, interrupted=True)
                except Exception as error:
                    record.state = "unknown"
                    record.message = in_words(error)
                    parts.locks.mark_bad(changed, record.id)
            self._settled(record, parts.committed.of(record))
            ended.append(record)
        ended += await self.settle()
        parts.committed.begin_with(await parts.maps.read())
        return ended

    async def settle(self) -> list[Reconfiguration]:
        """End changes of unknown result whose switches show all or nothing of them, or were late,
        and unlock their ports; returns their records."""
        parts = self.parts
        ended = list[Reconfiguration]()
        if not parts.locks.in_doubt:
            return []
        maps = await parts.maps.read()
        for record in parts.store.unknown_reconfigurations(self._read):
            changed = changes_of(parts.lab, record)
            # A user who unlocked one of its ports has taken over.
            if (
                not parts.locks.still_holds(changed, record.id)
                or changed.keys() - maps.keys()
            ):
                continue
            if record.may_come_late:
                continue
            try:
                await _settle(parts, record, maps, interrupted=False)
            except Exception as error:  # its ports stay locked
                log.warning("change %d: %s", record.id, in_words(error))
            if record.state != "unknown":
                self._settled(record, parts.committed.with_changes(changed))
                parts.locks.release(changed, record)
                ended.append(record)
        if ended:
            parts.maps.forget()
        return ended

    def _settled(
        self, record: Reconfiguration, committed: Mapping[str, AnyMap]
    ) -> None:
        record.finished_at = (
            None  # it ends now, not when its result became unknown
        )
        self.parts.journal_end(record, committed, {})
        event = {
            "reconfiguration": record.id,
            "state": record.state,
            "message": record.message,
        }
        self.parts.store.add_event(time.time(), "resumed", event)

    def _unreadable(
        self, number: int, known: dict[str, Any]
    ) -> dict[str, Any]:
        """The record of an unreadable change, which may have been written to the devices in part;
        what it touched is locked."""
        switches = ", ".join(
            self.parts.locks.lock_unreadable(known.get("changes"), number)
        )
        message = (
            f"{UNREADABLE}: its changes on {switches} are unknown. Check with 'patchlight ocs "
            "show'; its ports stay locked until you unlock them"
        )
        now = time.time()
        record = Reconfiguration(
            "",
            now,
            number,
            "unknown",
            message,
            finished_at=now,
        )
        return record.as_row

    def _read(self, row: dict[str, Any]) -> Reconfiguration:
        """An unfinished change from the journal; raises if it is incomplete."""
        record = _RECORD.validate_python(row)
        if changes_of(self.parts.lab, record).keys() != record.changes.keys():
            raise ValueError(
                "its maps before and after do not match its changes"
            )
        self.parts.committed.of(record)
        return record


async def undo(
    drivers: contract.Drivers,
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
            now[name] = await _undo_patiently(drivers[name], change)
        except Exception as error:
            failed.append(error)
    if failed:
        raise failed[0]
    apart = difference(before, now)
    return now, (
        f"this change is rolled back, but {apart}"
        if apart
        else "the previous map is restored"
    )


async def _undo_patiently(
    driver: contract.AnyDriver, change: MapChange[Any]
) -> AnyMap:
    loop = asyncio.get_running_loop()
    began = loop.time()
    for pause_s in _PAUSES_S:
        try:
            return await _undo(driver, change)
        except (OutcomeUnknown, contract.DeviceUnreachable):
            if loop.time() - began > _GIVE_UP_S:
                raise
            await asyncio.sleep(pause_s)
    return await _undo(driver, change)


def changes_of(lab: Lab, record: Reconfiguration) -> dict[str, MapChange[Any]]:
    """The intended changes of a journalled change, by switch."""
    before = _parsed(lab, record.before)
    wanted = _parsed(lab, record.wanted)
    return {
        name: before[name].diff(wanted[name])
        for name in before
        if before[name] != wanted[name]
    }


async def _settle(
    parts: CircuitParts,
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
    changed = changes_of(parts.lab, record)
    when = (
        "after a restart"
        if interrupted
        else "when its switches answered again"
    )
    if record.late_until is not None:
        when = "when its switches were read again"
    if all(_is_done(change, now[name]) for name, change in changed.items()):
        record.state = "committed"
        record.message = f"found complete {when}"
        apart = difference(
            _parsed(parts.lab, record.wanted),
            {name: now[name] for name in changed},
        )
        record.message += f", but {apart}" if apart else ""
        return
    whole = all(
        _is_done(change, now[name]) or _is_done(change.inverse, now[name])
        for name, change in changed.items()
    )
    if interrupted or whole or record.late_until is not None:
        _, became = await undo(
            parts.drivers, _parsed(parts.lab, record.before), changed
        )
        why = (
            "interrupted by the end of the controller"
            if interrupted
            else f"found rolled back {when}"
        )
        record.state = "rolled-back"
        record.message = f"{why}; {became}"


def _parsed(lab: Lab, texts: Mapping[str, list[str]]) -> dict[str, AnyMap]:
    return {
        name: recorded_map(lab, name, listed) for name, listed in texts.items()
    }


async def _undo(driver: contract.AnyDriver, change: MapChange[Any]) -> AnyMap:
    # Also those missing in the map: an entered but inactive circuit uses its ports. Breaking a
    # missing entry is not an error.
    if change.makes:
        raise_refusals(
            driver.name,
            "break",
            (await driver.disconnect(change.makes)).refused,
        )
    now = frozenset(await driver.read_map())
    makes = tuple(c for c in change.breaks if c not in now)
    if makes:
        raise_refusals(
            driver.name, "make", (await driver.connect(makes)).refused
        )
    after: AnyMap = await driver.read_map()
    if not _is_done(change.inverse, after):
        raise StepFailed(f"{driver.name} does not report its previous map")
    return after


def raise_refusals(
    ocs: str,
    verb: str,
    refused: Iterable[contract.Refusal[Any]],
) -> None:
    """``StepFailed`` if a device refused to make or break any of these."""
    if refused:
        raise StepFailed(
            f"{ocs} refused to {verb} {'; '.join(map(str, refused))}"
        )


def _is_done(change: MapChange[Any], now: AnyMap) -> bool:
    there = frozenset(now)
    return there.issuperset(change.makes) and there.isdisjoint(change.breaks)
