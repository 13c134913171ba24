"""What an emulated Polatis does behind whichever of its protocols: numbers, shutters, limits.

A new cross-connect takes its ports from the ones that hold them, without a word (captured
sessions of others rely on it). A list is done whole or, if one entry cannot be, not at all.
"""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Literal

from patchlight.controller.circuits.drivers.numbered import Numbering
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.switch_matrix import Circuit, Phase, Reason, RequestRefused
from patchlight.testbed.lab.portmap import CrossConnect

SOFTWARE = "6.5.2.18-emulated"
_DARK_DBM = -60.0  # what a monitor shows of no light

PortLetter = Literal["E", "D", "F"]
STATUS: dict[PortLetter, str] = {"E": "ENABLED", "D": "DISABLED", "F": "FAILED"}


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
        cross_connects = self._cross_connects(ins, outs)
        for numbers in (ins, outs):
            twice = [number for number in numbers if numbers.count(number) > 1]
            if twice:
                raise RequestRefused(Reason.BUSY, port=twice[0])
        for number in (*ins, *outs):
            state = self.state(number)
            if state != "E":
                raise RequestRefused(Reason.FAILED if state == "F" else Reason.LOCKED, port=number)
        new = [c for c in cross_connects if matrix.find(c) is None]
        for c in new:
            self.device.remove_all((matrix.at_input(c.inp), matrix.at_output(c.out)))
        made = await self.device.light(new)
        failed = [circuit for circuit in made if circuit.phase is Phase.FAILED]
        self.device.remove_all(failed)
        if failed:
            raise RequestRefused(Reason.FAILED, port=self._pair(failed[0].directions[0])[0])

    async def disconnect(self, ins: Sequence[int], outs: Sequence[int]) -> None:
        """Break these; of ports without a counterpart, whatever they are joined to."""
        for number in (*ins, *outs):
            self._known(number)
        if ins and outs:
            circuits = [self.device.matrix.find(c) for c in self._cross_connects(ins, outs)]
        else:
            circuits = [self._at(number) for number in (*ins, *outs)]
        self.device.remove_all(circuits)
        await self.device.settle()

    async def disconnect_all(self) -> None:
        """Break everything."""
        self.device.remove_all(self.device.matrix)
        await self.device.settle()

    async def only(self, ins: Sequence[int], outs: Sequence[int]) -> None:
        """Replace the whole map."""
        kept = set(self._cross_connects(ins, outs))
        self.device.remove_all(c for c in self.device.matrix if not kept.issuperset(c.directions))
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
        ports = [self._known(number) for number in numbers]
        readings = await self.device.power(set(ports))
        sides = [0 if number <= self.numbering.ins else 1 for number in numbers]
        powers = [readings[port][side] for port, side in zip(ports, sides, strict=True)]
        return [_DARK_DBM if dbm is None else dbm for dbm in powers]

    async def monitored(self, numbers: Iterable[int]) -> dict[int, float]:
        """Power in dBm at those of these ports that have a monitor."""
        numbers = [number for number in numbers if self.has_monitor(number)]
        return dict(zip(numbers, await self.power(numbers), strict=True))

    def product(self) -> dict[str, str]:
        """What ``product-information`` of its YANG module says."""
        return {
            "manufacturer": "Polatis",
            "serial-number": self.serial,
            "model-name": self.model,
            "software-version": SOFTWARE,
        }

    def _known(self, number: int) -> int:
        """The canonical port of that number."""
        port = self.numbering.to_port(number)
        if port is None:
            raise RequestRefused(Reason.NO_PORT, port=number)
        return port.number

    def _pair(self, c: CrossConnect) -> tuple[int, int]:
        return c.inp, self.numbering.to_number("out", c.out)

    def _cross_connects(self, ins: Sequence[int], outs: Sequence[int]) -> list[CrossConnect]:
        cross_connects = []
        for inp, out in zip(ins, outs, strict=True):
            self._known(inp)
            self._known(out)
            cross_connect = self.numbering.to_directed(inp, out)
            if cross_connect is None:
                raise RequestRefused(Reason.NO_PORT, port=out)
            cross_connects.append(cross_connect)
        return cross_connects

    def _at(self, number: int) -> Circuit | None:
        matrix, port = self.device.matrix, self._known(number)
        return matrix.at_input(port) if number <= self.numbering.ins else matrix.at_output(port)
