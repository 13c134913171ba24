"""Who asks: the user that the kernel shows for the connection.

The kernel knows who is at the other end of a Unix socket, and its table of TCP sockets has the
user id of each of this machine. What a client says of itself counts only if it is root's.
"""

import asyncio
import os
import pwd
import socket
from ipaddress import ip_address
from pathlib import Path

from fastapi import Request

from patchlight.controller.changes.record import ChangeOptions
from patchlight.controller.client import USER_HEADER
from patchlight.testbed.linux.sockets import UNIX_CLIENT

IN_PROCESS = "direct"
"""What ASGI's ``client`` names a request that this process makes of itself."""

_TABLES = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}
_NOBODYS = "0"
_LONGEST_NAME = 80
UNKNOWN = "(unknown)"
_logins: dict[int, str] = {}


async def caller_of(request: Request) -> ChangeOptions:
    """The user and where the request came from.

    A user goes by the name of the login, whatever was declared; the superuser may speak for
    others (``sudo``). Whom the kernel does not show any more is unknown.
    """
    declared = request.headers.get(USER_HEADER, "")[:_LONGEST_NAME]
    declared = "".join(c if c.isprintable() else "?" for c in declared)
    host, port = request.client or ("", 0)
    if host == IN_PROCESS:
        return ChangeOptions(by=declared, origin=host)
    if host == UNIX_CLIENT:
        uid: int | None = port
        origin = host
    else:
        # The kernel's table may be long.
        uid = await asyncio.to_thread(user_id_of, (host, port), request.scope.get("server"))
        origin = f"{host}:{port}"
    if uid is None:
        return ChangeOptions(by=UNKNOWN, origin=f"{origin} (no user to be seen)")
    by = declared if uid == 0 and declared else await _login(uid)
    return ChangeOptions(by=by, origin=origin + _of_user(uid))


def is_keeper(caller: ChangeOptions) -> bool:
    """Whether who asks is root, or the user that the controller runs as."""
    keepers = (_of_user(uid) for uid in (0, os.geteuid()))
    return caller.origin == IN_PROCESS or caller.origin.endswith(tuple(keepers))


def _of_user(uid: int) -> str:
    return f" (uid {uid})"


def user_id_of(client: tuple[str, int], server: tuple[str, int | None] | None) -> int | None:
    """Whose socket the client's end of a connection is; ``None`` if it is nobody's here."""
    try:
        address = ip_address(client[0])
    except ValueError:
        return None
    if server is None or server[1] is None or not address.is_loopback:
        return None
    ours, theirs = _as_kernel(client), _as_kernel((server[0], server[1]))
    try:
        lines = _TABLES[address.version].read_text().splitlines()[1:]
    except OSError:
        return None
    for line in lines:
        local, remote, uid, inode = (line.split(maxsplit=10)[n] for n in (1, 2, 7, 9))
        # A socket that its process has closed has no inode, and is shown as root's.
        if local == ours and remote == theirs and inode != _NOBODYS:
            return int(uid)
    return None


def _as_kernel(address: tuple[str, int]) -> str:
    """``0100007F:1F90``: each 32 bits of the address in the machine's own order, then the port."""
    packed = ip_address(address[0]).packed
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    # As the kernel prints it: on a little-endian machine the bytes of each word stand reversed.
    host = "".join(f"{socket.ntohl(int.from_bytes(word, 'big')):08X}" for word in words)
    return f"{host}:{address[1]:04X}"


async def _login(uid: int) -> str:
    """The name of a user, who may be kept far away: it is looked up once."""
    if uid not in _logins:
        try:
            _logins[uid] = (await asyncio.to_thread(pwd.getpwuid, uid)).pw_name
        except KeyError:
            return f"uid {uid}"
    return _logins[uid]
