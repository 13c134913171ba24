"""Emulates devices over TL1 that accept lists of ports: a Polatis, and a Glimmerglass.

Lines of the Glimmerglass follow captured sessions. No capture shows a denial or a stuck mirror:
those codes are GR-831's, and the cause is invented.
"""

import re
from collections.abc import Callable, Sequence

from patchlight.controller.circuits.contract import SIDES, Side
from patchlight.controller.circuits.drivers.base import Numbering
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.matrices import (
    Phase,
    Reason,
    RequestRefused,
    SwitchedCircuit,
)
from patchlight.emulation.optical.protocols.tl1 import (
    Tl1Answer,
    Tl1Command,
    Tl1Server,
    deny,
)
from patchlight.emulation.optical.vendors.polatis import (
    SOFTWARE,
    PolatisSwitch,
)
from patchlight.testbed.lab.portmap import CrossConnect

_POLATIS_REFUSALS = {
    Reason.NO_PORT: ("IIAC", "No port {port}"),
    Reason.BUSY: ("IIAC", "Port {port} is named twice"),
    Reason.LOCKED: ("SNVS", "Port {port} is disabled"),
    Reason.FAILED: ("SROF", "Port {port} has failed"),
}
_GLIMMERGLASS_REFUSALS = {
    Reason.NO_PORT: ("IIAC", "No port {port}"),
    Reason.BUSY: ("SNVS", "Port {port} is in a connection already"),
    Reason.EXISTS: ("SNVS", "The connection exists already"),
    Reason.LOCKED: ("SNVS", "Port {port} is locked"),
    Reason.NOT_FOUND: ("SNVS", "No such connection"),
}
_SHUTTER = {"E": "OPEN", "D": "CLOSED", "F": "FAILED"}
_DARK_DBM = -49.162  # the floor of a Glimmerglass's monitors
_PORTS = re.compile(r"(\d{1,9})(?:&&(\d{1,9}))?")
_RANGE_LIMIT = 1 << 16


