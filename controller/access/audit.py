"""The audit log: who asked for what from where, why, and what came of it. It is only added to."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from patchlight.controller.storage.database import Database, numbered


@dataclass(frozen=True)
class Attempt:
    """One request to change something, also one that was refused.

    ``what`` is its method and path, ``about`` what it made or changed: ids, numbers and states.
    ``status`` is the HTTP status of the answer, 0 if there was none, and ``outcome`` says
    ``done``, ``refused``, ``failed`` or ``unknown``. ``repeated`` counts refusals of the same user
    that are not listed one by one.
    """

    by: str
    origin: str
    role: str
    what: str
    outcome: str
    status: int
    why: str = ""
    token: str = ""
    about: str = ""
    repeated: int = 0


class AuditLog:
    """The log of one lab, in the controller's file, which refuses to have it changed."""

    def __init__(self, store: Database, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock

    def add(self, attempt: Attempt) -> None:
        """Write down an attempt, now or as soon as there is room: it was answered all the same."""
        sql = "INSERT INTO audit (at, who, outcome, record) VALUES (?, ?, ?, ?)"
        record = json.dumps(asdict(attempt))
        self._store.write_soon((sql, (self._clock(), attempt.by, attempt.outcome, record)))

    def rows(
        self, last: int, after: int | None = None, *, by: str = "", outcome: str = ""
    ) -> list[dict[str, Any]]:
        """The ``last`` attempts, or so many ``after`` that number; the oldest first."""
        which = "WHERE number > ? AND (? = '' OR who = ?) AND (? = '' OR outcome = ?)"
        which += " ORDER BY number" + ("" if after is not None else " DESC") + " LIMIT ?"
        values = (after or 0, by, by, outcome, outcome, last)
        rows = self._store.each("audit", which, numbered, "number", "at", values=values)
        return rows if after is not None else rows[::-1]
