"""Serves the requests of all users in turn, so that nobody's load keeps others waiting."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from patchlight.controller.api.openapi import problem_answer

READS = ("GET", "HEAD", "OPTIONS")
_LONGEST_WAIT_S = 5.0
# A request that takes longer waits for others, and no longer keeps the controller busy.
_AT_WORK_S = 0.5
_BURST_S = 0.2
_TOO_BUSY = problem_answer(
    429,
    f"the controller did not start this request within {_LONGEST_WAIT_S:g} s, because of other "
    "requests",
    "wait a second, and make fewer requests at a time",
    headers={"Retry-After": "1"},
)


@dataclass(eq=False)
class _Request:
    begins: asyncio.Future[None]
    since: float
    is_gone: Callable[[], bool]


class Turns:
    """Serves one request of each user in turn, ``at_once`` at the same time.

    Together they may use the ``share`` of the event loop's time. A request that has waited for 5 s
    gets 429; a read is dropped if its client is gone.
    """

    def __init__(self, at_once: int, share: float = 1.0) -> None:
        self._at_once = at_once
        self._share = share
        self._waiting: dict[str, deque[_Request]] = {}
        self._at_work: set[_Request] = set()
        self._has_room = asyncio.Event()
        self._dealing: asyncio.Task[None] | None = None
        self._spent_until = 0.0

    async def answer(
        self,
        user: str,
        app: ASGIApp,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Let the application answer when it is this user's turn."""
        connection = scope.get("state", {}).get("connection", {})
        is_read = scope["method"] in READS
        loop = asyncio.get_running_loop()

        def is_gone() -> bool:
            return is_read and bool(connection.get("is_closed"))

        request = _Request(loop.create_future(), loop.time(), is_gone)
        self._waiting.setdefault(user, deque()).append(request)
        if self._dealing is None:
            self._dealing = asyncio.create_task(self._deal(), name="turns")

        async def sending(message: Message) -> None:
            self._rest(request)
            await send(message)

        try:
            await request.begins
            if is_gone():
                return
            is_late = loop.time() - request.since > _LONGEST_WAIT_S
            await (_TOO_BUSY if is_late else app)(scope, receive, sending)
        finally:
            self._rest(request)

    def _rest(self, request: _Request) -> None:
        self._at_work.discard(request)
        self._has_room.set()

    async def _deal(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                if len(self._at_work) >= self._at_once:
                    self._has_room.clear()
                    await self._has_room.wait()
                    continue
                user = next(iter(self._waiting))
                of_user = self._waiting.pop(user)
                request = of_user.popleft()
                if of_user:
                    self._waiting[user] = of_user  # now the last
                if request.begins.done():
                    continue
                request.begins.set_result(None)
                if request.is_gone():
                    continue
                self._at_work.add(request)
                loop.call_later(_AT_WORK_S, self._rest, request)
                began = loop.time()
                await asyncio.sleep(0)  # meanwhile it does most of its work
                now = loop.time()
                spent_s = (now - began) / self._share
                self._spent_until = (
                    max(self._spent_until, now - _BURST_S) + spent_s
                )
                if self._share < 1.0 and self._spent_until > now:
                    await asyncio.sleep(self._spent_until - now)
        finally:
            self._dealing = None


class InTurn:
    """An application that answers its clients in turn, by address."""

    def __init__(self, app: ASGIApp, turns: Turns) -> None:
        self._app = app
        self._turns = turns

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = scope.get("client") or ("", 0)
        uid = scope.get("state", {}).get("connection", {}).get("uid")
        user = str(client[0]) if uid is None else f"uid {uid}"
        await self._turns.answer(
            user,
            self._app,
            scope,
            receive,
            send,
        )
