"""Paths of light on a running lab: the book with a clock, and with the light as it is now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from patchlight.controller.paths.book import Path, PathBook, Wanted
from patchlight.controller.storage.store import Store
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import AnyMap
from patchlight.testbed.paths.light_networks import light_networks

_LONGEST_PAUSE_S = 5.0
_MARK = "paths"
# Written down so far ahead, so that few paths wait for the disk.
_AHEAD_S, _AHEAD = 1.0, 100


class PathService:
    """Gives paths of light to those who ask, and takes back those that nobody speaks for.

    ``maps`` are those of the optical switches as last known, ``None`` while they are not. The
    ``store`` has until when paths may be in use, for the next controller: it gives none before.
    """

    def __init__(
        self,
        lab: Lab,
        maps: Callable[[], Mapping[str, AnyMap] | None],
        clock: Callable[[], float] = time.time,
        store: Store | None = None,
    ) -> None:
        self._store = store
        found = store and store.mark(_MARK, lambda row: (float(row["until"]), int(row["last"])))
        self._marked_until, self._marked_last = found or (0.0, 0)
        self.book = PathBook(quiet_until=self._marked_until, last=self._marked_last)
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
            before = [(path.id, path.state) for path in self.book.live]
            again_at = self.book.expire(self._clock())
            if before != [(path.id, path.state) for path in self.book.live]:
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
        """Let everybody who waits look again, once it is on disk how long what they find goes."""
        until = max((p.until for p in self.book.live if p.state == "granted"), default=0.0)
        if self._store and (until > self._marked_until or self.book.last > self._marked_last):
            self._marked_until = max(self._marked_until, until + _AHEAD_S)
            self._marked_last = self.book.last + _AHEAD
            marked = {"until": self._marked_until, "last": self._marked_last}
            self._store.set_mark(_MARK, marked)
        self._changed.set()
        self._changed = asyncio.Event()
