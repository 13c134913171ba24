"""Where an agent listens, and whom it lets in."""

import socket
import stat
from collections.abc import Awaitable, Callable
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import httpx
import pytest

from patchlight.agents.api import make_app
from patchlight.agents.gpus import gpu_backend
from patchlight.agents.run import open_listener, read_token
from patchlight.agents.service import AgentService
from patchlight.agents.workers.backends import BackendOptions, make_runner
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab import Lab, Server
from patchlight.testbed.linux.sockets import PortTaken

TOKEN = "0123456789abcdef0123"
OPTIONS = BackendOptions("lab", "server1")


def test_a_unix_socket_is_for_its_owner_and_replaces_a_dead_one(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "agent.sock"
    first = open_listener(f"unix:{path}", None)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first.listen()
    with pytest.raises(PatchlightError, match="already"):
        open_listener(f"unix:{path}", None)
    first.close()
    open_listener(f"unix:{path}", None).close()


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "127.0.0.1:0", "[::1]:0"])
def test_tcp_needs_a_token(address: str) -> None:
    with pytest.raises(BadInput, match="needs a token"):
        open_listener(address, None)
    open_listener(address, TOKEN).close()


def test_a_port_in_use_and_a_wrong_address_are_said() -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(PortTaken, match="is taken by"):
        open_listener(f"127.0.0.1:{taken.getsockname()[1]}", TOKEN)
    for address in ("nowhere", "127.0.0.1:http", ":80"):
        with pytest.raises(BadInput, match="expected unix:PATH or host:port"):
            open_listener(address, TOKEN)


def test_tokens_are_read_without_white_space_and_must_be_long(tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert read_token(None) is None
    file.write_text(f" {TOKEN}\n")
    file.chmod(0o640)
    with pytest.raises(BadInput, match="other users may read or change the token"):
        read_token(file)
    file.chmod(0o600)
    assert read_token(file) == TOKEN
    file.write_text("short")
    with pytest.raises(BadInput, match="too short"):
        read_token(file)
    with pytest.raises(BadInput, match="No such file"):
        read_token(tmp_path / "none")


Ask = Callable[..., Awaitable[httpx.Response]]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Asks an agent that wants a token."""
    server = Server("server1", None, (), ())
    lab = Lab("lab", IPv4Network("10.0.0.0/24"), (server,))
    service = AgentService(
        lab, server, make_runner("process", OPTIONS), gpu_backend("nvml", server), tmp_path
    )

    async def request(method: str, path: str, token: str = TOKEN, **options: Any) -> httpx.Response:
        transport = httpx.ASGITransport(make_app(service, TOKEN))
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with httpx.AsyncClient(transport=transport, base_url="http://agent") as client:
            return await client.request(method, path, headers=headers, **options)

    return request


@pytest.mark.parametrize("token", ["", "nonsense", TOKEN[:-1], f"{TOKEN}0", TOKEN.upper() + "x"])
async def test_without_the_token_nothing_is_told_and_nothing_looked_at(
    ask: Ask, token: str
) -> None:
    for method, path in (
        ("GET", "/v1/status"),
        ("GET", "/v1/workers/x"),
        ("GET", "/v1/status/"),
        ("GET", "/openapi.json"),
        ("GET", "/nowhere"),
        ("PUT", "/v1/status"),
        ("POST", "/v1/workers"),
        ("DELETE", "/v1/workers/x"),
    ):
        answer = await ask(method, path, token, content=b"{" if method == "POST" else None)
        said = (answer.status_code, answer.json()["error"])
        assert said == (401, "this agent asks for a token"), path


async def test_with_the_token_answers_are_in_words(ask: Ask) -> None:
    assert (await ask("GET", "/v1/status")).json()["server"] == "server1"
    assert (await ask("GET", "/v1/workers/x")).status_code == 404
    for method, path in (("GET", "/v1/nowhere"), ("GET", "/v1/status/"), ("PUT", "/v1/status")):
        answer = await ask(method, path)
        assert answer.status_code in (404, 405)
        assert answer.json()["error"] == f"there is no {method} {path}"


async def test_a_million_mistakes_are_not_all_looked_at(ask: Ask) -> None:
    task = {"iterations": 1, "gradient_bytes": 4, "compute_s": 0}
    usual: dict[str, Any] = {"id": "a", "job": "a", "rank": 0, "nic": "n", "task": task}
    member = {"rank": 7, "address": "10.0.0.1", "port": 1}
    for ring, words in (
        ([1] * 1_000_000, "ring.0: expected an object, found 1"),
        ([{}] * 1_000_000, "ring.0.rank: it is missing"),
        ([member] * 5000, "the ring must have ranks 0…n−1, once each"),
    ):
        answer = await ask("POST", "/v1/workers", json={**usual, "ring": ring})
        assert answer.status_code == 422
        assert words in answer.json()["error"]
        assert len(answer.content) < 500


def test_wrong_choices_are_said() -> None:
    server = Server("server1", None, (), ())
    with pytest.raises(BadInput, match="'nvml' or 'socket:DIR'"):
        gpu_backend("socket:", server)
    with pytest.raises(BadInput, match="100 readings"):
        gpu_backend("nvml", server, 0)
    with pytest.raises(BadInput, match="'docker', 'process' or 'auto'"):
        make_runner("podman", OPTIONS)
    with pytest.raises(BadInput, match="no such user"):
        make_runner("process", replace(OPTIONS, worker_user="nobody-of-that-name"))
