"""Emulates an OCS and a wavelength switch, independently of their protocols."""

import contextlib
import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from patchlight.emulation.optical import matrices
from patchlight.emulation.optical.crossbar import ChannelCrossbar, Crossbar
from patchlight.emulation.optical.emulated_switch import (
    DeviceOptions,
    EmulatedSwitch,
)
from patchlight.emulation.optical.matrices import (
    LightChange,
    Phase,
    RequestRefused,
    SwitchedCircuit,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.portmap import (
    CrossConnect,
    PortMap,
    parse_cross_connects,
)
from patchlight.testbed.lab.spectrum import (
    ChannelConnect,
    SpectrumMap,
    parse_channel_connects,
)
from patchlight.testbed.lab.wavelengths import WavelengthSwitch

log = logging.getLogger("patchlight.optical")


class EmulatedOcs(EmulatedSwitch):
    """One emulated OCS; see ``EmulatedSwitch``.

    ``arriving_dbm`` is the power at each plugged input while its transmitter is on (launch power
    minus the fibre's loss).
    """

    switch: CircuitSwitch
    matrix: matrices.SwitchMatrix
    _crossbar: Crossbar
    _parse_entries = staticmethod(parse_cross_connects)
    _parse_map = PortMap.parse

    def __init__(
        self,
        switch: CircuitSwitch,
        arriving_dbm: Mapping[int, float],
        crossbar: Crossbar,
        **options: Unpack[DeviceOptions],
    ) -> None:
        matrix = matrices.SwitchMatrix(switch.ports, switch.switching_time_s)
        super().__init__(
            switch,
            matrix,
            crossbar,
            **options,
        )
        self._arriving_dbm = dict(arriving_dbm)
        self._blocked: frozenset[CrossConnect] = frozenset()

    # --- changes: call, then await settle ---------------------------------------------------

    def enter(
        self,
        directions: Iterable[CrossConnect],
        name: str = "",
        group: str = "",
    ) -> SwitchedCircuit:
        """Reserve the ports for a circuit, which stays inactive. Raises ``RequestRefused``.

        A device that makes room disconnects busy ports, and is slower then.
        """
        self._changed = True
        directions = tuple(directions)
        conflict_s = self.switch.emulated.conflict_time_s
        if conflict_s is None:
            return self.matrix.enter(directions, name, group)
        in_the_way = self.matrix.in_the_way(directions)
        self.remove_all(in_the_way)
        circuit = self.matrix.enter(directions, name, group)
        circuit.switching_time_s = conflict_s if in_the_way else None
        return circuit

    def activate(self, circuit: SwitchedCircuit) -> None:
        """Turn the mirrors to it. Raises ``RequestRefused``."""
        self._changed = True
        self.matrix.activate(circuit, self._clock.time())

    def make(
        self,
        directions: Iterable[CrossConnect],
        name: str = "",
        group: str = "",
    ) -> SwitchedCircuit:
        """Reserve and activate a circuit; ``RequestRefused`` leaves nothing of it."""
        circuit = self.enter(directions, name, group)
        try:
            self.activate(circuit)
        except RequestRefused:
            self.remove(circuit)
            raise
        return circuit

    def deactivate(self, circuit: SwitchedCircuit) -> None:
        """Deactivate it; the ports stay reserved."""
        self._changed = True
        self.matrix.deactivate(circuit)

    def remove(self, circuit: SwitchedCircuit) -> None:
        """Deactivate it and free the ports."""
        self._changed = True
        self.matrix.remove(circuit)

    def remove_all(self, circuits: Iterable[SwitchedCircuit | None]) -> None:
        """Remove each of these once; ``None`` is skipped."""
        for circuit in dict.fromkeys(circuits):
            if circuit is not None:
                self.remove(circuit)

    async def light(
        self, pairs: Iterable[CrossConnect]
    ) -> list[SwitchedCircuit]:
        """Make these one-way circuits, all or none, and wait until their mirrors rest.

        Raises ``RequestRefused``. A circuit whose mirrors fail stays in the table: check the phases
        of the returned circuits.
        """
        made: list[SwitchedCircuit] = []
        try:
            for c in pairs:
                made.append(self.make((c,)))
        except RequestRefused:
            self.remove_all(made)
            raise
        await self.come_to_rest()
        return made

    def _add(self, entry: CrossConnect) -> None:
        self.make((entry,))

    def _drop(self, entry: CrossConnect) -> bool:
        """Including the reverse direction of a two-way circuit."""
        circuit = self.matrix.find(entry)
        self.remove_all((circuit,))
        return circuit is not None

    async def reboot(self, *, keep_map: bool) -> None:
        """See ``EmulatedSwitch``."""
        for circuit in tuple(self.matrix):
            active = circuit.phase is not Phase.PARKED
            self.deactivate(circuit)
            if not keep_map:
                self.remove(circuit)
            elif active:
                # A port locked meanwhile leaves its circuit reserved and inactive.
                with contextlib.suppress(RequestRefused):
                    self.activate(circuit)
        await self.settle()

    # --- readings: await settle, then call --------------------------------------------------

    @property
    def map(self) -> PortMap:
        """The active cross-connects."""
        outputs = range(1, self.switch.ports + 1)
        lit = ((self.matrix.lights(out), out) for out in outputs)
        return PortMap.of((inp, out) for inp, out in lit if inp is not None)

    def name_of(self, circuit: SwitchedCircuit, otherwise: str) -> str:
        """The circuit's name; ``otherwise`` if it has none."""
        return self.faults.names or circuit.name or otherwise

    async def power(
        self, ports: Iterable[int]
    ) -> dict[int, tuple[float | None, float | None]]:
        """Power in dBm at ``in:n`` and ``out:n`` of these ports, ``None`` without a signal."""
        ports = tuple(ports)
        sources = {out: self.matrix.lights(out) for out in ports}
        inputs = {
            *ports,
            *(inp for inp in sources.values() if inp is not None),
        }
        on = await self._crossbar.receiving(inputs)
        arriving = {
            inp: self._arriving_dbm.get(inp) if inp in on else None
            for inp in inputs
        }
        readings = {}
        for port in ports:
            inp = sources[port]
            dbm = None if inp is None else arriving[inp]
            if inp is not None and CrossConnect(inp, port) in self._blocked:
                dbm = None
            if inp is not None and dbm is not None:
                dbm -= self.loss_db(CrossConnect(inp, port))
                dbm -= self.faults.drift_db.get(str(port), 0.0)
            readings[port] = (arriving[port], dbm)
        return readings

    async def _follow(self, now: float) -> None:
        change = self._without_blocked(self.matrix.take(now))
        if not change:
            return
        try:
            await self._crossbar.change(change)
        except PatchlightError as error:
            log.error("%s: %s", self.switch.name, error)
            for c in change.light:
                self.matrix.fail(c)

    def _without_blocked(self, change: LightChange) -> LightChange:
        """The change without circuits at ``dark_ports``; those that became dark, or are not any
        more, with it."""
        before = self._blocked
        dark_ports = self.faults.dark_ports
        if not before and not dark_ports:
            return change
        active = frozenset(self.map)
        self._blocked = frozenset(
            c for c in active if c.inp in dark_ports or c.out in dark_ports
        )
        lit = (*change.light, *sorted((before & active) - self._blocked))
        dark = (*change.dark, *sorted(c.inp for c in self._blocked - before))
        return LightChange(
            dark, tuple(c for c in lit if c not in self._blocked)
        )

    def _kept(self) -> list[dict[str, Any]]:
        return [
            {
                "directions": [[c.inp, c.out] for c in circuit.directions],
                "name": circuit.name,
                "group": circuit.group,
                "active": circuit.phase is not Phase.PARKED,
            }
            for circuit in self.matrix
        ]

    def _restore(self, kept: list[dict[str, Any]]) -> None:
        for each in kept:
            directions = [
                CrossConnect(inp, out) for inp, out in each["directions"]
            ]
            circuit = self.enter(directions, each["name"], each["group"])
            if each["active"]:
                self.activate(circuit)


class EmulatedWss(EmulatedSwitch):
    """One emulated wavelength switch; see ``EmulatedSwitch``."""

    switch: WavelengthSwitch
    matrix: matrices.SpectrumMatrix
    _crossbar: ChannelCrossbar
    _parse_entries = staticmethod(parse_channel_connects)
    _parse_map = SpectrumMap.parse

    def __init__(
        self,
        switch: WavelengthSwitch,
        crossbar: ChannelCrossbar,
        **options: Unpack[DeviceOptions],
    ) -> None:
        matrix = matrices.SpectrumMatrix(
            switch.inputs, switch.outputs, switch.switching_time_s
        )
        super().__init__(
            switch,
            matrix,
            crossbar,
            **options,
        )
        self._passing = SpectrumMap()

    # --- changes: call, then await settle ---------------------------------------------------

    def make(self, ways: Iterable[ChannelConnect]) -> None:
        """Add all of these or none; ``RequestRefused``."""
        self._changed = True
        self.matrix.make(ways, self._clock.time())

    def remove(self, ways: Iterable[ChannelConnect]) -> None:
        """Remove these, if they exist."""
        self._changed = True
        self.matrix.remove(ways)

    def load(self, wanted: SpectrumMap) -> None:
        """Set exactly this map without an outage of unchanged entries. ``RequestRefused``."""
        self._changed = True
        self.matrix.load(wanted, self._clock.time())

    def _add(self, entry: ChannelConnect) -> None:
        self.make((entry,))

    def _drop(self, entry: ChannelConnect) -> bool:
        is_there = entry in self.matrix.entries
        self.remove((entry,))
        return is_there

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

    async def channel_powers(
        self,
    ) -> dict[ChannelConnect, tuple[float | None, float | None]]:
        """Power in dBm of each entry's channel at input and output, ``None`` without a signal."""
        arriving = await self._crossbar.arriving()
        powers = {}
        for way in self.matrix:
            light = arriving.get(way.inp, {}).items()
            entering = _sum_dbm(
                dbm for channel, dbm in light if channel.within(way.channel)
            )
            leaving = None
            if entering is not None and way in self._passing:
                drift_db = self.faults.drift_db.get(str(way.out), 0.0)
                less_db = (
                    self.loss_db(way.ports) + way.attenuation_db + drift_db
                )
                leaving = entering - less_db
            powers[way] = (entering, leaving)
        return powers

    async def input_powers(self) -> dict[int, float | None]:
        """Total power in dBm at each input, ``None`` without a signal."""
        arriving = await self._crossbar.arriving()
        inputs = range(1, self.switch.inputs + 1)
        return {
            inp: _sum_dbm(arriving.get(inp, {}).values()) for inp in inputs
        }

    async def output_powers(self) -> dict[int, float | None]:
        """Total power in dBm at each output, ``None`` without a signal."""
        leaving: dict[int, list[float]] = {
            out: [] for out in range(1, self.switch.outputs + 1)
        }
        for way, (_, dbm) in (await self.channel_powers()).items():
            if dbm is not None:
                leaving[way.out].append(dbm)
        return {out: _sum_dbm(dbms) for out, dbms in leaving.items()}

    async def _follow(self, now: float) -> None:
        self.matrix.take(now)
        dark_ports = self.faults.dark_ports
        lit = self.matrix.lit
        passing = lit.without(
            way
            for way in lit
            if way.inp in dark_ports or way.out in dark_ports
        )
        if passing != self._passing:
            self._passing = passing
            await self._crossbar.change(passing)

    def _kept(self) -> list[dict[str, Any]]:
        return [{"way": str(way)} for way in self.matrix]

    def _restore(self, kept: list[dict[str, Any]]) -> None:
        self.make(SpectrumMap.parse(each["way"] for each in kept))


def _sum_dbm(dbms: Iterable[float]) -> float | None:
    milliwatts = sum(10 ** (dbm / 10) for dbm in dbms)
    return 10 * math.log10(milliwatts) if milliwatts else None
