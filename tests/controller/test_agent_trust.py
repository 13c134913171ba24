"""Over real TLS: which certificates an agent takes, and which agents the controller takes."""

import asyncio
import contextlib
import socket
import ssl
import warnings
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from patchlight.controller.access.authority import Authority
from patchlight.controller.hosts.agent_client import (
    AgentClient,
    AgentNotTrusted,
    AgentSilent,
    AgentTls,
)
from patchlight.controller.hosts.fleet import Fleet
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab, Server
from patchlight.testbed.linux.credentials import Credentials, read_credentials
from patchlight.testbed.linux.http_server import ServerLimits, http_server
from tests.support.tls_agents import idle_agent, serving
from tests.support.waiting import PATIENCE_S, eventually

SERVER = Server("server1", None, (), ())
LAB = Lab("lab1", IPv4Network("10.0.0.0/24"), (SERVER,))


def _ago(days: float) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority("lab1", tmp_path / "ca")


@pytest.fixture
def agent_app(tmp_path: Path) -> FastAPI:
    return idle_agent(LAB, SERVER, tmp_path / "state")


@pytest_asyncio.fixture
async def agent(
    tmp_path: Path, authority: Authority, agent_app: FastAPI
) -> AsyncIterator[str]:
    """The address of the agent of server1 of lab1."""
    own = authority.for_agent("server1", tmp_path / "server1")
    async with serving(
        agent_app, own, limits=ServerLimits(connections=8, peer_s=1.0)
    ) as address:
        yield address


@pytest.fixture
def controller(tmp_path: Path, authority: Authority) -> AgentTls:
    authority.for_controller(tmp_path / "controller")
    return AgentTls("lab1", tmp_path / "controller")


@contextlib.asynccontextmanager
async def calling(
    address: str, tls: AgentTls | None
) -> AsyncIterator[AgentClient]:
    """The client of the agent of server1 at this address."""
    client = AgentClient("server1", address, tls)
    try:
        yield client
    finally:
        await client.close()


async def answers(address: str, tls: AgentTls) -> bool:
    async with calling(address, tls) as client:
        return (await client.status()).server == "server1"


async def _ask(address: str, context: ssl.SSLContext | None) -> httpx.Response:
    """What a program that is not ours is told."""
    scheme = "https" if context else "http"
    async with httpx.AsyncClient(
        verify=context or True, timeout=PATIENCE_S
    ) as client:
        return await client.get(f"{scheme}://{address}/v1/status")


