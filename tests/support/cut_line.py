"""A TCP way to a server that breaks after so many bytes."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.support.waiting import PATIENCE_S


@contextmanager
def line_that_breaks(host: str, port: int, after_bytes: int) -> Iterator[int]:
    """A port of this machine that leads to ``host:port`` until so many bytes went there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        thread = threading.Thread(
            target=_carry, args=(listener, host, port, after_bytes)
        )
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join()


def _carry(
    listener: socket.socket, host: str, port: int, after_bytes: int
) -> None:
    near, _ = listener.accept()
    with near, socket.create_connection((host, port)) as far:
        back = threading.Thread(target=_copy, args=(far, near))
        back.start()
        with suppress(ConnectionError):
            while after_bytes > 0 and (piece := near.recv(1 << 16)):
                after_bytes -= len(piece)
                far.sendall(piece)
        for end in (near, far):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
