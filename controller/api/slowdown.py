"""Whoever is refused again and again is answered later and later; nobody else is."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

_PERIOD_S = 60.0
_FREE = 5
_FIRST_S, _LONGEST_S = 0.1, 5.0
_MOST_WAITING = 4
_MOST_PLACES = 4096


@dataclass
class _Place:
    refused_at: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    waiting: int = 0
    unlisted: int = 0


class Slowdown:
    """Delays by place: where refused requests come from.

    In a minute, the first five cost nothing, then each takes twice as long as the one before, up
    to 5 s. While four wait, further ones are turned away, and counted instead of listed.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._places: dict[str, _Place] = {}

    def is_full(self, place: str) -> bool:
        """Whether so many wait there that one more is turned away at once, which is counted."""
        found = self._places.get(place)
        if found is None or found.waiting < _MOST_WAITING:
            return False
        found.unlisted += 1
        return True

    async def refused(self, place: str) -> int:
        """Wait, as somebody there was refused; how many were turned away there since the last."""
        found = self._at(place)
        now = self._clock()
        while found.refused_at and now - found.refused_at[0] > _PERIOD_S:
            found.refused_at.popleft()
        found.refused_at.append(now)
        if (beyond := len(found.refused_at) - _FREE) > 0:
            found.waiting += 1
            try:
                await self._sleep(min(_FIRST_S * 2.0 ** (beyond - 1), _LONGEST_S))
            finally:
                found.waiting -= 1
        unlisted, found.unlisted = found.unlisted, 0
        return unlisted

    def _at(self, place: str) -> _Place:
        found = self._places.pop(place, None) or _Place()
        self._places[place] = found  # the latest last
        if len(self._places) > _MOST_PLACES:
            quiet = (name for name, each in self._places.items() if not each.waiting)
            del self._places[next(quiet, place)]
        return found
