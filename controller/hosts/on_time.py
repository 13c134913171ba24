"""A clock for judging other processes: it stops while this process itself is late.

An agent that was not called in time, or whose answer was not read, is not silent.
"""

import asyncio
import math
from collections.abc import Callable

from patchlight.testbed.clock import monotonic_s

_TICK_S = 1.0
# How much a busy machine delays a timer.
_USUAL_S = 0.1


class OnTimeClock:
    """Monotonic seconds without those in which ``run`` was late."""

    def __init__(self, clock: Callable[[], float] = monotonic_s) -> None:
        self._clock = clock
        self._late_s = 0.0
        self._due = math.inf

    def now(self) -> float:
        """The present time."""
        now = self._clock()
        return now - self._late_s - max(0.0, now - self._due)

    async def run(self) -> None:
        """Measure how late this process is."""
        try:
            while True:
                self._due = self._clock() + _TICK_S + _USUAL_S
                await asyncio.sleep(_TICK_S)
                self._late_s += max(0.0, self._clock() - self._due)
        finally:
            self._due = math.inf
