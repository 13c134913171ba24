"""An emulated Glimmerglass: its TL1 commands, its table of all fibres.

Lines follow sessions captured by others. No capture shows a denial or a stuck mirror: those
codes are GR-831's, and that cause is ours.
"""

from __future__ import annotations

from collections.abc import Sequence

from patchlight.controller.circuits.contract import SIDES
from patchlight.controller.circuits.drivers.numbered import Numbering
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.protocols.server import Users
from patchlight.emulation.optical.protocols.tl1_messages import Answer, Command, deny, port_numbers
from patchlight.emulation.optical.protocols.tl1_server import (
    Connection,
    Tl1Server,
    read_map_by_hand,
)
from patchlight.emulation.optical.switch_matrix import Circuit, Phase, Reason, RequestRefused
from patchlight.testbed.portmap import CrossConnect

_DARK_DBM = -49.162  # the monitors' floor


class GlimmerglassTl1Server(Tl1Server):
    """TL1 with its commands."""

    port = 10034
    by_hand = read_map_by_hand("RTRV-CRS-FIBER:::2:;")

    def __init__(self, device: EmulatedOcs, users: Users) -> None:
        super().__init__(device, users)
        ports = device.switch.ports
        self._numbering = Numbering(ports, ports, 10000, 20000)
        self._handlers |= {
            "RTRV-SYSTEM-INFO": self._system,
            "RTRV-CFG-FIBER": self._ports,
            "RTRV-CRS-FIBER": self._circuits,
            "ENT-CRS-FIBER": self._enter,
            "DLT-CRS-FIBER": self._delete,
        }

    def _denial(self, refusal: RequestRefused) -> Answer:
        port = refusal.port
        return {
            Reason.NO_PORT: deny("IIAC", "Invalid port" if port is None else f"No port {port}"),
            Reason.BUSY: deny("SNVS", f"Port {port} is in a connection already"),
            Reason.EXISTS: deny("SNVS", "The connection exists already"),
            Reason.LOCKED: deny("SNVS", f"Port {port} is locked"),
            Reason.NOT_FOUND: deny("SNVS", "No such connection"),
        }.get(refusal.reason, deny("SROF", "Failed"))

    # --- reading ----------------------------------------------------------------------------

    def _system(self, connection: Connection, command: Command) -> Answer:
        items = {
            "SerialNumber": f"EMU-{self._device.switch.name}",
            "SystemType": "OXC",
            "ChassisType": "S300",
            "LicensedPortMatrix": str(self._numbering),
            "SoftwareActiveVersion": "3.2-emulated",
        }
        return Answer(lines=[f"GGN:{item}={value}" for item, value in items.items()])

    def _ports(self, connection: Connection, command: Command) -> Answer:
        lines = []
        for number in self._asked(command.aid):
            port = self._numbering.to_port(number)
            assert port is not None
            health = "bad" if port.number in self._device.matrix.failed else "good"
            lines.append(
                f"GGN:PORTID={number},PORTNAME={port.side.upper()}{port.number},"
                f"PORTDIR={port.side}put,PORTHEALTH={health},PORTCAT=nor,PORTPRIV=0x1"
            )
        return Answer(lines=lines)

    async def _circuits(self, connection: Connection, command: Command) -> Answer:
        """One line for each circuit, and for each fibre that is in none."""
        asked, told, lines = self._asked(command.aid), set(), []
        readings = await self._device.power(range(1, self._device.switch.ports + 1))
        for number in asked:
            if number in told:
                continue
            port = self._numbering.to_port(number)
            assert port is not None
            matrix = self._device.matrix
            if port.side == "in":
                circuit = matrix.at_input(port.number)
                pairs = [c for c in circuit.directions if c.inp == port.number] if circuit else []
            else:
                circuit = matrix.at_output(port.number)
                pairs = [c for c in circuit.directions if c.out == port.number] if circuit else []
            inp = pairs[0].inp if pairs else port.number if port.side == "in" else 0
            out = pairs[0].out if pairs else port.number if port.side == "out" else 0
            ids = inp and self._numbering.to_number("in", inp), out and 20000 + out
            told |= set(ids)
            arriving = _dbm(readings[inp][0]) if inp else 0.0
            leaving = _dbm(readings[out][1]) if out else 0.0
            loss = arriving - leaving if pairs else 0.0
            state, cause = _state(circuit, lit=bool(pairs) and readings[out][1] is not None)
            lines.append(
                f"GGN:IPORTID={ids[0]},IPORTNAME=,OPORTID={ids[1]},OPORTNAME=,CONNID=0,"
                f"CONNSTATE={state},CONNCAUSE={cause},INPWR={arriving:.3f},OUTPWR={leaving:.3f},"
                f"PWRLOSS={loss:.3f},CONNLOCK=0,CONNLOCKUSER="
            )
        return Answer(lines=lines)

    def _aids(self, port: int) -> tuple[str, ...]:
        return tuple(str(self._numbering.to_number(side, port)) for side in SIDES)

    # --- changing ---------------------------------------------------------------------------

    async def _enter(self, connection: Connection, command: Command) -> Answer:
        pairs = self._pairs(command.aid)
        try:
            await self._device.light(pairs)
        except RequestRefused as refusal:
            at = refusal.port and (
                self._numbering.to_number("in", refusal.port)
                if any(c.inp == refusal.port for c in pairs)
                else self._numbering.to_number("out", refusal.port)
            )
            raise RequestRefused(refusal.reason, port=at) from refusal
        self._changed("ENT-CRS-FIBER", command.aid)
        return Answer()

    async def _delete(self, connection: Connection, command: Command) -> Answer:
        """By inputs alone, or by inputs and outputs; ``all`` is everything."""
        matrix = self._device.matrix
        going: list[Circuit | None]
        if command.aid.lower() in ("all", "all,all"):
            going = list(matrix)
        elif "," in command.aid:
            going = [matrix.find(c) for c in self._pairs(command.aid)]
        else:
            inputs = [self._numbering.to_port(number) for number in self._asked(command.aid)]
            going = [matrix.at_input(port.number) for port in inputs if port is not None]
        found = [circuit for circuit in dict.fromkeys(going) if circuit is not None]
        if None in going:
            raise RequestRefused(Reason.NOT_FOUND)
        for circuit in found:
            self._device.remove(circuit)
        self._changed("DLT-CRS-FIBER", command.aid)
        return Answer()

    # --- inside -----------------------------------------------------------------------------

    def _pairs(self, aid: str) -> list[CrossConnect]:
        sides = aid.split(",")
        if len(sides) != 2:
            raise RequestRefused(Reason.NO_PORT)
        ins, outs = self._asked(sides[0]), self._asked(sides[1])
        if len(ins) != len(outs):
            raise RequestRefused(Reason.NO_PORT)
        pairs = []
        for inp, out in zip(ins, outs, strict=True):
            cross_connect = self._numbering.to_directed(inp, out)
            if cross_connect is None:
                raise RequestRefused(Reason.NO_PORT, port=out)
            pairs.append(cross_connect)
        return pairs

    def _asked(self, aid: str) -> Sequence[int]:
        ports = self._device.switch.ports
        if aid.lower() in ("", "all"):
            return [base + n for base in (10000, 20000) for n in range(1, ports + 1)]
        found = port_numbers(aid, lambda number: self._numbering.to_port(number) is not None)
        if found is None:
            raise RequestRefused(Reason.NO_PORT)
        for number in found:
            if self._numbering.to_port(number) is None:
                raise RequestRefused(Reason.NO_PORT, port=number)
        return found


def _state(circuit: Circuit | None, *, lit: bool) -> tuple[str, str]:
    """``CONNSTATE`` and ``CONNCAUSE``."""
    if circuit is None:
        return "single", "none"
    if circuit.phase is Phase.FAILED:
        return "fault", "mirror_failure"
    if circuit.phase is not Phase.LIT:
        return "pending", "none"
    # Without light there is nothing to tune the mirrors by.
    return ("steady", "none") if lit else ("fault", "initial_connection_timer_expired")


def _dbm(power: float | None) -> float:
    return _DARK_DBM if power is None else power
