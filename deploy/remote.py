"""A server over SSH: its remote helper, the requests to it, and the same work on many servers."""

import contextlib
import functools
import io
import json
import secrets
import socket
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Generic, NoReturn, Self, TypeVar

import paramiko
from paramiko.channel import ChannelFile, ChannelStderrFile, ChannelStdinFile

from patchlight.deploy.bundle import BundleFile, Target
from patchlight.deploy.ssh import Connections, Passwords
from patchlight.deploy.wheels import unchecked_bytecode
from patchlight.testbed.errors import PatchlightError, reason
from patchlight.testbed.lab.model import Lab, Server

_SUDO_PATIENCE_S = 30.0
_MOST_BYTES = 1 << 16


class NoCommands(PatchlightError):
    """The server runs no commands for the user who logged in, or does not answer."""


class SudoRefused(PatchlightError):
    """``sudo`` does not let us be root."""


def as_root(
    client: paramiko.SSHClient,
    command: str,
    server: str,
    password: str | None = None,
) -> tuple[ChannelStdinFile, ChannelFile, ChannelStderrFile]:
    """Start a shell command as root; its standard streams, as ``exec_command`` gives them.

    Whoever logs in as root needs no sudo. The password goes to sudo's standard input, and only
    once sudo has asked for it, so that it never is a command's input. ``SudoRefused`` where sudo
    wants what we have not, ``NoCommands`` where it did not get as far; ``server`` is the name for
    messages.
    """
    transport = client.get_transport()
    if transport is None:
        raise paramiko.SSHException("the connection is closed")
    prompt = f"sudo-{secrets.token_hex(8)}:"
    ready = f"root-{secrets.token_hex(8)}"
    # On both streams: a greeting of the user's shell does not belong to the command either.
    run = quote(f"echo {ready}; echo {ready} >&2; {command}")
    channel = transport.open_session(timeout=_SUDO_PATIENCE_S)
    channel.settimeout(_SUDO_PATIENCE_S)
    try:
        # The user's own shell may be one that knows no `if`.
        script = f'[ "$(id -u)" = 0 ] && exec sh -c {run}; exec sudo -S -p {prompt} -- sh -c {run}'
        channel.exec_command(f"env LC_ALL=C sh -c {quote(script)}")
        _let_in(
            channel,
            prompt.encode(),
            f"{ready}\n".encode(),
            server,
            password,
        )
        channel.settimeout(None)
    except BaseException:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            channel.close()
        raise
    return (
        channel.makefile_stdin("wb"),
        channel.makefile("r"),
        channel.makefile_stderr("r"),
    )


def _let_in(
    channel: paramiko.Channel,
    prompt: bytes,
    ready: bytes,
    server: str,
    password: str | None,
) -> None:
    """Answer sudo's question, until the command is about to run."""
    said = b""
    told = False
    while not said.endswith(ready):
        # Byte by byte: what comes after belongs to the command.
        try:
            byte = channel.recv_stderr(1)
        except TimeoutError as error:
            if words := _words(said, prompt):
                raise _refused(server, words) from error
            raise NoCommands(
                f"running a command on {server}: no answer in {_SUDO_PATIENCE_S:g} s",
                hint="Check that the server is on, and run the command again.",
            ) from error
        said += byte
        if not byte or len(said) > _MOST_BYTES:
            words = _words(said + channel.recv(_MOST_BYTES), prompt)
            if "sudo" in words:
                raise _refused(server, words)
            raise NoCommands(
                f"running a command on {server}: it said {words!r} and ended",
                hint="Check that the login shell of that user runs commands.",
            )
        if said.endswith(prompt):
            if password is None:
                raise _refused(server, "a password is required")
            if told:
                raise _refused(server, "the password is wrong")
            channel.sendall(f"{password}\n".encode())
            told = True
            said = b""
    said = b""
    while not said.endswith(ready):
        byte = channel.recv(1)
        said += byte
        if not byte or len(said) > _MOST_BYTES:
            raise _refused(server, "the helper does not answer")


def _words(said: bytes, prompt: bytes) -> str:
    lines = said.replace(prompt, b"").decode(errors="replace").split("\n")
    return " ".join(line.strip() for line in lines if line.strip())[-300:]


def _refused(server: str, reason: str) -> SudoRefused:
    return SudoRefused(
        f"becoming root on {server}: sudo: {reason.removeprefix('sudo: ')}",
        hint="Give the password of sudo (--ask-sudo-password), or allow the user to use it "
        "without a password: a line 'NAME ALL=(ALL) NOPASSWD: ALL' in /etc/sudoers.d on {server}",
    )


