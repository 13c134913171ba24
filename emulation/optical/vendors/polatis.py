"""Emulates a Polatis: its port numbers, shutters and limits for any protocol, and SCPI.

A new cross-connect silently replaces those that use its ports (captured sessions rely on it). A
list is done completely or not at all.
"""

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Literal

from patchlight.controller.circuits.contract import Side
from patchlight.controller.circuits.drivers.base import Numbering
from patchlight.controller.circuits.drivers.polatis import channels, units
from patchlight.controller.circuits.protocols.tcp import (
    FramingError,
    LineFramer,
)
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.matrices import (
    Phase,
    Reason,
    RequestRefused,
    SwitchedCircuit,
)
from patchlight.emulation.optical.protocols.server import ProtocolServer
from patchlight.testbed.lab.portmap import CrossConnect

SOFTWARE = "6.5.2.18-emulated"
_DARK_DBM = -60.0  # a monitor's reading without a signal

PortLetter = Literal["E", "D", "F"]
STATUS: dict[PortLetter, str] = {
    "E": "ENABLED",
    "D": "DISABLED",
    "F": "FAILED",
}


class PolatisSwitch:
    """The switch with its vendor's port numbers, also in refusals."""

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
        """The cross-connects as numbers, in order of creation."""
        return [
            self._pair(c)
            for circuit in self.device.matrix
            for c in circuit.directions
        ]

    def partner(self, number: int) -> int | None:
        """The port that this one is connected to."""
        for inp, out in self.pairs():
            if number in (inp, out):
                return out if number == inp else inp
        self._known(number)
        return None

    async def connect(self, ins: Sequence[int], outs: Sequence[int]) -> None:
        """Connect each of ``ins`` to its counterpart in ``outs``, and wait until active."""
        matrix = self.device.matrix
        cross_connects = self._cross_connects(ins, outs)
        for numbers in (ins, outs):
            twice = [number for number in numbers if numbers.count(number) > 1]
            if twice:
                raise RequestRefused(Reason.BUSY, port=twice[0])
        for number in (*ins, *outs):
            state = self.state(number)
            if state != "E":
                raise RequestRefused(
                    Reason.FAILED if state == "F" else Reason.LOCKED,
                    port=number,
                )
        new = [c for c in cross_connects if matrix.find(c) is None]
        for c in new:
            self.device.remove_all(
                (matrix.at("in", c.inp), matrix.at("out", c.out))
            )
        made = await self.device.light(new)
        failed = [circuit for circuit in made if circuit.phase is Phase.FAILED]
        self.device.remove_all(failed)
        if failed:
            raise RequestRefused(
                Reason.FAILED, port=self._pair(failed[0].directions[0])[0]
            )

    async def disconnect(
        self, ins: Sequence[int], outs: Sequence[int]
    ) -> None:
        """Break these; for ports without a counterpart, all their connections."""
        for number in (*ins, *outs):
            self._known(number)
        if ins and outs:
            circuits = [
                self.device.matrix.find(c)
                for c in self._cross_connects(ins, outs)
            ]
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
        self.device.remove_all(
            c for c in self.device.matrix if not kept.issuperset(c.directions)
        )
        await self.connect(ins, outs)

    def state(self, number: int) -> PortLetter:
        """Enabled, disabled or failed."""
        port = self._known(number)
        matrix = self.device.matrix
        if port in matrix.failed:
            return "F"
        return (
            "D" if number in self._disabled or port in matrix.locked else "E"
        )

    async def enable(self, numbers: Iterable[int], *, on: bool) -> None:
        """Open or close the shutters of these ports; a closed one blocks the signal."""
        numbers = set(numbers)
        for number in numbers:
            self._known(number)
        self._disabled = (
            self._disabled - numbers if on else self._disabled | numbers
        )
        for circuit in tuple(self.device.matrix):
            ends = {
                number for c in circuit.directions for number in self._pair(c)
            }
            if not ends & numbers:
                continue
            if ends & self._disabled:
                self.device.deactivate(circuit)
            elif circuit.phase is Phase.PARKED:
                with contextlib.suppress(RequestRefused):
                    self.device.activate(circuit)
        await self.device.come_to_rest()

    def has_monitor(self, number: int) -> bool:
        """Whether that port has a power monitor."""
        monitors = self.device.faults.monitors
        return monitors == "both" or (
            monitors == "out" and number > self.numbering.ins
        )

    async def power(self, numbers: Sequence[int]) -> list[float]:
        """Power in dBm at each; the monitor's floor without a signal."""
        ports = [self._known(number) for number in numbers]
        readings = await self.device.power(set(ports))
        sides = [
            0 if number <= self.numbering.ins else 1 for number in numbers
        ]
        powers = [
            readings[port][side]
            for port, side in zip(ports, sides, strict=True)
        ]
        return [_DARK_DBM if dbm is None else dbm for dbm in powers]

    async def monitored(self, numbers: Iterable[int]) -> dict[int, float]:
        """Power in dBm at those of these ports that have a monitor."""
        numbers = [number for number in numbers if self.has_monitor(number)]
        return dict(zip(numbers, await self.power(numbers), strict=True))

    def product(self) -> dict[str, str]:
        """The ``product-information`` of its YANG module."""
        return {
            "manufacturer": "Polatis",
            "serial-number": self.serial,
            "model-name": self.model,
            "software-version": SOFTWARE,
        }

    def _known(self, number: int) -> int:
        port = self.numbering.to_port(number)
        if port is None:
            raise RequestRefused(Reason.NO_PORT, port=number)
        return port.number

    def _pair(self, c: CrossConnect) -> tuple[int, int]:
        return c.inp, self.numbering.to_number("out", c.out)

    def _cross_connects(
        self, ins: Sequence[int], outs: Sequence[int]
    ) -> list[CrossConnect]:
        cross_connects = []
        for inp, out in zip(ins, outs, strict=True):
            self._known(inp)
            self._known(out)
            if (cross_connect := self.numbering.to_directed(inp, out)) is None:
                raise RequestRefused(Reason.NO_PORT, port=out)
            cross_connects.append(cross_connect)
        return cross_connects

    def _at(self, number: int) -> SwitchedCircuit | None:
        side: Side = "in" if number <= self.numbering.ins else "out"
        return self.device.matrix.at(side, self._known(number))


