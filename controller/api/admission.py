"""The door of the API: who comes in, and what is written down of whoever wants a change."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from patchlight.controller.access.audit import Attempt, AuditLog
from patchlight.controller.access.tokens import without_tokens
from patchlight.controller.api.answers import explained, problem_answer
from patchlight.controller.api.caller import Caller, Doorman, NotKnown
from patchlight.controller.api.exchange import Exchange
from patchlight.controller.api.idempotency import KEY_HEADER, KeptAnswers
from patchlight.controller.api.slowdown import Slowdown
from patchlight.controller.storage.database import JournalError

_READS = ("GET", "HEAD", "OPTIONS")
_STOP = "/v1/stop"
_LONGEST_TEXT = 1000


class Admission:
    """Asks the ``doorman`` who comes, and writes an ``audit`` log of what is to be changed.

    Routes find the caller in the request's state. Who is refused is slowed down. What was answered
    to a request with a key is ``kept``, and answered again.
    """

    def __init__(
        self,
        app: ASGIApp,
        doorman: Doorman,
        audit: AuditLog | None = None,
        kept: KeptAnswers | None = None,
    ) -> None:
        self._app, self._doorman, self._audit, self._kept = app, doorman, audit, kept
        self._slowdown = Slowdown()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or have the application do so."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request, exchange = Request(scope), Exchange(receive, send)
        try:
            caller = await self._doorman.caller(request)
        except NotKnown as error:
            await self._turn_away(request, exchange, error)
            return
        state = scope.setdefault("state", {})
        state["caller"] = caller
        state.get("connection", {})["owner"] = caller.by, caller.place
        if request.method in _READS:
            await self._app(scope, receive, send)
        elif self._slowdown.is_full(caller.place):
            await _LATER(scope, receive, send)
        else:
            await self._write(request, caller, exchange)

    async def _write(self, request: Request, caller: Caller, exchange: Exchange) -> None:
        exchange.on_answer = partial(self._on_answer, request, caller, exchange)
        key = request.headers.get(KEY_HEADER)
        if self._kept is not None and key is not None:
            body = await exchange.whole_request()
            what = f"{request.method} {request.url.path}"
            try:
                again = self._kept.begin(caller.by, key, what, body)
            except JournalError as error:
                # The stop button has its effect once by itself.
                again = None if request.url.path.startswith(_STOP) else explained(error)
            if again is not None:
                await again(request.scope, exchange.receive, exchange.send)
                return
        try:
            await self._app(request.scope, exchange.receive, exchange.send)
        finally:
            if not exchange.status:
                self._note(request, caller, exchange)
            if self._kept is not None and key is not None:
                self._kept.end(caller.by, key, exchange.status, exchange.answer_body)

    async def _on_answer(self, request: Request, caller: Caller, exchange: Exchange) -> None:
        refused = exchange.status in (401, 403)
        repeated = await self._slowdown.refused(caller.place) if refused else 0
        self._note(request, caller, exchange, repeated)

    async def _turn_away(self, request: Request, exchange: Exchange, error: NotKnown) -> None:
        host, port = request.client or ("", 0)
        stranger = Caller(by="", origin=f"{host}:{port}")
        if self._slowdown.is_full(stranger.place):
            await _LATER(request.scope, exchange.receive, exchange.send)
            return
        exchange.on_answer = partial(self._on_answer, request, stranger, exchange)
        await explained(error)(request.scope, exchange.receive, exchange.send)

    def _note(
        self, request: Request, caller: Caller, exchange: Exchange, repeated: int = 0
    ) -> None:
        asked, answer = exchange.asked, exchange.answered
        planned = asked.get("dry_run") is True and exchange.status == 200
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
    429, "too many requests from there were refused just now", "wait ten seconds"
)


def _line(text: str) -> str:
    """A text as the log may have it: one line, not too long, and no token in it."""
    printable = "".join(c if c.isprintable() else "?" for c in text[:_LONGEST_TEXT])
    return without_tokens(printable)


def _outcome(status: int, answer: Mapping[str, Any]) -> str:
    if status == 0 or answer.get("outcome") == "unknown" or answer.get("state") == "unknown":
        return "unknown"
    if status in (401, 403):
        return "refused"
    # A change that is on record, and was not made.
    undone = answer.get("state") in ("refused", "rolled-back")
    return "failed" if undone or status >= 400 else "done"


def _about(answer: Mapping[str, Any]) -> str:
    """What was made or changed: the id and state of a change or a job, or of several jobs."""
    jobs = answer.get("jobs")
    rows = jobs if isinstance(jobs, list) else [answer]
    found = [
        " ".join(str(row[key]) for key in ("id", "state") if key in row)
        for row in rows
        if isinstance(row, dict)
    ]
    return _line(", ".join(filter(None, found)))
