"""Defines what every driver of an optical switch does, and its results.

An optical circuit switch (OCS) connects ports: an entry of its map is a ``CrossConnect``. A
wavelength switch (WSS) routes channels from port to port: an entry is a ``ChannelConnect``. Both
have the same contract (``SwitchDriver``).

Ports are canonical and directed: ``in:n`` is an input, ``out:n`` an output, both counted from 1. A
driver maps them to its vendor's numbering. Drivers declare their device's abilities
(``Capabilities``); callers check those, never the driver's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    runtime_checkable,
)

from patchlight.testbed.errors import (
    BadInput,
    NoReply,
    OutcomeUnknown,
    PatchlightError,
)
from patchlight.testbed.lab.portmap import CrossConnect, JoinsPorts, PortMap
from patchlight.testbed.lab.spectrum import (
    Channel,
    ChannelConnect,
    Grid,
    SpectrumMap,
)

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
        """``"in:3"`` → a directed port; else ``BadInput``."""
        side, colon, number = text.partition(":")
        if colon and number.isascii() and number.isdigit() and int(number) > 0:
            if side == "in":
                return cls("in", int(number))
            if side == "out":
                return cls("out", int(number))
        raise BadInput(
            f"{text!r} is not a directed port: expected 'in:N' or 'out:N', N from 1"
        )


@dataclass(
    frozen=True,
    slots=True,
)
class Capabilities:
    """Optional features of a device: power monitors on that side of its ports."""

    power_in: bool = False
    power_out: bool = False


@dataclass(
    frozen=True,
    slots=True,
)
class Identity:
    """A device's identity; empty strings for what it does not report."""

    vendor: str
    model: str
    serial: str
    software: str
    name: str = ""


@dataclass(
    frozen=True,
    slots=True,
)
class PortState:
    """Whether a port can carry a circuit; ``words`` is the device's own message.

    ``locked``: taken out of service. ``failed``: the device found it broken. ``absent``: none.
    """

    condition: Condition
    words: str = ""


@dataclass(
    frozen=True,
    slots=True,
)
class Alarm:
    """An alarm or event of the device. ``at`` is the Unix time of its arrival here.

    ``standing``: it was on the device's list of alarms when that was last read.
    """

    at: float
    severity: Severity
    subject: str
    words: str
    # The key of an alarm, the same after it has gone.
    standing: bool = field(
        default=False,
        compare=False,
    )


@dataclass(
    frozen=True,
    slots=True,
)
class Standing:
    """One line of a device's list of alarms.

    ``reported``: a text that an earlier report about the same alarm contains; empty if the device
    sends no reports.
    """

    severity: Severity
    subject: str
    words: str
    reported: str = ""


PortStates = Mapping[DirectedPort, PortState]
Powers = Mapping[DirectedPort, float | None]
"""Optical power in dBm; ``None`` without a signal."""


@dataclass(
    frozen=True,
    slots=True,
)
class Refusal(Generic[C]):
    """One entry that the device refused, and its reason."""

    cross_connect: C
    words: str

    def __str__(self) -> str:
        return f"{self.cross_connect}: {self.words}"


@dataclass(
    frozen=True,
    slots=True,
)
class Outcome(Generic[C]):
    """The result of a connect or disconnect; every entry is in one of the two.

    ``done``: after the call the device has it (connect) or not (disconnect), whether or not this
    call changed that. ``refused``: it was not done, and nothing of it remains on the device.
    ``elapsed_s``: wall time including the device's switching time.
    """

    done: tuple[C, ...]
    refused: tuple[Refusal[C], ...]
    elapsed_s: float

    @property
    def complete(self) -> bool:
        """Whether all that was requested was done."""
        return not self.refused


class DeviceUnreachable(PatchlightError):
    """The device does not answer; this call changed nothing on it."""


def outcome_unknown(words: str, *, is_late: bool = False) -> OutcomeUnknown:
    """The error after a change was sent to a device whose answer is missing, ``is_late``, or
    unclear."""
    return (NoReply if is_late else OutcomeUnknown)(
        words, hint="read the device's map first"
    )


class DeviceRefused(PatchlightError):
    """The device answered with a refusal. ``code`` and ``words`` are its own."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        words: str = "",
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.words = words


class LoginRefused(PatchlightError):
    """The device rejected the user or password; ``words`` are its own."""

    def __init__(
        self,
        message: str,
        *,
        words: str = "",
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.words = words


@runtime_checkable
class SwitchDriver(Protocol[C, M_co]):
    """One optical switch. Use it from one event loop; calls may overlap, writes are serialised.

    ``C`` is an entry of its map ``M``. Every method may raise ``DeviceUnreachable``,
    ``LoginRefused`` or ``DeviceRefused`` (the device refused the whole request). ``connect`` and
    ``disconnect`` raise ``OutcomeUnknown`` if the device got a command but did not answer: read the
    map next. Refusals of single entries are in the ``Outcome``, never raised.
    """

    @property
    def name(self) -> str:
        """The switch's name in the lab."""

    @property
    def capabilities(self) -> Capabilities:
        """What the device can do."""

    async def open(self) -> None:
        """Connect to the device and log in."""

    async def close(self) -> None:
        """Log out and disconnect; circuits stay. Idempotent."""

    async def identify(self) -> Identity:
        """Vendor, model, serial number and software of the device."""

    async def read_map(self) -> M_co:
        """The active map, as the device reports it."""

    async def connect(self, pairs: Iterable[C]) -> Outcome[C]:
        """Make these entries and wait until the device reports that they are up.

        Nothing is broken to make room: conflicts are refused. ``BadInput`` (before anything is
        sent) for a port outside the device, or conflicting entries.
        """

    async def disconnect(self, pairs: Iterable[C]) -> Outcome[C]:
        """Break these entries; a missing one counts as done."""

    async def port_states(self) -> PortStates:
        """The state of every port, both sides."""

    async def power(self, ports: Iterable[DirectedPort]) -> Powers:
        """Optical power in dBm at these ports; ``None`` without a signal.

        Ports without a power monitor are not in the result.
        """

    async def alarms(self) -> tuple[Alarm, ...]:
        """The device's reports since ``open``, oldest first (the last 1000).

        Includes earlier active ones, marked as ``standing``, if the protocol can list them.
        """


@runtime_checkable
class CircuitDriver(SwitchDriver[CrossConnect, PortMap], Protocol):
    """One OCS."""

    @property
    def ports(self) -> int:
        """How many ports it has on each side."""


@runtime_checkable
class WavelengthDriver(SwitchDriver[ChannelConnect, SpectrumMap], Protocol):
    """One WSS. Connecting or breaking an entry does not affect the others' signals.

    The attenuation is part of an entry: another one for the same channel conflicts with the
    existing entry, and is possible once that is broken.
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
    """A driver of a device that knows the factory loss of its paths."""

    async def factory_losses_db(
        self, cross_connects: Iterable[CrossConnect]
    ) -> Mapping[CrossConnect, float]:
        """The insertion loss in dB of each of these paths that was measured at the factory."""


@runtime_checkable
class TellsChannelPowers(Protocol):
    """A driver of a WSS that measures the power of each channel."""

    async def channel_powers(
        self, ports: Iterable[DirectedPort]
    ) -> Mapping[DirectedPort, Mapping[Channel, float | None]]:
        """Power in dBm of each channel that the map has there; ``None`` without a signal."""
