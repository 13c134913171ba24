"""Decides who may open the dashboard, and with which role.

It listens on this machine only, where the kernel identifies the user of a connection. For the
controller it is a client with the role of the user who started it. If root runs it, it serves every
user of the machine with their own role.
"""

import asyncio
import html
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from patchlight.client.client import ControllerClient, NoAnswer
from patchlight.controller.api.caller import user_id_of
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.rules import Role

Connect = Callable[[int | None], ControllerClient]
"""Makes a client for the user with that id, or for this process's user."""

_VISITOR = "visitor"
_ASK_AGAIN_S = 5.0
# What NiceGUI puts into pages; nothing comes from another machine.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; "
    "frame-ancestors 'none'; form-action 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
_REFUSAL = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Patchlight</title>
<h1>Patchlight cannot show this page</h1><p>{words}</p><p>{hint}</p></html>"""


class TurnedAway(PatchlightError):
    """A user may not open the dashboard."""


@dataclass
class Visitor:
    """A user with a page open: their name and role, and a client with that role."""

    client: ControllerClient
    user: str = ""
    role: Role = Role.NOBODY
    asked_at: float = field(default=-_ASK_AGAIN_S)


class Visitors:
    """Visitors by their user id on this machine.

    ``for_all``: admit all users, because the controller trusts the user ids from this process.
    """

    def __init__(self, connect: Connect, *, for_all: bool) -> None:
        self._connect = connect
        self._for_all = for_all
        self._found: dict[int, Visitor] = {}

    def admit(self, uid: int | None) -> Visitor:
        """The visitor with that user id; ``TurnedAway`` if they may not see the lab."""
        if uid is None:
            raise TurnedAway(
                "the connection does not come from a user of this machine",
                hint="on another machine run: patchlight dashboard --controller HOST:PORT, or "
                "forward a port with SSH",
            )
        own = uid == os.geteuid()
        if not own and not self._for_all:
            raise TurnedAway(
                f"this dashboard serves only uid {os.geteuid()}, who started it; you are uid {uid}",
                hint="start your own: patchlight dashboard",
            )
        if uid not in self._found:
            self._found[uid] = Visitor(self._connect(None if own else uid))
        visitor = self._found[uid]
        if time.monotonic() - visitor.asked_at > _ASK_AGAIN_S:
            try:
                told = visitor.client.whoami()
                visitor.user = str(told.user)
                visitor.role = Role.named(told.role)
                visitor.asked_at = time.monotonic()
            except NoAnswer:
                # The controller is unavailable: keep the visitor.
                if visitor.role is Role.NOBODY:
                    raise
        if visitor.role < Role.VIEWER:
            raise TurnedAway(
                f"{visitor.user or f'uid {uid}'} may not read this lab",
                hint="an admin gives roles with controller: {access: …} in the lab file",
            )
        return visitor

    def close(self) -> None:
        """Close their clients."""
        for visitor in self._found.values():
            visitor.client.close()


class Authenticated:
    """Admits visitors to ``app``, which gets each by ``visitor_of``."""

    def __init__(self, app: ASGIApp, visitors: Visitors) -> None:
        self._app = app
        self._visitors = visitors

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer a request, or pass it to the application."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            headers = dict(scope["headers"])
            origin = headers.get(b"origin")
            if origin is not None and origin.partition(b"://")[
                2
            ] != headers.get(b"host", b""):
                raise TurnedAway(
                    "the request comes from another site",
                    hint="open this page directly",
                )
            seen: dict[str, Any] = scope.get("state", {}).get("connection", {})
            if "uid" not in seen:
                seen["uid"] = await asyncio.to_thread(
                    user_id_of, scope["client"], scope["server"]
                )
            visitor = await asyncio.to_thread(
                self._visitors.admit, seen["uid"]
            )
        except PatchlightError as error:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close"})
            else:
                page = _REFUSAL.format(
                    words=html.escape(error.message),
                    hint=html.escape(error.hint or ""),
                )
                await HTMLResponse(page, 403)(scope, receive, send)
            return
        scope.setdefault("state", {})[_VISITOR] = visitor

        async def with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {
                    **message,
                    "headers": [*message.get("headers", ()), *_HEADERS],
                }
            await send(message)

        await self._app(scope, receive, with_policy)


def visitor_of(request: Request) -> Visitor:
    """The visitor whose request was admitted."""
    visitor = getattr(request.state, _VISITOR)
    assert isinstance(visitor, Visitor)
    return visitor
