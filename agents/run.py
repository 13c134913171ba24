"""Runs one agent until it is told to stop, with the workers and GPUs that its options name."""

import asyncio
import contextlib
import fcntl
import logging
import multiprocessing
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from patchlight.agents.errors import AgentError, log
from patchlight.agents.gpus import GpuBackend, SocketGpus
from patchlight.agents.workers.contract import BackendOptions, Runner
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Lab, Server
from patchlight.testbed.linux import credentials, files, sockets
from patchlight.testbed.logs import log_to_stderr

SAMPLES_PER_S = 10.0
"""How often NVIDIA GPUs are read."""
WORKER_BACKENDS = "patchlight.worker_backends"
# On a busy machine the agent itself may need that long for a handshake; doing it for each of the
# controller's calls would make the machine busier.
_PEER_S = 60.0
_KEEP_ALIVE_S = 60


@dataclass(
    frozen=True,
    slots=True,
)
class Options:
    """What the agent was started with; the texts are those of the command line."""

    lab: Path
    server: str
    listen: str
    worker_kind: str
    gpus: str
    state: Path
    image: str
    tls: Path | None = None
    gpu_rate: float = SAMPLES_PER_S
    gpu_access: str = "auto"
    worker_user: str | None = None
    fork_from: Path | None = None
    light: Path | None = None


def run_agent(options: Options) -> None:
    """Serve until SIGTERM or SIGINT; the workers go on, and the next agent takes them over."""
    log_to_stderr(logging.INFO, "%(asctime)s %(levelname)s %(message)s")
    from patchlight.testbed.labfile.reader import load_lab

    lab = load_lab(str(options.lab))
    server = lab.device(options.server)
    if not isinstance(server, Server):
        raise BadInput(f"{options.server} is not a server of lab {lab.name}")
    own = credentials_of(options.tls, server, lab) if options.tls else None
    with (
        _only_agent(options.state),
        open_listener(options.listen, own) as listener,
    ):
        # Imported late, so that a wrong option is answered at once.
        from patchlight.agents.api import AgentMetrics, make_app
        from patchlight.agents.service import AgentService

        user = options.worker_user or lab.workers.user
        how = options.image, options.gpu_access, user, options.fork_from
        runner = make_runner(
            options.worker_kind, BackendOptions(lab.name, server.name, *how)
        )
        gpus = gpu_backend(options.gpus, server, options.gpu_rate)
        service = AgentService(
            lab,
            server,
            runner,
            gpus,
            options.state,
            options.light,
        )
        metrics = AgentMetrics(
            service, own.not_after.timestamp() if own else None
        )
        logging.getLogger().addHandler(metrics.log_handler())
        tls = own.context(server=True) if own else None

        async def serve() -> None:
            from patchlight.testbed.linux.http_server import (
                ServerLimits,
                http_server,
            )

            await service.open()
            uvicorn = http_server(
                make_app(service, lab.name, metrics),
                tls=tls,
                loop="asyncio",
                lifespan="on",
                timeout_graceful_shutdown=5,
                limits=ServerLimits(peer_s=_PEER_S),
                timeout_keep_alive=_KEEP_ALIVE_S,
            )
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(
                    number, lambda: setattr(uvicorn, "should_exit", True)
                )
            await uvicorn.serve(sockets=[listener])

        try:
            asyncio.run(serve())
        finally:
            if options.listen.startswith("unix:"):
                Path(options.listen.removeprefix("unix:")).unlink(
                    missing_ok=True
                )


@contextlib.contextmanager
def _only_agent(state: Path) -> Iterator[None]:
    """Hold the state folder, which no other user may write to: two agents would take each other's
    NICs back."""
    try:
        # As root it ends the processes, and removes the namespaces, that its records name.
        files.private_folder(state)
        # Whoever could open it could hold it.
        (state / "lock").touch(mode=0o600)
        lock = (state / "lock").open("w")
    except OSError as exc:
        raise PatchlightError(
            f"opening the state folder {state}: {exc.strerror}"
        ) from exc
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AgentError(
                f"another agent is using the state folder {state}",
                hint="stop that agent, or use another --state",
            ) from None
        yield


