"""An emulated OCS behind its vendor's protocol: circuits of a switch matrix, optical power."""

import contextlib
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from patchlight.emulation.optical.crossbar import Crossbar
from patchlight.emulation.optical.emulated_switch import Clock, EmulatedFaults, EmulatedSwitch
from patchlight.emulation.optical.switch_matrix import (
    Phase,
    RequestRefused,
    SwitchedCircuit,
    SwitchMatrix,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.portmap import CrossConnect, PortMap, parse_cross_connects

log = logging.getLogger("patchlight.optical")


class EmulatedOcs(EmulatedSwitch):
    """One emulated OCS; see ``EmulatedSwitch``.

    ``arriving_dbm`` is the power at each plugged input while its transmitter is on (launch
    power less the fibre's loss).
    """

    switch: CircuitSwitch
    matrix: SwitchMatrix
    _crossbar: Crossbar

    def __init__(
        self,
        switch: CircuitSwitch,
        arriving_dbm: Mapping[int, float],
        crossbar: Crossbar,
        *,
        users: Mapping[str, str | None] | None = None,
        state_file: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        faults = EmulatedFaults()
        super().__init__(switch, faults, users=users, state_file=state_file, clock=clock)
        self.switch = switch
        self.matrix = SwitchMatrix(switch.ports, switch.switching_time_s)
        self._arriving_dbm = dict(arriving_dbm)
        self._crossbar = crossbar

    def _begin(self) -> None:
        for c in self.switch.initial:
            self.make((c,))

    # --- changes: call, then await settle ---------------------------------------------------

    def enter(
        self, directions: Iterable[CrossConnect], name: str = "", group: str = ""
    ) -> SwitchedCircuit:
        """Take the ports for a circuit; it stays dark. Raises ``RequestRefused``.

        A device that makes room takes busy ports from their circuits, and is slow then.
        """
        self._changed = True
        directions, conflict_s = tuple(directions), self.switch.emulated.conflict_time_s
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
        self, directions: Iterable[CrossConnect], name: str = "", group: str = ""
    ) -> SwitchedCircuit:
        """Enter and activate a circuit; nothing of it is left if that is ``RequestRefused``."""
        circuit = self.enter(directions, name, group)
        try:
            self.activate(circuit)
        except RequestRefused:
            self.remove(circuit)
            raise
        return circuit

    def deactivate(self, circuit: SwitchedCircuit) -> None:
        """Make it dark; the ports stay taken."""
        self._changed = True
        self.matrix.deactivate(circuit)

    def remove(self, circuit: SwitchedCircuit) -> None:
        """Make it dark and free the ports."""
        self._changed = True
        self.matrix.remove(circuit)

    def remove_all(self, circuits: Iterable[SwitchedCircuit | None]) -> None:
        """Remove each of these once; ``None`` is passed over."""
        for circuit in dict.fromkeys(circuits):
            if circuit is not None:
                self.remove(circuit)

    async def light(self, pairs: Iterable[CrossConnect]) -> list[SwitchedCircuit]:
        """Make these one-way circuits, all or none, and wait until their mirrors rest.

        Raises ``RequestRefused``. One whose mirrors fail is in the table all the same: look at the
        phases of the circuits returned.
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

    async def lose(self, entries: str) -> None:
        """Let cross-connects be gone, each with its whole circuit if it has one."""
        for c in parse_cross_connects(entries):
            if (circuit := self.matrix.find(c)) is not None:
                self.remove(circuit)
        await self.settle()

    async def _meddle(self, entries: str) -> None:
        for c in PortMap.parse(entries.split(",")):
            circuit = self.matrix.find(c)
            if circuit is not None:
                self.remove(circuit)
                continue
            # Where a port is in use the other client is refused, too.
            with contextlib.suppress(RequestRefused):
                self.make((c,))
        await self.settle()

    async def reboot(self, *, keep_map: bool) -> None:
        """See ``EmulatedSwitch``: what was active turns anew."""
        for circuit in tuple(self.matrix):
            active = circuit.phase is not Phase.PARKED
            self.deactivate(circuit)
            if not keep_map:
                self.remove(circuit)
            elif active:
                # A port locked meanwhile leaves its circuit entered and dark.
                with contextlib.suppress(RequestRefused):
                    self.activate(circuit)
        await self.settle()

    # --- readings: await settle, then call --------------------------------------------------

    @property
    def map(self) -> PortMap:
        """The cross-connects that are lit now."""
        outputs = range(1, self.switch.ports + 1)
        lit = ((self.matrix.lights(out), out) for out in outputs)
        return PortMap.of((inp, out) for inp, out in lit if inp is not None)

    def name_of(self, circuit: SwitchedCircuit, otherwise: str) -> str:
        """What the circuit is called; ``otherwise`` where nobody gave it a name."""
        return self.faults.names or circuit.name or otherwise

    async def power(self, ports: Iterable[int]) -> dict[int, tuple[float | None, float | None]]:
        """Power in dBm at ``in:n`` and ``out:n`` of these ports, ``None`` where it is dark."""
        ports = tuple(ports)
        sources = {out: self.matrix.lights(out) for out in ports}
        inputs = {*ports, *(inp for inp in sources.values() if inp is not None)}
        on = await self._crossbar.receiving(inputs)
        arriving = {inp: self._arriving_dbm.get(inp) if inp in on else None for inp in inputs}
        readings = {}
        for port in ports:
            inp = sources[port]
            dbm = None if inp is None else arriving[inp]
            if inp is not None and dbm is not None:
                dbm -= self.loss_db(CrossConnect(inp, port))
                dbm -= self.faults.drift_db.get(str(port), 0.0)
            readings[port] = (arriving[port], dbm)
        return readings

    async def _follow(self, now: float) -> None:
        change = self.matrix.take(now)
        if not change:
            return
        try:
            await self._crossbar.change(change)
        except PatchlightError as error:
            log.error("%s: %s", self.switch.name, error)
            for c in change.light:
                self.matrix.fail(c)

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
            directions = [CrossConnect(inp, out) for inp, out in each["directions"]]
            circuit = self.enter(directions, each["name"], each["group"])
            if each["active"]:
                self.activate(circuit)
