"""The limits that the HTTP server of controllers and agents keeps, over sockets."""

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator

import pytest_asyncio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from patchlight.testbed.linux.http_server import ServerLimits, http_server
from tests.support.waiting import PATIENCE_S

PEER_S = 0.5
# From Python 3.13 on, a writer that nobody has closes its connection.
held = list[asyncio.StreamWriter]()


@pytest_asyncio.fixture
async def port() -> AsyncIterator[int]:
    """A server that takes eight connections."""
    async with serving(ServerLimits(connections=8, peer_s=PEER_S)) as at:
        yield at


@contextlib.asynccontextmanager
async def serving(limits: ServerLimits) -> AsyncIterator[int]:
    """A server on this port of the machine that gives its peers half a second.

    Whoever asks for ``/USER`` is that user; one who waits is answered when the server ends.
    """
    ending = asyncio.Event()

    async def hello(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"hello {len(await request.body())}")

    async def user(request: Request) -> PlainTextResponse:
        request.scope["state"]["connection"]["owner"] = request.path_params[
            "name"
        ]
        if "waits" in request.query_params:
            await ending.wait()
        return await hello(request)

    routes = [Route("/", hello, methods=["GET", "POST"])]
    app = Starlette(
        routes=[*routes, Route("/{name}", user, methods=["GET", "POST"])]
    )
    server = http_server(app, limits=limits, loop="asyncio", lifespan="off")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield listener.getsockname()[1]
        while held:
            held.pop().close()
        ending.set()  # else the server waits for these answers
        server.should_exit = True
        await serving


async def test_who_sends_half_a_request_is_left_in_the_end(port: int) -> None:
    async def sent(
        text: bytes,
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(text)
        return reader, writer

    head = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
    waits = [
        await sent(text)
        for text in (
            b"",
            b"GET /v1/sta",
            head,
            head + b"Content-Length: 9\r\n\r\n{",
        )
    ]
    second, writer = await sent(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b" 200 " in await second.readuntil(b"hello 0")
    writer.write(b"GET /v1/la")
    waits.append((second, writer))
    for waiting, its_writer in waits:
        # Without another word: whether as an end or as a reset is the kernel's.
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(waiting.read(), PATIENCE_S) == b""
        its_writer.close()


async def asked(
    port: int, method: str, path: str, within_s: float = PEER_S
) -> tuple[asyncio.StreamReader, bytes]:
    """A request for that path, of which nothing is read yet, and what came within a moment."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    held.append(writer)
    writer.write(
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    )
    try:
        async with asyncio.timeout(within_s):
            return reader, await reader.read(1000)
    except TimeoutError:
        return reader, b""


async def test_reads_that_last_make_room_for_others_and_changes_do_not(
    port: int,
) -> None:
    changes = [await asked(port, "POST", "/eve?waits") for _ in range(2)]
    polls = await asyncio.gather(
        *(asked(port, "GET", "/eve?waits") for _ in range(6))
    )
    assert [said for _, said in (*changes, *polls)] == [b""] * 8
    other, _ = await asked(port, "GET", "/adam?waits")
    assert polls[0][0].at_eof()
    for method, path in (("POST", "/adam"), ("GET", "/adam"), ("GET", "/eve")):
        assert b" 200 " in (await asked(port, method, path, PATIENCE_S))[1]
    assert not any(reader.at_eof() for reader, _ in changes)
    assert not other.at_eof()
    assert not polls[-1][0].at_eof()


ONE_USER = ServerLimits(per_user=4, peer_s=PATIENCE_S)
"""Four connections of each user, and two new ones a second."""


async def test_too_many_new_connections_of_a_user_are_told_so_and_closed() -> (
    None
):
    async with serving(ONE_USER) as port:
        answers = await asyncio.gather(
            *(asked(port, "GET", "/", PATIENCE_S) for _ in range(12))
        )
        counts = Counter(text.split()[1] for _, text in answers)
        assert counts[b"429"] >= 6
        assert counts[b"200"] >= 4
        refused = next(text for _, text in answers if b" 429 " in text)
        assert b"\r\nRetry-After: 1\r\n" in refused
        assert json.loads(refused.partition(b"\r\n\r\n")[2])[
            "hint"
        ].startswith("close some")
        assert b"application/problem+json" in refused
        await asyncio.sleep(1.0)  # as it was told
        assert b" 200 " in (await asked(port, "GET", "/", PATIENCE_S))[1]


async def test_a_user_trusted_by_name_has_no_limit() -> None:
    limits = dataclasses.replace(ONE_USER, trusted=frozenset({os.getuid()}))
    async with serving(limits) as port:
        answers = await asyncio.gather(
            *(asked(port, "GET", "/", PATIENCE_S) for _ in range(20))
        )
        assert all(b" 200 " in text for _, text in answers)


async def test_beyond_the_limit_a_user_loses_the_oldest_idle_connection() -> (
    None
):
    async with serving(ONE_USER) as port:
        idle = []
        for _ in range(5):
            idle.append((await asked(port, "GET", "/", PATIENCE_S))[0])
            # Which is the oldest is known by the clock.
            await asyncio.sleep(0.3)
        assert await asyncio.wait_for(idle[0].read(), PATIENCE_S) == b""
        assert not any(reader.at_eof() for reader in idle[1:])


async def test_beyond_the_limit_a_new_request_is_refused_while_all_others_work() -> (
    None
):
    async with serving(ONE_USER) as port:
        at_work = []
        for _ in range(4):
            at_work.append((await asked(port, "POST", "/eve?waits", 0.3))[0])
        _, text = await asked(port, "GET", "/", PATIENCE_S)
        assert b" 429 " in text
        assert not any(reader.at_eof() for reader in at_work)
