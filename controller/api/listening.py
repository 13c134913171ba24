"""Where the API listens, and the names that requests may call it by.

Until the API knows who may do what, it is for the users of its own machine.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab_api import UNIX
from patchlight.testbed.linux.sockets import bind_unix, is_loopback, listen, split_address

_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


@contextmanager
def listening_for_api(address: str) -> Iterator[socket.socket]:
    """A socket that listens at ``host:port`` or ``unix:/path``, for any user of this machine.

    A Unix socket is removed afterwards. ``BadInput`` for an address that other machines reach,
    ``PatchlightError`` if it is taken.
    """
    if not address.startswith(UNIX):
        with _listen_on_loopback(address) as listener:
            yield listener
        return
    path = Path(address.removeprefix(UNIX))
    with bind_unix(path, "controller", for_all=True) as listener:
        try:
            # At once: a socket at which nobody listens looks like one that a dead server left.
            listener.listen()
            yield listener
        finally:
            path.unlink(missing_ok=True)


def _listen_on_loopback(address: str) -> socket.socket:
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise BadInput(f"listening for the API at {address}: {error.strerror}") from error
    beyond = [str(row[4][0]) for row in found if not is_loopback(str(row[4][0]))]
    if beyond:
        raise BadInput(
            f"the API cannot listen at {address}: whoever reaches {beyond[0]} could rewire the "
            "lab, since the API has no access control yet",
            hint="leave --api and the lab file's controller.api out, or name a port of 127.0.0.1; "
            "from other machines, go through SSH: ssh -L 8470:127.0.0.1:8470 THIS-MACHINE",
        )
    return listen(f"{found[0][4][0]}:{port}")


def api_host_names(address: str) -> tuple[str, ...]:
    """What a request to an API at this address may have as its ``Host``, without the port."""
    if address.startswith(UNIX):
        return _LOCAL_NAMES
    return (*_LOCAL_NAMES, split_address(address)[0].lower())
