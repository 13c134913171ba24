"""A request and its answer as they pass by an ASGI application."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Message, Receive, Send

_MOST_KEPT = 1 << 20


class Exchange:
    """Hands a request's and an answer's messages on, and looks at them.

    ``on_answer`` is awaited when the answer has begun and before anything of it is sent: its
    ``status`` and the first part of its body (all of it, unless it is a stream) are known then.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._request, self._answer = bytearray(), bytearray()
        self._put_back: list[Message] = []
        self._start: Message | None = None
        self.on_answer: Callable[[], Awaitable[None]] | None = None
        self.status = 0

    async def receive(self) -> Message:
        """The next message of the client."""
        if self._put_back:
            return self._put_back.pop(0)
        message = await self._receive()
        if len(self._request) < _MOST_KEPT:
            self._request += message.get("body", b"")
        return message

    async def send(self, message: Message) -> None:
        """Send a message to the client."""
        if message["type"] == "http.response.start":
            self.status, self._start = message["status"], message
            return
        if len(self._answer) < _MOST_KEPT:
            self._answer += message.get("body", b"")
        if self._start is not None:
            start, self._start = self._start, None
            if self.on_answer is not None:
                await self.on_answer()
            await self._send(start)
        await self._send(message)

    async def whole_request(self) -> bytes:
        """The whole body of the request, which the application still gets."""
        messages = [await self.receive()]
        while messages[-1].get("more_body"):
            messages.append(await self.receive())
        self._put_back = messages
        return b"".join(message.get("body", b"") for message in messages)

    @property
    def asked(self) -> dict[str, Any]:
        """The request's body, if it is a JSON object that is not very long; else nothing."""
        return _as_object(self._request)

    @property
    def answered(self) -> dict[str, Any]:
        """The answer's, likewise."""
        return _as_object(self._answer)

    @property
    def answer_body(self) -> bytes | None:
        """The whole body of the answer; ``None`` if it is very long, or not all of it was sent."""
        return bytes(self._answer) if len(self._answer) < _MOST_KEPT else None


def _as_object(body: bytearray) -> dict[str, Any]:
    if not body or len(body) >= _MOST_KEPT:
        return {}
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
