"""The Calient side of an emulated OCS: its TL1 commands, states and words.

Reply lines and the words that drivers look for ("Invalid…", "Login Not Active", "Failed",
"Already logged in") follow sessions captured from an S162. No capture shows the code of a
denial, so those are GR-831's.
"""

from collections.abc import Callable

from patchlight.controller.circuits.drivers.calient import to_aid, to_port
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.matrices import Phase, Reason, RequestRefused, SwitchedCircuit
from patchlight.emulation.optical.protocols.tl1_server import (
    Tl1Answer,
    Tl1Command,
    Tl1Server,
    deny,
    read_map_by_hand,
)
from patchlight.testbed.lab.portmap import CrossConnect

_CODES = {
    Reason.NO_PORT: "IIAC",
    Reason.NOT_FOUND: "IIAC",
    Reason.LOCKED: "SROF",
    Reason.FAILED: "SROF",
}
STATES = {
    Phase.PARKED: ("UMA", "RDY", "OK"),
    Phase.SWITCHING: ("IS", "OOS", "INIT"),
    Phase.LIT: ("IS", "IS", "OK"),
    Phase.FAILED: ("IS", "OOS", "FAIL"),
}
_MODELS = ((160, "S160"), (320, "S320"))
_LARGEST_MODEL = "EDGE640"
GROUP = "SYSTEM"
SOFTWARE = "6.0-3-emulated"


