"""Runs one agent until it is told to stop."""

import asyncio
import contextlib
import fcntl
import logging
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchlight.agents.errors import AgentError
from patchlight.agents.gpus import SAMPLES_PER_S, gpu_backend
from patchlight.agents.workers.backends import BackendOptions, make_runner
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab import Server
from patchlight.testbed.linux.private_folder import private_folder
from patchlight.testbed.linux.sockets import bind_unix, listen, split_address

_MAKE_TOKEN = "(umask 077; openssl rand -hex 32 > FILE)"


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
    gpu_rate: float = SAMPLES_PER_S
    gpu_access: str = "auto"
    worker_user: str = "root"


def run_agent(options: Options) -> None:
    """Serve until SIGTERM or SIGINT; the workers go on, and the next agent takes them over.

    Errors in the options, and whatever keeps the agent from starting, are raised.
    """
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    from patchlight.testbed.labfile.reader import load_lab

    lab = load_lab(str(options.lab))
    server = lab.device(options.server)
    if not isinstance(server, Server):
        raise BadInput(f"{options.server} is not a server of lab {lab.name}")
    token = read_token(options.token_file)
    with _only_agent(options.state), open_listener(options.listen, token) as listener:
        # Imported late, so that a wrong option is answered at once.
        from patchlight.agents.api import make_app
        from patchlight.agents.service import AgentService

        workers = BackendOptions(
            lab.name, server.name, options.image, options.gpu_access, options.worker_user
        )
        service = AgentService(
            lab,
            server,
            make_runner(options.workers, workers),
            gpu_backend(options.gpus, server, options.gpu_rate),
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


async def _serve(app: Any, listener: socket.socket) -> None:
    from patchlight.testbed.linux.http_server import http_server

    server = http_server(app, loop="asyncio", lifespan="on", timeout_graceful_shutdown=5)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(
            number, lambda: setattr(server, "should_exit", True)
        )
    await server.serve(sockets=[listener])


@contextlib.contextmanager
def _only_agent(state: Path) -> Iterator[None]:
    """Hold the state folder: two agents would take each other's NICs back.

    ``PatchlightError`` if others can put files into it.
    """
    try:
        # As root it ends the processes, and removes the namespaces, that its records name.
        private_folder(state)
        (state / "lock").touch(mode=0o600)  # whoever could open it could hold it
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


def open_listener(address: str, token: str | None) -> socket.socket:
    """A bound socket for ``unix:PATH`` or ``host:port``.

    ``BadInput`` for an address that is none, or for TCP without a token: on loopback too, every
    user of the machine reaches it. ``PatchlightError`` if it is taken.
    """
    if address.startswith("unix:"):
        return bind_unix(Path(address.removeprefix("unix:")), "agent")
    try:
        host, port = split_address(address)
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
    except BadInput as exc:
        raise BadInput(f"--listen {address!r}: expected unix:PATH or host:port") from exc
    except OSError as exc:
        raise BadInput(f"--listen {address}: {exc.strerror}") from exc
    if token is None:
        raise BadInput(
            f"listening at {address} needs a token: whoever reaches it can run workers as root",
            hint=f"give --token-file FILE, made with {_MAKE_TOKEN}; or listen at unix:PATH, which "
            "is for this user alone",
        )
    return listen(f"{resolved}:{port}")


def read_token(path: Path | None) -> str | None:
    """The token in the file, without white space around it.

    ``BadInput`` if it is short, or if other users may read it.
    """
    if path is None:
        return None
    try:
        token = path.read_text(encoding="utf-8").strip()
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as exc:
        raise BadInput(f"reading the token {path}: {exc.strerror}") from exc
    if mode & 0o077:
        raise BadInput(
            f"other users may read or change the token in {path} (mode {mode:04o})",
            hint=f"chmod 600 {path}; and make a new one if somebody may have seen it",
        )
    if len(token) < 16:
        raise BadInput(
            f"the token in {path} is too short: expected at least 16 characters",
            hint=f"make one: {_MAKE_TOKEN}",
        )
    return token
