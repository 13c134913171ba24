"""Whose request begins when: each user in turn, nobody for ever, and none that nobody waits for."""

import asyncio
import time
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from patchlight.controller.api import turns as turns_module
from patchlight.controller.api.turns import Turns
from tests.support.waiting import eventually


def _work(seconds: float) -> None:
    time.sleep(seconds)  # nothing else has a turn meanwhile


class Asked:
    """Requests of users to an application that notes them; each has an answer, or none yet."""

    def __init__(
        self, at_once: int = 1, share: float = 1.0, works_s: float = 0.0
    ) -> None:
        self.turns = Turns(at_once, share)
        self.begun: list[str] = []
        self.answers: list[int] = []
        self.headers: list[dict[bytes, bytes]] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        self._works_s = works_s

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun.append(scope["user"])
        _work(self._works_s)
        await self.may_end.wait()
        await send(
            {"type": "http.response.start", "status": 200, "headers": []}
        )
        await send({"type": "http.response.body"})

    def ask(
        self, user: str, method: str = "GET", **connection: Any
    ) -> "asyncio.Task[None]":
        scope: Scope = {
            "type": "http",
            "method": method,
            "user": user,
            "headers": [],
        }
        scope["state"] = {"connection": connection}

        async def receive() -> Message:
            return {"type": "http.request"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.answers.append(message["status"])
                self.headers.append(dict(message["headers"]))

        return asyncio.create_task(
            self.turns.answer(user, self._app, scope, receive, send)
        )


async def test_one_request_of_a_user_does_not_wait_for_fifty_of_another() -> (
    None
):
    asked = Asked()
    every = [asked.ask("eve") for _ in range(50)] + [asked.ask("adam")]
    await asyncio.gather(*every)
    assert asked.begun.index("adam") == 1
    assert len(asked.begun) == 51


async def test_no_more_begin_at_once_than_may_until_they_only_wait() -> None:
    asked = Asked(at_once=2)
    asked.may_end.clear()
    every = [asked.ask("eve") for _ in range(3)]
    await eventually(lambda: len(asked.begun) == 2)
    await asyncio.sleep(0.05)  # a third would begin in this time
    assert len(asked.begun) == 2
    # A long poll does not keep others out.
    await eventually(lambda: len(asked.begun) == 3)
    asked.may_end.set()
    await asyncio.gather(*every)


async def test_what_nobody_waits_for_is_dropped_unless_it_is_a_change() -> (
    None
):
    asked = Asked()
    await asyncio.gather(
        asked.ask("gone", is_closed=True),
        asked.ask("changes", "POST", is_closed=True),
        asked.ask("here"),
    )
    assert asked.begun == ["changes", "here"]


async def test_who_waits_too_long_is_told_when_to_try_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns_module, "_LONGEST_WAIT_S", 0.05)
    asked = Asked()
    asked.may_end.clear()
    first = asked.ask("eve")
    second = asked.ask("eve")
    await second
    assert asked.answers == [429]
    assert asked.headers[0][b"retry-after"] == b"1"
    asked.may_end.set()
    await first
    assert asked.answers == [429, 200]


async def test_together_they_use_their_share_of_the_time() -> None:
    asked = Asked(share=0.25, works_s=0.02)
    began = time.monotonic()
    await asyncio.gather(*(asked.ask("eve") for _ in range(30)))
    # 0.6 s of work in 2.4 s, but for what may be spent at once.
    assert time.monotonic() - began > 1.8
    assert asked.answers == [200] * 30


async def test_a_request_that_is_given_up_keeps_nobody_out() -> None:
    asked = Asked()
    asked.may_end.clear()
    working = asked.ask("eve")
    waiting = asked.ask("eve")
    await eventually(lambda: bool(asked.begun))
    for each in (waiting, working):
        each.cancel()
    await asyncio.gather(working, waiting, return_exceptions=True)
    asked.may_end.set()
    await asked.ask("adam")
    assert asked.begun == ["eve", "adam"]
