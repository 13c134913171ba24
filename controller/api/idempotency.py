"""Answers that are given again: a request with a key (``Idempotency-Key``) has its effect once."""

import hashlib
import json
import time
from collections.abc import Callable

from starlette.responses import Response

from patchlight.controller.api.answers import problem_answer
from patchlight.controller.storage.database import Database
from patchlight.testbed.errors import PROBLEM_MEDIA_TYPE

KEY_HEADER = "Idempotency-Key"
KEPT_S = 86_400.0
_LONGEST_KEY = 200


class KeptAnswers:
    """By user and key, what a request was and what came of it; for a day."""

    def __init__(self, store: Database, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock

    def begin(self, who: str, key: str, what: str, body: bytes) -> Response | None:
        """What to answer to a request that came before; ``None`` if this is the first."""
        if not 0 < len(key) <= _LONGEST_KEY or not key.isprintable():
            return problem_answer(
                400,
                f"{KEY_HEADER} is no key: expected up to {_LONGEST_KEY} printable characters",
                "a UUID will do",
            )
        asked = hashlib.sha256(what.encode() + b"\n" + body).hexdigest()
        now = self._clock()
        self._store.write("DELETE FROM answered WHERE at < ?", now - KEPT_S)
        sql = "INSERT OR IGNORE INTO answered (who, key, at, request) VALUES (?, ?, ?, ?)"
        with self._store.together() as db:
            is_new = db.execute(sql, (who, key, now, asked)).rowcount == 1
            sql = "SELECT request, status, body FROM answered WHERE who = ? AND key = ?"
            request, status, answer = db.execute(sql, (who, key)).fetchone()
        if is_new:
            return None
        if request != asked:
            return problem_answer(422, f"another request had this {KEY_HEADER}", "make a new key")
        if status is None:
            return problem_answer(
                409,
                "this request came before, and what came of it is not known yet",
                "ask again in a while; if it stays so, see what there is before you make a new key",
                outcome="unknown",
            )
        kind = "application/json" if status < 400 else PROBLEM_MEDIA_TYPE
        again = Response(answer, status, media_type=kind)
        again.headers["Idempotency-Replayed"] = "true"
        return again

    def end(self, who: str, key: str, status: int, body: bytes | None) -> None:
        """Keep an answer, or forget the request if nothing was done, so that it may come again."""
        if not status or body is None:
            return  # it is not known what came of it
        if status >= 400 and json.loads(body).get("outcome") == "nothing-done":
            sql = "DELETE FROM answered WHERE who = ? AND key = ?"
            self._store.write_soon((sql, (who, key)), always=True)
            return
        sql = "UPDATE answered SET status = ?, body = ? WHERE who = ? AND key = ?"
        self._store.write_soon((sql, (status, body, who, key)), always=True)
