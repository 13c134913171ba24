"""Changes of the network as transactions: one at a time, and each to its end.

read → plan → check → journal → drain → break → make → verify → flows → undrain → commit.
Nothing is written to a device before the intent is in the journal and the map has been read once
more; a failure after that rolls back.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any

from pydantic import TypeAdapter

from patchlight.controller.changes.device_maps import Decide, Drift, Maps
from patchlight.controller.changes.parts import (
    CircuitParts,
    changes_of,
    finish_or_undo,
    lock_places,
    restore,
    undone,
)
from patchlight.controller.changes.power import Readings
from patchlight.controller.changes.preflight import PreflightResult
from patchlight.controller.changes.record import (
    WAITING,
    ChangeOptions,
    ChangePlan,
    Reconfiguration,
    Refused,
    difference,
    fill_record,
    fingerprint,
    to_row,
)
from patchlight.testbed.errors import OutcomeUnknown, PatchlightError, in_words
from patchlight.testbed.lab.portmap import AnyMap
from patchlight.testbed.lab.wiring import Links

log = logging.getLogger("patchlight.circuits")
NO_OPTIONS = ChangeOptions()
_RECORD = TypeAdapter(Reconfiguration)

Hears = Callable[[Reconfiguration], None]
"""Is told of a change that is over."""


class _Attempt(Enum):
    """How far an attempt at a change came."""

    ENDED = auto()
    """The change is at its end, whichever; its record says which."""

    PLAN_AGAIN = auto()
    """Nothing was written: the maps that the plan was made from are out of date."""


class ChangeRun:
    """One change: what is asked for, the plan for it, and the ``record`` of what became of it."""

    def __init__(
        self, parts: CircuitParts, decide: Decide, why: str, options: ChangeOptions
    ) -> None:
        self.record = Reconfiguration(
            why=why,
            started_at=time.time(),
            by=options.by,
            origin=options.origin,
            reverts=options.reverts,
        )
        self._parts, self._decide, self._options = parts, decide, options
        self._plan: ChangePlan
        self._committed: dict[str, AnyMap] = {}
        self._readings: Readings = {}

    async def run(self) -> Reconfiguration:
        """Bring the change to its end. An error of ``decide`` is raised."""
        try:
            # First from the maps as last read, which are read again before the first
            # write; if they are out of date, once more from those that the devices have.
            if await self._attempt(from_memory=True) is _Attempt.PLAN_AGAIN:
                await self._attempt(from_memory=False)
        except Exception as error:
            # What fails once something was written is rolled back where it fails. An intent
            # left open would be undone at the next start, under the changes made since.
            if self.record.state == "intent":
                self._refuse(in_words(error))
            raise
        finally:
            # However this ends, the journal says where it stands.
            if self.record.id:
                self._close()
        return self.record

    async def _attempt(self, *, from_memory: bool) -> _Attempt:
        """Plan, check and carry out."""
        parts, record = self._parts, self.record
        remembered = parts.maps.last if from_memory else None
        if from_memory and (self._options.planned_from or remembered is None):
            return _Attempt.PLAN_AGAIN
        with record.stage("read"):
            maps = remembered if remembered is not None else await parts.maps.read()
        with record.stage("plan"):
            try:
                self._plan = parts.maps.plan(maps, self._decide)
            except PatchlightError:
                if from_memory:
                    return _Attempt.PLAN_AGAIN
                raise
            self._committed = parts.committed.after(self._plan, self._options.adopts)
            fill_record(record, self._plan, self._committed)
        with record.stage("check"):
            preflight = await self._check()
        if from_memory and (preflight.objections or not self._plan):
            return _Attempt.PLAN_AGAIN
        if not record.id:
            self._prepared_intent()()
        if preflight.objections:
            self._refuse("; ".join(preflight.objections))
        elif not self._plan:
            record.message = "nothing to change: the maps are so already"
            record.message += ", and count as committed" if record.adopted else ""
            await self._set_flows(self._plan.links_after)
            record.state = "committed"
        else:
            return await self._carry_out(preflight, from_memory=from_memory)
        return _Attempt.ENDED

    async def _check(self) -> PreflightResult:
        """What speaks against the plan. Where nothing does at once, it is in the journal after."""
        plan, options, preflight = self._plan, self._options, self._parts.preflight
        objections = preflight.halts(plan)
        if self.record.progress.cancelled:
            objections.append(self.record.progress.cancelled)
        if options.planned_from and options.planned_from != fingerprint(plan.before):
            objections.append("the maps changed since the change was shown")
        if objections or not plan:
            return PreflightResult(objections)
        # The devices are asked first, and answer while the intent is written and goes to the disk.
        journalled = asyncio.create_task(self._journal_intent())
        try:
            return await preflight.check(plan, options)
        except PatchlightError as error:
            return PreflightResult([error.message])
        finally:
            await journalled

    async def _journal_intent(self) -> None:
        await asyncio.to_thread(self._prepared_intent())

    def journal(self) -> None:
        """Put it into the journal before anything is known of it but that it is wanted."""
        self._prepared_intent()()

    def give_up(self) -> None:
        """End it before it began, as it was cancelled."""
        self._refuse(self.record.progress.cancelled)
        self._close()

    def _prepared_intent(self) -> Callable[[], None]:
        """What puts the intent into the journal, as it is now, when called."""
        write = self._parts.store.prepared_intent(self.record.id, to_row(self.record))

        def journal() -> None:
            self.record.id = write()

        return journal

    async def _carry_out(self, preflight: PreflightResult, *, from_memory: bool) -> _Attempt:
        """Drain, read once more, and write if the maps are those that the plan was made from."""
        parts, plan, record = self._parts, self._plan, self.record
        try:
            try:
                with record.stage("drain"):
                    record.note(await parts.traffic.drain(plan.moved))
                    record.note(await parts.flows.follow(plan.links_staying))
                with record.stage("check"):
                    maps = await parts.maps.read()
                    for name in plan.changes:
                        maps[name]  # refuses where it cannot be read any more
                    changed = difference(plan.before, maps)
            except PatchlightError as error:
                changed, from_memory = error.message, False
            if not changed:
                await self._write(preflight, maps)
            elif from_memory:
                record.note([f"planned anew: {changed}"])
                # The new plan may be refused: then what was to go from the old one has to stay.
                await self._set_flows(parts.maps.links(maps.everywhere))
                return _Attempt.PLAN_AGAIN
            else:
                self._refuse(changed)
                await self._set_flows(plan.links_before)
            return _Attempt.ENDED
        finally:
            with record.stage("undrain"):
                await parts.traffic.undrain()

    async def _write(self, preflight: PreflightResult, maps: Maps) -> None:
        """Break, make, verify, and set the flows; back to the ``maps`` before if that fails."""
        parts, plan, record = self._parts, self._plan, self.record
        try:
            self._readings = await parts.executor.write(
                plan, preflight, record, maps, judged=self._options.judged
            )
            await self._set_flows(plan.links_after)
            record.state, record.message = "committed", "done"
            parts.maps.done(plan, maps)
        except Exception as error:
            if not isinstance(error, PatchlightError):
                # A bug, of a driver maybe: the devices are not to stay half changed for it.
                log.exception("change %d", record.id)
            await self._roll_back(in_words(error))

    async def _roll_back(self, reason: str) -> None:
        parts, plan, record = self._parts, self._plan, self.record
        for name in plan.changes:
            parts.port_states.forget(name)
        parts.maps.forget()
        try:
            with record.stage("roll-back"):
                now = await restore(parts.drivers, plan.changes)
                # The light is where the devices say it is, also where another client moved it.
                await self._set_flows(parts.maps.links({**plan.before, **now}))
            record.state = "rolled-back"
            record.message = f"{reason}; {undone(plan.before, now)}"
        except Exception as second:
            if not isinstance(second, PatchlightError):
                log.exception("rolling back change %d", record.id)
            record.state = "unknown"
            record.message = (
                f"{reason}; rolling back failed too: {in_words(second)}. "
                "Read the switch with 'patchlight ocs show' before anything else; until they "
                "are unlocked, the ports of this change are locked"
            )
            lock_places(parts.locks, record.id, plan.changes)

    def _refuse(self, reason: str) -> None:
        self.record.state, self.record.message = "refused", f"nothing was written: {reason}"

    async def _set_flows(self, links: Links) -> None:
        with self.record.stage("flows"):
            self.record.note(await self._parts.flows.follow(links))

    def _close(self) -> None:
        """Journal the end; where the journal takes no more, close the devices to changes."""
        record = self.record
        try:
            journal_end(self._parts, record, self._committed, self._readings)
        except PatchlightError as error:
            message = f"how change {record.id} ended is not in the journal: {error.message}"
            self._parts.preflight.unfinished.update(dict.fromkeys(record.changes, message))
            raise OutcomeUnknown(
                f"change {record.id} came to: {record.state}, {record.message}; but {message}",
                hint="make room for the journal and start the controller again",
            ) from error


def journal_end(
    parts: CircuitParts,
    record: Reconfiguration,
    committed: Mapping[str, AnyMap],
    readings: Readings,
) -> None:
    """Write down how a change ended, with the maps and powers to keep if it is committed."""
    record.finished_at = time.time()
    if record.state != "committed":
        committed, readings = {}, {}
    with record.stage("commit"):
        parts.store.update_reconfiguration(
            record.id,
            record.state,
            to_row(record),
            parts.committed.rows(committed, record),
            readings,
        )
        parts.committed.take(committed)
        parts.power_check.baselines.take(readings)


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
        return await asyncio.shield(
            self._start(ChangeRun(self.parts, decide, why, options), at_end)
        )

    async def begin(
        self,
        decide: Decide,
        why: str,
        options: ChangeOptions = NO_OPTIONS,
        at_end: Hears | None = None,
    ) -> Reconfiguration:
        """The same without waiting for its end: the record as it is in the journal, with its
        number. That it begins is an event; an error of ``decide`` is a refusal then."""
        change = ChangeRun(self.parts, decide, why, options)
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

    def _start(self, change: ChangeRun, at_end: Hears | None) -> asyncio.Task[Reconfiguration]:
        # A task of its own: whoever waits for a change may be cancelled, the change may not.
        task = asyncio.create_task(self._run(change, at_end))
        self._running[task] = change.record
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[Reconfiguration]) -> None:
        self._running.pop(task).progress.news.tell()

    async def _run(self, change: ChangeRun, at_end: Hears | None) -> Reconfiguration:
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
    ) -> tuple[ChangePlan, list[str]]:
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
