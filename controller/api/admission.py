"""Admits requests: identity, delays after refusals, the audit log, and idempotency keys."""

import asyncio
import hashlib
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from patchlight.controller.access.tokens import (
    Attempt,
    AuditLog,
    without_tokens,
)
from patchlight.controller.api.caller import Caller, Doorman, NotKnown
from patchlight.controller.api.openapi import explained, problem_answer
from patchlight.controller.api.turns import READS, Turns
from patchlight.controller.storage.database import Database, JournalError
from patchlight.testbed.clock import monotonic_s, unix_s
from patchlight.testbed.errors import PROBLEM_MEDIA_TYPE
from patchlight.testbed.lab.rules import Role

_MOST_KEPT = 1 << 20


class HttpExchange:
    """Forwards the messages of a request and its response, and keeps their bodies.

    ``on_answer`` is awaited before the response is sent, with its ``status`` and the first part of
    its body (all of it, unless it is a stream).
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._request = bytearray()
        self._answer = bytearray()
        self._put_back: list[Message] = []
        self._too_long: HTTPException | None = None
        self._start: Message | None = None
        self.on_answer: Callable[[], Awaitable[None]] | None = None
        self.status = 0

    async def receive(self) -> Message:
        """The next message of the client."""
        if self._put_back:
            return self._put_back.pop(0)
        if self._too_long is not None:
            raise self._too_long
        message = await self._receive()
        if len(self._request) < _MOST_KEPT:
            self._request += message.get("body", b"")
        return message

    async def send(self, message: Message) -> None:
        """Send a message to the client."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._start = message
            return
        if len(self._answer) < _MOST_KEPT:
            self._answer += message.get("body", b"")
        if self._start is not None:
            start = self._start
            self._start = None
            if self.on_answer is not None:
                await self.on_answer()
            await self._send(start)
        await self._send(message)

    async def whole_request(self) -> bytes:
        """The body of the request, which the application can still receive, and its error then if
        it is too long."""
        messages: list[Message] = []
        try:
            while not messages or messages[-1].get("more_body"):
                messages.append(await self.receive())
        except HTTPException as error:
            self._too_long = error
        self._put_back = messages
        return b"".join(message.get("body", b"") for message in messages)

    @property
    def asked(self) -> dict[str, Any]:
        """The request's body if it is a short JSON object; else empty."""
        return _as_object(self._request)

    @property
    def answered(self) -> dict[str, Any]:
        """The response's body if it is a short JSON object; else empty."""
        return _as_object(self._answer)

    @property
    def answer_body(self) -> bytes | None:
        """The body of the response; ``None`` if it is very long."""
        return bytes(self._answer) if len(self._answer) < _MOST_KEPT else None


def _as_object(body: bytearray) -> dict[str, Any]:
    if not body or len(body) >= _MOST_KEPT:
        return {}
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


_PERIOD_S = 60.0
_FREE = 5
_FIRST_S = 0.1
_LONGEST_S = 5.0
_MOST_WAITING = 4
_MOST_PLACES = 4096


@dataclass
class _Place:
    refused_at: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    waiting: int = 0
    unlisted: int = 0


