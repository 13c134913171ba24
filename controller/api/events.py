"""What happens in the lab, told as it happens: server-sent events, and lists of what was."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from patchlight.controller.api import models, shapes
from patchlight.controller.api.answers import as_json
from patchlight.controller.api.describing import gives
from patchlight.controller.store import Store

Answer = dict[str, Any]

STREAM = "text/event-stream"
_LOOK_EVERY_S = 0.1
_SIGN_OF_LIFE_S = 15.0
_LATEST = 1000

Numbered = tuple[int, bytes]
"""An event's number, and how it is sent."""


class EventFeed:
    """The events of a journal, for any number of listeners: each new one is read once.

    The latest thousand are at hand; who is further behind gets them from the journal, in order.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._latest: deque[Numbered] = deque(maxlen=_LATEST)
        self._listeners = 0
        self._looking: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._is_closed = False

    async def follow(self, after: int | None = None) -> AsyncIterator[bytes]:
        """Events after that number, from now on if none is given, as they are to be sent.

        Where some are not kept any more, an event ``skipped`` says which. Ends with ``close``.
        """
        last = self._store.last_event()
        reached = last if after is None else after
        if reached > last:  # of a journal that was there before this one
            yield _skipped(last + 1, reached)
            reached = last
        self._begin()
        try:
            while not self._is_closed:
                news = self._news
                rows = self._since(reached)
                for number, told in rows:
                    if number > reached + 1:
                        yield _skipped(reached + 1, number - 1)
                    yield told
                    reached = number
                if not rows and not await _within(_SIGN_OF_LIFE_S, news):
                    yield b": nothing new\n\n"
        finally:
            self._end()

    def close(self) -> None:
        """Let go of all listeners."""
        self._is_closed = True
        self._tell()

    def _since(self, reached: int) -> list[Numbered]:
        if self._latest and self._latest[0][0] <= reached + 1:
            return [each for each in self._latest if each[0] > reached]
        return self._read(reached)

    def _read(self, after: int) -> list[Numbered]:
        return [(row["number"], _sent(row)) for row in self._store.events(after)]

    def _begin(self) -> None:
        self._listeners += 1
        if self._looking is None:
            self._latest.clear()
            self._looking = asyncio.create_task(self._look(self._store.last_event()))

    def _end(self) -> None:
        self._listeners -= 1
        if not self._listeners and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _look(self, reached: int) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if self._store.last_event() > reached and (rows := self._read(reached)):
                self._latest.extend(rows)
                reached = rows[-1][0]
                self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


async def _within(seconds: float, news: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await news.wait()
    except TimeoutError:
        return False


def _sent(row: Answer) -> bytes:
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (row["number"], row["kind"].encode(), as_json(row))


def _skipped(first: int, last: int) -> bytes:
    row = {"kind": "skipped", "first": first, "last": last}
    return b"event: skipped\ndata: %b\n\n" % as_json(row)


def event_routes(store: Store, feed: EventFeed) -> APIRouter:
    """The routes on what happened, and happens."""
    routes = APIRouter(prefix="/v1", tags=["events"])

    @routes.get("/events", **gives(shapes.EventList, also=STREAM))
    async def events(request: Request, after: models.Number | None = None) -> Any:
        """What happened after an event's number, at most a thousand at a time.

        With ``Accept: text/event-stream``, what happens from then on, without an end; a client
        that was cut off sends the last number that it has as ``Last-Event-ID``.
        """
        if STREAM in request.headers.get("accept", ""):
            cut_off_at = request.headers.get("last-event-id", "")
            begun = int(cut_off_at[:18]) if cut_off_at.isdecimal() else after
            head = {"Cache-Control": "no-store"}
            return StreamingResponse(feed.follow(begun), media_type=STREAM, headers=head)
        return {"events": store.events(after or 0), "last": store.last_event()}

    return routes