def open_listener(
    address: str, own: credentials.Credentials | None
) -> socket.socket:
    """A bound socket for ``unix:PATH`` or ``host:port``. ``BadInput`` for TCP without certificates
    (every user of the machine reaches loopback, too), and for certificates with a Unix socket."""
    if address.startswith("unix:"):
        if own is not None:
            raise BadInput(
                f"--tls is for TCP; the socket {address} serves this user only",
                hint="leave out --tls, or listen at host:port",
            )
        return sockets.bind_unix(Path(address.removeprefix("unix:")), "agent")
    try:
        host, port = sockets.split_address(address)
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][
            4
        ][0]
    except BadInput as exc:
        raise BadInput(
            f"--listen {address!r}: expected unix:PATH or host:port"
        ) from exc
    except OSError as exc:
        raise BadInput(f"--listen {address}: {exc.strerror}") from exc
    if own is None:
        raise BadInput(
            f"listening at {address} needs certificates: anyone who reaches it could run workers "
            f"as root",
            hint="give --tls FOLDER, made with 'patchlight deploy certificates LAB --output DIR'; "
            "or listen at unix:PATH, for this user only",
        )
    return sockets.listen(sockets.joined_address(str(resolved), port))


def credentials_of(
    folder: Path,
    server: Server,
    lab: Lab,
) -> credentials.Credentials:
    """The certificate of the agent of ``server``; ``BadInput`` if the folder has none for it."""
    # In another process: the library that reads certificates takes 10 MiB.
    with multiprocessing.get_context("fork").Pool(1) as elsewhere:
        found = elsewhere.apply(credentials.read_credentials, (folder,))
    found.check(credentials.agent_name(server.name, lab.name))
    log.info(
        "certificate for %s, until %s",
        found.name,
        f"{found.not_after:%Y-%m-%d}",
    )
    return found


def make_runner(choice: str, options: BackendOptions) -> Runner:
    """The runner of that name: ``auto``, ``docker``, ``process``, or an entry point of the group
    ``patchlight.worker_backends`` (see ``tests/agents/test_worker_backends.py``); else
    ``BadInput``."""
    if choice == "auto":
        named = (
            os.environ.get("DOCKER_HOST")
            or Path("/var/run/docker.sock").is_socket()
        )
        choice = "docker" if named else "process"
    if choice == "process":
        from patchlight.agents.workers.process import ProcessRunner

        return ProcessRunner(
            options.worker_user, options.fork_from, options.lab
        )
    if choice == "docker":
        # Imported only here: it takes a third of a second, and not every server has it.
        from patchlight.agents.workers.docker import DockerRunner

        return DockerRunner(options)
    installed = {
        point.name: point for point in entry_points(group=WORKER_BACKENDS)
    }
    if choice not in installed:
        more = "".join(
            f", {name!r}"
            for name in sorted(installed.keys() - {"docker", "process"})
        )
        raise BadInput(
            f"--worker-kind {choice!r}: expected 'docker', 'process' or 'auto'{more}"
        )
    point = installed[choice]
    try:
        load = point.load()
    except Exception as error:
        raise BadInput(
            f"--worker-kind {point.name}: it is installed as {point.value} but cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    made: Runner = load(options)
    return made


def gpu_backend(
    choice: str,
    server: Server,
    rate_hz: float = SAMPLES_PER_S,
) -> GpuBackend:
    """``"nvml"``, read ``rate_hz`` times a second (0.1 to 100), or ``"socket:DIR"`` for GPUs that
    answer at ``DIR/<server>.<gpu>.sock``; else ``BadInput``."""
    if not 0.1 <= rate_hz <= 100:
        raise BadInput(
            f"--gpu-rate {rate_hz:g}: expected 0.1 to 100 readings a second"
        )
    kind, _, directory = choice.partition(":")
    if choice == "nvml":
        from patchlight.agents.nvml import NvmlGpus

        return NvmlGpus(server, rate_hz)
    if kind == "socket" and directory:
        return SocketGpus(server, Path(directory))
    raise BadInput(f"--gpu-source {choice!r}: expected 'nvml' or 'socket:DIR'")
