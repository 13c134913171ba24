"""Accepts connections at a limited rate from each user of the machine, or address of another.

Refusing one takes some 20 µs: a queue full of one user's connections is emptied before others wait
for long. That user gets the refusal a second later, and does not try again until then.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from patchlight.testbed.linux.sockets import is_open, user_of_peer

Peer = int | str
"""A user id of this machine, or another machine's address."""

# Then other parts of the program have their turn.
_REFUSED_IN_A_ROW = 200
_BURST_S = 2.0
_MOST_PEERS = 4096
_TOLD_AFTER_S = 1.0
_MOST_UNTOLD = 128
_LOGGED_EVERY_S = 60.0
_CLOSED = ""
_log = logging.getLogger("patchlight.http")


class LimitedListener(socket.socket):
    """A listening socket like ``listener``, which accepts ``per_second`` connections from each peer
    (twice as many at once), and sends others a ``refusal`` and closes them. Users who are
    ``trusted`` have no limit.
    """

    def __init__(
        self,
        listener: socket.socket,
        per_second: float,
        trusted: Collection[int],
        refusal: bytes,
    ) -> None:
        super().__init__(fileno=os.dup(listener.fileno()))
        self._per_second = per_second
        self._trusted = trusted
        self._refusal = refusal
        self._spent: dict[Peer, float] = {}
        self._refused = 0
        self._untold: set[socket.socket] = set()
        self._logged_at = -_LOGGED_EVERY_S

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection that is not refused; ``BlockingIOError`` if none waits."""
        while self._refused < _REFUSED_IN_A_ROW:
            connection, address = super().accept()
            peer = _peer_of(connection)
            if (
                peer is None
                or peer in self._trusted
                or self._may_connect(peer)
            ):
                return connection, address
            self._refused += 1
            if peer == _CLOSED or len(self._untold) >= _MOST_UNTOLD:
                self._tell(connection)
            else:
                self._untold.add(connection)
                asyncio.get_running_loop().call_later(
                    _TOLD_AFTER_S, self._tell, connection
                )
        self._refused = 0
        raise BlockingIOError

    def close(self) -> None:
        """Stop listening."""
        while self._untold:
            self._tell(next(iter(self._untold)))
        super().close()

    def _tell(self, connection: socket.socket) -> None:
        self._untold.discard(connection)
        with suppress(OSError):
            connection.send(self._refusal, socket.MSG_DONTWAIT)
        connection.close()

    def _may_connect(self, peer: Peer) -> bool:
        """Whether the peer may; each connection spends a part of a second, at most two ahead."""
        now = time.monotonic()
        spent = max(self._spent.pop(peer, 0.0), now) + 1 / self._per_second
        if spent > now + _BURST_S:
            self._spent[peer] = spent - 1 / self._per_second
            if now - self._logged_at > _LOGGED_EVERY_S:
                self._logged_at = now
                who = f"uid {peer}" if isinstance(peer, int) else peer
                limit = self._per_second
                _log.warning(
                    "%s opens more than %g connections a second: refused",
                    who,
                    limit,
                )
            return False
        self._spent[peer] = spent  # the latest last
        if len(self._spent) > _MOST_PEERS:
            del self._spent[next(iter(self._spent))]
        return True


def _peer_of(connection: socket.socket) -> Peer | None:
    """The peer of a connection; ``None`` if the kernel does not report users of loopback."""
    try:
        if connection.family != socket.AF_UNIX and not is_open(connection):
            return _CLOSED  # by many, perhaps: who it was takes longer to find out
        uid = user_of_peer(connection)
        return str(connection.getpeername()[0]) if uid is None else uid
    except LookupError:
        return None
    except OSError:
        return _CLOSED
