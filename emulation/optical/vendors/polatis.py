"""An emulated Polatis: numbers, shutters and limits behind any protocol; SCPI and TL1.

A new cross-connect takes its ports from the ones that hold them, without a word (captured
sessions of others rely on it). A list is done whole or, if one entry cannot be, not at all.
"""

import contextlib
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from patchlight.controller.circuits.contract import SIDES
from patchlight.controller.circuits.drivers.base import Numbering
from patchlight.controller.circuits.drivers.polatis import channels
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.protocols.scpi_server import ScpiError, ScpiServer
from patchlight.emulation.optical.protocols.tl1_server import (
    Tl1Answer,
    Tl1Command,
    Tl1Server,
    deny,
    port_numbers,
    read_map_by_hand,
)
from patchlight.emulation.optical.switch_matrix import (
    Phase,
    Reason,
    RequestRefused,
    SwitchedCircuit,
)
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

    def _at(self, number: int) -> SwitchedCircuit | None:
        matrix, port = self.device.matrix, self._known(number)
        return matrix.at_input(port) if number <= self.numbering.ins else matrix.at_output(port)


_POWER_LIMIT = 256  # ports in one question for power
_LIST = re.compile(r"\s*\(@([^()]*)\)\s*")
_LISTS = re.compile(r"\s*\(@([^()]*)\)\s*,\s*\(@([^()]*)\)\s*")
_SHORT = {
    "switch": "swit", "connect": "conn", "subtract": "sub", "disconnect": "disc",
    "state": "stat", "enable": "enab", "disable": "dis", "power": "pow",
    "system": "syst", "error": "err", "pmonitor": "pmon",
}  # fmt: skip


class PolatisScpiServer(ScpiServer):
    """SCPI with its commands."""

    by_hand = "printf ':oxc:swit:conn:stat?\\n' | nc -q 1 {host} {port}"
    short_forms = _SHORT

    _device: EmulatedOcs

    def __init__(self, device: EmulatedOcs) -> None:
        super().__init__(device)
        self._switch = switch = PolatisSwitch(device)
        self._commands |= {
            "*idn?": self._identity,
            "oxc:swit:size?": self._size,
            "oxc:swit:conn:add": lambda text: switch.connect(*_two_lists(text, even=True)),
            "oxc:swit:conn:only": lambda text: switch.only(*_two_lists(text, even=True)),
            "oxc:swit:conn:sub": lambda text: switch.disconnect(*_two_lists(text, even=False)),
            "oxc:swit:disc:all": lambda text: switch.disconnect_all(),
            "oxc:swit:conn:stat?": self._connections,
            "oxc:swit:conn:port?": self._partner,
            "oxc:swit:port:stat?": self._port_states,
            "oxc:swit:port:enab": lambda text: switch.enable(_numbers(text), on=True),
            "oxc:swit:port:dis": lambda text: switch.enable(_numbers(text), on=False),
            "pmon:pow?": self._power,
        }

    def _refusal(self, refusal: RequestRefused) -> ScpiError:
        port = refusal.port
        code, message = {
            Reason.NO_PORT: (-222, f"Data out of range;port {port}"),
            Reason.BUSY: (-221, f"Settings conflict;port {port} twice"),
            Reason.LOCKED: (-221, f"Settings conflict;port {port} is disabled"),
            Reason.FAILED: (-240, f"Hardware error;port {port} has failed"),
        }.get(refusal.reason, (-200, "Execution error"))
        return ScpiError(code, message)

    async def _identity(self, parameters: str) -> str:
        return f"Polatis,{self._switch.model},{self._switch.serial},{SOFTWARE}"

    async def _size(self, parameters: str) -> str:
        return f"{self._switch.numbering.ins},{self._switch.numbering.outs}"

    async def _connections(self, parameters: str) -> str:
        pairs = self._switch.pairs()
        return f"{_listed(i for i, _ in pairs)},{_listed(o for _, o in pairs)}"

    async def _partner(self, parameters: str) -> str:
        if not parameters.strip().isdigit():
            raise ScpiError(-104, "Data type error")
        partner = self._switch.partner(int(parameters))
        return '""' if partner is None else f'"{partner}"'

    async def _port_states(self, parameters: str) -> str:
        numbers = _numbers(parameters) if parameters else list(self._switch.numbers)
        return f"({','.join(self._switch.state(number) for number in numbers)})"

    async def _power(self, parameters: str) -> str:
        numbers = _numbers(parameters)
        if len(numbers) > _POWER_LIMIT:
            raise ScpiError(-223, f"Too much data;{len(numbers)} ports, at most {_POWER_LIMIT}")
        powers = await self._switch.power(numbers)
        for number in numbers:
            if not self._switch.has_monitor(number):
                raise ScpiError(-241, f"Hardware missing;no power monitor at port {number}")
        return f"({','.join(f'{dbm:.2f}' for dbm in powers)})"


