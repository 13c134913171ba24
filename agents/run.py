"""Runs one agent until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from patchlight.agents.errors import AgentError
from patchlight.agents.listening import open_listener, read_token
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab import Server


@dataclass(frozen=True, slots=True)
class Options:
    """What the agent was started with; the texts are those of the command line."""

    lab: Path
    server: str
    listen: str
    workers: str
    gpus: str
    state: Path
    image: str
    token_file: Path | None = None


def run_agent(options: Options) -> None:
    """Serve until SIGTERM or SIGINT; then stop the workers and take the NICs back.

    Errors in the options, and whatever keeps the agent from starting, are raised.
    """
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    from patchlight.testbed.labfile.reader import read_lab

    lab = read_lab(options.lab)
    server = lab.device(options.server)
    if not isinstance(server, Server):
        raise BadInput(f"{options.server} is not a server of lab {lab.name}")
    token = read_token(options.token_file)
    with _only_agent(options.state), open_listener(options.listen, token) as listener:
        # Imported late, so that a wrong option is answered at once.
        from patchlight.agents.api import make_app
        from patchlight.agents.gpus import gpu_backend
        from patchlight.agents.service import AgentService
        from patchlight.agents.workers.choice import make_runner

        service = AgentService(
            lab,
            server,
            make_runner(options.workers, lab.name, server.name, options.image),
            gpu_backend(options.gpus, server),
            options.state,
        )

        async def serve() -> None:
            await service.open()
            await _serve(make_app(service, token), listener)

        try:
            asyncio.run(serve())
        finally:
            if options.listen.startswith("unix:"):
                Path(options.listen.removeprefix("unix:")).unlink(missing_ok=True)


async def _serve(app: object, listener: socket.socket) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            # uvicorn would raise the signal again at the end, and with it end this process
            # before the NICs are back.
            yield

    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=5,
    )
    serving = Server(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(
            number, lambda: setattr(serving, "should_exit", True)
        )
    await serving.serve(sockets=[listener])


@contextlib.contextmanager
def _only_agent(state: Path) -> Iterator[None]:
    """Hold the state folder: two agents would take each other's NICs back."""
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (state / "lock").open("w")
    except OSError as exc:
        raise PatchlightError(f"opening the state folder {state}: {exc.strerror}") from exc
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AgentError(
                f"another agent is using the state folder {state}",
                hint="stop that one, or give this one another --state",
            ) from None
        yield
