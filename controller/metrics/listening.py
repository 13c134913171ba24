"""Where metrics are answered beside the API: on loopback, for a Prometheus of this machine."""

import socket

from patchlight.testbed.errors import BadInput
from patchlight.testbed.linux.sockets import is_loopback, listen, split_address

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
"""What requests may call it by."""


def listen_for_metrics(address: str) -> socket.socket:
    """A socket that listens at ``host:port``.

    ``BadInput`` for an address that other machines reach, ``PatchlightError`` if it is taken.
    """
    host, port = split_address(address)
    address = "127.0.0.1" if host == "localhost" else host
    try:
        here = is_loopback(address)
    except ValueError as error:
        raise BadInput(
            f"metrics at {host}:{port}: expected an IP address of this machine"
        ) from error
    if not here:
        raise BadInput(
            f"metrics cannot be answered at {host}:{port}: whoever reaches it could read them",
            hint="name a port of 127.0.0.1; for a Prometheus on another machine, go through SSH: "
            "ssh -L 9470:127.0.0.1:9470 THIS-MACHINE",
        )
    return listen(f"[{address}]:{port}" if ":" in address else f"{address}:{port}")