def _two_lists(text: str, *, even: bool) -> tuple[list[int], list[int]]:
    match = _LISTS.fullmatch(text)
    if match is None:
        raise ScpiError(-171, "Invalid expression")
    ins, outs = _channels(match[1]), _channels(match[2])
    if len(ins) != len(outs) and (even or (ins and outs)):
        raise ScpiError(-108, "Parameter not allowed;lists of different length")
    return ins, outs


def _numbers(text: str) -> list[int]:
    match = _LIST.fullmatch(text)
    if match is None:
        raise ScpiError(-171, "Invalid expression")
    return _channels(match[1])


def _channels(text: str) -> list[int]:
    try:
        return channels(text)
    except ValueError as error:
        raise ScpiError(-171, "Invalid expression") from error


def _listed(numbers: Iterable[int]) -> str:
    return f"(@{','.join(map(str, numbers))})"


_SHUTTER = {"E": "OPEN", "D": "CLOSED", "F": "FAILED"}


class PolatisTl1Server(Tl1Server):
    """TL1 with its commands."""

    by_hand = read_map_by_hand("RTRV-PATCH:::2:;")

    _device: EmulatedOcs

    def __init__(self, device: EmulatedOcs) -> None:
        super().__init__(device)
        self._switch = PolatisSwitch(device)
        self._handlers |= {
            "RTRV-NETYPE": self._identity,
            "RTRV-INV": self._inventory,
            "RTRV-EQPT": self._equipment,
            "ED-EQPT": lambda command: None,
            "RTRV-PATCH": self._patches,
            "ENT-PATCH": self._enter,
            "DLT-PATCH": self._delete,
            "RTRV-PORT-SHUTTER": self._shutters,
            "OPR-PORT-SHUTTER": self._turn_shutters,
            "RLS-PORT-SHUTTER": self._turn_shutters,
            "RTRV-PORT-POWER": self._power,
        }

    def _denial(self, refusal: RequestRefused) -> Tl1Answer:
        port = refusal.port
        return {
            Reason.NO_PORT: deny("IIAC", "Invalid port" if port is None else f"No port {port}"),
            Reason.BUSY: deny("IIAC", f"Port {port} is named twice"),
            Reason.LOCKED: deny("SNVS", f"Port {port} is disabled"),
            Reason.FAILED: deny("SROF", f"Port {port} has failed"),
        }.get(refusal.reason, deny("SROF", "Failed"))

    def _aids(self, port: int) -> tuple[str, ...]:
        return tuple(str(self._switch.numbering.to_number(side, port)) for side in SIDES)

    def _identity(self, command: Tl1Command) -> list[str]:
        return [f"Polatis,{self._switch.model},OCS,{SOFTWARE}"]

    def _inventory(self, command: Tl1Command) -> list[str]:
        return [f"OCS::SN={self._switch.serial.replace('-', '')}"]

    def _equipment(self, command: Tl1Command) -> Tl1Answer:
        if command.aid.upper() != "SYSTEM" or "PARAMETER=SIZE" not in command.params:
            return deny("IIAC", f"Invalid AID {command.aid}")
        return Tl1Answer(lines=(f"SYSTEM:SIZE={self._switch.numbering}",))

    def _patches(self, command: Tl1Command) -> list[str]:
        ports = set(self._ports(command.aid))
        return [f"{inp},{out}" for inp, out in self._switch.pairs() if {inp, out} & ports]

    def _shutters(self, command: Tl1Command) -> list[str]:
        ports = self._ports(command.aid)
        return [f"{port}:{_SHUTTER[self._switch.state(port)]}" for port in ports]

    async def _power(self, command: Tl1Command) -> list[str]:
        powers = await self._switch.monitored(self._ports(command.aid))
        return [f"{port}:{dbm:.1f}" for port, dbm in powers.items()]

    async def _enter(self, command: Tl1Command) -> Tl1Answer | None:
        ins, _, outs = command.aid.partition(",")
        lists = self._ports(ins), self._ports(outs)
        if len(lists[0]) != len(lists[1]) or not ins:
            return deny("IIAC", "Lists of different length")
        await self._switch.connect(*lists)
        self._changed("ENT-PATCH", command.aid)
        return None

    async def _delete(self, command: Tl1Command) -> Tl1Answer | None:
        if command.aid.upper() == "ALL":
            await self._switch.disconnect_all()
        elif command.aid:
            await self._switch.disconnect(self._ports(command.aid), ())
        else:
            return deny("IIAC", "Invalid AID")
        self._changed("DLT-PATCH", command.aid)
        return None

    async def _turn_shutters(self, command: Tl1Command) -> None:
        await self._switch.enable(self._ports(command.aid), on=command.verb.startswith("RLS"))

    def _ports(self, aid: str) -> list[int]:
        """The ports of a list or range, all if there is none."""
        known = self._switch.numbers
        return port_numbers(aid, known.__contains__) if aid else list(known)
