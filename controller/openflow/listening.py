"""A listening TCP socket, or a plain answer to who holds the port."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from patchlight.testbed.errors import BadInput, PatchlightError

# A whole lab's switches connect at once after a restart; the kernel caps this at somaxconn.
BACKLOG = 1024
_LISTEN = "0A"


class PortTaken(PatchlightError):
    """A port that Patchlight was to listen on is taken."""


def split_address(text: str) -> tuple[str, int]:
    """``"127.0.0.1:6653"`` or ``"[::1]:6653"`` → host and port; ``BadInput`` otherwise."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdigit() and int(port) < 65536):
        raise BadInput(f"{text!r} is not an address: expected host:port, like 127.0.0.1:6653")
    return host.strip("[]"), int(port)


def listen(address: str) -> socket.socket:
    """A socket that listens on ``host:port``; ``PortTaken`` names the process in the way.

    Never shares the port: eventlet's own ``listen`` sets SO_REUSEPORT, with which two
    controllers would each get some of the switches and neither would notice.
    """
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small messages at once (TCP_NODELAY) only where the protocol is told; without
    # that each reply in two writes waits 40 ms for an acknowledgement.
    server = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, port))
        server.listen(BACKLOG)
    except OSError as error:
        server.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"cannot listen on {address}: TCP port {port} is taken by {port_owner(port)}",
                hint="stop that process, or choose another port",
            ) from error
        raise PatchlightError(
            f"cannot listen on {address}: {error.strerror}",
            hint="choose an address of this machine, and a port that you may use",
        ) from error
    return server


def port_owner(port: int) -> str:
    """Who listens on a TCP port in this network namespace: ``"nginx (pid 812)"``."""
    inodes = _listening_inodes(port)
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and _holds(process, inodes):
            return f"{_name(process)} (pid {process.name})"
    return "a process that is not visible from here"


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if columns[3] == _LISTEN and int(columns[1].rpartition(":")[2], 16) == port:
                inodes.add(columns[9])
    return inodes


def _holds(process: Path, inodes: set[str]) -> bool:
    # Processes end, and others' are closed to us, while we look.
    try:
        for descriptor in (process / "fd").iterdir():
            try:
                target = os.readlink(descriptor)
            except OSError:
                continue
            if target.startswith("socket:[") and target[8:-1] in inodes:
                return True
    except OSError:
        pass
    return False


def _name(process: Path) -> str:
    try:
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        return " ".join(word for word in words if word)[:80] or (process / "comm").read_text()
    except OSError:
        return "a process that just ended"
