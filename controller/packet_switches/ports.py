"""Matches the lab file's ports with those that a switch reports, and records missing ones.

One rule for all kinds of switches: exactly one port must have the name or number. With several
or none the port is missing, with the reason: nothing is guessed.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from patchlight.testbed.lab.model import Endpoint, PacketSwitch

T = TypeVar("T", bound=Hashable)
SEE = "see 'interfaces' in the lab file"
_MOST_SHOWN = 6
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


@dataclass(
    frozen=True,
    slots=True,
)
class Matched(Generic[T]):
    """What a switch calls each port that was ``found``, and why others are ``missing``, as text
    that follows "tor1 has": "no port 1: …"."""

    found: Mapping[int, T]
    missing: Mapping[int, str]


def match_ports(
    wanted: Mapping[int, str],
    rows: Mapping[T, Iterable[str]],
    *,
    said: str = "is named {}",
    shown: Mapping[T, str] | None = None,
) -> Matched[T]:
    """Which of a switch's ``rows`` each port is: the only one with the port's ``wanted`` name, and
    of no other port. ``shown`` are the rows' names in messages."""
    holders = defaultdict[str, list[T]](list)
    for row, names in rows.items():
        for name in {*names} - {""}:
            holders[name].append(row)
    ports = defaultdict[T, list[int]](list)
    for port, name in wanted.items():
        if len(holders[name]) == 1:
            ports[holders[name][0]].append(port)

    def listed(some: Iterable[T]) -> str:
        names = [str(row) if shown is None else shown[row] for row in some]
        return (
            f"{', '.join(names[:_MOST_SHOWN])}{', …' * (len(names) > _MOST_SHOWN)}"
            or "its 0 ports"
        )

    found = {}
    missing = {}
    for port, name in sorted(wanted.items()):
        there = holders[name]
        what = said.format(name)
        if not there:
            missing[port] = (
                f"no port {port}: none of {listed(rows)} {what}: {SEE}"
            )
        elif len(there) > 1:
            missing[port] = (
                f"an ambiguous port {port}: each of {listed(there)} {what}: {SEE}"
            )
        elif len(ports[there[0]]) > 1:
            several = ", ".join(map(str, ports[there[0]]))
            missing[port] = (
                f"an ambiguous port {port}: {listed(there)} is ports {several}: {SEE}"
            )
        else:
            found[port] = there[0]
    return Matched(found, missing)


def match_numbers(
    used: Collection[int],
    rows: Mapping[T, str],
    *,
    said: str = "has index {}",
) -> Matched[T]:
    """The same by numbers, which count from 1: a row with another one cannot be a port."""
    numbers = {
        row: str(int(text)) if text.isdecimal() else ""
        for row, text in rows.items()
    }
    if zero := [row for row, number in numbers.items() if number == "0"]:
        why = f"{zero[0]} {said.format(0)}, but the lab file's ports begin with 1: {SEE}"
        return Matched(
            {}, {port: f"an ambiguous port {port}: {why}" for port in used}
        )
    wanted = {port: str(port) for port in used}
    return match_ports(
        wanted, {row: [number] for row, number in numbers.items()}, said=said
    )


class NumberedPorts:
    """The ``used`` ports of a switch that reports ports with numbers and names (OpenFlow).

    The lab file has the numbers. A port keeps the name that it had first; where the lab file says
    ``interfaces``, it is that.
    """

    def __init__(
        self, used: Collection[int], names: Iterable[str] = ()
    ) -> None:
        self._used = frozenset(used)
        self._home = {name: number for number, name in enumerate(names, 1)}
        self.now: dict[int, str] = {}
        """The names of the present ports, by number."""
        self.is_known = False

    def see(self, ports: Mapping[int, str]) -> Mapping[int, str]:
        """Take all present ports; returns which of those used are missing, and why."""
        self.now = dict(ports)
        self.is_known = True
        names = [*ports.values()]
        for number in self._used & ports.keys():
            name = ports[number]
            if name and names.count(name) == 1 and name not in self._home:
                # Another interface was plugged in there.
                self._home = {
                    n: home for n, home in self._home.items() if home != number
                }
                self._home[name] = number
        return {
            port: why
            for port in sorted(self._used)
            if (why := self._why(port))
        }

    def _why(self, port: int) -> str:
        home = self._home.get(self.now.get(port, ""), port)
        if port in self.now and home == port:
            return ""
        if port in self.now:
            return (
                f"another port {port}: {self.now[port]}, which was port {home}"
            )
        moved = [
            n
            for n, name in self.now.items()
            if name and self._home.get(name) == port
        ]
        return f"no port {port}" + "".join(
            f": {self.now[n]} has number {n} now" for n in moved[:1]
        )


class MissingPorts:
    """The ports of the lab file that packet switches lack, as far as they have reported.

    ``on_change`` gets a switch, a port and the reason, which is empty once the port is back.
    """

    def __init__(self, on_change: Callable[[str, int, str], None]) -> None:
        self._on_change = on_change
        self._by_source: dict[tuple[str, str], Mapping[int, str]] = {}
        self.ports: Mapping[Endpoint, str] = {}
        """Why each is missing, as text that follows "tor1 has"."""

    def report(
        self,
        by: str,
        switch: str,
        missing: Mapping[int, str],
    ) -> bool:
        """Take the missing ports of a switch from one source; returns whether anything changes."""
        if self._by_source.get((by, switch), {}) == missing:
            return False
        self._by_source[by, switch] = missing
        before = self.ports
        self.ports = {
            Endpoint(name, str(port)): why
            for (_, name), ports in sorted(self._by_source.items())
            for port, why in ports.items()
        }
        for end in sorted({**before, **self.ports}):
            if before.get(end) != self.ports.get(end):
                self._on_change(
                    end.device, int(end.port), self.ports.get(end, "")
                )
        return True

    def as_text(self, switch: str) -> list[str]:
        """Those of one switch, as text."""
        return [
            f"{switch} has {why}"
            for end, why in self.ports.items()
            if end.device == switch
        ]


class EndNames:
    """Which ends have a name, among all devices of a lab: MACs, ``tor1 swp3``. A name of several
    identifies none of them: all ports of a switch may have one MAC."""

    def __init__(self, claims: Iterable[tuple[str, str]] = ()) -> None:
        self._ends = defaultdict[str, set[str]](set)
        self.add(claims)

    def add(self, claims: Iterable[tuple[str, str]]) -> None:
        """These are further names, each with its end."""
        for name, end in claims:
            if not _MAC.fullmatch(name) or is_port_mac(name):
                self._ends[name].add(end)

    def ends(self, name: str) -> Collection[str]:
        """All ends with this name."""
        return self._ends.get(name, ())

    def only(self, name: str) -> str | None:
        """The one end with this name."""
        ends = self.ends(name)
        return next(iter(ends)) if len(ends) == 1 else None


def is_port_mac(mac: str) -> bool:
    """Whether a MAC can be a port's: it is neither zero nor multicast."""
    return int(mac[:2], 16) % 2 == 0 and any(
        int(part, 16) for part in mac.split(":")
    )


def used_ports(
    ends: Iterable[Endpoint], switch: PacketSwitch
) -> frozenset[int]:
    """The ports of a switch with a fibre in the lab file."""
    return frozenset(
        int(end.port) for end in ends if end.device == switch.name
    )
