"""The controller's API over a scheduler with agents in memory; ``patchlight job`` asks it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

from click.testing import CliRunner, Result
from fastapi import FastAPI

from patchlight.cli.main import cli
from patchlight.controller.api.app import create_app
from patchlight.controller.changes.service import CircuitService
from patchlight.controller.parts import Controller
from patchlight.controller.paths.service import PathService
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.rules import Access
from patchlight.testbed.linux.http_server import http_server
from patchlight.testbed.linux.sockets import listen
from patchlight.testbed.wire.lab_api import LabIdentity
from tests.support.job_cluster import Cluster


class JobCommand:
    """Runs ``patchlight job``, or another noun, in a thread: the jobs go on meanwhile."""

    def __init__(self, api: str, noun: str = "job") -> None:
        self.api, self._noun = api, noun

    async def __call__(self, *words: str, code: int = 0, text: str | None = None) -> str:
        """What was printed, the error included. ``code``: how it is to end; ``text``: its input."""
        return await asyncio.to_thread(self._run, words, code, text)

    def _run(self, words: tuple[str, ...], code: int, text: str | None) -> str:
        at = words.index("--") if "--" in words else len(words)
        command = [self._noun, *words[:at], "--controller", self.api, *words[at:]]
        result: Result = CliRunner().invoke(cli, command, input=text, env={"COLUMNS": "80"})
        error = result.exception
        exit_code = error.exit_code if isinstance(error, PatchlightError) else result.exit_code
        assert exit_code == code, (result.output, error)
        return f"{result.output}{error if isinstance(error, PatchlightError) else ''}"


def api_of(cluster: Cluster, access: Access | None = None) -> FastAPI:
    """The controller's API, as far as it is about jobs, circuits and access."""
    parts: Any = SimpleNamespace(
        lab=cluster.lab.with_changes(access=access),
        identity=LabIdentity.of(cluster.lab, None),
        scheduler=cluster.scheduler,
        jobs=cluster.table,
        store=cluster.store,
        discovery=None,
        paths=PathService(cluster.lab, lambda: {}),
        path_bounds=None,
        circuit_service=CircuitService(cluster.circuits, cluster.transactions),
    )
    return create_app(cast(Controller, parts))


@contextlib.asynccontextmanager
async def job_command(cluster: Cluster) -> AsyncIterator[JobCommand]:
    """The command, with the cluster's API at a port until the block ends."""
    server = http_server(api_of(cluster), lifespan="off")
    with listen("127.0.0.1:0") as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield JobCommand(f"127.0.0.1:{listener.getsockname()[1]}")
        finally:
            server.should_exit = True
            await serving
