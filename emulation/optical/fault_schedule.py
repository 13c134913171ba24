"""The faults that a lab file declares for an emulated OCS, each brought about in its time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from patchlight.emulation.optical.faults import FaultRequest
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab import OcsFault

log = logging.getLogger("patchlight.optical")


class FaultSchedule:
    """Requests the faults: at once, after a time, or before the change after so many."""

    def __init__(self, faults: Iterable[OcsFault], requests: FaultRequest) -> None:
        self._faults, self._requests = tuple(faults), requests
        self._counted = [fault for fault in self._faults if fault.after_changes]
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Start the clock; faults that are to be there from the start are there on return."""
        self._requests.faults.before_change = self._before_change
        for fault in self._faults:
            if fault.after_changes:
                continue
            if fault.after_s:
                self._tasks.append(asyncio.create_task(self._later(fault)))
            else:
                await self._requests.take(fault.control)

    def end(self) -> None:
        """Cancel the faults that are still to come."""
        for task in self._tasks:
            task.cancel()

    async def _later(self, fault: OcsFault) -> None:
        await asyncio.sleep(fault.after_s)
        try:
            await self._requests.take(fault.control)
        except BadInput as error:
            log.warning("the fault %s of the lab file: %s", fault.control, error.message)

    def _before_change(self, changes: int) -> None:
        due = [fault for fault in self._counted if fault.after_changes <= changes]
        for fault in due:
            self._counted.remove(fault)
            self._requests.take_now(fault.control)