class Slowdown:
    """Delays refused requests by origin.

    Within a minute the first five are not delayed; then each delay is twice the previous one, up to
    5 s. While four wait, more are refused immediately, and counted instead of listed.
    """

    def __init__(
        self,
        clock: Callable[[], float] = monotonic_s,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._places: dict[str, _Place] = {}

    def is_full(self, place: str) -> bool:
        """Whether too many wait there; then the request counts as refused."""
        found = self._places.get(place)
        if found is None or found.waiting < _MOST_WAITING:
            return False
        found.unlisted += 1
        return True

    async def refused(self, place: str) -> int:
        """Wait after a refusal; returns how many were refused immediately since the last one."""
        found = self._places.pop(place, None) or _Place()
        self._places[place] = found  # latest last
        if len(self._places) > _MOST_PLACES:
            quiet = (
                name for name, each in self._places.items() if not each.waiting
            )
            del self._places[next(quiet, place)]
        now = self._clock()
        while found.refused_at and now - found.refused_at[0] > _PERIOD_S:
            found.refused_at.popleft()
        found.refused_at.append(now)
        if (beyond := len(found.refused_at) - _FREE) > 0:
            found.waiting += 1
            try:
                await self._sleep(
                    min(_FIRST_S * 2.0 ** (beyond - 1), _LONGEST_S)
                )
            finally:
                found.waiting -= 1
        unlisted = found.unlisted
        found.unlisted = 0
        return unlisted


KEY_HEADER = "Idempotency-Key"
KEPT_S = 86_400.0
_STATUSES = range(200, 600)
_LONGEST_KEY = 200


class KeptAnswers:
    """The responses to requests with idempotency keys, by user and key, for a day."""

    def __init__(
        self, store: Database, clock: Callable[[], float] = unix_s
    ) -> None:
        self._store = store
        self._clock = clock

    def begin(
        self,
        who: str,
        key: str,
        what: str,
        body: bytes,
    ) -> Response | None:
        """The response to a repeated request; ``None`` if it is the first."""
        if not 0 < len(key) <= _LONGEST_KEY or not key.isprintable():
            return problem_answer(
                400,
                f"{KEY_HEADER} is invalid: expected up to {_LONGEST_KEY} printable characters",
                "use a UUID",
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
            return problem_answer(
                422, f"another request had this {KEY_HEADER}", "use a new key"
            )
        if (
            not isinstance(status, int)
            or status not in _STATUSES
            or not isinstance(answer, bytes)
        ):
            return problem_answer(
                409,
                "this request was sent before, and its result is still unknown",
                "retry later; if this persists, check the state before you use a new key",
                outcome="unknown",
            )
        kind = "application/json" if status < 400 else PROBLEM_MEDIA_TYPE
        again = Response(answer, status, media_type=kind)
        again.headers["Idempotency-Replayed"] = "true"
        return again

    def end(
        self,
        who: str,
        key: str,
        status: int,
        body: bytes | None,
    ) -> None:
        """Keep a response, or forget the request if nothing was done, so it can be repeated."""
        if not status or body is None:
            return  # the result is not known
        if status >= 400 and json.loads(body).get("outcome") == "nothing-done":
            sql = "DELETE FROM answered WHERE who = ? AND key = ?"
            self._store.write_soon((sql, (who, key)), always=True)
            return
        sql = "UPDATE answered SET status = ?, body = ? WHERE who = ? AND key = ?"
        self._store.write_soon((sql, (status, body, who, key)), always=True)


_STOP = "/v1/stop"
_LONGEST_TEXT = 1000


class Admission:
    """Identifies callers, writes the ``audit`` log of changes, and delays refused callers.

    Requests are served in turn; those of operators do not wait for those of others, and the
    stop button for none. Routes find the caller in the request's state. The response to a request
    with an idempotency key is ``kept``, and sent again.
    """

    def __init__(
        self,
        app: ASGIApp,
        doorman: Doorman,
        audit: AuditLog | None = None,
        kept: KeptAnswers | None = None,
    ) -> None:
        self._app = app
        self._doorman = doorman
        self._audit = audit
        self._kept = kept
        self._slowdown = Slowdown()
        self._of_operators = Turns(at_once=16)
        self._of_others = Turns(
            at_once=4,
            share=0.25,
        )

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer a request, or let the application answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            caller = await self._doorman.caller(request)
        except NotKnown as error:
            turn_away = partial(self._turn_away, error)
            await self._of_others.answer(
                (request.client or ("", 0))[0],
                turn_away,
                scope,
                receive,
                send,
            )
            return
        state = scope.setdefault("state", {})
        state["caller"] = caller
        state.get("connection", {})["owner"] = caller.by, caller.place
        app = self._app
        if request.method not in READS:
            exchange = HttpExchange(receive, send)
            # It takes its turn once it is complete.
            await exchange.whole_request()
            receive = exchange.receive
            send = exchange.send
            app = partial(self._write, caller, exchange)
        if caller.role < Role.OPERATOR:
            await self._of_others.answer(
                caller.by,
                app,
                scope,
                receive,
                send,
            )
        elif request.url.path.startswith(_STOP):
            await app(scope, receive, send)
        else:
            await self._of_operators.answer(
                caller.by,
                app,
                scope,
                receive,
                send,
            )

    async def _write(
        self,
        caller: Caller,
        exchange: HttpExchange,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        request = Request(scope)
        if self._slowdown.is_full(caller.place):
            await _LATER(scope, receive, send)
            return
        exchange.on_answer = partial(
            self._on_answer,
            request,
            caller,
            exchange,
        )
        key = request.headers.get(KEY_HEADER)
        if self._kept is not None and key is not None:
            body = await exchange.whole_request()
            what = f"{request.method} {request.url.path}"
            try:
                again = self._kept.begin(
                    caller.by,
                    key,
                    what,
                    body,
                )
            except JournalError as error:
                # The stop button is idempotent anyway.
                again = (
                    None
                    if request.url.path.startswith(_STOP)
                    else explained(error)
                )
            if again is not None:
                await again(scope, receive, send)
                return
        try:
            await self._app(scope, receive, send)
        finally:
            if not exchange.status:
                self._note(request, caller, exchange)
            if self._kept is not None and key is not None:
                self._kept.end(
                    caller.by,
                    key,
                    exchange.status,
                    exchange.answer_body,
                )

    async def _on_answer(
        self,
        request: Request,
        caller: Caller,
        exchange: HttpExchange,
    ) -> None:
        refused = exchange.status in (401, 403)
        repeated = await self._slowdown.refused(caller.place) if refused else 0
        self._note(
            request,
            caller,
            exchange,
            repeated,
        )

    async def _turn_away(
        self,
        error: NotKnown,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        request = Request(scope)
        exchange = HttpExchange(receive, send)
        stranger = Caller(
            by="",
            origin=":".join(map(str, request.client or ("", 0))),
        )
        if self._slowdown.is_full(stranger.place):
            await _LATER(scope, receive, send)
            return
        exchange.on_answer = partial(
            self._on_answer,
            request,
            stranger,
            exchange,
        )
        await explained(error)(scope, receive, exchange.send)

    def _note(
        self,
        request: Request,
        caller: Caller,
        exchange: HttpExchange,
        repeated: int = 0,
    ) -> None:
        asked = exchange.asked
        answer = exchange.answered
        planned = asked.get("dry_run") is True and exchange.status not in (
            401,
            403,
        )
        if self._audit is None or planned:
            return
        why = asked.get("why")
        self._audit.add(
            Attempt(
                by=caller.by,
                origin=caller.origin,
                role=str(caller.role),
                token=caller.token,
                what=_line(f"{request.method} {request.url.path}"),
                why=_line(why) if isinstance(why, str) else "",
                status=exchange.status,
                outcome=_outcome(exchange.status, answer),
                about=_about(answer),
                repeated=repeated,
            )
        )


_LATER = problem_answer(
    429,
    "too many requests from your address were just refused",
    "wait ten seconds",
    headers={"Retry-After": "10"},
)


def _line(text: str) -> str:
    printable = "".join(
        c if c.isprintable() else "?" for c in text[:_LONGEST_TEXT]
    )
    return without_tokens(printable)


def _outcome(status: int, answer: Mapping[str, Any]) -> str:
    if (
        status == 0
        or answer.get("outcome") == "unknown"
        or answer.get("state") == "unknown"
    ):
        return "unknown"
    if status in (401, 403):
        return "refused"
    # A recorded change that was not made.
    undone = answer.get("state") in ("refused", "rolled-back")
    return "failed" if undone or status >= 400 else "done"


def _about(answer: Mapping[str, Any]) -> str:
    jobs = answer.get("jobs")
    rows = jobs if isinstance(jobs, list) else [answer]
    found = [
        " ".join(str(row[key]) for key in ("id", "state") if key in row)
        for row in rows
        if isinstance(row, dict)
    ]
    return _line(", ".join(filter(None, found)))
