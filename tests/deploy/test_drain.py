"""An agent's workers are ended before its release is removed, however long they may save."""

import asyncio
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi import FastAPI

from patchlight.controller.access.authority import Authority
from patchlight.deploy import push
from patchlight.deploy.remote import Remote
from patchlight.testbed.lab.model import Lab, Server
from patchlight.testbed.linux.credentials import Credentials
from tests.support.tls_agents import serving


def agent(stop_grace_s: float, takes_s: float) -> FastAPI:
    """One whose only worker ends after that time."""
    app = FastAPI()

    @app.get("/v1/status")
    async def status() -> dict[str, Any]:
        return {
            "workers": [{"state": "running", "stop_grace_s": stop_grace_s}]
        }

    @app.post("/v1/drain")
    async def drain() -> dict[str, Any]:
        await asyncio.sleep(takes_s)  # the drain takes so long
        return {"workers": []}

    return app


@pytest.mark.parametrize("stop_grace_s", [30.0, 0.0])
async def test_a_drain_waits_for_the_longest_time_that_workers_have_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_grace_s: float
) -> None:
    monkeypatch.setattr(push, "_DRAIN_PATIENCE_S", 0.5)
    authority = Authority("lab1", tmp_path / "ca")
    own: Credentials = authority.for_agent("server1", tmp_path / "server1")
    agents = push.LabAgents(
        Lab("lab1", IPv4Network("10.0.0.0/24"), ()),
        authority.for_controller(tmp_path / "own"),
    )
    remote = cast(Remote, None)  # only used where SSH has a jump host

    def end_workers(address: str) -> None:
        server = Server("server1", address, (), ())
        agents.drain(server, remote, agents.status(server, remote))

    async with serving(agent(stop_grace_s, takes_s=1.5), own) as address:
        if stop_grace_s:
            await asyncio.to_thread(end_workers, address)
        else:
            with pytest.raises(push.AgentDoesNotAnswer, match="timed out"):
                await asyncio.to_thread(end_workers, address)
