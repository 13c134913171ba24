"""A clock for judging other processes: it stops while this process itself is late.

An agent that was not called in time, or whose answer was not read, is not silent.
"""

import asyncio
import math
import time
from collections.abc import Callable

_TICK_S = 0.25
# How much a busy machine delays a timer.
_USUAL_S = 0.1


def _monotonic_s() -> float:
    return time.monotonic()  # looked up at each call: a simulation has its own


class OnTimeClock:
    """Monotonic seconds without those in which ``run`` was late."""

    def __init__(self, clock: Callable[[], float] = _monotonic_s) -> None:
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


clock = OnTimeClock()
"""The clock of this process."""
