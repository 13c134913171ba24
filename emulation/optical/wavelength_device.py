"""An emulated wavelength switch behind its vendor's protocol: channels, and their power."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchlight.emulation.optical.crossbar import Arriving, ChannelCrossbar
from patchlight.emulation.optical.emulated_switch import Clock, EmulatedFaults, EmulatedSwitch
from patchlight.emulation.optical.switch_matrix import Phase, Reason, RequestRefused
from patchlight.testbed.lab.spectrum import ChannelConnect, SpectrumMap, parse_channel_connects
from patchlight.testbed.lab.wavelengths import WavelengthSwitch


@dataclass(frozen=True, slots=True)
class SpectrumEntry:
    """How far an entry is; ``due`` is when it is lit, if it is switching."""

    phase: Phase
    due: float = 0.0


@dataclass
class SpectrumMatrix:
    """Inputs 1…``inputs`` and outputs 1…``outputs``; any channel of any input to any output.

    A state machine without a clock or sockets: time comes in as an argument. Light passes an entry
    once the switching time is over, until it is removed. No entry touches another.
    """

    inputs: int
    outputs: int
    switching_time_s: float
    locked: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._entries: dict[ChannelConnect, SpectrumEntry] = {}
        self._shown = SpectrumMap()

    def __iter__(self) -> Iterator[ChannelConnect]:
        """Every entry, lit or not, in the order made."""
        return iter(tuple(self._entries))

    @property
    def entries(self) -> Mapping[ChannelConnect, SpectrumEntry]:
        """How far each is."""
        return self._entries

    @property
    def lit(self) -> SpectrumMap:
        """What lets light through now."""
        return SpectrumMap.of(w for w, entry in self._entries.items() if entry.phase is Phase.LIT)

    @property
    def dark(self) -> SpectrumMap:
        """What is in the table and lets none through: it switches, or has failed."""
        return SpectrumMap.of(w for w, e in self._entries.items() if e.phase is not Phase.LIT)

    def make(self, ways: Iterable[ChannelConnect], now: float) -> None:
        """Enter all of these, or none and raise ``RequestRefused``; they are lit in time."""
        ways = tuple(dict.fromkeys(ways))
        entered = list(self._entries)
        for way in ways:
            self._check(way)
            if way in self._entries:
                raise RequestRefused(Reason.EXISTS, port=way.inp, message=f"{way} exists")
            if other := next((other for other in entered if other.clashes(way)), None):
                message = f"channel overlaps that of {other}"
                raise RequestRefused(Reason.BUSY, port=way.out, message=message)
            entered.append(way)
        for way in ways:
            self._entries[way] = self._begun(way, now)

    def remove(self, ways: Iterable[ChannelConnect]) -> None:
        """Go dark at once; what is not there is passed over."""
        for way in ways:
            self._entries.pop(way, None)

    def load(self, wanted: SpectrumMap, now: float) -> None:
        """Have exactly this, or raise ``RequestRefused``. What is the same is not touched.

        An attenuation is set in place: the channel stays lit.
        """
        fresh = {}
        before = {way._replace(attenuation_db=0.0): entry for way, entry in self._entries.items()}
        for way in wanted:
            entry = before.get(way._replace(attenuation_db=0.0))
            if entry is None:
                self._check(way)
                entry = self._begun(way, now)
            fresh[way] = entry
        self._entries = fresh

    def next_due(self) -> float | None:
        """When the next entry is lit, or ``None`` if none switches."""
        switching = (e.due for e in self._entries.values() if e.phase is Phase.SWITCHING)
        return min(switching, default=None)

    def take(self, now: float) -> SpectrumMap | None:
        """What is lit now; ``None`` if that is what the last call said."""
        for way, entry in self._entries.items():
            if entry.phase is Phase.SWITCHING and entry.due <= now:
                self._entries[way] = SpectrumEntry(Phase.LIT)
        lit = self.lit
        if lit == self._shown:
            return None
        self._shown = lit
        return lit

    def _begun(self, way: ChannelConnect, now: float) -> SpectrumEntry:
        if {way.inp, way.out} & self.failed:
            return SpectrumEntry(Phase.FAILED)
        return SpectrumEntry(Phase.SWITCHING, now + self.switching_time_s)

    def _check(self, way: ChannelConnect) -> None:
        for port, count in ((way.inp, self.inputs), (way.out, self.outputs)):
            if not 1 <= port <= count:
                raise RequestRefused(Reason.NO_PORT, port=port)
            if port in self.locked:
                raise RequestRefused(Reason.LOCKED, port=port)


class EmulatedWss(EmulatedSwitch):
    """One emulated wavelength switch; see ``EmulatedSwitch``. ``crossbar`` carries its light."""

    switch: WavelengthSwitch
    matrix: SpectrumMatrix
    _crossbar: ChannelCrossbar

    def __init__(
        self,
        switch: WavelengthSwitch,
        crossbar: ChannelCrossbar,
        *,
        users: Mapping[str, str | None] | None = None,
        state_file: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        faults = EmulatedFaults()
        faults.parse_map = SpectrumMap.parse
        super().__init__(switch, faults, users=users, state_file=state_file, clock=clock)
        self.switch = switch
        self.matrix = SpectrumMatrix(switch.inputs, switch.outputs, switch.switching_time_s)
        self._crossbar = crossbar

    # --- changes: call, then await settle ---------------------------------------------------

    def make(self, ways: Iterable[ChannelConnect]) -> None:
        """Enter all of these or none; ``RequestRefused``."""
        self._changed = True
        self.matrix.make(ways, self._clock.time())

    def remove(self, ways: Iterable[ChannelConnect]) -> None:
        """Make these dark, as far as they are there."""
        self._changed = True
        self.matrix.remove(ways)

    def load(self, wanted: SpectrumMap) -> None:
        """Have exactly this; what stays is never dark. ``RequestRefused``."""
        self._changed = True
        self.matrix.load(wanted, self._clock.time())

    async def lose(self, entries: str) -> None:
        """See ``EmulatedSwitch``."""
        self.remove(parse_channel_connects(entries))
        await self.settle()

    async def _meddle(self, entries: str) -> None:
        for way in SpectrumMap.parse(entries.split(",")):
            if way in self.matrix.entries:
                self.remove([way])
                continue
            # Where a channel is in use the other client is refused, too.
            with contextlib.suppress(RequestRefused):
                self.make([way])
        await self.settle()

    async def reboot(self, *, keep_map: bool) -> None:
        """See ``EmulatedSwitch``."""
        before = tuple(self.matrix)
        self.remove(before)
        await self.settle()
        for way in before if keep_map else ():
            # A port locked meanwhile loses its channels.
            with contextlib.suppress(RequestRefused):
                self.make([way])
        await self.settle()

    # --- readings: await settle, then call --------------------------------------------------

    async def channel_powers(self) -> dict[ChannelConnect, tuple[float | None, float | None]]:
        """Power in dBm of each entry's light at its input and output, ``None`` where it is dark."""
        arriving = await self._crossbar.arriving()
        powers = {}
        for way, entry in self.matrix.entries.items():
            entering = _sum_dbm(_within(arriving, way))
            leaving = None
            if entering is not None and entry.phase is Phase.LIT:
                drift_db = self.faults.drift_db.get(str(way.out), 0.0)
                less_db = self.loss_db(way.ports) + way.attenuation_db + drift_db
                leaving = entering - less_db
            powers[way] = (entering, leaving)
        return powers

    async def input_powers(self) -> dict[int, float | None]:
        """Power in dBm of all light at each input, ``None`` where it is dark."""
        arriving = await self._crossbar.arriving()
        inputs = range(1, self.switch.inputs + 1)
        return {inp: _sum_dbm(arriving.get(inp, {}).values()) for inp in inputs}

    async def output_powers(self) -> dict[int, float | None]:
        """The same at each output."""
        leaving: dict[int, list[float]] = {out: [] for out in range(1, self.switch.outputs + 1)}
        for way, (_, dbm) in (await self.channel_powers()).items():
            if dbm is not None:
                leaving[way.out].append(dbm)
        return {out: _sum_dbm(dbms) for out, dbms in leaving.items()}

    def _begin(self) -> None:
        self.make(self.switch.initial)

    async def _follow(self, now: float) -> None:
        lit = self.matrix.take(now)
        if lit is not None:
            await self._crossbar.change(lit)

    def _kept(self) -> list[dict[str, Any]]:
        return [{"way": str(way)} for way in self.matrix]

    def _restore(self, kept: list[dict[str, Any]]) -> None:
        self.make(SpectrumMap.parse(each["way"] for each in kept))


def _within(arriving: Arriving, way: ChannelConnect) -> list[float]:
    light = arriving.get(way.inp, {})
    return [dbm for channel, dbm in light.items() if channel.within(way.channel)]


def _sum_dbm(dbms: Iterable[float]) -> float | None:
    milliwatts = sum(10 ** (dbm / 10) for dbm in dbms)
    return 10 * math.log10(milliwatts) if milliwatts else None
