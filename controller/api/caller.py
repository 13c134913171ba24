"""Who asks: the user that the kernel shows on this machine, else the name that was declared.

The kernel knows whose a connection is that comes from this machine: its table of TCP sockets
has the user id of each. From elsewhere nothing vouches for a name, and the history says so.
"""

import pwd
import socket
from ipaddress import ip_address
from pathlib import Path

from fastapi import Request

from patchlight.controller.changes.record import ChangeOptions
from patchlight.controller.client import USER_HEADER

_TABLES = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}
_ESTABLISHED = "01"
_LONGEST_NAME = 80


def caller_of(request: Request) -> ChangeOptions:
    """The user and where the request came from.

    A user of this machine goes by the name of the login, whatever was declared; the
    superuser may speak for others (``sudo``).
    """
    declared = request.headers.get(USER_HEADER, "")[:_LONGEST_NAME]
    host, port = request.client or ("", 0)
    if not port:
        return ChangeOptions(by=declared, origin=host)  # in this process
    origin = f"{host}:{port}"
    uid = user_id_of((host, port), request.scope.get("server"))
    if uid is None:
        return ChangeOptions(by=declared, origin=f"{origin} (name as declared)")
    by = declared if uid == 0 and declared else _login(uid)
    return ChangeOptions(by=by, origin=f"{origin} (uid {uid})")


def user_id_of(client: tuple[str, int], server: tuple[str, int | None] | None) -> int | None:
    """Whose socket the client's end of a connection is; ``None`` if it is not on this machine."""
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
        local, remote, state, uid = (line.split(maxsplit=8)[n] for n in (1, 2, 3, 7))
        if local == ours and remote == theirs and state == _ESTABLISHED:
            return int(uid)
    return None


def _as_kernel(address: tuple[str, int]) -> str:
    """``0100007F:1F90``: each 32 bits of the address in the machine's own order, then the port."""
    packed = ip_address(address[0]).packed
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    # As the kernel prints it: on a little-endian machine the bytes of each word stand reversed.
    host = "".join(f"{socket.ntohl(int.from_bytes(word, 'big')):08X}" for word in words)
    return f"{host}:{address[1]:04X}"


def _login(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
