"""What every driver of an optical switch does, and in which words it answers.

An optical circuit switch (OCS) joins ports: an entry of its map is a ``CrossConnect``. A
wavelength switch (WSS) leads channels from port to port: an entry is a ``ChannelConnect``. Both
keep the same promises (``SwitchDriver``).

Ports are canonical and directed: ``in:n`` takes light in, ``out:n`` lets it out, both
counted from 1. A driver maps them to its vendor's numbering. Drivers declare what their
device can do (``Capabilities``); callers ask that, never the driver's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

from patchlight.testbed.errors import BadInput, OutcomeUnknown, PatchlightError
from patchlight.testbed.lab.portmap import CrossConnect, JoinsPorts, PortMap
from patchlight.testbed.lab.spectrum import Channel, ChannelConnect, Grid, SpectrumMap

C = TypeVar("C", bound=JoinsPorts)
M_co = TypeVar("M_co", covariant=True)

Side = Literal["in", "out"]
SIDES: tuple[Side, ...] = ("in", "out")
Condition = Literal["ready", "locked", "failed", "absent"]
Severity = Literal["critical", "major", "minor", "notice"]


class DirectedPort(NamedTuple):
    """One side of a port: ``in:3`` or ``out:17``."""

    side: Side
    number: int

    def __str__(self) -> str:
        return f"{self.side}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> DirectedPort:
        """``"in:3"`` → a directed port; ``BadInput`` if it is not one."""
        side, colon, number = text.partition(":")
        if colon and number.isascii() and number.isdigit() and int(number) > 0:
            if side == "in":
                return cls("in", int(number))
            if side == "out":
                return cls("out", int(number))
        raise BadInput(f"{text!r} is not a directed port: expected 'in:N' or 'out:N', N from 1")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a device has beyond what each has: power monitors on that side of its ports."""

    power_in: bool = False
    power_out: bool = False


