"""An emulated wavelength switch behind its vendor's protocol: channels, and their power."""

import contextlib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from patchlight.emulation.optical.channel_crossbar import Arriving, ChannelCrossbar
from patchlight.emulation.optical.emulated_switch import Clock, EmulatedSwitch
from patchlight.emulation.optical.faults import Faults
from patchlight.emulation.optical.spectrum_matrix import SpectrumMatrix
from patchlight.emulation.optical.switch_matrix import Phase, RequestRefused
from patchlight.testbed.lab.spectrum import ChannelConnect, SpectrumMap, parse_channel_connects
from patchlight.testbed.lab.wavelengths import WavelengthSwitch


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
        faults = Faults()
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
