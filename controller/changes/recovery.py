"""Settles changes of unknown result, after a controller or a switch died during them."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter

from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.record import Reconfiguration
from patchlight.controller.storage.store import UNREADABLE
from patchlight.testbed.errors import in_words
from patchlight.testbed.lab.portmap import AnyMap

log = logging.getLogger("patchlight.circuits")
_RECORD = TypeAdapter(Reconfiguration)


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
            changed = parts.executor.changes_of(record)
            if away := [name for name in changed if name not in maps]:
                message = f"change {record.id} is unfinished: it waits for {', '.join(away)}"
                parts.preflight.unfinished.update(
                    dict.fromkeys(changed, message)
                )
                record.message = f"interrupted when the controller ended; waits for {away[0]}"
                parts.store.update_reconfiguration(
                    record.id, "intent", record.as_row
                )
                continue
            if not record.before:
                record.state = "refused"
                record.message = "nothing was changed: it was waiting when the controller ended"
            else:
                try:
                    await parts.executor.settle(record, maps, interrupted=True)
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
            changed = parts.executor.changes_of(record)
            # A user who unlocked one of its ports has taken over.
            if (
                not parts.locks.still_holds(changed, record.id)
                or changed.keys() - maps.keys()
            ):
                continue
            if record.may_come_late:
                continue
            try:
                await parts.executor.settle(record, maps, interrupted=False)
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
            f"{UNREADABLE}: what it changed at {switches} is unknown. Check with 'patchlight ocs "
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
        if (
            self.parts.executor.changes_of(record).keys()
            != record.changes.keys()
        ):
            raise ValueError(
                "its maps before and after do not match its changes"
            )
        self.parts.committed.of(record)
        return record
