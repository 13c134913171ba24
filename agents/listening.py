"""Where the agent listens: a Unix socket, or TCP with a token."""

from __future__ import annotations

import ipaddress
import os
import socket
from pathlib import Path

from patchlight.agents.errors import AgentError
from patchlight.testbed.errors import BadInput


def open_listener(address: str, token: str | None) -> socket.socket:
    """A bound socket for ``unix:PATH`` or ``host:port``.

    ``BadInput`` for an address that is none, or for TCP beyond loopback without a token;
    ``AgentError`` if it is taken.
    """
    if address.startswith("unix:"):
        return _unix(Path(address.removeprefix("unix:")))
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise BadInput(f"--listen {address!r}: expected unix:PATH or host:port")
    return _tcp(host.strip("[]"), int(port), token)


def read_token(path: Path | None) -> str | None:
    """The token in the file, without white space around it."""
    if path is None:
        return None
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as exc:
        raise BadInput(f"reading the token {path}: {exc.strerror}") from exc
    if len(token) < 16:
        raise BadInput(
            f"the token in {path} is too short: expected at least 16 characters",
            hint=f"make one: openssl rand -hex 32 > {path}",
        )
    return token


def _unix(path: Path) -> socket.socket:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if path.exists():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise AgentError(
                    f"an agent is listening at {path} already", hint="stop that one first"
                )
        path.unlink()
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as exc:
        raise AgentError(f"listening at {path}: {exc.strerror or exc}") from exc
    finally:
        os.umask(before)
    return listener


def _tcp(host: str, port: int, token: str | None) -> socket.socket:
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as exc:
        raise BadInput(f"--listen {host}:{port}: {exc.strerror}") from exc
    if token is None and not ipaddress.ip_address(where[0]).is_loopback:
        raise BadInput(
            f"listening at {host}:{port} needs a token: whoever reaches it can run workers",
            hint="give --token-file FILE; make one: openssl rand -hex 32 > FILE",
        )
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(where)
    except OSError as exc:
        raise AgentError(
            f"listening at {host}:{port}: {exc.strerror}",
            hint=f"see what has it: ss -tlnp | grep {port}",
        ) from exc
    return listener
