"""Joins the ring: rank r connects to rank r+1, retrying until the deadline because the circuit may
not be up yet, and accepts rank r-1. A handshake checks that both belong to the same job."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import select
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .task import Member, TrainingError, TrainingTask, reason

_LINE_LIMIT = 4096
_ATTEMPT_S = 1.0
# The kernel's first retry comes after 1 s, long after a new network is up.
_FIRST_ATTEMPT_S = 0.05
_DARK_MS = 900_000
# Later than peers need on an idle machine.
_TELL_AFTER_S = 5.0
_TCP_RTO_MAX_MS = 44  # Linux 6.15; not yet named in the socket module


class RingError(TrainingError):
    """The ring could not be joined or lost a rank: ``lost_rank``, if it is known."""

    def __init__(self, message: str, lost_rank: int | None = None) -> None:
        super().__init__(message)
        self.lost_rank = lost_rank


@dataclass(frozen=True)
class Neighbours:
    """Connections to the next and from the previous worker. ``window_bytes`` limits the data in
    flight on each; ``None``: the kernel's default."""

    to_next: socket.socket
    from_previous: socket.socket
    window_bytes: int | None = None

    def drain(self, deadline_s: float) -> None:
        """Wait until the next worker's kernel has all data or has closed. Otherwise data in the
        send queue is lost when the NIC leaves the ended worker."""
        end = time.monotonic() + deadline_s
        closed = select.poll()
        closed.register(self.to_next, 0)
        while not closed.poll(0):
            raw = fcntl.ioctl(self.to_next, termios.TIOCOUTQ, bytes(4))
            (unacknowledged,) = struct.unpack("i", raw)
            if unacknowledged == 0:
                return
            if time.monotonic() > end:
                raise RingError(
                    f"{unacknowledged} bytes sent to the next worker were not acknowledged "
                    f"within {deadline_s:.0f} s of the end"
                )
            time.sleep(0.002)

    def ask_for_life(self, on: bool) -> None:
        """Whether the kernel gives up on a silent neighbour. Off while a worker is held: the outage
        may last as long as the job allows."""
        for connection in (self.to_next, self.from_previous):
            connection.setsockopt(
                socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(on)
            )

    def placed(self, gradient: Any) -> Any:
        """The gradient where it is sent from: here as it is."""
        return gradient

    def report(self) -> dict[str, int]:
        """What to report of each iteration, beside times and bytes."""
        return {}

    def close(self) -> None:
        """Close both connections."""
        self.to_next.close()
        self.from_previous.close()


def join_ring(
    task: TrainingTask, tell: Callable[[str], None] = lambda _: None
) -> Neighbours:
    """Connect to both neighbours and check them; ``tell`` is called with what it waits for. After
    ``task.join_s`` ``RingError`` with the neighbour, its address and the last failure."""
    end = time.monotonic() + task.join_s
    size = len(task.ring)
    me = task.ring[task.rank]
    following = task.ring[(task.rank + 1) % size]
    previous = task.ring[(task.rank - 1) % size]
    joined: dict[str, socket.socket] = {}
    failures: list[str] = []

    def accept() -> None:
        try:
            joined["previous"] = _accept_previous(
                listener,
                task,
                previous,
                end,
            )
        except RingError as exc:
            failures.append(str(exc))

    with listen(me, end, task.window_bytes) as listener:
        # Concurrently: a neighbour replies only once it has accepted its own predecessor.
        acceptor = threading.Thread(
            target=accept,
            daemon=True,
        )
        acceptor.start()
        try:
            joined["next"] = _connect_next(
                task,
                following,
                end,
                tell,
            )
        except RingError as exc:
            failures.append(str(exc))
        acceptor.join()
    if failures:
        for connection in joined.values():
            connection.close()
        raise RingError("; ".join(sorted(failures)))
    return Neighbours(joined["next"], joined["previous"], task.window_bytes)


def listen(
    me: Member,
    end: float,
    window_bytes: int | None = None,
) -> socket.socket:
    """A listening socket; ``RingError`` if it cannot bind by ``end`` (``time.monotonic``)."""
    while True:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if window_bytes is not None:
            # Accepted connections inherit it. Half of the kernel's buffer is window.
            listener.setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, window_bytes
            )
        try:
            listener.bind((me.address, me.port))
            listener.listen(8)
        except OSError as exc:
            listener.close()
            # A container starts before its NIC is moved in, so the address appears a moment later.
            if exc.errno == errno.EADDRNOTAVAIL and time.monotonic() < end:
                time.sleep(0.005)
                continue
            raise RingError(
                f"listening on {me.address}:{me.port}: {exc.strerror}"
            ) from exc
        return listener


