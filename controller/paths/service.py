"""Paths of light on a running lab: the book with a clock, and with the light as it is now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from patchlight.controller.paths.book import Path, PathBook, Wanted
from patchlight.testbed.lab import Lab
from patchlight.testbed.paths.light_networks import light_networks
from patchlight.testbed.switchmap import AnyMap

_LONGEST_PAUSE_S = 5.0


class PathService:
    """Gives paths of light to those who ask, and takes back those that nobody speaks for.

    ``maps`` are those of the optical switches as last known, ``None`` while they are not.
    """

    def __init__(
        self,
        lab: Lab,
        maps: Callable[[], Mapping[str, AnyMap] | None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.book = PathBook()
        self._lab, self._maps, self._clock = lab, maps, clock
        self._seen: Mapping[str, AnyMap] | None = None
        self._looking = asyncio.Lock()
        self._changed = asyncio.Event()

    @property
    def knows_light(self) -> bool:
        """Whether it is known which networks there are."""
        return self._seen is not None

    async def want(self, wanted: Wanted, by: str) -> Path:
        """Ask for a path; ``BadInput`` and ``Refused`` as in ``PathBook.want``."""
        await self.follow_light()
        self.book.expire(self._clock())
        path = self.book.want(wanted, by, self._clock())
        self._wake()
        return path

    async def look(self, number: int, by: str, wait_s: float = 0.0) -> Path:
        """One path; if it waits, in so many seconds at most, or once that has changed."""
        ends = asyncio.get_running_loop().time() + wait_s
        while True:
            path = self.book.look(number, self._clock(), by)
            left_s = ends - asyncio.get_running_loop().time()
            if path.state != "waiting" or left_s <= 0:
                return path
            try:
                await asyncio.wait_for(self._changed.wait(), left_s)
            except TimeoutError:
                continue

    def release(self, number: int) -> Path:
        """End a path, or the wait for it."""
        path = self.book.release(number, self._clock())
        self._wake()
        return path

    async def run(self) -> None:
        """Take paths back whose lease is over, for as long as this runs."""
        while True:
            await self.follow_light()
            before = len(self.book.live)
            again_at = self.book.expire(self._clock())
            if len(self.book.live) != before:
                self._wake()
            pause_s = min(max(0.01, again_at - self._clock()), _LONGEST_PAUSE_S)
            try:
                await asyncio.wait_for(self._changed.wait(), pause_s)
            except TimeoutError:
                continue

    async def follow_light(self) -> None:
        """See which networks there are, if maps have changed since."""
        async with self._looking:
            maps = self._maps()
            if maps is None or maps == self._seen:
                return
            networks = await asyncio.to_thread(light_networks, self._lab, dict(maps))
            self.book.light_is(networks, self._clock())
            self._seen = dict(maps)
        self._wake()

    def _wake(self) -> None:
        """Let everybody who waits look again."""
        self._changed.set()
        self._changed = asyncio.Event()
