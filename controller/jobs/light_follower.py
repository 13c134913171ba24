"""Light that follows jobs by itself: looked at when a job has ended, and on a timer."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.light_gains import LightGains
from patchlight.controller.jobs.live_light import LiveLight
from patchlight.controller.jobs.policies_in_use import PoliciesInUse
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.jobs import JobState

_log = logging.getLogger(__name__)

_STARTING = (JobState.RECONFIGURING, JobState.PREPARING)
# Jobs that are being started are waited for: once they run, their light may move as well.
_LOOK_AGAIN_S, _LOOKS = 0.2, 50


class LightFollower:
    """Has ``light`` defragment the lab where its policies say so, and notes what moves gained.

    Never while the controller is drained or the stop button is pressed, nor while a change is
    under way.
    """

    def __init__(
        self,
        light: LiveLight,
        gains: LightGains,
        policies: PoliciesInUse,
        table: JobTable,
        transactions: Transactions,
        drained: Callable[[], bool],
    ) -> None:
        self._light, self._gains, self._policies, self._table = light, gains, policies, table
        self._transactions, self._drained = transactions, drained
        self._wanted = asyncio.Event()
        self._ended: list[str] = []
        self._words = "not looked at yet"
        self._looked_at: float | None = None

    def ended(self, job_id: str) -> None:
        """A job has ended, or its attempt; its hosts are given to whoever is next."""
        self._ended.append(job_id)

    def queue_passed(self) -> None:
        """Whoever is next has hosts by now."""
        if self._ended:
            self._wanted.set()

    def look_soon(self) -> None:
        """Look at the light as soon as may be."""
        self._wanted.set()

    def status(self) -> dict[str, Any]:
        """Whether light follows jobs by itself, and what came of the last look."""
        on = bool(self._policies.choice.defragment)
        words = self._words if on else "it stays until somebody moves it"
        return {"defragment": on, "looked_at": self._looked_at, "words": words}

    async def run(self) -> None:
        """Follow the jobs, for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._policies.choice.defragment_every_s):
                    await self._wanted.wait()
            self._wanted.clear()
            while self._ended:
                self._gains.note(self._ended.pop(0))
            if self._policies.choice.defragment:
                self._words = await self._follow()
                self._looked_at = time.time()

    async def _follow(self) -> str:
        """What came of it, in words."""
        for _ in range(_LOOKS):
            if not self._is_starting():
                break
            await asyncio.sleep(_LOOK_AGAIN_S)
        if self._drained():
            return "the controller is drained"
        if stopped := self._transactions.parts.preflight.stop.message:
            return stopped
        if self._transactions.busy:
            self._wanted.set()
            return "a change of circuits is under way"
        try:
            change = await self._light.defragment()
        except PatchlightError as error:  # a device that is away, say: the next look may do
            _log.warning("light does not follow jobs now: %s", error)
            return error.message
        if change is None:
            return "no job gains enough by other circuits"
        return f"{change.why} ({change.state})"

    def _is_starting(self) -> bool:
        return self._transactions.busy or any(
            status.state in _STARTING for status in self._table.live()
        )
