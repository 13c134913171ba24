"""What goes between the speaker and each switch, counted; and how long switches take to answer.

Numbers alone: no engine, no sockets, and time is an argument (seconds of one clock).
"""

import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from patchlight.controller.openflow.protocol import Message

_HEADER = struct.Struct("!BBHI")
_ERROR, _ECHO_REQUEST, _ECHO_REPLY = 1, 2, 3


@dataclass(slots=True)
class _Counts:
    connections: int = 0
    sent: int = 0
    received: int = 0
    errors: int = 0
    echo_s: float | None = None
    echo_xid: int | None = None
    echo_at: float = 0.0


class Traffic:
    """Counts for each of the lab's switches, by datapath id, since the speaker began.

    ``refused`` counts connections that did not get in, by why.
    """

    def __init__(self, datapath_ids: frozenset[int]) -> None:
        self.refused: Counter[str] = Counter()
        self._counts = {number: _Counts() for number in datapath_ids}

    def connected(self, datapath_id: int) -> None:
        """A switch of the lab is ready."""
        self._counts[datapath_id].connections += 1

    def gone(self, datapath_id: int) -> None:
        """Its connection ended: what it took to answer says nothing any more."""
        counts = self._counts[datapath_id]
        counts.echo_s = counts.echo_xid = None

    def said(self, datapath_id: int, data: bytes, now: float) -> None:
        """Messages, one after the other, go to a switch."""
        counts, at = self._counts[datapath_id], 0
        while at + _HEADER.size <= len(data):
            _, kind, length, xid = _HEADER.unpack_from(data, at)
            counts.sent += 1
            if kind == _ECHO_REQUEST:
                counts.echo_xid, counts.echo_at = xid, now
            at += max(length, _HEADER.size)

    def heard(self, datapath_id: int, kind: int, xid: int, now: float) -> None:
        """A message came from a switch."""
        counts = self._counts[datapath_id]
        counts.received += 1
        if kind == _ERROR:
            counts.errors += 1
        elif kind == _ECHO_REPLY and xid == counts.echo_xid:
            counts.echo_s, counts.echo_xid = now - counts.echo_at, None

    def message(self, waiting: Callable[[int], int]) -> Message:
        """The event that tells of it; ``waiting`` is how much is still to be sent to a switch."""
        switches = [
            {
                "datapath_id": number,
                "connections": each.connections,
                "sent": each.sent,
                "received": each.received,
                "errors": each.errors,
                "echo_s": each.echo_s,
                "waiting": waiting(number),
            }
            for number, each in self._counts.items()
        ]
        return {"event": "traffic", "switches": switches, "refused": dict(self.refused)}