@dataclass(frozen=True, slots=True)
class Identity:
    """Which device answers; empty strings where it does not say."""

    vendor: str
    model: str
    serial: str
    software: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class PortState:
    """Whether a port can carry a circuit; ``words`` is what the device itself says of it.

    ``locked``: taken out of service by someone. ``failed``: the device found it broken.
    ``absent``: no hardware there.
    """

    condition: Condition
    words: str = ""


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something the device reported. ``at`` is Unix time of its arrival here.

    ``standing``: it was on the device's own list of alarms when that was last read.
    """

    at: float
    severity: Severity
    subject: str
    words: str
    # The same alarm once it has gone: no other one.
    standing: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Standing:
    """One line of a device's own list of alarms.

    ``reported``: a text that an earlier report about the same subject has in it, if it is
    about this alarm; empty if the device reports nothing unasked.
    """

    severity: Severity
    subject: str
    words: str
    reported: str = ""


PortStates = Mapping[DirectedPort, PortState]
Powers = Mapping[DirectedPort, float | None]
"""Optical power in dBm; ``None`` where it is dark."""


@dataclass(frozen=True, slots=True)
class Refusal(Generic[C]):
    """One entry that the device would not do, and why in its own words."""

    cross_connect: C
    words: str

    def __str__(self) -> str:
        return f"{self.cross_connect}: {self.words}"


@dataclass(frozen=True, slots=True)
class Outcome(Generic[C]):
    """What came of a connect or disconnect; every entry asked for is in one of the two.

    ``done``: after the call the device holds it (connect) or does not (disconnect), whether
    or not this call changed that. ``refused``: it did not happen, and nothing of it is left
    behind on the device. ``elapsed_s``: wall time, the device's switching time included.
    """

    done: tuple[C, ...]
    refused: tuple[Refusal[C], ...]
    elapsed_s: float

    @property
    def complete(self) -> bool:
        """Whether everything asked for was done."""
        return not self.refused


class DeviceUnreachable(PatchlightError):
    """The device does not answer; as far as this call goes, nothing was changed on it."""


def outcome_unknown(words: str) -> OutcomeUnknown:
    """The error after a change was sent to a device whose answer is missing or unclear."""
    return OutcomeUnknown(words, hint="read the device's map before anything else")


class DeviceRefused(PatchlightError):
    """The device answered, and said no. ``code`` and ``words`` are its own."""

    def __init__(
        self, message: str, *, code: str = "", words: str = "", hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.words = words


class LoginRefused(PatchlightError):
    """The device did not accept the user or password; ``words`` are its own."""

    def __init__(self, message: str, *, words: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.words = words


@runtime_checkable
class SwitchDriver(Protocol[C, M_co]):
    """One optical switch. Use from one event loop; calls may overlap, writes are serialised inside.

    ``C`` is an entry of its map ``M``. Every method may raise ``DeviceUnreachable``,
    ``LoginRefused`` or ``DeviceRefused`` (the device refused the whole question). ``connect`` and
    ``disconnect`` raise ``OutcomeUnknown`` where the device was told and did not say what came of
    it: read the map before anything else. What it refuses of single entries is in the
    ``Outcome``, never raised.
    """

    @property
    def name(self) -> str:
        """The switch's name in the lab."""

    @property
    def capabilities(self) -> Capabilities:
        """What the device can do."""

    async def open(self) -> None:
        """Reach the device and log in."""

    async def close(self) -> None:
        """Log out and let go; never clears a circuit. Idempotent."""

    async def identify(self) -> Identity:
        """Vendor, model, serial number and software of the device."""

    async def read_map(self) -> M_co:
        """What is active on the device now, as the device says."""

    async def connect(self, pairs: Iterable[C]) -> Outcome[C]:
        """Make these entries and wait until the device says that they are up.

        Nothing else is broken to make room: what is in the way is a refusal. ``BadInput`` (before
        anything is sent) for a port outside the device, or entries that clash.
        """

    async def disconnect(self, pairs: Iterable[C]) -> Outcome[C]:
        """Break these entries; one that is not there counts as done."""

    async def port_states(self) -> PortStates:
        """The state of every port, both sides."""

    async def power(self, ports: Iterable[DirectedPort]) -> Powers:
        """Optical power in dBm at these ports; ``None`` where it is dark.

        A port without a power monitor is missing from the answer.
        """

    async def alarms(self) -> tuple[Alarm, ...]:
        """What the device reported since ``open``, oldest first (the last 1000).

        With what stood before, marked as ``standing``, where the protocol can ask for that.
        """


@runtime_checkable
class CircuitDriver(SwitchDriver[CrossConnect, PortMap], Protocol):
    """One OCS."""

    @property
    def ports(self) -> int:
        """How many ports it has on each side."""


@runtime_checkable
class WavelengthDriver(SwitchDriver[ChannelConnect, SpectrumMap], Protocol):
    """One WSS. An entry that is connected or broken leaves the light of all others alone.

    The attenuation is part of an entry: another one for the same channel clashes with the entry
    that is there, and is made once that is broken.
    """

    @property
    def inputs(self) -> int:
        """How many inputs it has."""

    @property
    def outputs(self) -> int:
        """How many outputs it has."""

    @property
    def grid(self) -> Grid:
        """Which channels there are."""


AnyDriver = SwitchDriver[Any, Any]
"""The driver of a switch of either kind."""
Drivers = Mapping[str, AnyDriver]
"""The drivers of a lab, by switch."""


@runtime_checkable
class TellsFactoryLosses(Protocol):
    """A driver of a device that knows what its paths lost when it was made."""

    async def factory_losses_db(
        self, cross_connects: Iterable[CrossConnect]
    ) -> Mapping[CrossConnect, float]:
        """The insertion loss in dB of each of these paths that was measured in the factory."""


@runtime_checkable
class TellsChannelPowers(Protocol):
    """A driver of a WSS that measures the power of each channel."""

    async def channel_powers(
        self, ports: Iterable[DirectedPort]
    ) -> Mapping[DirectedPort, Mapping[Channel, float | None]]:
        """Power in dBm of each channel that the map has there; ``None`` where it is dark."""
