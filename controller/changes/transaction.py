"""Changes of the network as transactions: one at a time, and each to its end."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter

from patchlight.controller.changes.change import Change, journal_end
from patchlight.controller.changes.device_maps import Decide
from patchlight.controller.changes.executor import changes_of, finish_or_undo, lock_places
from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.planning import Plan
from patchlight.controller.changes.progress import WAITING
from patchlight.controller.changes.record import (
    ChangeOptions,
    Drift,
    Reconfiguration,
    Refused,
    to_row,
)
from patchlight.testbed.errors import in_words

log = logging.getLogger("patchlight.circuits")
NO_OPTIONS = ChangeOptions()
_RECORD = TypeAdapter(Reconfiguration)

Hears = Callable[[Reconfiguration], None]
"""Is told of a change that is over."""


class Transactions:
    """Runs one change at a time over the lab's optical switches; ``on_end`` hear of each."""

    def __init__(self, parts: CircuitParts) -> None:
        self.parts = parts
        self.on_end: list[Hears] = []
        self._one_at_a_time = asyncio.Lock()
        self._running: dict[asyncio.Task[Reconfiguration], Reconfiguration] = {}

    @property
    def busy(self) -> bool:
        """Whether a change is under way."""
        return self._one_at_a_time.locked()

    async def settle_flows(self) -> None:
        """Make the flow tables those of the circuits that the devices have now."""
        async with self._one_at_a_time:
            maps = await self.parts.maps.read()
            await self.parts.flows.follow(self.parts.maps.links(maps.everywhere))

    async def close(self) -> None:
        """Wait until the change under way, if there is one, has come to its end."""
        await asyncio.gather(*self._running, return_exceptions=True)

    async def change(
        self,
        decide: Decide,
        why: str,
        options: ChangeOptions = NO_OPTIONS,
        at_end: Hears | None = None,
    ) -> Reconfiguration:
        """Turn the present maps into what ``decide`` makes of them.

        Always returns a record whose state is final: ``committed``, ``refused`` (nothing
        was written), ``rolled-back`` or ``unknown``. An error of ``decide`` is raised, and
        ``OutcomeUnknown`` where the journal does not take how the change ended.
        ``decide`` may be called again, with maps that are newer. ``at_end`` hears of the record,
        also where nobody waits for it any more.
        """
        return await asyncio.shield(self._start(Change(self.parts, decide, why, options), at_end))

    async def begin(
        self,
        decide: Decide,
        why: str,
        options: ChangeOptions = NO_OPTIONS,
        at_end: Hears | None = None,
    ) -> Reconfiguration:
        """The same without waiting for its end: the record as it is in the journal, with its
        number. That it begins is an event; an error of ``decide`` is a refusal then."""
        change = Change(self.parts, decide, why, options)
        await asyncio.to_thread(change.journal)
        begun = {"id": change.record.id, "by": options.by, "origin": options.origin, "why": why}
        self.parts.store.add_event(change.record.started_at, "circuits-begun", begun)
        self._start(change, at_end).add_done_callback(_said_in_the_record)
        await asyncio.sleep(0)  # a task that was never run ends without a word
        return change.record

    def under_way(self, number: int) -> Reconfiguration | None:
        """The change of that number, if it waits for its turn or is being made."""
        found = (each for each in self._running.values() if each.id == number > 0)
        return next(found, None)

    def cancel(self, number: int, by: str, why: str) -> None:
        """Have a change halted before its next step, and what it did undone.

        ``Refused`` if it is over, or past the last step that can be undone.
        """
        record = self.under_way(number)
        if record is None or not record.progress.may_cancel:
            at = "over" if record is None else f"at its end ({record.progress.stage})"
            raise Refused(
                f"change {number} is {at}: it cannot be cancelled any more",
                hint=f"patchlight ocs watch {number} says what came of it, and what it did "
                f"is undone by: patchlight ocs rollback {number}",
            )
        record.progress.cancel(f"cancelled by {by or 'somebody'}{f': {why}' if why else ''}")
        if record.progress.stage == WAITING:
            next(task for task, each in self._running.items() if each is record).cancel()

    def _start(self, change: Change, at_end: Hears | None) -> asyncio.Task[Reconfiguration]:
        # A task of its own: whoever waits for a change may be cancelled, the change may not.
        task = asyncio.create_task(self._run(change, at_end))
        self._running[task] = change.record
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[Reconfiguration]) -> None:
        self._running.pop(task).progress.news.tell()

    async def _run(self, change: Change, at_end: Hears | None) -> Reconfiguration:
        try:
            async with self._one_at_a_time:
                await change.run()
        except asyncio.CancelledError:
            progress = change.record.progress
            if not (progress.cancelled and progress.stage == WAITING):
                raise
            change.give_up()
        for hear in (*self.on_end, *((at_end,) if at_end else ())):
            try:
                hear(change.record)
            except Exception:  # the change came to what it came to
                log.exception("after change %d", change.record.id)
        return change.record

    async def preview(
        self, decide: Decide, options: ChangeOptions = NO_OPTIONS
    ) -> tuple[Plan, list[str]]:
        """What ``change`` would do now, and what speaks against it."""
        plan = self.parts.maps.plan(await self.parts.maps.read(), decide)
        checked = await self.parts.preflight.check(plan, options)
        return plan, [*self.parts.preflight.halts(plan), *checked.objections]

    async def drift(self) -> dict[str, Drift]:
        """How the devices differ from their last committed maps, while no change is under way."""
        async with self._one_at_a_time:
            return self.parts.committed.drift(await self.parts.maps.read())

    async def resume(self) -> list[Reconfiguration]:
        """Finish or undo what a dead controller left behind; returns what became of each.

        A change found whole on the devices is committed; anything else goes back to the
        map before. Circuits that no unfinished change names are left as they are. A change of
        a device that does not answer stays open, and its devices closed to others, until this
        is called when the device is back.
        """
        parts = self.parts
        ended: list[Reconfiguration] = []
        async with self._one_at_a_time:
            parts.preflight.unfinished.clear()
            for record in parts.store.unfinished_reconfigurations(self._read):
                if self.under_way(record.id):
                    continue
                maps, changed = await parts.maps.read(), changes_of(parts.lab, record)
                if away := [name for name in changed if name not in maps]:
                    message = f"change {record.id} is unfinished: it waits for {', '.join(away)}"
                    parts.preflight.unfinished.update(dict.fromkeys(changed, message))
                    record.message = f"cut short by the controller's end; waits for {away[0]}"
                    parts.store.update_reconfiguration(record.id, "intent", to_row(record))
                    continue
                if not record.before:
                    record.state = "refused"
                    record.message = "nothing was written: it waited when the controller ended"
                    journal_end(parts, record, {}, {})
                    ended.append(record)
                    continue
                try:
                    await finish_or_undo(parts.lab, record, parts.drivers, maps)
                except Exception as error:
                    record.state, record.message = "unknown", in_words(error)
                    lock_places(parts.locks, record.id, changed)
                journal_end(parts, record, parts.committed.of(record), {})
                ended.append(record)
            parts.maps.forget()
        return ended

    def _read(self, row: dict[str, Any]) -> Reconfiguration:
        """An unfinished change as it was journalled; raises if it is not whole."""
        record = _RECORD.validate_python(row)
        changes_of(self.parts.lab, record)
        self.parts.committed.of(record)
        return record


def _said_in_the_record(task: asyncio.Task[Reconfiguration]) -> None:
    """Take an error from a change that nobody waits for: the history has it."""
    if not task.cancelled() and isinstance(error := task.exception(), Exception):
        log.warning("%s", in_words(error))