class CalientTl1Server(Tl1Server):
    """TL1 with its commands."""

    by_hand = read_map_by_hand("RTRV-CRS:::2::ALL;")

    _device: EmulatedOcs

    def __init__(self, device: EmulatedOcs) -> None:
        super().__init__(device)
        self._handlers |= {
            "RTRV-NE": self._identity,
            "RTRV-CRS": self._circuits,
            "RTRV-PORT": self._ports,
            "RTRV-PORT-SUM": self._port_summary,
            "RTRV-SAVERECALL": self._progress,
            "ENT-CRS": self._enter,
            "ACT-CRS": self._turn,
            "CANC-CRS": self._turn,
            "DLT-CRS": self._delete,
            "ENT-CRS-BULK": self._enter_bulk,
            "DLT-CRS-BULK": self._delete_bulk,
        }

    def _denial(self, refusal: RequestRefused) -> Tl1Answer:
        if refusal.reason is Reason.NO_PORT and not refusal.port:
            return deny("IIAC", "Invalid AID")
        return deny(_CODES.get(refusal.reason, "SNVS"), refusal_words(refusal))

    def _identity(self, command: Tl1Command) -> list[str]:
        switch = self._device.switch
        return [
            f"{switch.name.upper()}:SERIALNUMBER=EMU-{switch.name},SWPACKAGE={SOFTWARE},"
            f"STATUS=OK,CHASSISTYPE={model_of(switch.ports)},PLATFORM=VERSION2"
        ]

    def _circuits(self, command: Tl1Command) -> list[str]:
        everything = command.aid in ("", "ALL", "0")
        circuits = self._device.matrix if everything else (self._named(command),)
        return [self._circuit_line(circuit) for circuit in circuits]

    def _ports(self, command: Tl1Command) -> list[str]:
        matrix, lines = self._device.matrix, []
        for port in self._asked_ports(command):
            sides = []
            for side, circuit in (("IN", matrix.at_input(port)), ("OUT", matrix.at_output(port))):
                if port in matrix.failed:
                    state = ("IS", "OOS", "FAIL")
                elif port in matrix.locked:
                    state = ("UMA", "OOS", "OK")
                else:
                    lit = circuit is not None and circuit.phase is Phase.LIT
                    state = ("IS", "IS" if lit else "RDY", "OK")
                sides.append("{0}AS={1},{0}OS={2},{0}OC={3},{0}RS=NPR".format(side, *state))
            lines.append(f"{to_aid(port)}:WX,TRANSIT,TRANSIT:{','.join(sides)}")
        return lines

    async def _port_summary(self, command: Tl1Command) -> list[str]:
        ports, matrix = self._asked_ports(command), self._device.matrix
        readings, lines = await self._device.power(ports), []
        for port in ports:
            circuits = dict.fromkeys((matrix.at_input(port), matrix.at_output(port)))
            states = [(self._name(circuit), in_use(circuit)) for circuit in circuits if circuit]
            first, second, *_ = (*states, ("NONE", "NONE"), ("NONE", "NONE"))
            arriving, leaving = readings[port]
            lines.append(
                f"{to_aid(port)}:ALIAS=NONE,INPWR={_dbm(arriving)},OUTPWR={_dbm(leaving)},"
                f"CONNNAME1={first[0]},CONNSTATE1={first[1]},"
                f"CONNNAME2={second[0]},CONNSTATE2={second[1]}"
            )
        return lines

    def _progress(self, command: Tl1Command) -> list[str]:
        turning = self._device.matrix.next_due() is not None
        return [f"STATUS={'In progress' if turning else 'Completed'}"]

    def _aids(self, port: int) -> tuple[str, ...]:
        return (to_aid(port),)

    def _enter(self, command: Tl1Command) -> Tl1Answer | None:
        src, dst = _pair(command.aid)
        given = [*command.params, "", "", ""]
        kind = given[1].upper() or "1WAY"
        if kind not in ("1WAY", "2WAY"):
            return deny("IPNV", f"Invalid connection type {given[1]}")
        directions = directions_of(CrossConnect(src, dst), two_way=kind == "2WAY")
        circuit = self._device.enter(directions, given[2], given[0] or GROUP)
        self._changed("ENT-CRS", circuit_id(circuit))
        return None

    def _turn(self, command: Tl1Command) -> None:
        circuit = self._named(command)
        turn = self._device.activate if command.verb == "ACT-CRS" else self._device.deactivate
        turn(circuit)
        self._changed(command.verb, circuit_id(circuit))

    def _delete(self, command: Tl1Command) -> Tl1Answer | None:
        circuit = self._named(command)
        if circuit.phase is not Phase.PARKED:
            return deny("SNVS", f"Failed: {circuit_id(circuit)} is in service, cancel it first")
        self._device.remove(circuit)
        self._changed("DLT-CRS", circuit_id(circuit))
        return None

    def _enter_bulk(self, command: Tl1Command) -> Tl1Answer:
        return self._bulk(command, lambda conn: self._device.make(_directions(conn), "", GROUP))

    def _delete_bulk(self, command: Tl1Command) -> Tl1Answer:
        def delete(conn: str) -> None:
            directions = _directions(conn)
            circuit = self._device.matrix.find(directions[0])
            if circuit is None or set(circuit.directions) != set(directions):
                raise RequestRefused(Reason.NOT_FOUND)
            self._device.remove(circuit)

        return self._bulk(command, delete)

    def _bulk(self, command: Tl1Command, do: Callable[[str], object]) -> Tl1Answer:
        """Do all that can be done: COMPLD if that is all, PRTL if some, DENY if none."""
        conns, failures = command.aid.split("&"), []
        for conn in conns:
            try:
                do(conn)
            except RequestRefused as refusal:
                failures.append(f"{conn}: {self._denial(refusal).comment}")
        if len(failures) < len(conns):
            self._changed(command.verb, str(len(conns) - len(failures)))
        if not failures:
            return Tl1Answer()
        summary = f"{len(failures)} connections failed: {'; '.join(failures[:8])}"
        return (
            deny("SROF", summary) if len(failures) == len(conns) else Tl1Answer("PRTL", (), summary)
        )

    def _circuit_line(self, circuit: SwitchedCircuit) -> str:
        c, kind = circuit.directions[0], "2WAY" if circuit.two_way else "1WAY"
        return (
            f"{circuit_id(circuit)}:SRCPORT={to_aid(c.inp)},DSTPORT={to_aid(c.out)},"
            f"GRPNAME={self._group(circuit)},CONNNAME={self._name(circuit)},CONNTYPE={kind},"
            + "AS={},OS={},OC={},PS=UPR,AL=CL".format(*STATES[circuit.phase])
        )

    def _name(self, circuit: SwitchedCircuit) -> str:
        return self._device.name_of(circuit, circuit_id(circuit))

    def _group(self, circuit: SwitchedCircuit) -> str:
        return self._device.faults.names or circuit.group or GROUP

    def _named(self, command: Tl1Command) -> SwitchedCircuit:
        """The circuit that a command means: by its ports, else by its id or name.

        What it calls the circuit and its group has to be right, too: an id that says one-way
        does not mean a two-way circuit.
        """
        given = {param for param in command.params if param not in ("", "ALL")}
        if command.aid:
            circuit = self._device.matrix.find(CrossConnect(*_pair(command.aid)))
            if circuit is not None and not given <= {
                *(circuit_id(circuit), self._name(circuit), self._group(circuit), GROUP)
            }:
                circuit = None
        else:
            conns = given - {GROUP}
            named = (c for c in self._device.matrix if {circuit_id(c), self._name(c)} & conns)
            circuit = next(named, None)
        if circuit is None:
            raise RequestRefused(Reason.NOT_FOUND)
        return circuit

    def _asked_ports(self, command: Tl1Command) -> list[int]:
        """Every port for ``0``; else one port, or all of a shelf or module."""
        ports = list(range(1, self._device.switch.ports + 1))
        if command.aid not in ("", "0", "ALL"):
            ports = [p for p in ports if f"{to_aid(p)}.".startswith(f"{command.aid}.")]
        if not ports:
            raise RequestRefused(Reason.NO_PORT)
        return ports


