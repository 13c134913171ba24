"""What an emulated Polatis does behind whichever of its protocols: numbers, shutters, limits.

A new cross-connect takes its ports from the ones that hold them, without a word (captured
sessions of others rely on it). A list is done whole or, if one entry cannot be, not at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Literal

from patchlight.controller.circuits.drivers.numbered import Numbering
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.switch_matrix import Circuit, Phase, Reason, RequestRefused
from patchlight.testbed.portmap import CrossConnect

SOFTWARE = "6.5.2.18-emulated"
_DARK_DBM = -60.0  # what a monitor shows of no light

PortLetter = Literal["E", "D", "F"]


class PolatisSwitch:
    """The switch by its vendor's port numbers; refusals name such a number, too."""

    def __init__(self, device: EmulatedOcs) -> None:
        ports = device.switch.ports
        self.device = device
        self.numbering = Numbering.polatis(ports, ports)
        self.model = f"I-OST-{self.numbering}-LU1-DMHNS"
        self.serial = f"EMU-{device.switch.name}"
        self._disabled: set[int] = set()

    @property
    def numbers(self) -> range:
        """Every port's number."""
        return range(1, self.numbering.ins + self.numbering.outs + 1)

    def pairs(self) -> list[tuple[int, int]]:
        """The cross-connects as numbers, in the order made."""
        directions = (c for circuit in self.device.matrix for c in circuit.directions)
        return [self._pair(c) for c in directions]

    def partner(self, number: int) -> int | None:
        """The port that this one is joined to."""
        for inp, out in self.pairs():
            if number in (inp, out):
                return out if number == inp else inp
        self._known(number)
        return None

    async def connect(self, ins: Sequence[int], outs: Sequence[int]) -> None:
        """Join each of ``ins`` to its counterpart in ``outs``, and wait for the light."""
        matrix = self.device.matrix
        wanted = [self._cross_connect(inp, out) for inp, out in zip(ins, outs, strict=True)]
        for numbers in (ins, outs):
            twice = [number for number in numbers if numbers.count(number) > 1]
            if twice:
                raise RequestRefused(Reason.BUSY, port=twice[0])
        for number in (*ins, *outs):
            state = self.state(number)
            if state != "E":
                raise RequestRefused(Reason.FAILED if state == "F" else Reason.LOCKED, port=number)
        new = [c for c in wanted if matrix.find(c) is None]
        for c in new:
            for there in {matrix.at_input(c.inp), matrix.at_output(c.out)}:
                if there is not None:
                    self.device.remove(there)
        made = await self.device.light(new)
        failed = [circuit for circuit in made if circuit.phase is Phase.FAILED]
        for circuit in failed:
            self.device.remove(circuit)
        if failed:
            raise RequestRefused(Reason.FAILED, port=self._pair(failed[0].directions[0])[0])

    async def disconnect(self, ins: Sequence[int], outs: Sequence[int]) -> None:
        """Break these; of ports without a counterpart, whatever they are joined to."""
        for number in (*ins, *outs):
            self._known(number)
        if ins and outs:
            wanted = [self._cross_connect(inp, out) for inp, out in zip(ins, outs, strict=True)]
            going = [self.device.matrix.find(c) for c in wanted]
        else:
            going = [self._at(number) for number in (*ins, *outs)]
        for circuit in dict.fromkeys(going):
            if circuit is not None:
                self.device.remove(circuit)
        await self.device.settle()

    async def disconnect_all(self) -> None:
        """Break everything."""
        for circuit in tuple(self.device.matrix):
            self.device.remove(circuit)
        await self.device.settle()

    async def only(self, ins: Sequence[int], outs: Sequence[int]) -> None:
        """Replace the whole map."""
        wanted = {self._cross_connect(inp, out) for inp, out in zip(ins, outs, strict=True)}
        for circuit in tuple(self.device.matrix):
            if not wanted.issuperset(circuit.directions):
                self.device.remove(circuit)
        await self.connect(ins, outs)

    def state(self, number: int) -> PortLetter:
        """Enabled, disabled or failed."""
        port, matrix = self._known(number), self.device.matrix
        if port in matrix.failed:
            return "F"
        return "D" if number in self._disabled or port in matrix.locked else "E"

    async def enable(self, numbers: Iterable[int], *, on: bool) -> None:
        """Open or close the shutters of these ports; a closed one lets no light through."""
        numbers = set(numbers)
        for number in numbers:
            self._known(number)
        self._disabled = self._disabled - numbers if on else self._disabled | numbers
        for circuit in tuple(self.device.matrix):
            ends = {number for c in circuit.directions for number in self._pair(c)}
            if not ends & numbers:
                continue
            if ends & self._disabled:
                self.device.deactivate(circuit)
            elif circuit.phase is Phase.PARKED:
                with contextlib.suppress(RequestRefused):
                    self.device.activate(circuit)
        await self.device.come_to_rest()

    def has_monitor(self, number: int) -> bool:
        """Whether there is a power monitor at that port."""
        monitors = self.device.faults.monitors
        return monitors == "both" or (monitors == "out" and number > self.numbering.ins)

    async def power(self, numbers: Sequence[int]) -> list[float]:
        """Power in dBm at each; the monitor's floor where it is dark."""
        ports = {number: self._known(number) for number in numbers}
        readings = await self.device.power(set(ports.values()))
        found = []
        for number in numbers:
            arriving, leaving = readings[ports[number]]
            dbm = arriving if number <= self.numbering.ins else leaving
            found.append(_DARK_DBM if dbm is None else dbm)
        return found

    # --- inside -----------------------------------------------------------------------------

    def _known(self, number: int) -> int:
        """The canonical port of that number."""
        port = self.numbering.to_port(number)
        if port is None:
            raise RequestRefused(Reason.NO_PORT, port=number)
        return port.number

    def _pair(self, c: CrossConnect) -> tuple[int, int]:
        return c.inp, self.numbering.to_number("out", c.out)

    def _cross_connect(self, inp: int, out: int) -> CrossConnect:
        self._known(inp)
        self._known(out)
        found = self.numbering.to_directed(inp, out)
        if found is None:
            raise RequestRefused(Reason.NO_PORT, port=out)
        return found

    def _at(self, number: int) -> Circuit | None:
        matrix, port = self.device.matrix, self._known(number)
        return matrix.at_input(port) if number <= self.numbering.ins else matrix.at_output(port)
