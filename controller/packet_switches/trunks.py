"""The links between packet switches: which have no signal, and what each carries."""

from collections import deque
from collections.abc import Collection, Mapping
from typing import NamedTuple

from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.wiring import Links

_OVER_S = 10.0
_SAMPLES = 12


class Uplink(NamedTuple):
    """What a switch sends by one of several equally near ports, in bit/s of the lab; ``equal`` are
    all of them, and ``peer`` is the switch there."""

    switch: str
    port: int
    peer: str
    equal: tuple[int, ...]
    sent_bps: float


class Trunks:
    """The ports of packet switches that lead to others."""

    def __init__(self, lab: Lab) -> None:
        self._scale = lab.scale
        self._names = names = {switch.name for switch in lab.packet_switches}
        # At ports to an OCS, signals come and go with the circuits.
        self._fixed = frozenset(
            end
            for end, (other, _) in lab.fibre_ends.items()
            if end.device in names and other.device in names
        )
        self._peers: Mapping[Endpoint, str] = {}
        self._sent: dict[tuple[Endpoint, str], deque[tuple[float, int]]] = {}
        self._silent: frozenset[Endpoint] = frozenset()
        self._missing: frozenset[Endpoint] = frozenset()

    def follow(self, links: Links) -> None:
        """These are the links now."""
        pairs = [
            pair
            for pair in links.pairs()
            if {end.device for end in pair} <= self._names
        ]
        self._peers = {
            a: b.device for pair in pairs for a, b in (pair, pair[::-1])
        }

    def heard(self, end: Endpoint, up: bool) -> None:
        """A switch said whether this port has a link."""
        if end in self._fixed:
            self._silent = self._silent - {end} if up else self._silent | {end}

    def set_missing(self, ends: Collection[Endpoint]) -> None:
        """Take the ports that switches have reported as missing."""
        self._missing = self._fixed & frozenset(ends)

    @property
    def down(self) -> frozenset[Endpoint]:
        """Ports with a fibre to another switch that have no link or are missing, as far as switches
        have reported."""
        return self._silent | self._missing

    def count(
        self,
        by: str,
        end: Endpoint,
        at: float,
        sent: int,
    ) -> None:
        """Take what a port has sent in all, as ``by`` counts, at this Unix time."""
        if end in self._peers:
            counted = self._sent.setdefault((end, by), deque(maxlen=_SAMPLES))
            if counted and (sent < counted[-1][1] or at <= counted[-1][0]):
                counted.clear()
            counted.append((at, sent))

    def uplinks(
        self, equal: Mapping[str, set[tuple[int, ...]]], now: float
    ) -> list[Uplink]:
        """What goes by each of the ``equal`` ports of switches, on average in the last seconds."""
        found = []
        for switch, sets in sorted(equal.items()):
            # Of some destinations fewer ports may be as near.
            for ports in sorted(
                s for s in sets if not any(set(s) < set(t) for t in sets)
            ):
                for port in ports:
                    end = Endpoint(switch, str(port))
                    if (
                        end in self._peers
                        and (rate := self._rate_bps(end, now)) is not None
                    ):
                        found.append(
                            Uplink(
                                switch,
                                port,
                                self._peers[end],
                                ports,
                                rate,
                            )
                        )
        return found

    def _rate_bps(self, end: Endpoint, now: float) -> float | None:
        for by in ("switch", "snmp"):
            lately = [
                s
                for s in self._sent.get((end, by), ())
                if s[0] > now - 2 * _OVER_S
            ]
            if len(lately) > 1:
                began, before = lately[0]
                at, sent = lately[-1]
                return (sent - before) * 8 * self._scale / (at - began)
        return None
