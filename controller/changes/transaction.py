"""Runs changes of the network as transactions, one at a time, each to its end."""

import asyncio
import logging
import time
from collections.abc import Callable

from patchlight.controller.changes.change import Change
from patchlight.controller.changes.device_maps import Decide, Drift
from patchlight.controller.changes.parts import CircuitParts, PortsByOcs
from patchlight.controller.changes.plan import ChangePlan
from patchlight.controller.changes.record import (
    ChangeOptions,
    Reconfiguration,
    Refused,
)
from patchlight.controller.changes.recovery import Recovery, changes_of
from patchlight.testbed.errors import OutcomeUnknown, in_words
from patchlight.testbed.tasks import EndRequested, run_unless

log = logging.getLogger("patchlight.circuits")
NO_OPTIONS = ChangeOptions()
_LOOK_AGAIN_S = 0.5

OnEnd = Callable[[Reconfiguration], None]


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
        self._unclosed: list[Change] = []

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
        change = Change(
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
        change = Change(
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

    def touching(self, ports: PortsByOcs) -> list[int]:
        """The changes in progress that change any of these ports, by number."""
        return [
            record.id
            for record in self._running.values()
            for name, change in changes_of(self.parts.lab, record).items()
            if not change.ports.isdisjoint(ports.get(name, ()))
        ]

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
            f"cancelled by {by or 'an unknown user'}{f': {why}' if why else ''}"
        )

    def heed_locks(self) -> None:
        """Stop the changes in progress that the present locks prevent before their next step."""
        for record in self._running.values():
            if record.changes and record.progress.may_cancel:
                changes = changes_of(self.parts.lab, record)
                # Claims take their ports between changes.
                who = ChangeOptions(by=record.by, force=True)
                if objections := self.parts.locks.objections(changes, who):
                    record.progress.cancel("; ".join(objections))

    def _start(
        self, change: Change, at_end: OnEnd | None
    ) -> asyncio.Task[Reconfiguration]:
        # The waiting caller may be cancelled; the change's task must not.
        task = asyncio.create_task(self._run(change, at_end))
        self._running[task] = change.record
        task.add_done_callback(
            lambda task: self._running.pop(task).progress.news.tell()
        )
        return task

    async def _run(
        self, change: Change, at_end: OnEnd | None
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
