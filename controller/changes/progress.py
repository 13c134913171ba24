"""How far a change under way is: told to who watches it, halted for who cancels it."""

import asyncio
import time
from contextlib import suppress
from typing import Any

WAITING = "waiting"
# From the first stage after these on, what was wanted stands, or is being undone already.
_MAY_HALT = frozenset((WAITING, "read", "plan", "check", "drain", "break", "make", "verify"))


class ChangeProgress:
    """The stage that a change is in, ``since`` when (Unix time), and which OCS it is at.

    ``step`` counts what was told. While an OCS breaks or makes ``cross_connects``, so many of them
    are ``done``; ``cancelled`` says in words who cancelled the change, and why.
    """

    def __init__(self) -> None:
        self.stage, self.since, self.step = WAITING, time.time(), 0
        self.ocs, self.cross_connects, self.done = "", 0, 0
        self.cancelled = ""
        self._news: asyncio.Event | None = None

    @property
    def may_cancel(self) -> bool:
        """Whether the change can still be halted."""
        return not self.cancelled and self.stage in _MAY_HALT

    @property
    def as_json(self) -> dict[str, Any]:
        """As the API has it."""
        names = ("step", "stage", "since", "ocs", "cross_connects", "done", "cancelled")
        return {name: getattr(self, name) for name in names} | {"may_cancel": self.may_cancel}

    def enter(self, stage: str) -> None:
        """The change is in this stage from now on."""
        self.stage, self.since = stage, time.time()
        self.ocs, self.cross_connects, self.done = "", 0, 0
        self.tell()

    def count(self, ocs: str, done: int, cross_connects: int) -> None:
        """So many of those that an OCS is to break or make are done."""
        self.ocs, self.done, self.cross_connects = ocs, done, cross_connects
        self.tell()

    def cancel(self, words: str) -> None:
        """Have the change halted before its next step, for this reason."""
        self.cancelled = words
        self.tell()

    def tell(self) -> None:
        """Wake who waits for news."""
        self.step += 1
        if self._news is not None:
            self._news.set()
            self._news = None

    async def news(self, after: int, wait_s: float) -> None:
        """Wait until there is a step after that one, at most so long."""
        if self.step > after:
            return
        news = self._news = self._news or asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await news.wait()
