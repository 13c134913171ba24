"""Switches that the lab does not have and that connect all the same: told of, and not too often."""

from collections import Counter
from typing import Any

_EVERY_S = 60.0
_LISTED = 8


class UnknownSwitches:
    """Counts connections of switches that are not the lab's; time is an argument (Unix seconds).

    The first is an event at once, those after it are added up, and told of once a minute at most:
    whoever connects again and again is not to fill the journal.
    """

    def __init__(self) -> None:
        self.connections = 0
        self._untold: Counter[tuple[int, str]] = Counter()
        self._untold_count = 0
        self._told_at = float("-inf")

    def connected(self, datapath_id: int, address: str, now: float) -> dict[str, Any] | None:
        """What to tell of this connection and those untold before it; ``None``: nothing yet."""
        self.connections += 1
        self._untold_count += 1
        who = (datapath_id, address.rpartition(":")[0])
        if who in self._untold or len(self._untold) < _LISTED:
            self._untold[who] += 1
        if now - self._told_at < _EVERY_S:
            return None
        event = {
            "event": "unknown-switch",
            "datapath_id": datapath_id,
            "address": address,
            "connections": self._untold_count,
            "switches": [
                {"datapath_id": number, "host": host, "connections": count}
                for (number, host), count in self._untold.items()
            ],
        }
        self._untold.clear()
        self._untold_count, self._told_at = 0, now
        return event