def directions_of(there: CrossConnect, *, two_way: bool) -> tuple[CrossConnect, ...]:
    """One direction or both; a port with itself has but one."""
    return (there, there.reverse) if two_way and there.inp != there.out else (there,)


def _pair(aid: str) -> tuple[int, int]:
    ports = [to_port(part.strip()) for part in aid.split(",")]
    if len(ports) != 2 or ports[0] is None or ports[1] is None:
        raise RequestRefused(Reason.NO_PORT)
    return ports[0], ports[1]


def _directions(conn: str) -> tuple[CrossConnect, ...]:
    mark = ">" if ">" in conn else "-"
    return directions_of(CrossConnect(*_pair(conn.replace(mark, ",", 1))), two_way=mark == "-")


def model_of(ports: int) -> str:
    """The smallest model with so many ports."""
    return next((name for most, name in _MODELS if ports <= most), _LARGEST_MODEL)


def circuit_id(circuit: SwitchedCircuit) -> str:
    """Its id on the device: ``1.1.1>1.1.2``, or with ``-`` where it is two-way."""
    c = circuit.directions[0]
    return f"{to_aid(c.inp)}{'-' if circuit.two_way else '>'}{to_aid(c.out)}"


def in_use(circuit: SwitchedCircuit) -> str:
    """Whether the device counts it as active."""
    return "NONE" if circuit.phase is Phase.PARKED else "ACT"


def _dbm(power: float | None) -> str:
    return "NONE" if power is None else f"{power:.2f}"


def refusal_words(refusal: RequestRefused) -> str:
    """Why not, in the device's words."""
    port = to_aid(refusal.port) if refusal.port is not None and refusal.port > 0 else "port"
    there = circuit_id(refusal.circuit) if refusal.circuit else ""
    return {
        Reason.NO_PORT: f"Invalid port {port}",
        Reason.BUSY: f"Invalid Connection: {port} is in use by {there}",
        Reason.EXISTS: f"Invalid: {there} is entered already",
        Reason.LOCKED: f"Failed: port {port} is locked",
        Reason.FAILED: f"Failed: port {port}",
        Reason.ACTIVE: f"Failed: {there} is in service already",
        Reason.NOT_FOUND: "Invalid Connection: no such connection",
    }[refusal.reason]
