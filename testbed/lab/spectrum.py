"""Models optical channels and the map of a wavelength switch.

Frequencies follow ITU-T G.694.1: 193.1 THz plus steps of 6.25 GHz; a channel takes slots of 12.5
GHz around its centre. So channels are whole numbers and compare exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import NamedTuple, Self

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import (
    CrossConnect,
    SwitchMap,
    parse_cross_connects,
)

_ANCHOR_THZ = Decimal("193.1")
_STEP_THZ = Decimal("0.00625")
_STEP_GHZ = 6.25
_SLOT_GHZ = 12.5
_LOWEST_THZ = 150
_HIGHEST_THZ = 250
_WIDEST_SLOTS = 400  # 5 THz, a whole band
_CHANNEL = re.compile(
    r"(?P<thz>[0-9]{3}(?:\.[0-9]{1,6})?)(?:THz)?(?:/(?P<ghz>[0-9]{1,4}(?:\.5)?))?"
)
_ROUTE = re.compile(
    r"(?P<ports>[^@]+)@(?P<channel>[^@-]+)(?:-(?P<db>[0-9]{1,2}(?:\.[0-9]{1,2})?)dB)?"
)


class Channel(NamedTuple):
    """``steps`` of 6.25 GHz from 193.1 THz to its centre, ``slots`` of 12.5 GHz wide.

    Sortable by frequency.
    """

    steps: int
    slots: int = 4

    @classmethod
    def parse(cls, text: str) -> Channel:
        """``"193.100"`` (THz; 50 GHz wide), ``"193.1/75"`` (GHz wide); else ``BadInput``."""
        match = _CHANNEL.fullmatch(text.strip())
        if match is None:
            raise BadInput(
                f"{text!r} is not a channel: expected a frequency in THz, like '193.100', with "
                "its width in GHz unless it is 50, like '193.100/75'"
            )
        thz = Decimal(match["thz"])
        if not _LOWEST_THZ <= thz <= _HIGHEST_THZ:
            raise BadInput(
                f"{text!r} is not an optical channel: expected {_LOWEST_THZ} to {_HIGHEST_THZ} THz"
            )
        steps, rest = divmod(thz - _ANCHOR_THZ, _STEP_THZ)
        if rest:
            below = Channel(int(steps if rest > 0 else steps - 1))
            raise BadInput(
                f"{text!r} is off the grid of 6.25 GHz (ITU-T G.694.1): the nearest channels are "
                f"{below.thz_text} and {below._replace(steps=below.steps + 1).thz_text}"
            )
        slots, odd = divmod(float(match["ghz"] or "50"), _SLOT_GHZ)
        if odd or not 1 <= slots <= _WIDEST_SLOTS:
            raise BadInput(
                f"{text!r} is not a channel: expected a multiple of 12.5 GHz as width, like "
                f"'{match['thz']}/75', at most {_WIDEST_SLOTS * _SLOT_GHZ:g}"
            )
        return cls(int(steps), int(slots))

    def __str__(self) -> str:
        return (
            self.thz_text
            if self.slots == 4
            else f"{self.thz_text}/{self.width_ghz:g}"
        )

    @property
    def thz_text(self) -> str:
        """The frequency of its centre in THz: ``193.100``, ``193.10625``."""
        thz = _ANCHOR_THZ + self.steps * _STEP_THZ
        return f"{thz:.3f}" if thz == round(thz, 3) else f"{thz:.5f}"

    @property
    def frequency_thz(self) -> float:
        """The frequency of its centre."""
        return float(_ANCHOR_THZ + self.steps * _STEP_THZ)

    @property
    def width_ghz(self) -> float:
        """Its width in GHz."""
        return self.slots * _SLOT_GHZ

    @property
    def edges(self) -> tuple[int, int]:
        """Its lower and upper edge, in steps of 6.25 GHz from 193.1 THz."""
        return self.steps - self.slots, self.steps + self.slots

    def overlaps(self, other: Channel) -> bool:
        """Whether the two share any frequency; adjacent channels do not."""
        return (
            self.edges[0] < other.edges[1] and other.edges[0] < self.edges[1]
        )

    def within(self, other: Channel) -> bool:
        """Whether all of it lies in ``other``."""
        return (
            other.edges[0] <= self.edges[0] and self.edges[1] <= other.edges[1]
        )


class Band(NamedTuple):
    """All frequencies from one channel's centre to another's."""

    first: Channel
    last: Channel

    @classmethod
    def parse(cls, text: str) -> Band:
        """``"191.350-196.100"`` → a band; else ``BadInput``."""
        first, dash, last = text.partition("-")
        if not dash:
            raise BadInput(
                f"{text!r} is not a band: expected two channels, like '191.350-196.100'"
            )
        band = cls(Channel.parse(first), Channel.parse(last))
        if band.first > band.last:
            raise BadInput(
                f"{text!r} is not a band: expected the lower frequency first"
            )
        return band

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    def __contains__(self, channel: object) -> bool:
        return (
            isinstance(channel, Channel)
            and self.first.steps <= channel.steps <= self.last.steps
        )


@dataclass(
    frozen=True,
    slots=True,
)
class Grid:
    """The channels of a device: ``spacing_ghz`` apart and wide; ``None``: any (flexible)."""

    spacing_ghz: float | None = 50.0

    @classmethod
    def parse(cls, text: str) -> Grid:
        """``"50GHz"`` or ``"flexible"``; else ``BadInput``."""
        if text in GRIDS:
            return cls(
                None if text == "flexible" else float(text.removesuffix("GHz"))
            )
        raise BadInput(
            f"{text!r} is not a grid: expected one of {', '.join(GRIDS)}"
        )

    def __str__(self) -> str:
        return (
            "flexible"
            if self.spacing_ghz is None
            else f"{self.spacing_ghz:g}GHz"
        )

    def check(self, channel: Channel) -> None:
        """``BadInput`` with the nearest channels if the channel is not on the grid."""
        if self.spacing_ghz is None:
            return
        apart = int(self.spacing_ghz / _STEP_GHZ)
        slots = int(self.spacing_ghz / _SLOT_GHZ)
        below = channel.steps - channel.steps % apart
        if (channel.steps, channel.slots) == (below, slots):
            return
        nearest = [Channel(below, slots)]
        if channel.steps != below:
            nearest.append(Channel(below + apart, slots))
        raise BadInput(
            f"channel {channel} is off the grid of {self.spacing_ghz:g} GHz: expected "
            + " or ".join(map(str, nearest))
        )


GRIDS = ("12.5GHz", "25GHz", "50GHz", "75GHz", "100GHz", "200GHz", "flexible")


class ChannelConnect(NamedTuple):
    """Sends ``channel`` from ``in:inp`` to ``out:out``, attenuated."""

    inp: int
    out: int
    channel: Channel
    attenuation_db: float = 0.0

    def __str__(self) -> str:
        less = f"-{self.attenuation_db:g}dB" if self.attenuation_db else ""
        return f"{self.inp}>{self.out}@{self.channel}{less}"

    @property
    def ports(self) -> CrossConnect:
        """The two ports alone."""
        return CrossConnect(self.inp, self.out)

    @property
    def reverse(self) -> ChannelConnect:
        """The same channel in the reverse direction."""
        return self._replace(
            inp=self.out,
            out=self.inp,
        )

    def clashes(self, other: ChannelConnect) -> bool:
        """Whether one map cannot have both: overlapping channels on one fibre."""
        same_fibre = self.inp == other.inp or self.out == other.out
        return (
            same_fibre
            and self != other
            and self.channel.overlaps(other.channel)
        )


def parse_channel_connects(text: str) -> tuple[ChannelConnect, ...]:
    """``"1>3@193.100"`` → itself; ``"1-3@193.100-2dB"`` → both directions with 2 dB of attenuation.

    Else ``BadInput``.
    """
    match = _ROUTE.fullmatch(text.strip())
    if match is None:
        raise BadInput(
            f"{text!r} is not a channel's cross-connect: expected two ports and a channel in "
            "THz, like '1>3@193.100', or with an attenuation '1>3@193.100-2dB'"
        )
    channel = Channel.parse(match["channel"])
    less_db = float(match["db"] or 0)
    return tuple(
        ChannelConnect(
            inp,
            out,
            channel,
            less_db,
        )
        for inp, out in parse_cross_connects(match["ports"])
    )


class SpectrumMap(SwitchMap[ChannelConnect]):
    """The cross-connects of a wavelength switch."""

    @classmethod
    def of(cls, ways: Iterable[ChannelConnect]) -> Self:
        """A map of these; ``BadInput`` names two whose channels collide on one fibre."""
        unique = sorted(set(ways))
        for clash in clashes(unique):
            raise BadInput(clash)
        return cls(tuple(unique))

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """The map written as ``["1-3@193.100", "2>4@193.150-2dB"]``."""
        return cls.of(
            way for text in texts for way in parse_channel_connects(text)
        )

    def way_of(self, inp: int, channel: Channel) -> ChannelConnect | None:
        """The entry that passes this whole channel from there, if any."""
        return next(
            (
                way
                for way in self._at.get(inp, ())
                if channel.within(way.channel)
            ),
            None,
        )

    @cached_property
    def _at(self) -> dict[int, list[ChannelConnect]]:
        at: dict[int, list[ChannelConnect]] = {}
        for way in self._entries:
            at.setdefault(way.inp, []).append(way)
        return at

    def clashing(self, others: SpectrumMap) -> tuple[ChannelConnect, ...]:
        """Those that conflict with ``others``: they share frequencies of a fibre."""
        return tuple(
            way
            for way in self._entries
            if any(way == o or way.clashes(o) for o in others)
        )

    def check(
        self,
        inputs: int,
        outputs: int,
        grid: Grid,
    ) -> None:
        """``BadInput`` for a port outside the device, or a channel off its grid."""
        for way in self._entries:
            if not 1 <= way.inp <= inputs:
                raise BadInput(f"{way}: input {way.inp} is outside 1–{inputs}")
            if not 1 <= way.out <= outputs:
                raise BadInput(
                    f"{way}: output {way.out} is outside 1–{outputs}"
                )
            grid.check(way.channel)


def clashes(ways: Iterable[ChannelConnect]) -> Iterator[str]:
    """Conflicts within one map, as text: pairs whose signals would collide."""
    by_fibre: dict[tuple[str, int], list[ChannelConnect]] = {}
    for way in ways:
        for fibre in (("in", way.inp), ("out", way.out)):
            at_fibre = by_fibre.setdefault(fibre, [])
            before = next(
                (w for w in at_fibre if w.channel.overlaps(way.channel)), None
            )
            if before is not None:
                yield _words(before, way)
                break
        else:
            for fibre in (("in", way.inp), ("out", way.out)):
                by_fibre[fibre].append(way)


def _words(one: ChannelConnect, other: ChannelConnect) -> str:
    where = f"out:{one.out}" if one.out == other.out else f"in:{one.inp}"
    if one.out == other.out:
        return f"two signals would collide at {where}: {one} and {other}"
    return f"the connection at {where} is one-way: {one} and {other}"
