"""Runs changes of the network as transactions, one at a time, each to its end.

read → plan → check → journal → drain → break → make → verify → flows → announce → undrain → commit.
Nothing is written to a device before the intent is in the journal and the map has been read again;
a failure after that rolls back.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from patchlight.controller.changes.device_maps import Decide, Drift, Maps
from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.power import Readings
from patchlight.controller.changes.preflight import PreflightResult
from patchlight.controller.changes.record import (
    LATE_S,
    ChangeOptions,
    ChangePlan,
    Reconfiguration,
    Refused,
    StepFailed,
    difference,
    fingerprint,
)
from patchlight.controller.changes.recovery import Recovery
from patchlight.testbed.errors import (
    NoReply,
    OutcomeUnknown,
    PatchlightError,
    in_words,
)
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import AnyMap
from patchlight.testbed.lab.reach import Reach
from patchlight.testbed.lab.wiring import Links
from patchlight.testbed.tasks import EndRequested, run_unless

log = logging.getLogger("patchlight.circuits")
NO_OPTIONS = ChangeOptions()
_FORWARDING_S = 10.0
# Maximum age, listening and learning (IEEE 802.1D): 20 + 15 + 15 s.
_SPANNING_TREE_S = 50.0
_LOOK_AGAIN_S = 0.5

OnEnd = Callable[[Reconfiguration], None]


class _ChangeRun:
    """One change: its request, its plan, and the ``record`` of its progress."""

    def __init__(
        self,
        parts: CircuitParts,
        decide: Decide,
        why: str,
        options: ChangeOptions,
    ) -> None:
        by = options.by
        origin = options.origin
        reverts = options.reverts
        self.record = Reconfiguration(
            why,
            time.time(),
            by=by,
            origin=origin,
            reverts=reverts,
        )
        self._parts = parts
        self._decide = decide
        self._options = options
        self._plan: ChangePlan
        self._committed: dict[str, AnyMap] = {}
        self._readings: Readings = {}
        self.is_closed = True
        """Whether its end, if any, is in the journal."""

    async def run(self) -> Reconfiguration:
        """Run the change to its end; raises the errors of ``decide``."""
        try:
            # First from the last known maps, which are read again before the first write; if they
            # are out of date, once more from the devices' maps.
            if not await self._attempt(from_memory=True):
                await self._attempt(from_memory=False)
        except Exception as error:
            # Failures after the first write are rolled back where they occur. An open intent would
            # be undone at the next start, under later changes.
            if self.record.state == "intent":
                self._refuse(in_words(error))
            raise
        finally:
            # However this ends, the journal has the result.
            if self.record.id:
                self.close()
        return self.record

    async def _attempt(self, *, from_memory: bool) -> bool:
        """Plan, check and carry out; false if the plan was made from outdated maps."""
        parts = self._parts
        record = self.record
        remembered = parts.maps.last if from_memory else None
        if from_memory and (self._options.planned_from or remembered is None):
            return False
        record.enter("read")
        maps = (
            remembered if remembered is not None else await parts.maps.read()
        )
        record.enter("plan")
        try:
            self._plan = parts.maps.plan(maps, self._decide)
        except PatchlightError:
            if from_memory:
                return False
            raise
        self._committed = parts.committed.after(
            self._plan, self._options.adopts
        )
        record.fill(
            self._plan, self._committed, self._plan.losing_link(parts.lab)
        )
        record.enter("check")
        preflight = await self._check()
        if from_memory and (preflight.objections or not self._plan):
            return False
        if not record.id:
            self.prepared_intent()()
        if preflight.objections:
            self._refuse("; ".join(preflight.objections))
        elif not self._plan:
            record.message = "no change: already in the requested state"
            record.message += (
                ", and count as committed" if record.adopted else ""
            )
            await self._set_flows(self._plan.links_after)
            record.state = "committed"
        else:
            return await self._carry_out(preflight, from_memory=from_memory)
        return True

    async def _check(self) -> PreflightResult:
        """Objections to the plan. Without any, it is in the journal afterwards."""
        plan = self._plan
        options = self._options
        preflight = self._parts.preflight
        objections = preflight.halts(plan)
        if self.record.progress.cancelled:
            objections.append(self.record.progress.cancelled)
        if options.planned_from and options.planned_from != fingerprint(
            plan.before
        ):
            objections.append(
                "the maps have changed since the change was shown"
            )
        if objections or not plan:
            return PreflightResult(objections)
        # The devices are read while the intent is written to disk.
        journalled = asyncio.create_task(
            asyncio.to_thread(self.prepared_intent())
        )
        try:
            return await preflight.check(plan, options)
        except PatchlightError as error:
            return PreflightResult([error.message])
        finally:
            await journalled

    def give_up(self) -> None:
        """End it before its start, because it was cancelled."""
        self._refuse(self.record.progress.cancelled)
        self.close()

    def prepared_intent(self) -> Callable[[], None]:
        """A function that writes the present intent into the journal."""
        write = self._parts.store.prepared_intent(
            self.record.id, self.record.as_row
        )

        def journal() -> None:
            self.record.id = write()

        return journal

    async def _carry_out(
        self, preflight: PreflightResult, *, from_memory: bool
    ) -> bool:
        """Drain, read again, and write if the maps are those of the plan."""
        parts = self._parts
        plan = self._plan
        record = self.record
        try:
            try:
                record.enter("drain")
                record.note(await parts.traffic.drain(plan.moved))
                record.note(await parts.flows.follow(plan.links_prepared))
                record.enter("check")
                maps = await parts.maps.read()
                for name in plan.changes:
                    maps[name]  # raises if it cannot be read
                changed = difference(plan.before, maps)
            except PatchlightError as error:
                changed = error.message
                from_memory = False
            if not changed:
                await self._write(preflight, maps)
            elif from_memory:
                record.note([f"planned again: {changed}"])
                # If the new plan is refused, the obsolete part of the old one must stay.
                await self._set_flows(parts.maps.links(maps.everywhere))
                return False
            else:
                self._refuse(changed)
                await self._set_flows(plan.links_before)
            return True
        finally:
            record.enter("undrain")
            await parts.traffic.undrain()

    async def _write(self, preflight: PreflightResult, maps: Maps) -> None:
        """Break, make, verify, and set the flows; restore the previous ``maps`` if that fails."""
        parts = self._parts
        plan = self._plan
        record = self.record
        try:
            self._readings = await parts.executor.write(
                plan,
                preflight,
                record,
                maps,
                judged=self._options.judged,
            )
            await self._set_flows(plan.links_after)
            record.enter("announce")
            end = asyncio.get_running_loop().time() + _reached_within_s(
                parts.lab
            )
            while silent := await self._announce(plan.links_after):
                if asyncio.get_running_loop().time() > end:
                    if self._options.judged:
                        raise StepFailed(
                            f"packets do not pass: {'; '.join(silent)}"
                        )
                    record.note(silent)
                    break
                parts.executor.check(record)
            record.state = "committed"
            record.message = "done"
            parts.maps.done(plan, maps)
        except Exception as error:
            if not isinstance(error, PatchlightError):
                # A bug, perhaps in a driver, must not leave the devices half changed.
                log.exception("change %d", record.id)
            await self._roll_back(error)

    async def _roll_back(self, error: Exception) -> None:
        parts = self._parts
        plan = self._plan
        record = self.record
        reason = in_words(error)
        for name in plan.changes:
            parts.port_states.forget(name)
        parts.maps.forget()
        try:
            record.enter("roll-back")
            now, undone = await parts.executor.undo(plan.before, plan.changes)
            # Follow the devices' maps, also where another client changed them.
            links = parts.maps.links({**plan.before, **now})
            await self._set_flows(links)
            record.note(await self._announce(links))
            record.state = "rolled-back"
            record.message = f"{reason}; {undone}"
        except Exception as second:
            if not isinstance(second, PatchlightError):
                log.exception("rolling back change %d", record.id)
            record.state = "unknown"
            record.message = (
                f"{reason}; rolling back failed too: {in_words(second)}. Check the switch with "
                "'patchlight ocs show' first; the ports of this change stay locked until you "
                "unlock them, or its switches show the whole change or none of it"
            )
            parts.locks.mark_bad(plan.changes, record.id)
        else:
            if isinstance(error, NoReply):
                record.state = "unknown"
                record.late_until = time.time() + LATE_S
                record.message += (
                    ". The switch may still carry out the command: the ports of this change stay "
                    f"locked, and are checked again in {LATE_S:.0f} s"
                )
                parts.locks.mark_bad(plan.changes, record.id)

    def _refuse(self, reason: str) -> None:
        self.record.state = "refused"
        self.record.message = f"nothing was changed: {reason}"

    async def _set_flows(self, links: Links) -> None:
        self.record.enter("flows")
        self.record.note(await self._parts.flows.follow(links))

    async def _announce(self, links: Links) -> list[str]:
        """Announce the NICs that moved; whose workers do not hear each other although these links
        join them, as text."""
        parts = self._parts
        moved = None if self._plan.moves_trunk(parts.lab) else self._plan.moved
        found = await parts.traffic.announce(moved, Reach(parts.lab, links))
        self.record.note([*found.unknown])
        # With wavelength channels a path may be there only while its workers send.
        return [] if parts.lab.coloured else [*found.silent]

    def close(self) -> None:
        """Journal the end; if the journal fails, refuse changes of the devices until it is there:
        ``OutcomeUnknown``."""
        record = self.record
        self.is_closed = False
        try:
            self._parts.journal_end(record, self._committed, self._readings)
        except PatchlightError as error:
            message = f"the end of change {record.id} is not in the journal: {error.message}"
            self._parts.preflight.unfinished.update(
                dict.fromkeys(record.changes, message)
            )
            raise OutcomeUnknown(
                f"change {record.id}: {record.state}, {record.message}; but {message}",
                hint="free space for the journal: it is written then",
            ) from error
        self.is_closed = True


def _reached_within_s(lab: Lab) -> float:
    """How long carriers may take to return, and switches to forward to their ports."""
    blocks = any(switch.spanning_tree for switch in lab.packet_switches)
    relock_s = max(
        (host.nic.relock_s or 0.0 for host in lab.hosts), default=0.0
    )
    return (_SPANNING_TREE_S if blocks else _FORWARDING_S) + relock_s


class Transactions:
    """Runs one change at a time over the lab's optical switches; then calls ``on_end``."""

    def __init__(self, parts: CircuitParts) -> None:
        self.parts = parts
        self.on_end: list[OnEnd] = []
        self._recovery = Recovery(parts)
        self._one_at_a_time = asyncio.Lock()
        self._running: dict[
            asyncio.Task[Reconfiguration], Reconfiguration
        ] = {}
        self._unclosed: list[_ChangeRun] = []

    @property
    def busy(self) -> bool:
        """Whether a change is in progress."""
        return self._one_at_a_time.locked()

    async def settle_flows(self) -> None:
        """Set the flow tables for the devices' present circuits."""
        async with self._one_at_a_time:
            maps = await self.parts.maps.read()
            await self.parts.flows.follow(
                self.parts.maps.links(maps.everywhere)
            )

    async def close(self) -> None:
        """Wait until the change in progress, if any, has ended."""
        await asyncio.gather(*self._running, return_exceptions=True)

    async def change(
        self,
        decide: Decide,
        why: str,
        options: ChangeOptions = NO_OPTIONS,
        at_end: OnEnd | None = None,
    ) -> Reconfiguration:
        """Change the present maps to what ``decide`` makes of them.

        Returns a record in a final state: ``committed``, ``refused`` (nothing was written),
        ``rolled-back`` or ``unknown``. Raises the errors of ``decide``, which may be called again
        with newer maps, and ``OutcomeUnknown`` if the end cannot be journalled. ``at_end`` is
        called with the record even if the caller is cancelled.
        """
        change = _ChangeRun(
            self.parts,
            decide,
            why,
            options,
        )
        return await asyncio.shield(self._start(change, at_end))

    async def begin(
        self,
        decide: Decide,
        why: str,
        options: ChangeOptions = NO_OPTIONS,
        at_end: OnEnd | None = None,
    ) -> Reconfiguration:
        """The same without waiting; an error of ``decide`` refuses the change."""
        change = _ChangeRun(
            self.parts,
            decide,
            why,
            options,
        )
        await asyncio.to_thread(change.prepared_intent())
        begun = {
            "id": change.record.id,
            "by": options.by,
            "origin": options.origin,
            "why": why,
        }
        self.parts.store.add_event(
            change.record.started_at, "circuits-begun", begun
        )
        self._start(change, at_end).add_done_callback(_said_in_the_record)
        # If nothing else is in progress, it has planned then.
        await asyncio.sleep(0)
        return change.record

    def under_way(self, number: int) -> Reconfiguration | None:
        """The change of that number, if it is waiting or in progress."""
        return next(
            (r for r in self._running.values() if r.id == number > 0), None
        )

    def cancel(
        self,
        number: int,
        by: str,
        why: str,
    ) -> None:
        """Stop a change before its next step and undo it; ``Refused`` if it is too late."""
        record = self.under_way(number)
        if record is None or not record.progress.may_cancel:
            at = (
                "over"
                if record is None
                else f"at its end ({record.progress.stage})"
            )
            raise Refused(
                f"change {number} is {at}: it can no longer be cancelled",
                hint=f"'patchlight ocs watch {number}' shows the result; undo it with: patchlight "
                f"ocs rollback {number}",
            )
        record.progress.cancel(
            f"cancelled by {by or 'somebody'}{f': {why}' if why else ''}"
        )

    def heed_locks(self) -> None:
        """Stop the changes in progress that the present locks prevent before their next step."""
        for record in self._running.values():
            if record.changes and record.progress.may_cancel:
                changes = self.parts.executor.changes_of(record)
                if objections := self.parts.locks.objections(
                    changes, record.by
                ):
                    record.progress.cancel("; ".join(objections))

    def _start(
        self, change: _ChangeRun, at_end: OnEnd | None
    ) -> asyncio.Task[Reconfiguration]:
        # The waiting caller may be cancelled; the change's task must not.
        task = asyncio.create_task(self._run(change, at_end))
        self._running[task] = change.record
        task.add_done_callback(
            lambda task: self._running.pop(task).progress.news.tell()
        )
        return task

    async def _run(
        self, change: _ChangeRun, at_end: OnEnd | None
    ) -> Reconfiguration:
        # Nobody cancels this task: one that is cancelled before its first step ends silently.
        told_to_end = change.record.progress.told_to_end
        try:
            if self.busy or told_to_end.is_set():
                await run_unless(told_to_end, self._one_at_a_time.acquire)
            else:
                await self._one_at_a_time.acquire()  # at once
        except EndRequested:
            change.give_up()
        else:
            try:
                self._close_earlier()
                await change.run()
            finally:
                if not change.is_closed:
                    self._unclosed.append(change)
                self._one_at_a_time.release()
        for call in (*self.on_end, *((at_end,) if at_end else ())):
            try:
                call(change.record)
            except Exception:  # the result of the change stays
                log.exception("after change %d", change.record.id)
        return change.record

    def _close_earlier(self) -> None:
        """Journal the ends of changes that could not be journalled before."""
        while self._unclosed:
            try:
                self._unclosed[0].close()
            except OutcomeUnknown:
                return
            for name in self._unclosed.pop(0).record.changes:
                self.parts.preflight.unfinished.pop(name, None)

    async def preview(
        self, decide: Decide, options: ChangeOptions = NO_OPTIONS
    ) -> tuple[ChangePlan, list[str]]:
        """What ``change`` would do now, and objections."""
        plan = self.parts.maps.plan(await self.parts.maps.read(), decide)
        checked = await self.parts.preflight.check(plan, options)
        return plan, [*self.parts.preflight.halts(plan), *checked.objections]

    async def drift(self) -> dict[str, Drift]:
        """How the devices differ from their last committed maps, while no change is in progress."""
        async with self._one_at_a_time:
            return self.parts.committed.drift(await self.parts.maps.read())

    async def resume(self) -> list[Reconfiguration]:
        """As ``Recovery.resume``, between changes."""
        async with self._one_at_a_time:
            return await self._recovery.resume(
                lambda number: self.under_way(number) is not None
            )

    async def settle(self) -> list[Reconfiguration]:
        """As ``Recovery.settle``, between changes."""
        if not self.parts.locks.in_doubt and not self._unclosed:
            return []
        async with self._one_at_a_time:
            self._close_earlier()
            return await self._recovery.settle()

    async def when_settled(
        self, record: Reconfiguration, wait_s: float
    ) -> Reconfiguration:
        """A change of unknown result once its switches answer again, at most ``wait_s`` later."""
        deadline = time.monotonic() + wait_s
        while record.state == "unknown" and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_AGAIN_S)
            if (
                row := self.parts.store.reconfiguration(record.id)
            ) is not None:
                record.state = row.state
                record.message = row.message
        return record


def _said_in_the_record(task: asyncio.Task[Reconfiguration]) -> None:
    """Record an error of a change that nobody waits for in the history."""
    if not task.cancelled() and isinstance(
        error := task.exception(), Exception
    ):
        log.warning("%s", in_words(error))