def _stranger(own: Credentials | None) -> ssl.SSLContext:
    """Who takes any agent for the right one, and has this certificate or none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if own is not None:
        context.load_cert_chain(
            own.folder / "cert.pem", own.folder / "key.pem"
        )
    return context


async def test_the_controller_of_the_lab_is_answered(
    agent: str, controller: AgentTls
) -> None:
    assert await answers(agent, controller)


@pytest.mark.parametrize(
    "who", ["nobody", "self-signed", "other lab", "agent", "expired"]
)
async def test_a_stranger_is_told_nothing(
    agent: str,
    controller: AgentTls,
    authority: Authority,
    tmp_path: Path,
    who: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Of the same name, and not the same.
    other = Authority("lab1", tmp_path / "other-ca")
    past = Authority("lab1", authority.folder, lambda: _ago(400))
    made: dict[str, Callable[[], Credentials | None]] = {
        "nobody": lambda: None,
        "self-signed": lambda: replace(
            other.for_controller(tmp_path / "x"), folder=other.folder
        ),
        "other lab": lambda: other.for_controller(tmp_path / "x"),
        "agent": lambda: authority.for_agent("server2", tmp_path / "x"),
        "expired": lambda: past.for_controller(tmp_path / "x"),
    }
    held = made[who]()
    if who == "self-signed":
        for old, new in (("ca.pem", "cert.pem"), ("ca-key.pem", "key.pem")):
            (other.folder / old).rename(other.folder / new)
    with pytest.raises((httpx.TransportError, ssl.SSLError)):
        await _ask(agent, _stranger(held))
    assert await answers(agent, controller)
    assert "refused 127.0.0.1, no valid certificate" in caplog.text


async def test_prometheus_reads_the_metrics_and_nothing_else(
    agent: str, authority: Authority, tmp_path: Path
) -> None:
    own = authority.for_prometheus(tmp_path / "prometheus")
    extensions = {"sni_hostname": "agent.server1.lab1"}
    async with httpx.AsyncClient(
        verify=own.context(server=False), timeout=PATIENCE_S
    ) as client:
        for path, code in (("/metrics", 200), ("/v1/status", 403)):
            answer = await client.get(
                f"https://{agent}{path}", extensions=extensions
            )
            assert answer.status_code == code


async def test_neither_plain_http_nor_old_tls_is_spoken(
    agent: str, controller: AgentTls, authority: Authority, tmp_path: Path
) -> None:
    with pytest.raises(httpx.TransportError):
        await _ask(agent, None)
    for version in (ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2):
        old = _stranger(authority.for_controller(tmp_path / "x"))
        old.set_ciphers("DEFAULT:@SECLEVEL=0")
        with warnings.catch_warnings(
            action="ignore", category=DeprecationWarning
        ):
            old.minimum_version = old.maximum_version = version
        with pytest.raises((httpx.TransportError, ssl.SSLError)):
            await _ask(agent, old)
    assert await answers(agent, controller)


async def test_handshakes_that_do_not_end_keep_nobody_out(
    agent: str, controller: AgentTls
) -> None:
    host, port = agent.split(":")
    async with contextlib.AsyncExitStack() as stack:
        held = []
        for number in range(30):  # as many as may stand at once, several times
            reader, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            if number % 2:
                # A ClientHello begins like this.
                writer.write(b"\x16\x03\x01\x02\x00\x01")
            held.append(reader)
        assert await answers(agent, controller)
        for reader in held:
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("server2", r"is for server2 of lab lab1, not for server1"),
        ("lab2", r"is for server1 of lab lab2, not for server1"),
        ("controller", r"is for controller\.lab1"),
        ("other authority", r"not issued by the authority in"),
        ("expired", r"is valid from .* to "),
    ],
)
async def test_the_controller_says_what_answers_instead_of_the_agent(
    what: str,
    words: str,
    controller: AgentTls,
    authority: Authority,
    agent_app: FastAPI,
    tmp_path: Path,
) -> None:
    past = Authority("lab1", authority.folder, lambda: _ago(400))
    own = {
        "server2": lambda: authority.for_agent("server2", tmp_path / "x"),
        "lab2": lambda: Authority("lab2", tmp_path / "ca2").for_agent(
            "server1", tmp_path / "x"
        ),
        "controller": lambda: authority.for_controller(tmp_path / "x"),
        "other authority": lambda: Authority(
            "lab1", tmp_path / "ca2"
        ).for_agent("server1", tmp_path / "x"),
        "expired": lambda: past.for_agent("server1", tmp_path / "x"),
    }[what]()
    async with (
        serving(agent_app, own) as address,
        calling(address, controller) as client,
    ):
        for call in (client.status, lambda: client.delete("w", 0.0)):
            with pytest.raises(AgentNotTrusted, match=words) as caught:
                await call()
            assert caught.value.hint


async def test_the_controller_says_why_an_agent_does_not_take_its_certificate(
    agent: str, authority: Authority, tmp_path: Path
) -> None:
    authority.for_controller(tmp_path / "controller")
    past = Authority("lab1", authority.folder, lambda: _ago(400))
    expired = past.for_controller(tmp_path / "expired")
    with pytest.raises(BadInput, match="expired on"):
        AgentTls("lab1", expired.folder)
    for folder in (
        expired.folder,
        authority.for_agent("server1", tmp_path / "wrong").folder,
    ):
        # As if it had ended, or been exchanged, while the controller ran.
        running = AgentTls("lab1", tmp_path / "controller")
        running.credentials = read_credentials(folder)
        running.credentials.load_into(running.context)
        words = (
            "it has expired"
            if folder == expired.folder
            else "it is not a controller's certificate"
        )
        async with calling(agent, running) as client:
            with pytest.raises(
                AgentNotTrusted,
                match=f"rejects the certificate in .*: {words}",
            ):
                await client.status()


async def test_the_controller_takes_a_certificate_that_is_put_into_its_folder(
    agent: str,
    authority: Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(BadInput, match="No such file"):
        AgentTls("lab1", tmp_path / "later")
    (tmp_path / "later").mkdir(mode=0o700)
    fleet = Fleet(
        LAB.with_changes(servers=(replace(SERVER, management=agent),)),
        AgentTls("lab1", tmp_path / "later"),
    )
    watching = asyncio.create_task(fleet.watch(period_s=0.05))
    try:
        await eventually(
            lambda: "has no certificate" in fleet.status()[0]["words"],
            "a word",
        )
        Authority("lab2", tmp_path / "ca2").for_controller(tmp_path / "later")
        await eventually(
            lambda: "is for controller.lab2" in caplog.text, "a refusal"
        )
        assert not fleet.status()[0]["reachable"]
        for file in (tmp_path / "later").iterdir():
            file.unlink()
        authority.for_controller(tmp_path / "later")
        await eventually(
            lambda: fleet.status()[0]["reachable"], "the agent to answer"
        )
    finally:
        watching.cancel()
        await fleet.close()


async def test_an_agent_without_tls_and_a_controller_without_a_certificate_are_named(
    controller: AgentTls, agent_app: FastAPI
) -> None:
    server = http_server(agent_app, loop="asyncio", lifespan="off")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        running = asyncio.create_task(server.serve(sockets=[listener]))
        async with calling(address, controller) as client:
            with pytest.raises(
                AgentNotTrusted, match=r"does not support TLS 1\.3"
            ):
                await client.status()
        async with calling(address, None) as client:
            with pytest.raises(
                AgentNotTrusted, match="this controller has no certificate"
            ):
                await client.status()
        server.should_exit = True
        await running
    async with calling(address, controller) as client:
        with pytest.raises(
            AgentSilent, match="did not answer GET /status"
        ) as caught:
            await client.status()
        assert not isinstance(caught.value, AgentNotTrusted)


async def test_an_agent_that_goes_away_in_the_middle_is_silent_and_not_mistrusted(
    controller: AgentTls,
) -> None:
    async def hang_up(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.read(1 << 16)
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with calling(f"127.0.0.1:{port}", controller) as client:
            with pytest.raises(
                AgentSilent, match="did not answer GET /status"
            ) as caught:
                await client.status()
    assert not isinstance(caught.value, AgentNotTrusted)