_MESSAGE_LIMIT = 65536
_ERRORS_KEPT = 30
_NO_ERROR = '0,"No error"'
_POWER_LIMIT = 256  # ports per power query
_HEADER = re.compile(
    r":?([a-z]\w*(?::[a-z]\w*)*|\*[a-z]+)(\?)?(?:\s+(.*))?", re.I | re.DOTALL
)
_LIST = r"\s*\(@([^()]*)\)\s*"
_SHORT = {
    "switch": "swit", "connect": "conn", "subtract": "sub", "disconnect": "disc",
    "state": "stat", "enable": "enab", "disable": "dis", "power": "pow",
    "system": "syst", "error": "err", "pmonitor": "pmon",
}  # fmt: skip
_REFUSALS = {
    Reason.NO_PORT: (-222, "Data out of range;port {port}"),
    Reason.BUSY: (-221, "Settings conflict;port {port} twice"),
    Reason.LOCKED: (-221, "Settings conflict;port {port} is disabled"),
    Reason.FAILED: (-240, "Hardware error;port {port} has failed"),
}


class ScpiError(Exception):
    """An entry of the error queue. After a code −1xx the rest of the message is dropped."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        escaped = self.message.replace('"', '""')
        return f'{self.code},"{escaped}"'


class PolatisScpiServer(ProtocolServer):
    """SCPI on a raw socket, without users.

    Commands are keyed by canonical header, like ``conn:stat?``. A command gets its parameters as
    text and returns an answer or ``None``; it raises ``ScpiError``.
    """

    by_hand = "printf ':oxc:swit:conn:stat?\\n' | nc -q 1 {host} {port}"
    refusals = _REFUSALS
    refused = (-200, "Execution error")

    _device: EmulatedOcs

    def __init__(self, device: EmulatedOcs) -> None:
        super().__init__(device)
        self._switch = switch = PolatisSwitch(device)
        self._errors: deque[ScpiError] = deque()
        self._commands: dict[
            str, Callable[[str], Awaitable[str | None] | str | None]
        ] = {
            "*cls": lambda text: self._errors.clear(),
            "*opc?": lambda text: "1",
            "syst:err?": self._next_error,
            "syst:err:next?": self._next_error,
            "syst:err:all?": self._all_errors,
            "*idn?": lambda text: (
                f"Polatis,{switch.model},{switch.serial},{SOFTWARE}"
            ),
            "oxc:swit:size?": lambda text: (
                f"{switch.numbering.ins},{switch.numbering.outs}"
            ),
            "oxc:swit:conn:add": lambda text: switch.connect(
                *_two_lists(text, even=True)
            ),
            "oxc:swit:conn:only": lambda text: switch.only(
                *_two_lists(text, even=True)
            ),
            "oxc:swit:conn:sub": lambda text: switch.disconnect(
                *_two_lists(text, even=False)
            ),
            "oxc:swit:disc:all": lambda text: switch.disconnect_all(),
            "oxc:swit:conn:stat?": self._connections,
            "oxc:swit:conn:port?": self._partner,
            "oxc:swit:port:stat?": self._port_states,
            "oxc:swit:port:enab": lambda text: switch.enable(
                _numbers(text), on=True
            ),
            "oxc:swit:port:dis": lambda text: switch.enable(
                _numbers(text), on=False
            ),
            "pmon:pow?": self._power,
        }

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        framer = LineFramer(_MESSAGE_LIMIT)
        with contextlib.suppress(FramingError):
            while data := await reader.read(65536):
                for message in framer.feed(data):
                    await self._do(message, writer)

    def report(self, text: str) -> None:
        """Add it to the error queue: SCPI sends nothing unsolicited."""
        self._note(100, text)

    def _note(self, code: int, message: str) -> None:
        if len(self._errors) >= _ERRORS_KEPT:
            self._errors[-1] = ScpiError(-350, "Queue overflow")
        else:
            self._errors.append(ScpiError(code, message))

    async def _do(self, message: str, writer: asyncio.StreamWriter) -> None:
        parts = list(units(message))
        faults = self._device.faults
        changes = any(
            "?" not in part and not part.startswith("*") for part in parts
        )
        answers = []
        async with faults.around_command(changes=changes) as refusal:
            for number in range(faults.take_flood()):
                self.report(f"Alarm {number}")
            for part in parts:
                try:
                    answer = await self._execute(part, refusal)
                except ScpiError as error:
                    self._note(error.code, error.message)
                    if -199 <= error.code <= -100:
                        break
                    continue
                if answer is not None:
                    answers.append(answer)
        if answers:
            writer.write(faults.spoilt(f"{';'.join(answers)}\n".encode()))
            await writer.drain()

    async def _execute(self, part: str, refusal: str) -> str | None:
        match = _HEADER.fullmatch(part)
        if match is None:
            raise ScpiError(-102, "Syntax error")
        mnemonics = (
            _SHORT.get(word, word) for word in match[1].lower().split(":")
        )
        header = ":".join(mnemonics) + (match[2] or "")
        command = self._commands.get(header)
        if command is None:
            raise ScpiError(-113, f"Undefined header;{part[:60]}")
        if not match[2] and not header.startswith("*"):
            if refusal:
                raise ScpiError(-200, f"Execution error;{refusal}")
            if self._device.faults.read_only:
                raise ScpiError(-203, "Command protected")
        await self._device.settle()
        try:
            answer = command(match[3] or "")
            return await answer if isinstance(answer, Awaitable) else answer
        except RequestRefused as refusal:
            raise ScpiError(*self._refusal(refusal)) from refusal

    def _next_error(self, parameters: str) -> str:
        return str(self._errors.popleft()) if self._errors else _NO_ERROR

    def _all_errors(self, parameters: str) -> str:
        entries = ",".join(map(str, self._errors)) or _NO_ERROR
        self._errors.clear()
        return entries

    def _connections(self, parameters: str) -> str:
        pairs = self._switch.pairs()
        return f"{_listed(i for i, _ in pairs)},{_listed(o for _, o in pairs)}"

    def _partner(self, parameters: str) -> str:
        if not parameters.strip().isdigit():
            raise ScpiError(-104, "Data type error")
        partner = self._switch.partner(int(parameters))
        return '""' if partner is None else f'"{partner}"'

    def _port_states(self, parameters: str) -> str:
        numbers = (
            _numbers(parameters) if parameters else list(self._switch.numbers)
        )
        return (
            f"({','.join(self._switch.state(number) for number in numbers)})"
        )

    async def _power(self, parameters: str) -> str:
        numbers = _numbers(parameters)
        if len(numbers) > _POWER_LIMIT:
            raise ScpiError(
                -223,
                f"Too much data;{len(numbers)} ports, at most {_POWER_LIMIT}",
            )
        powers = await self._switch.power(numbers)
        for number in numbers:
            if not self._switch.has_monitor(number):
                raise ScpiError(
                    -241, f"Hardware missing;no power monitor at port {number}"
                )
        return f"({','.join(f'{dbm:.2f}' for dbm in powers)})"


def _two_lists(text: str, *, even: bool) -> tuple[list[int], list[int]]:
    ins, outs = _lists(text, 2)
    if len(ins) != len(outs) and (even or (ins and outs)):
        raise ScpiError(
            -108, "Parameter not allowed;lists of different length"
        )
    return ins, outs


def _numbers(text: str) -> list[int]:
    return _lists(text, 1)[0]


def _lists(text: str, count: int) -> list[list[int]]:
    match = re.fullmatch(",".join([_LIST] * count), text)
    if match is None:
        raise ScpiError(-171, "Invalid expression")
    try:
        return [channels(part) for part in match.groups()]
    except ValueError as error:
        raise ScpiError(-171, "Invalid expression") from error


def _listed(numbers: Iterable[int]) -> str:
    return f"(@{','.join(map(str, numbers))})"
