"""An agent without workers that serves over TLS in this process."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import FastAPI

from patchlight.agents.api import AgentMetrics, make_app
from patchlight.agents.run import gpu_backend, make_runner, open_listener
from patchlight.agents.service import AgentService
from patchlight.agents.workers.contract import BackendOptions
from patchlight.testbed.lab.model import Lab, Server
from patchlight.testbed.linux.credentials import Credentials
from patchlight.testbed.linux.http_server import (
    DEFAULT_LIMITS,
    ServerLimits,
    http_server,
)


def idle_agent(lab: Lab, server: Server, state: Path) -> FastAPI:
    """The API of an agent that was not opened: it has no worker and looks for none."""
    runner = make_runner("process", BackendOptions(lab.name, server.name))
    service = AgentService(
        lab, server, runner, gpu_backend("nvml", server), state
    )
    return make_app(service, lab.name, AgentMetrics(service))


@contextlib.asynccontextmanager
async def serving(
    app: FastAPI,
    own: Credentials,
    *,
    tls: ssl.SSLContext | None = None,
    limits: ServerLimits = DEFAULT_LIMITS,
) -> AsyncIterator[str]:
    """Serve with the certificate of ``own``, or with ``tls``; the address."""
    with open_listener("127.0.0.1:0", own) as listener:
        context = tls or own.context(server=True)
        server = http_server(
            app, tls=context, limits=limits, loop="asyncio", lifespan="off"
        )
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await running
