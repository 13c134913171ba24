"""Streams the lab's events as server-sent events."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from itertools import takewhile

from patchlight.controller.storage.database import JournalError
from patchlight.controller.storage.store import Store
from patchlight.testbed.wire.rest.requests import as_json

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.1
_LATEST = 1000

Numbered = tuple[int, bytes]
"""An event's number, and its text as sent."""


class EventFeed:
    """The events of a journal for any number of listeners: each event is read once.

    The latest thousand are in memory; slower listeners read the journal. After ``sign_of_life_s``
    without an event a comment is sent.
    """

    def __init__(self, store: Store, sign_of_life_s: float = 15.0) -> None:
        self._store = store
        self._sign_of_life_s = sign_of_life_s
        self._latest: deque[Numbered] = deque(maxlen=_LATEST)
        self._made_of = (0, 0)
        self._made = (b"", 0)
        self._listeners = 0
        self._looking: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._quiet: asyncio.Event | None = None
        self._is_closed = False

    async def follow(self, after: int | None = None) -> AsyncIterator[bytes]:
        """The text of events after that number, or from now on, until ``close``.

        An event ``skipped`` reports events that were deleted.
        """
        last = self._store.last_event()
        reached = last if after is None else after
        if reached > last:  # for a journal with earlier events
            yield _skipped(last + 1, reached)
            reached = last
        self._listeners += 1
        if self._looking is None:
            self._latest.clear()
            self._looking = asyncio.create_task(self._look(last))
        try:
            while not self._is_closed:
                news = self._news
                told, reached = self._since(reached)
                if told:
                    yield told
                    continue
                await news.wait()
                if news is self._quiet:
                    yield b": nothing new\n\n"
        finally:
            self._listeners -= 1
            if not self._listeners and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        self._tell()

    def _since(self, reached: int) -> tuple[bytes, int]:
        """The text of the events after one, cached for equal listeners, and the last number."""
        if not (self._latest and self._latest[0][0] <= reached + 1):
            return _in_one(self._read(reached), reached)
        between = reached, self._latest[-1][0]
        if reached == between[1]:
            return b"", reached
        if between != self._made_of:
            new = takewhile(
                lambda each: each[0] > reached, reversed(self._latest)
            )
            self._made_of = between
            self._made = _in_one([*new][::-1], reached)
        return self._made

    def _read(self, after: int) -> list[Numbered]:
        head = b"id: %d\nevent: %b\ndata: %b\n\n"
        return [
            (
                row["number"],
                head % (row["number"], row["kind"].encode(), as_json(row)),
            )
            for row in self._store.events(after)
        ]

    async def _look(self, reached: int) -> None:
        told_at = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                rows = (
                    self._read(reached)
                    if self._store.last_event() > reached
                    else []
                )
            except JournalError as error:  # a disk in trouble: they come later
                _log.warning("%s", error.message)
                continue
            if rows:
                self._latest.extend(rows)
                reached = rows[-1][0]
            # One timer for all listeners: one each would be a tenth of the cost of an event.
            elif time.monotonic() - told_at > self._sign_of_life_s:
                self._quiet = self._news
            else:
                continue
            told_at = time.monotonic()
            self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _in_one(rows: Iterable[Numbered], reached: int) -> tuple[bytes, int]:
    told = []
    for number, text in rows:
        if number > reached + 1:
            told.append(_skipped(reached + 1, number - 1))
        told.append(text)
        reached = number
    return b"".join(told), reached


def _skipped(first: int, last: int) -> bytes:
    row = {"kind": "skipped", "first": first, "last": last}
    return b"event: skipped\ndata: %b\n\n" % as_json(row)
