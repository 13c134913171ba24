"""The limits that the HTTP server of controllers and agents keeps, over sockets."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest_asyncio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from patchlight.testbed.linux.http_server import Limits, http_server
from tests.support.waiting import PATIENCE_S

PEER_S = 0.5


@pytest_asyncio.fixture
async def port() -> AsyncIterator[int]:
    """A server on this port of the machine that gives its peers half a second."""

    async def hello(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"hello {len(await request.body())}")

    app = Starlette(routes=[Route("/", hello, methods=["GET", "POST"])])
    server = http_server(app, limits=Limits(peer_s=PEER_S), loop="asyncio", lifespan="off")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield listener.getsockname()[1]
        server.should_exit = True
        await serving


async def test_who_sends_half_a_request_is_left_in_the_end(port: int) -> None:
    async def sent(text: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(text)
        return reader, writer

    head = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
    held = [
        await sent(text)
        for text in (b"", b"GET /v1/sta", head, head + b"Content-Length: 9\r\n\r\n{")
    ]
    second, writer = await sent(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b" 200 " in await second.readuntil(b"hello 0")
    writer.write(b"GET /v1/la")
    held.append((second, writer))
    for waiting, its_writer in held:
        # Without another word: whether as an end or as a reset is the kernel's.
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(waiting.read(), PATIENCE_S) == b""
        its_writer.close()
