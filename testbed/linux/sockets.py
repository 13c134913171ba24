"""Opens listening sockets, TCP and Unix."""

import errno
import ipaddress
import os
import re
import socket
import struct
from contextlib import ExitStack, suppress
from functools import lru_cache
from pathlib import Path

from patchlight.testbed.errors import BadInput, PatchlightError, reason
from patchlight.testbed.linux.processes import command_line, process_ids

# A whole lab's switches connect at once after a restart; somaxconn limits this.
BACKLOG = 1024
_LISTEN = "0A"

UNIX = "unix:"
UNIX_CLIENT = "unix"
"""A server's name for a peer on a Unix socket; the user id replaces the port."""


_CREDENTIALS = struct.Struct("3i")  # pid, uid and gid of the peer
# Of sock_diag(7): the request for one socket, and where its answer has the user and the inode.
_DIAG_HEAD = struct.Struct("=IHHII4BI")
_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST = 1
_ANY_STATE = 0xFFFFFFFF
_ESTABLISHED = 1
# Message type, state, user and inode.
_DIAG_ANSWER = struct.Struct("=4xH11xB62xII")


class PortTaken(PatchlightError):
    """A port that Patchlight should listen on is in use."""


_ADDRESS = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]]+)):([0-9]{1,5})")


def split_address(text: str) -> tuple[str, int]:
    """``"127.0.0.1:6653"`` or ``"[::1]:6653"`` → host and port; ``BadInput`` otherwise."""
    found = _ADDRESS.fullmatch(text)
    if not found or int(found[3]) > 65535:
        raise BadInput(
            f"{text!r} is not an address: expected host:port, like 127.0.0.1:6653 or [::1]:6653"
        )
    return found[1] or found[2], int(found[3])


def joined_address(host: str, port: int) -> str:
    """The reverse of ``split_address``: IPv6 addresses get their brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@lru_cache
def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an IP address; ``::ffff:127.0.0.1`` does not count."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    # Python 3.13 follows it.
    return ip.is_loopback and getattr(ip, "ipv4_mapped", None) is None


def listen(address: str) -> socket.socket:
    """A socket that listens on ``host:port``; ``PortTaken`` names the process that uses it. The
    port is never shared: two controllers would each get some of the switches."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only with an explicit protocol; without it a reply in two writes
    # waits 40 ms for an acknowledgement.
    server = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, port))
        server.listen(BACKLOG)
    except OSError as error:
        server.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"cannot listen on {address}: TCP port {port} is used by {port_owner(port)}",
                hint="stop that process, or choose another port",
            ) from error
        raise PatchlightError(
            f"cannot listen on {address}: {error.strerror}",
            hint="choose an address of this machine, and a port that you are allowed to use",
        ) from error
    return server


def is_open(connection: socket.socket) -> bool:
    """Whether the other end of a TCP connection has neither closed it nor ended its sending."""
    return (
        connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        == _ESTABLISHED
    )


def user_of_peer(connection: socket.socket) -> int | None:
    """The user id at the other end of a Unix or loopback connection; ``None`` if that end is on
    another machine, or closed. ``LookupError`` if the kernel does not report it."""
    if connection.family == socket.AF_UNIX:
        raw = connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        return int(_CREDENTIALS.unpack(raw)[1])
    try:
        theirs = connection.getpeername()
        ours = connection.getsockname()
        if not is_loopback(theirs[0]):
            return None
        with socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG
        ) as kernel:
            kernel.send(_question_about(connection.family, theirs, ours))
            answer = kernel.recv(4096, socket.MSG_DONTWAIT)
        if len(answer) >= _DIAG_ANSWER.size:
            kind, state, uid, inode = _DIAG_ANSWER.unpack_from(answer)
            # A closed socket has no inode, and is shown as root's; another may listen on its port.
            if (
                kind == _SOCK_DIAG_BY_FAMILY
                and inode
                and f"{state:02X}" != _LISTEN
            ):
                return int(uid)
        if not is_open(connection):
            return None
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            return None
    raise LookupError(
        "the kernel does not report the users of TCP connections"
    )


def _question_about(
    family: int,
    local: tuple[str, int],
    remote: tuple[str, int],
) -> bytes:
    """A request to sock_diag(7) for the TCP socket with these ends."""
    ends = struct.pack("!HH", local[1], remote[1])
    for host in (local[0], remote[0]):
        ends += socket.inet_pton(family, host).ljust(16, b"\0")
    any_interface = bytes(4)
    any_cookie = b"\xff" * 8
    wanted = ends + any_interface + any_cookie
    head = (
        _DIAG_HEAD.size + len(wanted),
        _SOCK_DIAG_BY_FAMILY,
        _REQUEST,
        0,
        0,
    )
    return (
        _DIAG_HEAD.pack(
            *head,
            family,
            socket.IPPROTO_TCP,
            0,
            0,
            _ANY_STATE,
        )
        + wanted
    )


def free_ports(count: int, preferred: int = 0) -> list[int]:
    """Free loopback TCP ports; the first is ``preferred`` if that is free."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe, port in zip(
            probes, [preferred] + [0] * count, strict=False
        ):
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def bind_unix(
    path: Path,
    server: str,
    *,
    mode: int = 0o600,
) -> socket.socket:
    """A Unix socket with ``mode``, for this user only, replacing one of a dead server.
    ``PatchlightError`` if another ``server`` (its name in messages) answers there."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(
            mode=0o755 if mode & 0o077 else 0o700,
            parents=True,
            exist_ok=True,
        )
        if unix_socket_answers(path):
            raise PatchlightError(
                f"another {server} already serves {path}",
                hint="stop it, or choose another path",
            )
        path.unlink(missing_ok=True)
        mask = os.umask(0o777 & ~mode)
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
    except OSError as error:
        listener.close()
        raise PatchlightError(
            f"cannot listen on the Unix socket {path}: {reason(error)}",
            hint="choose a path of at most 107 bytes in a writable directory",
        ) from error
    return listener


def unix_socket_answers(path: Path) -> bool:
    """Whether a program listens on the Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1)
        with suppress(OSError):
            client.connect(str(path))
            return True
    return False


def ssh_answers(host: str, port: int = 22) -> bool:
    """Whether an SSH server answers there."""
    with (
        suppress(OSError),
        socket.create_connection((host, port), timeout=1) as client,
    ):
        return client.recv(4) == b"SSH-"
    return False


def port_owner(port: int) -> str:
    """The process that listens on a TCP port in this namespace: ``"nginx (pid 812)"``."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for columns in map(
                str.split, Path(table).read_text().splitlines()[1:]
            ):
                if (
                    columns[3] == _LISTEN
                    and int(columns[1].rpartition(":")[2], 16) == port
                ):
                    inodes.add(columns[9])
    for pid in process_ids():
        if _holds(Path(f"/proc/{pid}"), inodes):
            return f"{command_line(pid)[:80] or 'a process that just ended'} (pid {pid})"
    return "a process that is not visible to this user"


def _holds(process: Path, inodes: set[str]) -> bool:
    # Processes may end, and other users' are unreadable.
    with suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):
                target = os.readlink(descriptor)
                if target.startswith("socket:[") and target[8:-1] in inodes:
                    return True
    return False


def is_beyond_this_machine(address: str) -> bool:
    """Whether other machines can reach an API at ``host:port``."""
    if address.startswith(UNIX):
        return False
    host, _ = split_address(address)
    try:
        return not is_loopback(host)
    except ValueError:
        return host.lower() != "localhost"
