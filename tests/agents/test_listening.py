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

from patchlight.agents.run import (
    credentials_of,
    gpu_backend,
    make_runner,
    open_listener,
)
from patchlight.agents.workers.contract import BackendOptions
from patchlight.controller.access.authority import Authority
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Lab, Server
from patchlight.testbed.linux.credentials import Credentials
from patchlight.testbed.linux.sockets import PortTaken
from tests.support.tls_agents import idle_agent

SERVER = Server("server1", None, (), ())
OPTIONS = BackendOptions("lab", "server1")


def test_a_unix_socket_is_for_its_owner_and_replaces_a_dead_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "deep" / "agent.sock"
    first = open_listener(f"unix:{path}", None)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first.listen()
    with pytest.raises(PatchlightError, match="already"):
        open_listener(f"unix:{path}", None)
    first.close()
    open_listener(f"unix:{path}", None).close()


@pytest.fixture
def own(tmp_path: Path) -> Credentials:
    """The certificate of server1's agent."""
    return Authority("lab", tmp_path / "ca").for_agent(
        "server1", tmp_path / "server1"
    )


@pytest.mark.parametrize(
    "address", ["0.0.0.0:0", "[::]:0", "127.0.0.1:0", "[::1]:0"]
)
def test_tcp_needs_certificates_and_a_unix_socket_none(
    address: str, own: Credentials, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="needs certificates"):
        open_listener(address, None)
    open_listener(address, own).close()
    with pytest.raises(BadInput, match="--tls is for TCP"):
        open_listener(f"unix:{tmp_path}/a.sock", own)


def test_a_port_in_use_and_a_wrong_address_are_said(own: Credentials) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(PortTaken, match="is used by"):
        open_listener(f"127.0.0.1:{taken.getsockname()[1]}", own)
    for address in ("nowhere", "127.0.0.1:http", ":80"):
        with pytest.raises(BadInput, match="expected unix:PATH or host:port"):
            open_listener(address, own)


def test_a_certificate_for_something_else_is_refused(own: Credentials) -> None:
    lab = Lab("lab", IPv4Network("10.0.0.0/24"), (SERVER,))
    assert credentials_of(own.folder, SERVER, lab) == own
    with pytest.raises(
        BadInput,
        match=r"is for agent\.server1\.lab: expected agent\.server2\.lab",
    ):
        credentials_of(own.folder, Server("server2", None, (), ()), lab)
    with pytest.raises(BadInput, match=r"expected agent\.server1\.other"):
        credentials_of(own.folder, SERVER, lab.with_changes(name="other"))


Ask = Callable[..., Awaitable[httpx.Response]]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Asks an agent, as whoever holds the certificate for a name."""
    app = idle_agent(
        Lab("lab", IPv4Network("10.0.0.0/24"), (SERVER,)), SERVER, tmp_path
    )

    async def request(
        method: str, path: str, who: str = "controller.lab", **options: Any
    ) -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(who, 0))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://agent"
        ) as client:
            return await client.request(method, path, **options)

    return request


EVERYTHING = (
    ("GET", "/v1/status"),
    ("GET", "/v1/workers/x"),
    ("GET", "/v1/status/"),
    ("GET", "/openapi.json"),
    ("GET", "/nowhere"),
    ("PUT", "/v1/status"),
    ("POST", "/v1/workers"),
    ("DELETE", "/v1/workers/x"),
)


@pytest.mark.parametrize(
    "who",
    [
        "",
        "agent.server2.lab",
        "controller.other",
        "CONTROLLER.lab",
        "prometheus.lab",
    ],
)
async def test_only_the_labs_controller_is_told_anything(
    ask: Ask, who: str
) -> None:
    for method, path in (*EVERYTHING, ("GET", "/metrics/")):
        answer = await ask(
            method, path, who, content=b"{" if method == "POST" else None
        )
        said = (answer.status_code, answer.json()["error"])
        assert said == (403, f"access denied for a certificate of {who}"), path
    assert ((await ask("GET", "/metrics", who)).status_code == 200) == (
        who == "prometheus.lab"
    )


async def test_answers_are_in_words(ask: Ask) -> None:
    assert (await ask("GET", "/v1/status", "unix")).json()[
        "server"
    ] == "server1"
    assert (await ask("GET", "/v1/workers/x")).status_code == 404
    for method, path in (
        ("GET", "/v1/nowhere"),
        ("GET", "/v1/status/"),
        ("PUT", "/v1/status"),
    ):
        answer = await ask(method, path)
        assert answer.status_code in (404, 405)
        assert answer.json()["error"] == f"unknown request: {method} {path}"


async def test_metrics_tell_what_the_agent_did(ask: Ask) -> None:
    for _ in range(3):
        await ask("GET", "/v1/status")
    for name in ("x", "y"):
        await ask("GET", f"/v1/workers/{name}")
    await ask("GET", "/nowhere")
    lines = (await ask("GET", "/metrics", "prometheus.lab")).text.splitlines()
    requests = "patchlight_agent_requests_total"
    for line in (
        requests + '{call="status",code="200"} 3.0',
        requests + '{call="worker",code="404"} 2.0',
        requests + '{call="none",code="404"} 1.0',
        'patchlight_agent_request_seconds_count{call="status"} 3.0',
        'patchlight_agent_workers{state="running"} 0.0',
        'patchlight_agent_leases{kind="nic"} 0.0',
        'patchlight_agent_log_records_total{level="error"} 0.0',
    ):
        assert line in lines
    assert any(line.startswith("patchlight_agent_info{") for line in lines)
    assert any(
        line.startswith("process_resident_memory_bytes ") for line in lines
    )


async def test_a_million_mistakes_are_not_all_looked_at(ask: Ask) -> None:
    task = {"iterations": 1, "gradient_bytes": 4, "compute_s": 0}
    usual: dict[str, Any] = {
        "id": "a",
        "job": "a",
        "rank": 0,
        "nic": "n",
        "task": task,
    }
    member = {"rank": 7, "address": "10.0.0.1", "port": 1}
    for ring, words in (
        ([1] * 1_000_000, "ring.0: expected an object, found 1"),
        ([{}] * 1_000_000, "ring.0.rank: it is missing"),
        ([member] * 5000, "the ring must contain ranks 0…n−1 once each"),
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
    with pytest.raises(BadInput, match="user not found"):
        make_runner(
            "process", replace(OPTIONS, worker_user="nobody-of-that-name")
        )