def _connect_next(
    task: TrainingTask,
    peer: Member,
    end: float,
    tell: Callable[[str], None],
) -> socket.socket:
    last = "no attempt was made"
    told = ""
    attempt_s = _FIRST_ATTEMPT_S
    tell_at = time.monotonic() + _TELL_AFTER_S
    while time.monotonic() < end:
        began = time.monotonic()
        if began > tell_at and last != told:
            told = last
            tell(
                f"rank {peer.rank} at {peer.address}:{peer.port} cannot be reached: {last}"
            )
        try:
            connection = socket.create_connection(
                (peer.address, peer.port), timeout=attempt_s
            )
        except OSError as exc:
            last = reason(exc)
            attempt_s = min(2 * attempt_s, _ATTEMPT_S)
        else:
            try:
                _tune(connection)
                if task.window_bytes is not None:
                    # The window must set the pace: BBR, the default of some kernels, paces by past
                    # measurements. Reno is always available.
                    connection.setsockopt(
                        socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno"
                    )
                _send_line(connection, _hello(task))
                connection.settimeout(max(0.1, end - time.monotonic()))
                reply = _read_line(connection)
                if reply.get("ok") is True:
                    return connection
                last = f"it refused: {reply.get('error')}"
            except (OSError, ValueError) as exc:
                last = reason(exc)
            connection.close()
        time.sleep(max(0.0, min(0.05, began + 0.05 - time.monotonic())))
    raise RingError(
        f"rank {task.rank} could not join rank {peer.rank} at {peer.address}:{peer.port} within "
        f"{task.join_s:g} s: {last}"
    )


def _accept_previous(
    listener: socket.socket,
    task: TrainingTask,
    peer: Member,
    end: float,
) -> socket.socket:
    expected = {**_hello(task), "rank": peer.rank}
    last = "nobody connected"
    while time.monotonic() < end:
        listener.settimeout(max(0.01, end - time.monotonic()))
        try:
            connection, (address, _port) = listener.accept()
        except OSError as exc:
            last = (
                f"nobody connected ({reason(exc)})"
                if last == "nobody connected"
                else last
            )
            continue
        try:
            connection.settimeout(_ATTEMPT_S * 5)
            hello = _read_line(connection)
            if hello == expected:
                _tune(connection)
                _send_line(connection, {"ok": True})
                return connection
            # A stranger, or a worker of an ending job: drop it and wait for the right one.
            last = f"{address} sent {hello}, expected {expected}"
            _send_line(
                connection,
                {"ok": False, "error": f"expected {expected}, got {hello}"},
            )
        except (OSError, ValueError) as exc:
            last = f"{address}: {reason(exc)}"
        connection.close()
    raise RingError(
        f"rank {task.rank} waited {task.join_s:g} s for rank {peer.rank} ({peer.address}): {last}"
    )


def _hello(task: TrainingTask) -> dict[str, Any]:
    hello = {
        "patchlight": 1,
        "job": task.job,
        "rank": task.rank,
        "ranks": len(task.ring),
        "elements": task.elements,
    }
    return (
        hello
        if task.transport == "tcp"
        else {**hello, "transport": task.transport}
    )


def _send_line(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _read_line(connection: socket.socket) -> dict[str, Any]:
    line = b""
    while not line.endswith(b"\n"):
        piece = connection.recv(_LINE_LIMIT)
        if not piece:
            raise ConnectionError(
                "the connection was closed during the handshake"
            )
        line += piece
        if len(line) > _LINE_LIMIT:
            raise ValueError("the handshake is too long")
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError(f"the handshake is not an object: {message!r}")
    return message


def _tune(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Tolerate outages of seconds while circuits switch and of minutes when a signal fails, but
    # detect a neighbour that is dead.
    connection.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DARK_MS
    )
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    with contextlib.suppress(
        OSError
    ):  # older kernels back off up to two minutes
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, 1000)
