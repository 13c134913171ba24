"""Defines what every driver of a packet switch does, and its results.

What a lab wants of a switch is a value: behind which port each station is. A driver brings that
about by whatever its switch understands (flow entries, a static forwarding table), and says what it
lacks. It changes and removes only what Patchlight has set itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import NamedTuple, Protocol, runtime_checkable


class Station(NamedTuple):
    """A NIC in the lab's network. Its MAC has lower-case letters."""

    mac: str
    address: IPv4Address


Places = Mapping[Station, int]
"""Behind which port of a switch each station is."""


@dataclass(
    frozen=True,
    slots=True,
)
class Wish:
    """What one switch is to do: forward to these stations, on these ports of the lab.

    Frames to other stations are dropped where the switch can do that. Ports other than ``ports``
    are left alone; behind those in ``to_learning`` is a switch that learns MACs from what it hears.
    """

    places: Places = field(default_factory=dict)
    ports: frozenset[int] = frozenset()
    to_learning: frozenset[int] = frozenset()


class Lack(NamedTuple):
    """A station to which the switch does not forward as wanted, and why: "table full"."""

    station: Station
    reason: str

    def concerns(self, mac: str, address: IPv4Address) -> bool:
        """Whether it is about this NIC."""
        return self.station == (mac, address)


class PortState(NamedTuple):
    """The bytes of a port since the switch started, and whether it has a link."""

    rx_bytes: int
    tx_bytes: int
    up: bool


@dataclass(
    frozen=True,
    slots=True,
)
class SwitchState:
    """What a switch reports.

    ``places``: how it forwards to stations of the last wish, its own entries or others'.
    ``ports``: those of the wish that it has; ``missing``: why others are not among them, as text
    that follows "tor1 has". ``foreign``: entries of others that take precedence over Patchlight's,
    as text.
    """

    places: Places
    ports: Mapping[int, PortState]
    foreign: tuple[str, ...] = ()
    missing: Mapping[int, str] = field(default_factory=dict)


@dataclass(
    frozen=True,
    slots=True,
)
class Applied:
    """The result of a wish: ``changed`` counts entries added, replaced or removed."""

    changed: int = 0
    lacks: tuple[Lack, ...] = ()
    foreign: tuple[str, ...] = ()


@runtime_checkable
class PacketSwitchDriver(Protocol):
    """One packet switch. Use it from one event loop; calls do not overlap.

    Every method may raise ``DeviceUnreachable``, ``LoginRefused`` or ``DeviceRefused``, and those
    that change something ``OutcomeUnknown``: then it is read and set again later. A driver may have
    ``period_s``: how often it may be read, if not each second; and ``learns``, if its switch gets
    nothing.
    """

    @property
    def name(self) -> str:
        """The switch's name in the lab."""

    async def open(self) -> None:
        """Connect to the switch."""

    async def close(self) -> None:
        """Disconnect; the switch goes on forwarding. Idempotent."""

    async def set_forwarding(self, wish: Wish) -> Applied:
        """Change what differs from the wish, and read it back: whatever is missing is a lack."""

    async def read(self) -> SwitchState:
        """The present state; changes nothing."""

    async def release(self) -> None:
        """Remove what Patchlight has set, and restore the settings from before."""
