"""The driver ``waveshaper-http``: Finisar (Coherent) WaveShapers over HTTP.

A WaveShaper has a common port and others; it is 1×N or, in reverse, N×1. It takes filter profiles
of its whole band. Each change reads the present profile, and loads it again with only that
channel's lines changed. The device has no password, no port states and no power monitors; it does
not report when a channel is up, so its switching time is waited for. Tested with the emulated
device only.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from patchlight.controller.circuits import contract
from patchlight.controller.circuits.dialect import Pattern
from patchlight.controller.circuits.drivers.base import WavelengthSessionDriver
from patchlight.controller.circuits.drivers.rest import (
    json_number,
    json_object,
    json_text,
)
from patchlight.controller.circuits.drivers.table import TABLES_KEPT, UP, Row
from patchlight.controller.circuits.protocols.http import (
    HttpClient,
    HttpDialect,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.spectrum import Channel, ChannelConnect, Grid

BLOCKED_DB = 60.0
_ANCHOR_GHZ = 193_100
_QUARTERS = (
    25  # of a GHz, in a step of 6.25 GHz: what channels begin and end on
)
_BLOCKED = f"{BLOCKED_DB:.4f}\t0.0000\t0"


class Passing(NamedTuple):
    """The output of a channel, and its attenuation."""

    port: int
    attenuation_db: float


@dataclass(frozen=True)
class Profile:
    """The profile that begins at ``first_ghz``; ``lines`` are the texts after each frequency.

    One line per GHz, separated by tabs: frequency (THz), attenuation (dB), phase (rad), port. Port
    0, or an attenuation of ``BLOCKED_DB`` or more, blocks. A profile is whole: to change one
    channel all others are sent again, so their lines are kept as text.
    """

    first_ghz: int
    lines: Sequence[str]

    @classmethod
    def blocked(cls, first_ghz: int, last_ghz: int) -> Profile:
        """The profile that blocks everything."""
        return cls(first_ghz, (_BLOCKED,) * (last_ghz - first_ghz + 1))

    @classmethod
    def parse(cls, text: str) -> Profile:
        """``ValueError`` for an invalid profile, or one whose steps are not 1 GHz."""
        first_ghz = 0
        lines = []
        for number, line in enumerate(text.strip().splitlines()):
            frequency, tab, rest = line.strip().partition("\t")
            if not tab:
                raise ValueError(
                    f"line {number + 1} is not a line of a profile: {line[:60]!r}"
                )
            ghz = _ghz(frequency)
            first_ghz = first_ghz or ghz
            if ghz != first_ghz + number:
                raise ValueError(
                    f"line {number + 1} is for {frequency} THz: expected steps of 1 GHz, so "
                    f"{_thz(first_ghz + number)}"
                )
            lines.append(rest)
        if not lines:
            raise ValueError("an empty profile")
        return cls(first_ghz, tuple(lines))

    @property
    def text(self) -> str:
        """The profile in the device's format."""
        return "".join(
            f"{_thz(self.first_ghz + n)}\t{rest}\n"
            for n, rest in enumerate(self.lines)
        )

    def __str__(self) -> str:
        return f"{_thz(self.first_ghz)}–{_thz(self.first_ghz + len(self.lines) - 1)} THz"

    def channels(self, grid: Grid) -> dict[Channel, Passing]:
        """The open bands, cut at the channels of the grid.

        A piece that is not a whole channel of the grid is a channel of its own: it is in use.
        ``ValueError`` for one that is not made of steps of 6.25 GHz, which another program made.
        """
        return dict(self._pieces(grid))

    def with_channel(
        self, channel: Channel, passing: Passing | None
    ) -> Profile:
        """This profile with a channel opened like that, or blocked; all else unchanged.

        ``ValueError`` if the channel is not within the band.
        """
        first, end = (
            math.ceil(_ANCHOR_GHZ + edge * _QUARTERS / 4)
            for edge in channel.edges
        )
        first = first - self.first_ghz
        end = end - self.first_ghz
        if first < 0 or end > len(self.lines):
            raise ValueError(
                f"channel {channel} is outside the device's band {self}"
            )
        line = _BLOCKED
        if passing is not None:
            line = f"{passing.attenuation_db:.4f}\t0.0000\t{passing.port}"
        lines = (
            *self.lines[:first],
            *(line,) * (end - first),
            *self.lines[end:],
        )
        return Profile(self.first_ghz, lines)

    def _pieces(self, grid: Grid) -> Iterator[tuple[Channel, Passing]]:
        apart = (
            None if grid.spacing_ghz is None else int(grid.spacing_ghz / 6.25)
        )
        begun = 0
        before = None
        steps = sorted(self._steps)
        for step in (*steps, steps[-1] + 1 if steps else 0):
            passing = self._steps.get(step)
            cut = apart is not None and (step + apart // 2) % apart == 0
            if passing == before and not cut:
                continue
            if before is not None:
                slots, odd = divmod(step - begun, 2)
                if odd:
                    raise ValueError(
                        f"light passes from {_edge(begun)} to {_edge(step)} THz"
                    )
                yield Channel(begun + slots, slots), before
            begun = step
            before = passing

    @cached_property
    def _steps(self) -> Mapping[int, Passing | None]:
        """The effect on each whole step of 6.25 GHz, by its lower edge; ``ValueError`` if mixed."""
        read = {line: _passing(line) for line in set(self.lines)}
        found: dict[int, set[Passing | None]] = {}
        for ghz, line in enumerate(self.lines, self.first_ghz):
            step = (ghz - _ANCHOR_GHZ) * 4 // _QUARTERS
            found.setdefault(step, set()).add(read[line])
        for edge in (self.first_ghz, self.first_ghz + len(self.lines)):
            # A step that is half outside the band is part of no channel.
            if (edge - _ANCHOR_GHZ) * 4 % _QUARTERS:
                found.pop((edge - _ANCHOR_GHZ) * 4 // _QUARTERS, None)
        for step, ways in found.items():
            if len(ways) > 1:
                raise ValueError(
                    f"the light between {_edge(step)} and {_edge(step + 1)} THz is not treated "
                    f"uniformly"
                )
        return {step: next(iter(ways)) for step, ways in found.items()}


def _passing(rest: str) -> Passing | None:
    columns = rest.split("\t")
    try:
        attenuation_db = float(columns[0])
        _ = float(columns[1])
        port = int(float(columns[2]))
    except (ValueError, IndexError, OverflowError) as error:
        raise ValueError(
            f"no attenuation, phase and port: {rest[:60]!r}"
        ) from error
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
        raise ValueError(
            f"{text[:20]} THz is not a whole number of GHz: expected steps of 1 GHz"
        )
    return whole


def _thz(ghz: int) -> str:
    return f"{ghz // 1000}.{ghz % 1000:03d}0"


def _edge(step: int) -> str:
    return f"{(_ANCHOR_GHZ + step * 6.25) / 1000:g}"


@dataclass(frozen=True)
class WaveShaperDialect(HttpDialect):
    """What a WaveShaper takes. The ``…_key`` entries are keys of its answers."""

    tls: bool = False
    error_words: Pattern = r'"rctext"\s*:\s*(?P<words>"(?:[^"\\]|\\.)*")'
    about: str = "/waveshaper/devinfo"
    profile: str = "/waveshaper/getprofile"
    load: str = "/waveshaper/loadprofile"
    vendor: str = "Finisar"
    model_key: str = "model"
    serial_key: str = "sno"
    software_key: str = "ver"
    port_count_key: str = "portcount"
    result_key: str = "rc"
    words_key: str = "rctext"


WAVESHAPER = WaveShaperDialect()


class WaveShaper(WavelengthSessionDriver[Row]):
    """A WaveShaper. See ``WavelengthDriver`` for the methods."""

    built_in = WAVESHAPER
    client_class = HttpClient
    client: HttpClient
    _dialect: WaveShaperDialect
    capabilities = contract.Capabilities()
    _list_limit = 1 << 16
    _looks_at_once = False

    async def open(self) -> None:
        """Connect to the device, and check that it has the lab's ports."""
        about = await self._about_device()
        count = json_number(about, self._dialect.port_count_key)
        ports = self._switch.ports
        if count < ports:
            raise PatchlightError(
                f"{self.name} has {count} ports in addition to the common one, but the lab file "
                f"says {ports}",
                hint="correct 'inputs' and 'outputs' of the wavelength switch in the lab file",
            )

    async def identify(self) -> contract.Identity:
        """From ``devinfo``."""
        about = await self._about_device()
        dialect = self._dialect
        keys = (dialect.model_key, dialect.serial_key, dialect.software_key)
        model, serial, software = (json_text(about, key) for key in keys)
        return contract.Identity(
            dialect.vendor,
            model,
            serial,
            software,
        )

    async def port_states(self) -> contract.PortStates:
        """All ready: the device reports no states."""
        return dict.fromkeys(
            self._all_ports(),
            contract.PortState("ready", "it reports no states"),
        )

    async def _table(self) -> Mapping[ChannelConnect, Row]:
        channels = self._channels(await self._profile())
        return {self._way(c, passing): UP for c, passing in channels.items()}

    async def _make(self, pairs: Sequence[ChannelConnect]) -> None:
        profile = await self._profile()
        held = self._channels(profile)
        for way in pairs:
            if way.attenuation_db >= BLOCKED_DB:
                raise self._will_not(f"{BLOCKED_DB:g} dB or more is no signal")
            if other := next(
                (c for c in held if c.overlaps(way.channel)), None
            ):
                there = self._way(other, held[other])
                raise self._will_not(
                    f"its channel is in use on the device: {there}"
                )
            passing = Passing(
                way.out if self._spreads else way.inp, way.attenuation_db
            )
            profile = self._with(profile, way.channel, passing)
        await self._load(profile)

    async def _break(
        self,
        pairs: Sequence[ChannelConnect],
        table: Mapping[ChannelConnect, Row],
    ) -> None:
        profile = await self._profile()
        held = {
            self._way(c, passing)
            for c, passing in self._channels(profile).items()
        }
        for way in pairs:
            # Do not block what another client has routed elsewhere meanwhile.
            if way in held:
                profile = self._with(profile, way.channel, None)
        await self._load(profile)

    async def _load(self, profile: Profile) -> None:
        body = json.dumps({"type": "wsp", "wsp": profile.text})
        reply = await self.client.change("POST", self._dialect.load, body)
        self._told = True
        result = reply.body if isinstance(reply.body, dict) else {}
        if (code := result.get(self._dialect.result_key, 0)) != 0:
            words = (
                json_text(result, self._dialect.words_key) or f"result {code}"
            )
            raise contract.DeviceRefused(
                f"{self.name} refused the profile: {words}", words=words
            )

    async def _about_device(self) -> Mapping[str, Any]:
        return await self.client.read(self._dialect.about, json_object)

    async def _profile(self) -> Profile:
        text = await self.client.get_text(self._dialect.profile)
        try:
            return _parsed(text)
        except ValueError as error:
            raise self.client.nonsense(
                self._dialect.profile, str(error)
            ) from error

    def _channels(self, profile: Profile) -> Mapping[Channel, Passing]:
        try:
            return _channels(profile, self.grid)
        except ValueError as error:
            raise contract.DeviceRefused(
                f"{self.name} has a profile of something else than channels: {error}",
                words=str(error),
                hint="load a profile of channels, or one that blocks everything",
            ) from error

    def _with(
        self,
        profile: Profile,
        channel: Channel,
        passing: Passing | None,
    ) -> Profile:
        try:
            return profile.with_channel(channel, passing)
        except ValueError as error:
            raise self._will_not(str(error)) from error

    @property
    def _spreads(self) -> bool:
        """Whether its common port is the input."""
        return self.inputs == 1

    def _way(self, channel: Channel, passing: Passing) -> ChannelConnect:
        ports = (1, passing.port) if self._spreads else (passing.port, 1)
        return ChannelConnect(*ports, channel, passing.attenuation_db)


@functools.lru_cache(maxsize=TABLES_KEPT)
def _parsed(text: str) -> Profile:
    return Profile.parse(text)


@functools.lru_cache(maxsize=TABLES_KEPT)
def _channels(profile: Profile, grid: Grid) -> Mapping[Channel, Passing]:
    return profile.channels(grid)
