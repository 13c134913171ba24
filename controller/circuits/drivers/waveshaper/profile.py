"""A WaveShaper's filter profile: for each GHz of its band how weak, in which phase, to which port.

One line for each, separated by tabs: frequency (THz), attenuation (dB), phase (rad), port. Light
that is sent to port 0, or is made weaker by ``BLOCKED_DB`` or more, goes nowhere. A profile is
whole: to change one channel is to say all others again, so their lines are kept letter by letter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from patchlight.testbed.lab.spectrum import Channel, Grid

BLOCKED_DB = 60.0
_ANCHOR_GHZ = 193_100
_QUARTERS = 25  # of a GHz, in a step of 6.25 GHz: what channels begin and end on
_BLOCKED = f"{BLOCKED_DB:.4f}\t0.0000\t0"


class Passing(NamedTuple):
    """Where light leaves, and how much weaker."""

    port: int
    attenuation_db: float


@dataclass(frozen=True)
class Profile:
    """The profile that begins at ``first_ghz``; ``lines`` are what follows each frequency."""

    first_ghz: int
    lines: Sequence[str]

    @classmethod
    def blocked(cls, first_ghz: int, last_ghz: int) -> Profile:
        """The profile that lets nothing through."""
        return cls(first_ghz, (_BLOCKED,) * (last_ghz - first_ghz + 1))

    @classmethod
    def parse(cls, text: str) -> Profile:
        """``ValueError`` for what is no profile, or one whose steps are not 1 GHz."""
        first_ghz, lines = 0, []
        for number, line in enumerate(text.strip().splitlines()):
            frequency, tab, rest = line.strip().partition("\t")
            if not tab:
                raise ValueError(f"line {number + 1} is no line of a profile: {line[:60]!r}")
            ghz = _ghz(frequency)
            first_ghz = first_ghz or ghz
            if ghz != first_ghz + number:
                raise ValueError(
                    f"line {number + 1} is about {frequency} THz: expected steps of 1 GHz, so "
                    f"{_thz(first_ghz + number)}"
                )
            lines.append(rest)
        if not lines:
            raise ValueError("an empty profile")
        return cls(first_ghz, tuple(lines))

    @property
    def text(self) -> str:
        """The profile as it is sent."""
        first = self.first_ghz
        return "".join(f"{_thz(first + n)}\t{rest}\n" for n, rest in enumerate(self.lines))

    def __str__(self) -> str:
        return f"{_thz(self.first_ghz)}–{_thz(self.first_ghz + len(self.lines) - 1)} THz"

    def channels(self, grid: Grid) -> dict[Channel, Passing]:
        """What is let through, cut where channels of the grid begin.

        A piece that fills no channel of the grid is a channel of its own: it is in use all the
        same. ``ValueError`` for what is not made of steps of 6.25 GHz: somebody else's, no channel.
        """
        return dict(self._pieces(grid))

    def with_channel(self, channel: Channel, passing: Passing | None) -> Profile:
        """This profile with a channel let through like that, or blocked; all else as it is.

        ``ValueError`` if not all of the channel is in the band.
        """
        first, end = (math.ceil(_ANCHOR_GHZ + edge * _QUARTERS / 4) for edge in channel.edges)
        first, end = first - self.first_ghz, end - self.first_ghz
        if first < 0 or end > len(self.lines):
            raise ValueError(f"channel {channel} is outside the device's band {self}")
        line = _BLOCKED
        if passing is not None:
            line = f"{passing.attenuation_db:.4f}\t0.0000\t{passing.port}"
        lines = (*self.lines[:first], *(line,) * (end - first), *self.lines[end:])
        return Profile(self.first_ghz, lines)

    def _pieces(self, grid: Grid) -> Iterator[tuple[Channel, Passing]]:
        apart = None if grid.spacing_ghz is None else int(grid.spacing_ghz / 6.25)
        begun, before = 0, None
        steps = sorted(self._steps)
        for step in (*steps, steps[-1] + 1 if steps else 0):
            passing = self._steps.get(step)
            cut = apart is not None and (step + apart // 2) % apart == 0
            if passing == before and not cut:
                continue
            if before is not None:
                slots, odd = divmod(step - begun, 2)
                if odd:
                    raise ValueError(f"light passes from {_edge(begun)} to {_edge(step)} THz")
                yield Channel(begun + slots, slots), before
            begun, before = step, passing

    @cached_property
    def _steps(self) -> Mapping[int, Passing | None]:
        """What each whole step of 6.25 GHz does, by its lower edge; ``ValueError`` if mixed."""
        read = {line: _passing(line) for line in set(self.lines)}
        found: dict[int, set[Passing | None]] = {}
        for ghz, line in enumerate(self.lines, self.first_ghz):
            step = (ghz - _ANCHOR_GHZ) * 4 // _QUARTERS
            found.setdefault(step, set()).add(read[line])
        for edge in (self.first_ghz, self.first_ghz + len(self.lines)):
            # What lies half outside the band is part of no channel.
            if (edge - _ANCHOR_GHZ) * 4 % _QUARTERS:
                found.pop((edge - _ANCHOR_GHZ) * 4 // _QUARTERS, None)
        for step, ways in found.items():
            if len(ways) > 1:
                raise ValueError(
                    f"the light between {_edge(step)} and {_edge(step + 1)} THz is not all treated "
                    "alike"
                )
        return {step: next(iter(ways)) for step, ways in found.items()}


def _passing(rest: str) -> Passing | None:
    columns = rest.split("\t")
    try:
        attenuation_db, _, port = float(columns[0]), float(columns[1]), int(float(columns[2]))
    except (ValueError, IndexError, OverflowError) as error:
        raise ValueError(f"no attenuation, phase and port: {rest[:60]!r}") from error
    if len(columns) != 3 or not 0 <= attenuation_db < 1000 or port < 0:
        raise ValueError(f"no attenuation, phase and port: {rest[:60]!r}")
    if port == 0 or attenuation_db >= BLOCKED_DB:
        return None
    return Passing(port, round(attenuation_db, 2))


def _ghz(text: str) -> int:
    try:
        ghz = float(text) * 1000
        whole = round(ghz)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"no frequency in THz: {text[:20]!r}") from error
    if abs(ghz - whole) > 0.05:
        raise ValueError(f"{text[:20]} THz is no whole GHz: expected steps of 1 GHz")
    return whole


def _thz(ghz: int) -> str:
    return f"{ghz // 1000}.{ghz % 1000:03d}0"


def _edge(step: int) -> str:
    return f"{(_ANCHOR_GHZ + step * 6.25) / 1000:g}"