class PolatisTl1Server(Tl1Server):
    """TL1 with a Polatis's commands."""

    by_hand = Tl1Server.netcat("RTRV-PATCH:::2:;")
    refusals = _POLATIS_REFUSALS

    _device: EmulatedOcs

    def __init__(self, device: EmulatedOcs) -> None:
        super().__init__(device)
        self._switch = switch = PolatisSwitch(device)
        self._handlers |= {
            "RTRV-NETYPE": lambda command: [
                f"Polatis,{switch.model},OCS,{SOFTWARE}"
            ],
            "RTRV-INV": lambda command: [
                f"OCS::SN={switch.serial.replace('-', '')}"
            ],
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

    def _aids(self, port: int) -> tuple[str, ...]:
        return tuple(
            str(self._switch.numbering.to_number(side, port)) for side in SIDES
        )

    def _equipment(self, command: Tl1Command) -> Tl1Answer:
        if (
            command.aid.upper() != "SYSTEM"
            or "PARAMETER=SIZE" not in command.params
        ):
            return deny("IIAC", f"Invalid AID {command.aid}")
        return Tl1Answer(lines=(f"SYSTEM:SIZE={self._switch.numbering}",))

    def _patches(self, command: Tl1Command) -> list[str]:
        ports = set(self._ports(command.aid))
        return [
            f"{inp},{out}"
            for inp, out in self._switch.pairs()
            if {inp, out} & ports
        ]

    def _shutters(self, command: Tl1Command) -> list[str]:
        ports = self._ports(command.aid)
        return [
            f"{port}:{_SHUTTER[self._switch.state(port)]}" for port in ports
        ]

    async def _power(self, command: Tl1Command) -> list[str]:
        powers = await self._switch.monitored(self._ports(command.aid))
        return [f"{port}:{dbm:.1f}" for port, dbm in powers.items()]

    async def _enter(self, command: Tl1Command) -> Tl1Answer:
        ins, _, outs = command.aid.partition(",")
        lists = self._ports(ins), self._ports(outs)
        if len(lists[0]) != len(lists[1]) or not ins:
            return deny("IIAC", "Lists of different length")
        await self._switch.connect(*lists)
        return self._changed("ENT-PATCH", command.aid)

    async def _delete(self, command: Tl1Command) -> Tl1Answer:
        if command.aid.upper() == "ALL":
            await self._switch.disconnect_all()
        elif command.aid:
            await self._switch.disconnect(self._ports(command.aid), ())
        else:
            return deny("IIAC", "Invalid AID")
        return self._changed("DLT-PATCH", command.aid)

    async def _turn_shutters(self, command: Tl1Command) -> None:
        await self._switch.enable(
            self._ports(command.aid), on=command.verb.startswith("RLS")
        )

    def _ports(self, aid: str) -> list[int]:
        """The ports of a list or range; by default all."""
        known = self._switch.numbers
        return _port_numbers(aid, known.__contains__) if aid else list(known)


class GlimmerglassTl1Server(Tl1Server):
    """TL1 with a Glimmerglass's commands."""

    by_hand = Tl1Server.netcat("RTRV-CRS-FIBER:::2:;")
    refusals = _GLIMMERGLASS_REFUSALS

    _device: EmulatedOcs

    def __init__(self, device: EmulatedOcs) -> None:
        super().__init__(device)
        ports = device.switch.ports
        self._numbering = Numbering(
            ports,
            ports,
            10000,
            20000,
        )
        self._handlers |= {
            "RTRV-SYSTEM-INFO": self._system,
            "RTRV-CFG-FIBER": self._ports,
            "RTRV-CRS-FIBER": self._circuits,
            "ENT-CRS-FIBER": self._enter,
            "DLT-CRS-FIBER": self._delete,
        }

    def _system(self, command: Tl1Command) -> list[str]:
        items = {
            "SerialNumber": f"EMU-{self._device.switch.name}",
            "SystemType": "OXC",
            "ChassisType": "S300",
            "LicensedPortMatrix": str(self._numbering),
            "SoftwareActiveVersion": "3.2-emulated",
        }
        return [f"GGN:{item}={value}" for item, value in items.items()]

    def _ports(self, command: Tl1Command) -> list[str]:
        lines = []
        names = self._device.faults.names
        for number in self._asked(command.aid):
            port = self._numbering.to_port(number)
            assert port is not None
            health = (
                "bad" if port.number in self._device.matrix.failed else "good"
            )
            lines.append(
                f"GGN:PORTID={number},PORTNAME={names or f'{port.side.upper()}{port.number}'},"
                f"PORTDIR={port.side}put,PORTHEALTH={health},PORTCAT=nor,PORTPRIV=0x1"
            )
        return lines

    async def _circuits(self, command: Tl1Command) -> list[str]:
        """One line per circuit, and per unconnected fibre."""
        numbers = self._asked(command.aid)
        listed = set()
        lines = []
        names = self._device.faults.names
        matrix = self._device.matrix
        readings = await self._device.power(
            range(1, self._device.switch.ports + 1)
        )
        for number in numbers:
            if number in listed:
                continue
            port = self._numbering.to_port(number)
            assert port is not None
            inp, out = (
                (port.number, 0) if port.side == "in" else (0, port.number)
            )
            circuit = matrix.at(*port)
            if circuit is not None:
                held = next(
                    c
                    for c in circuit.directions
                    if c.inp == inp or c.out == out
                )
                inp = held.inp
                out = held.out
            ids = (
                inp and self._numbering.to_number("in", inp),
                out and 20000 + out,
            )
            listed |= set(ids)
            arriving = _dbm(readings[inp][0]) if inp else 0.0
            leaving = _dbm(readings[out][1]) if out else 0.0
            loss = arriving - leaving if circuit else 0.0
            state, cause = _state(
                circuit,
                lit=circuit is not None and readings[out][1] is not None,
            )
            lines.append(
                f"GGN:IPORTID={ids[0]},IPORTNAME={names},OPORTID={ids[1]},OPORTNAME={names},CONNID=0,"
                f"CONNSTATE={state},CONNCAUSE={cause},INPWR={arriving:.3f},OUTPWR={leaving:.3f},"
                f"PWRLOSS={loss:.3f},CONNLOCK=0,CONNLOCKUSER="
            )
        return lines

    def _aids(self, port: int) -> tuple[str, ...]:
        return tuple(
            str(self._numbering.to_number(side, port)) for side in SIDES
        )

    async def _enter(self, command: Tl1Command) -> None:
        pairs = self._pairs(command.aid)
        try:
            await self._device.light(pairs)
        except RequestRefused as refusal:
            side: Side = (
                "in" if any(c.inp == refusal.port for c in pairs) else "out"
            )
            number = refusal.port and self._numbering.to_number(
                side, refusal.port
            )
            raise RequestRefused(refusal.reason, port=number) from refusal
        self._changed("ENT-CRS-FIBER", command.aid)

    async def _delete(self, command: Tl1Command) -> None:
        """By inputs only, or by inputs and outputs; ``all`` is everything."""
        matrix = self._device.matrix
        circuits: list[SwitchedCircuit | None]
        if command.aid.lower() in ("all", "all,all"):
            circuits = list(matrix)
        elif "," in command.aid:
            circuits = [matrix.find(c) for c in self._pairs(command.aid)]
        else:
            inputs = [
                self._numbering.to_port(number)
                for number in self._asked(command.aid)
            ]
            circuits = [
                matrix.at("in", port.number)
                for port in inputs
                if port is not None
            ]
        if None in circuits:
            raise RequestRefused(Reason.NOT_FOUND)
        self._device.remove_all(circuits)
        self._changed("DLT-CRS-FIBER", command.aid)

    def _pairs(self, aid: str) -> list[CrossConnect]:
        sides = aid.split(",")
        if len(sides) != 2:
            raise RequestRefused(Reason.NO_PORT)
        ins, outs = map(self._asked, sides)
        if len(ins) != len(outs):
            raise RequestRefused(Reason.NO_PORT)
        pairs = []
        for inp, out in zip(ins, outs, strict=True):
            if (
                cross_connect := self._numbering.to_directed(inp, out)
            ) is None:
                raise RequestRefused(Reason.NO_PORT, port=out)
            pairs.append(cross_connect)
        return pairs

    def _asked(self, aid: str) -> Sequence[int]:
        ports = self._device.switch.ports
        if aid.lower() in ("", "all"):
            return [
                base + n
                for base in (10000, 20000)
                for n in range(1, ports + 1)
            ]
        return _port_numbers(
            aid, lambda number: self._numbering.to_port(number) is not None
        )


def _state(circuit: SwitchedCircuit | None, *, lit: bool) -> tuple[str, str]:
    """``CONNSTATE`` and ``CONNCAUSE``."""
    if circuit is None:
        return "single", "none"
    if circuit.phase is Phase.FAILED:
        return "fault", "mirror_failure"
    if circuit.phase is not Phase.LIT:
        return "pending", "none"
    # Without a signal the mirrors cannot be tuned.
    return (
        ("steady", "none")
        if lit
        else ("fault", "initial_connection_timer_expired")
    )


def _dbm(power: float | None) -> float:
    return _DARK_DBM if power is None else power


def _port_numbers(text: str, known: Callable[[int], bool]) -> list[int]:
    """``1&3&&5`` → 1, 3, 4, 5; ``RequestRefused`` for another text, or a port not ``known``.

    Unknown ports within a range are skipped.
    """
    numbers: list[int] = []
    for match in (
        _PORTS.fullmatch(part) for part in re.split(r"(?<!&)&(?!&)", text)
    ):
        if match is None:
            raise RequestRefused(Reason.NO_PORT)
        if match[2] is None:
            numbers.append(int(match[1]))
        elif int(match[2]) - int(match[1]) < _RANGE_LIMIT:
            numbers += filter(known, range(int(match[1]), int(match[2]) + 1))
    for number in numbers:
        if not known(number):
            raise RequestRefused(Reason.NO_PORT, port=number)
    return numbers
