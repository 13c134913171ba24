"""How far a change under way is: told to who watches it, halted for who cancels it."""

import time
from typing import Any

from patchlight.controller.changes.notifier import News

WAITING = "waiting"
# From the first stage after these on, what was wanted stands, or is being undone already.
_MAY_HALT = frozenset((WAITING, "read", "plan", "check", "drain", "break", "make", "verify"))


class ChangeProgress:
    """The stage that a change is in, ``since`` when (Unix time), and which OCS it is at.

    Each step is ``news``. While an OCS breaks or makes ``cross_connects``, so many of them
    are ``done``; ``cancelled`` says in words who cancelled the change, and why.
    """

    def __init__(self) -> None:
        self.news = News()
        self.stage, self.since = WAITING, time.time()
        self.ocs, self.cross_connects, self.done = "", 0, 0
        self.cancelled = ""

    @property
    def may_cancel(self) -> bool:
        """Whether the change can still be halted."""
        return not self.cancelled and self.stage in _MAY_HALT

    @property
    def as_json(self) -> dict[str, Any]:
        """As the API has it."""
        names = ("stage", "since", "ocs", "cross_connects", "done", "cancelled", "may_cancel")
        return {"step": self.news.step} | {name: getattr(self, name) for name in names}

    def enter(self, stage: str) -> None:
        """The change is in this stage from now on."""
        self.stage, self.since = stage, time.time()
        self.ocs, self.cross_connects, self.done = "", 0, 0
        self.news.tell()

    def count(self, ocs: str, done: int, cross_connects: int) -> None:
        """So many of those that an OCS is to break or make are done."""
        self.ocs, self.done, self.cross_connects = ocs, done, cross_connects
        self.news.tell()

    def cancel(self, words: str) -> None:
        """Have the change halted before its next step, for this reason."""
        self.cancelled = words
        self.news.tell()