# A busy server with an emulated processor takes so long to load an image. One that is gone is found
# out sooner: it acknowledges nothing.
_PATIENCE_S = 1800.0
_UNACKNOWLEDGED_MS = 120_000
_PIECE = 1 << 18
# As much as OpenSSH takes in a packet: of a longer piece, the rest is copied for each packet.
_PACKET = (1 << 15) - 64
_KEEPALIVE_S = 10
_AT_ONCE = 32
_PYTHON = (3, 11)
# The remote helper comes over standard input, into memory: nothing of it is left on the server.
_BEGIN = (
    "import os, sys; "
    "n = int(sys.stdin.buffer.readline()); "
    "f = os.memfd_create('patchlight'); "
    "os.write(f, sys.stdin.buffer.read(n)); "
    "sys.path.insert(0, f'/proc/self/fd/{f}'); "
    "from patchlight.deploy.remote_helper.__main__ import main; main(*sys.argv[1:])"
)
_MOST_ERROR_BYTES = 4000


class NoPython(PatchlightError):
    """The server has no Python that the remote helper runs on."""


class ConnectionCut(PatchlightError):
    """The connection to a server broke off; what was done stays, and can be continued."""


class ServerRefused(PatchlightError):
    """The server's remote helper could not do what was wanted."""


class Remote:
    """The remote helper of ``lab`` on a server, over open SSH. Not for several threads."""

    def __init__(
        self,
        client: paramiko.SSHClient,
        server: str,
        lab: str,
        sudo_password: str | None = None,
    ) -> None:
        self.server = server
        self._lab = lab
        with self._cut("starting"):
            command = f"exec python3 -IBc {quote(_BEGIN)} {lab}"
            self._streams = as_root(
                client,
                command,
                server,
                sudo_password,
            )
            self._channel = self._streams[0].channel
            self._channel.settimeout(_PATIENCE_S)
            transport = self._channel.get_transport()
            transport.set_keepalive(_KEEPALIVE_S)
            if isinstance(
                transport.sock, socket.socket
            ):  # no jump host's channel
                limit = socket.TCP_USER_TIMEOUT
                transport.sock.setsockopt(
                    socket.IPPROTO_TCP, limit, _UNACKNOWLEDGED_MS
                )
            self._output = self._channel.makefile("rb")
            program = _remote_helper()
            with contextlib.suppress(OSError):  # what it says is clearer
                self._channel.sendall(f"{len(program)}\n".encode() + program)
            if not (first := self._output.readline()):
                self._has_no_python()
        told = json.loads(first)
        self.target = Target(
            ".".join(map(str, told["python"])), told["machine"]
        )
        major, _, minor = told["glibc"].partition(".")
        self.glibc = (int(major or 0), int(minor or 0))
        self.has_systemd = bool(told["systemd"])
        if tuple(told["python"]) < _PYTHON:
            raise PatchlightError(
                f"{server} has Python {self.target.python}: expected 3.11 or newer",
                hint=f"install Python 3.11 or newer as python3 on {server}",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the remote helper, and wait until it has let go of what it held."""
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.shutdown_write()
            self._channel.settimeout(5)
            while self._output.read(_PIECE):
                pass
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.close()  # which says goodbye, to a connection that may be cut

    @property
    def host_key(self) -> paramiko.PKey:
        """The key that the server showed, and that was found right."""
        transport = self._channel.get_transport()
        return transport.get_remote_server_key()

    def ask(self, request: str, **fields: Any) -> Any:
        """The answer to a request. ``ServerRefused`` or ``ConnectionCut`` where there is none."""
        with self._cut(request):
            self._channel.sendall(
                json.dumps({"do": request, **fields}).encode() + b"\n"
            )
            return self._answer(self._output.readline())

    def send(
        self,
        file: BundleFile,
        offset: int,
        sent: Callable[[int], None],
    ) -> None:
        """Send a file from ``offset`` on; ``sent`` hears of each piece."""
        fields = {
            "do": "put",
            "sha256": file.sha256,
            "size": file.size,
            "offset": offset,
        }
        with self._cut("copying files"), file.path.open("rb") as source:
            self._channel.sendall(json.dumps(fields).encode() + b"\n")
            source.seek(offset)
            while piece := source.read(_PACKET):
                self._channel.sendall(piece)
                sent(len(piece))
            self._answer(self._output.readline())

    def logs(
        self,
        role: str,
        lines: int,
        *,
        follow: bool,
    ) -> Iterator[str]:
        """The output of a service, piece by piece."""
        with self._cut("reading the log"):
            fields = {
                "do": "logs",
                "role": role,
                "lines": lines,
                "follow": follow,
            }
            self._channel.sendall(json.dumps(fields).encode() + b"\n")
            if follow:
                self._channel.settimeout(None)
            while "text" in (
                line := json.loads(self._output.readline() or "{}")
            ):
                yield line["text"]
            self._answer(json.dumps(line).encode())

    def way_to(self, host: str, port: int) -> socket.socket:
        """A connection to ``host:port`` as the server reaches it, through SSH."""
        with self._cut("connecting through it"):
            transport = self._channel.get_transport()
            channel = transport.open_channel(
                "direct-tcpip", (host, port), ("127.0.0.1", 0)
            )
        near, far = socket.socketpair()
        for carry in (
            lambda: _carry(channel.recv, far.sendall, far),
            lambda: _carry(far.recv, channel.sendall, channel),
        ):
            threading.Thread(
                target=carry,
                name="way through SSH",
                daemon=True,
            ).start()
        return near

    def _answer(self, line: bytes) -> Any:
        if not line:
            raise EOFError
        told = json.loads(line)
        if "error" in told:
            raise ServerRefused(
                f"{self.server}: {told['error']}", hint=told["hint"] or None
            )
        return told["answer"]

    def _has_no_python(self) -> NoReturn:
        """``NoPython`` with what the server says; ``EOFError`` if it says nothing."""
        words = self._streams[2].read(_MOST_ERROR_BYTES)
        text = (
            words.decode(errors="replace")
            if isinstance(words, bytes)
            else words
        )
        if not (said := text.strip().splitlines()[-1:]):
            raise EOFError
        raise NoPython(
            f"running python3 on {self.server}: it says {said[0]!r}",
            hint="Install Python 3.11 or newer there; see 'patchlight deploy push --dry-run'.",
        )

    @contextlib.contextmanager
    def _cut(self, what: str) -> Iterator[None]:
        try:
            yield
        except (
            OSError,
            EOFError,
            ValueError,
            KeyError,
            paramiko.SSHException,
        ) as error:
            raise ConnectionCut(
                f"the connection to {self.server} was lost ({what}): {reason(error)}",
                hint="Run the command again: it continues.",
            ) from error


def _carry(
    take: Callable[[int], bytes],
    give: Callable[[bytes], None],
    end: socket.socket | paramiko.Channel,
) -> None:
    """Carry bytes one way until there are no more."""
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        while piece := take(1 << 16):
            give(piece)
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        end.shutdown(socket.SHUT_WR)


@functools.cache
def _remote_helper() -> bytes:
    """The remote helper as a zip file, with bytecode for servers that have our Python."""
    packed = io.BytesIO()
    here = Path(__file__).resolve().parent
    modules = [
        *here.glob("remote_helper/*.py"),
        here.parent / "testbed/linux/docker_engine.py",
    ]
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in ("", "deploy/", "testbed/", "testbed/linux/"):
            archive.writestr(f"patchlight/{package}__init__.py", b"")
        for path in sorted(modules):
            name = f"patchlight/{path.relative_to(here.parent).as_posix()}"
            source = path.read_bytes()
            code = compile(
                source,
                name,
                "exec",
                dont_inherit=True,
            )
            archive.writestr(name, source)
            archive.writestr(f"{name}c", unchecked_bytecode(source, code))
    return packed.getvalue()


R = TypeVar("R")


@dataclass(
    frozen=True,
    slots=True,
)
class ServerResult(Generic[R]):
    """The result on one server, or the error."""

    server: str
    result: R | None = None
    error: PatchlightError | None = None


def on_all_servers(
    lab: Lab,
    servers: Sequence[Server],
    work: Callable[[Server, Remote], R],
    progress: Callable[[int, int], None],
    passwords: Passwords,
) -> list[ServerResult[R]]:
    """Do ``work`` on all servers over SSH; the outcomes in the order of the servers.

    Ctrl-C cuts all connections; unfinished work stays on the servers, and can be resumed.
    """
    open_now: set[paramiko.SSHClient] = set()
    over = False

    def do(server: Server) -> ServerResult[R]:
        try:
            with connections.to(server) as client:
                open_now.add(client)
                try:
                    if over:
                        client.close()
                    with Remote(
                        client,
                        server.name,
                        lab.name,
                        passwords.sudo,
                    ) as remote:
                        return ServerResult(server.name, work(server, remote))
                finally:
                    open_now.discard(client)
        except PatchlightError as error:
            return ServerResult(server.name, error=error)

    outcomes: dict[str, ServerResult[R]] = {}
    with (
        Connections(passwords) as connections,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        try:
            for future in as_completed(
                [pool.submit(do, server) for server in servers]
            ):
                outcome = future.result()
                outcomes[outcome.server] = outcome
                progress(len(outcomes), len(servers))
        except BaseException:
            over = True
            pool.shutdown(
                wait=False,
                cancel_futures=True,
            )
            for client in list(open_now):
                client.close()
            raise
    return [outcomes[server.name] for server in servers]
