"""Models wavelength devices (transceivers, wavelength switches, passive parts) and emulated faults.

Signals of ports without a transceiver have no channel. They pass circuit switches and couplers, but
no device that sorts by wavelength.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.spectrum import Band, Channel, Grid, SpectrumMap

Value = (
    str | int | float | bool | tuple[int, ...] | tuple[tuple[str, float], ...]
)


@dataclass(
    frozen=True,
    slots=True,
)
class OcsFault:
    """One request to an emulated device's control socket, and when it applies.

    ``after_s`` seconds after the device's start, or after that many changing commands if not 0.
    """

    settings: tuple[tuple[str, Value], ...]
    after_s: float = 0.0
    after_changes: int = 0

    @classmethod
    def of(
        cls,
        settings: Mapping[str, Any],
        *,
        after_s: float = 0.0,
        after_changes: int = 0,
    ) -> OcsFault:
        """From JSON values."""
        items = tuple((key, _frozen(value)) for key, value in settings.items())
        return cls(items, after_s, after_changes)

    @property
    def control(self) -> dict[str, Any]:
        """The object for the control socket."""
        return {key: _plain(value) for key, value in self.settings}


@dataclass(
    frozen=True,
    slots=True,
)
class OcsUser:
    """A login; without ``password_env`` any password is accepted."""

    name: str
    password_env: str | None = None
    read_only: bool = False


@dataclass(
    frozen=True,
    slots=True,
)
class Emulation:
    """Settings in a lab file that only emulated optical switches use.

    ``conflict_time_s``: how long a circuit takes that replaces others; ``None``: it is refused.
    """

    faults: tuple[OcsFault, ...] = ()
    users: tuple[OcsUser, ...] = ()
    conflict_time_s: float | None = None

    def __bool__(self) -> bool:
        return self != Emulation()


def _frozen(value: Any) -> Value:
    if isinstance(value, dict):
        return tuple((str(key), float(item)) for key, item in value.items())
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Value) -> Any:
    if not isinstance(value, tuple):
        return value
    if value and isinstance(value[0], tuple):
        return dict(value)
    return list(value)


PartKind = Literal["coupler", "awg", "multiplexer"]
PART_KINDS: tuple[PartKind, ...] = get_args(PartKind)
_EXCESS_LOSS_DB = 0.5
_SORTING_LOSS_DB = {"awg": 4.0, "multiplexer": 3.0}


@dataclass(
    frozen=True,
    slots=True,
)
class Transceiver:
    """A coloured transmitter and its receiver. ``channel`` is the initial one.

    ``tunable`` is its tuning band, ``None`` if fixed; tuning takes ``tuning_time_s``.
    ``launch_power_dbm`` ``None``: that of its NIC or packet switch. Below ``sensitivity_dbm`` it
    receives nothing; ``None``: not known.
    """

    channel: Channel
    tunable: Band | None = None
    grid: Grid = field(default_factory=Grid)
    tuning_time_s: float = 0.0
    launch_power_dbm: float | None = None
    sensitivity_dbm: float | None = None

    def check(self, channel: Channel) -> None:
        """``BadInput`` if it cannot send this channel."""
        if self.tunable is None:
            if channel != self.channel:
                raise BadInput(
                    f"channel {channel}: it sends {self.channel} only"
                )
            return
        if channel not in self.tunable:
            raise BadInput(
                f"channel {channel} is outside its band {self.tunable}"
            )
        self.grid.check(channel)


@dataclass(
    frozen=True,
    slots=True,
)
class WavelengthSwitch:
    """A wavelength-selective switch: routes each channel of each input separately.

    The fibre pair in port *n* ends at ``in:n`` and ``out:n``, if both exist. Without a ``driver``
    its map stays as in the lab file.
    """

    name: str
    inputs: int
    outputs: int
    grid: Grid = field(default_factory=Grid)
    switching_time_s: float = 0.05
    insertion_loss_db: float = 6.0
    initial: SpectrumMap = field(default_factory=SpectrumMap)
    driver: str = ""
    address: str = ""
    user: str = "admin"
    password_env: str | None = None
    emulated: Emulation = field(default_factory=Emulation)
    legacy_ssh: bool = False

    @property
    def ports(self) -> int:
        """How many ports fibres can end on."""
        return max(self.inputs, self.outputs)


@dataclass(
    frozen=True,
    slots=True,
)
class PassivePart:
    """A passive optical device with ports 1…``ports``.

    ``coupler``: signals of a port leave at all others. ``awg``: the *k*-th channel, from 0, leaves
    *k* ports further on, cyclically. ``multiplexer``: it goes between port *k* + 2 and port 1.
    """

    name: str
    kind: PartKind
    ports: int
    channels: tuple[Channel, ...] = ()
    own_loss_db: float | None = None

    @property
    def loss_db(self) -> float:
        """Its insertion loss, by default the usual one of its kind."""
        if self.own_loss_db is not None:
            return self.own_loss_db
        if self.kind == "coupler":
            return round(10 * math.log10(self.ports) + _EXCESS_LOSS_DB, 2)
        return _SORTING_LOSS_DB[self.kind]

    def outputs_of(self, inp: int, channel: Channel | None) -> Iterator[int]:
        """The outputs of a signal that enters there; empty if the part blocks it."""
        if self.kind == "coupler":
            yield from (out for out in range(1, self.ports + 1) if out != inp)
            return
        own = (
            k
            for k, c in enumerate(self.channels)
            if channel is not None and channel.within(c)
        )
        for k in own:
            if self.kind == "awg":
                yield (inp - 1 + k) % self.ports + 1
            elif inp == 1:
                yield k + 2
            elif inp == k + 2:
                yield 1


def channels_in(band: Band, grid: Grid) -> tuple[Channel, ...]:
    """Every channel of the grid in a band; ``BadInput`` on a flexible grid, or off it."""
    if grid.spacing_ghz is None:
        raise BadInput("a band needs a fixed grid, not a flexible one")
    apart = int(grid.spacing_ghz / 6.25)
    slots = int(grid.spacing_ghz / 12.5)
    grid.check(band.first._replace(slots=slots))
    return tuple(
        Channel(n, slots)
        for n in range(band.first.steps, band.last.steps + 1, apart)
    )
