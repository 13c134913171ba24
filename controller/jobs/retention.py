"""What is remembered of jobs that have ended, and for how long."""

import asyncio
import time
from collections.abc import Callable

from patchlight.controller.jobs.ledger import JobLedger
from patchlight.controller.jobs.outputs import JobOutputs
from patchlight.controller.storage.store import Store
from patchlight.testbed.lab.queueing import Discipline

_EVERY_S = 600.0
# Between two pieces, whoever wants to write has its turn.
_PAUSE_S = 0.05


class Retention:
    """Forgets, a little at a time, what the lab's settings have out of date."""

    def __init__(
        self,
        store: Store,
        ledger: JobLedger,
        outputs: JobOutputs,
        settings: Discipline,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._ledger, self._outputs = store, ledger, outputs
        self._settings, self._clock = settings, clock

    async def run(self) -> None:
        """Forget now, and again every ten minutes, for ever."""
        while True:
            more = await asyncio.to_thread(self.forget_some)
            await asyncio.sleep(_PAUSE_S if more else _EVERY_S)

    def forget_some(self) -> bool:
        """One piece; whether there is more to do."""
        keep_for_s = self._settings.keep_for_s
        before = None if keep_for_s is None else self._clock() - keep_for_s
        gone, more = self._ledger.forget(before or 0.0, self._settings.keep_jobs)
        for job_id in gone:
            self._outputs.forget(job_id)
        old = before is not None and self._store.forget(before)
        return bool(old) or more
