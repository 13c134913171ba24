"""Emulates a Calient over TL1 and REST: its commands, states and messages.

TL1 replies and the messages that drivers look for ("Invalid…", "Login Not Active", "Failed",
"Already logged in") follow sessions captured from an S162. No capture shows the code of a denial,
so those are GR-831's. Paths and keys of REST are those of its one known client: an added circuit is
active immediately, and a list is done as far as possible.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from patchlight.controller.circuits.drivers.calient import to_aid, to_port
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.matrices import (
    Phase,
    Reason,
    RequestRefused,
    SwitchedCircuit,
)
from patchlight.emulation.optical.protocols.http_server import (
    HttpRequest,
    HttpResponse,
    HttpServer,
)
from patchlight.emulation.optical.protocols.tl1 import (
    Tl1Answer,
    Tl1Command,
    Tl1Server,
    deny,
)
from patchlight.testbed.lab.portmap import CrossConnect

_CODES = {
    Reason.NO_PORT: "IIAC",
    Reason.NOT_FOUND: "IIAC",
    Reason.LOCKED: "SROF",
    Reason.FAILED: "SROF",
}
_STATES = {
    Phase.PARKED: ("UMA", "RDY", "OK"),
    Phase.SWITCHING: ("IS", "OOS", "INIT"),
    Phase.LIT: ("IS", "IS", "OK"),
    Phase.FAILED: ("IS", "OOS", "FAIL"),
}
_MODELS = ((160, "S160"), (320, "S320"), (640, "EDGE640"))
_GROUP = "SYSTEM"
_SOFTWARE = "6.0-3-emulated"


class CalientTl1Server(Tl1Server):
    """TL1 with a Calient's commands."""

    by_hand = Tl1Server.netcat("RTRV-CRS:::2::ALL;")

    _device: EmulatedOcs

    def __init__(self, device: EmulatedOcs) -> None:
        super().__init__(device)
        self._handlers |= {
            "RTRV-NE": self._identity,
            "RTRV-CRS": self._circuits,
            "RTRV-PORT": self._ports,
            "RTRV-PORT-SUM": self._port_summary,
            "RTRV-SAVERECALL": lambda command: [f"STATUS={self._progress()}"],
            "ENT-CRS": self._enter,
            "ACT-CRS": self._turn,
            "CANC-CRS": self._turn,
            "DLT-CRS": self._delete,
            "ENT-CRS-BULK": lambda command: self._bulk(
                command, self._enter_one
            ),
            "DLT-CRS-BULK": lambda command: self._bulk(
                command, self._delete_one
            ),
        }

    def _refusal(self, refusal: RequestRefused) -> tuple[str, str]:
        if refusal.reason is Reason.NO_PORT and not refusal.port:
            return "IIAC", "Invalid AID"
        return _CODES.get(refusal.reason, "SNVS"), _refusal_words(refusal)

    def _identity(self, command: Tl1Command) -> list[str]:
        switch = self._device.switch
        return [
            f"{switch.name.upper()}:SERIALNUMBER=EMU-{switch.name},SWPACKAGE={_SOFTWARE},"
            f"STATUS=OK,CHASSISTYPE={_model_of(switch.ports)},PLATFORM=VERSION2"
        ]

    def _circuits(self, command: Tl1Command) -> list[str]:
        everything = command.aid in ("", "ALL", "0")
        circuits = (
            self._device.matrix if everything else (self._named(command),)
        )
        return [self._circuit_line(circuit) for circuit in circuits]

    def _ports(self, command: Tl1Command) -> list[str]:
        matrix = self._device.matrix
        lines = []
        for port in self._asked_ports(command):
            sides = []
            for side, circuit in (
                ("IN", matrix.at("in", port)),
                ("OUT", matrix.at("out", port)),
            ):
                if port in matrix.failed:
                    state = ("IS", "OOS", "FAIL")
                elif port in matrix.locked:
                    state = ("UMA", "OOS", "OK")
                else:
                    lit = circuit is not None and circuit.phase is Phase.LIT
                    state = ("IS", "IS" if lit else "RDY", "OK")
                sides.append(
                    "{0}AS={1},{0}OS={2},{0}OC={3},{0}RS=NPR".format(
                        side, *state
                    )
                )
            lines.append(
                f"{to_aid(port)}:WX,TRANSIT,TRANSIT:{','.join(sides)}"
            )
        return lines

    async def _port_summary(self, command: Tl1Command) -> list[str]:
        ports = self._asked_ports(command)
        matrix = self._device.matrix
        readings = await self._device.power(ports)
        lines = []
        for port in ports:
            circuits = dict.fromkeys(
                (matrix.at("in", port), matrix.at("out", port))
            )
            states = [
                (_names(self._device, c)[0], _in_use(c)) for c in circuits if c
            ]
            first, second, *_ = (*states, ("NONE", "NONE"), ("NONE", "NONE"))
            arriving, leaving = (_dbm(dbm, "NONE") for dbm in readings[port])
            lines.append(
                f"{to_aid(port)}:ALIAS=NONE,INPWR={arriving},OUTPWR={leaving},"
                f"CONNNAME1={first[0]},CONNSTATE1={first[1]},"
                f"CONNNAME2={second[0]},CONNSTATE2={second[1]}"
            )
        return lines

    def _progress(self) -> str:
        return (
            "Completed"
            if self._device.matrix.next_due() is None
            else "In progress"
        )

    def _aids(self, port: int) -> tuple[str, ...]:
        return (to_aid(port),)

    def _enter(self, command: Tl1Command) -> Tl1Answer:
        src, dst = _pair(command.aid)
        given = [
            *command.params,
            "",
            "",
            "",
        ]
        kind = given[1].upper() or "1WAY"
        if kind not in ("1WAY", "2WAY"):
            return deny("IPNV", f"Invalid connection type {given[1]}")
        directions = _directions_of(
            CrossConnect(src, dst), two_way=kind == "2WAY"
        )
        circuit = self._device.enter(directions, given[2], given[0] or _GROUP)
        return self._changed("ENT-CRS", _circuit_id(circuit))

    def _turn(self, command: Tl1Command) -> None:
        circuit = self._named(command)
        turn = (
            self._device.activate
            if command.verb == "ACT-CRS"
            else self._device.deactivate
        )
        turn(circuit)
        self._changed(command.verb, _circuit_id(circuit))

    def _delete(self, command: Tl1Command) -> Tl1Answer:
        circuit = self._named(command)
        if circuit.phase is not Phase.PARKED:
            return deny(
                "SNVS",
                f"Failed: {_circuit_id(circuit)} is in service, cancel it first",
            )
        self._device.remove(circuit)
        return self._changed("DLT-CRS", _circuit_id(circuit))

    def _enter_one(self, conn: str) -> None:
        self._device.make(_directions(conn), "", _GROUP)

    def _delete_one(self, conn: str) -> None:
        directions = _directions(conn)
        circuit = self._device.matrix.find(directions[0])
        if circuit is None or set(circuit.directions) != set(directions):
            raise RequestRefused(Reason.NOT_FOUND)
        self._device.remove(circuit)

    def _bulk(
        self, command: Tl1Command, do: Callable[[str], object]
    ) -> Tl1Answer:
        """Do what is possible: COMPLD if that is all, PRTL if some, DENY if none."""
        conns = command.aid.split("&")
        failures = []
        for conn in conns:
            try:
                do(conn)
            except RequestRefused as refusal:
                failures.append(f"{conn}: {self._refusal(refusal)[1]}")
        if len(failures) < len(conns):
            self._changed(command.verb, str(len(conns) - len(failures)))
        if not failures:
            return Tl1Answer()
        summary = _failed(failures)
        return (
            deny("SROF", summary)
            if len(failures) == len(conns)
            else Tl1Answer("PRTL", (), summary)
        )

    def _circuit_line(self, circuit: SwitchedCircuit) -> str:
        c = circuit.directions[0]
        kind = "2WAY" if circuit.two_way else "1WAY"
        name, group = _names(self._device, circuit)
        return (
            f"{_circuit_id(circuit)}:SRCPORT={to_aid(c.inp)},DSTPORT={to_aid(c.out)},"
            f"GRPNAME={group},CONNNAME={name},CONNTYPE={kind},"
            + "AS={},OS={},OC={},PS=UPR,AL=CL".format(*_STATES[circuit.phase])
        )

    def _named(self, command: Tl1Command) -> SwitchedCircuit:
        """The circuit in a command: by its ports, else by its id or name.

        Its name and group must match, too: a one-way id does not select a two-way circuit.
        """
        given = {param for param in command.params if param not in ("", "ALL")}
        circuit: SwitchedCircuit | None
        if command.aid:
            circuit = self._device.matrix.find(
                CrossConnect(*_pair(command.aid))
            )
            if circuit is not None:
                names = {
                    _circuit_id(circuit),
                    *_names(self._device, circuit),
                    _GROUP,
                }
                circuit = circuit if given <= names else None
        else:
            conns = given - {_GROUP}
            named = (
                (c, {_circuit_id(c), _names(self._device, c)[0]})
                for c in self._device.matrix
            )
            circuit = next((c for c, names in named if names & conns), None)
        if circuit is None:
            raise RequestRefused(Reason.NOT_FOUND)
        return circuit

    def _asked_ports(self, command: Tl1Command) -> list[int]:
        ports = list(range(1, self._device.switch.ports + 1))
        if command.aid not in ("", "0", "ALL"):
            ports = [
                p
                for p in ports
                if f"{to_aid(p)}.".startswith(f"{command.aid}.")
            ]
        if not ports:
            raise RequestRefused(Reason.NO_PORT)
        return ports


class CalientRestServer(HttpServer):
    """REST with a Calient's paths."""

    by_hand = HttpServer.curl("/rest/crossconnects/?id=list")

    _device: EmulatedOcs

    def __init__(self, device: EmulatedOcs) -> None:
        super().__init__(device)
        self._resources: dict[
            tuple[str, str, str], Callable[[HttpRequest], object]
        ] = {
            ("GET", "crossconnects", "list"): self._circuits,
            ("POST", "crossconnects", "add"): lambda r: {
                "status": "ok",
                "conn": _circuit_id(self._added(r.body)),
            },
            ("POST", "crossconnects", "badd"): self._add_bulk,
            ("POST", "crossconnects", "activate"): self._activate,
            ("POST", "crossconnects", "deactivate"): lambda r: (
                device.deactivate(self._named(r))
            ),
            ("DELETE", "crossconnects", "delete"): lambda r: device.remove(
                self._named(r)
            ),
            ("GET", "ports", "summary"): self._ports,
            ("GET", "node", "summary"): self._node,
            ("GET", "info", "softwareversion"): lambda request: {
                "version": _SOFTWARE
            },
        }

    def report(self, text: str) -> None:
        """Do nothing: this interface has no notifications and no alarm list."""

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        base, _, name = request.path.strip("/").partition("/")
        key = (request.method, name, request.query.get("id", ""))
        if base != "rest" or key not in self._resources:
            return self._problem(
                404, f"no such resource: {request.method} {request.path}"
            )
        try:
            body = self._resources[key](request)
            body = await body if isinstance(body, Awaitable) else body
        except ValueError as error:
            return self._problem(400, f"Invalid request: {error}")
        return HttpResponse(200, {"status": "ok"} if body is None else body)

    def _problem(self, status: int, message: str) -> HttpResponse:
        return HttpResponse(status, {"status": "failed", "message": message})

    def _refusal(self, refusal: RequestRefused) -> tuple[int, str]:
        status = 404 if refusal.reason is Reason.NOT_FOUND else 409
        return status, refusal.message or _refusal_words(refusal)

    async def _circuits(self, request: HttpRequest) -> list[dict[str, Any]]:
        circuits = tuple(self._device.matrix)
        directions = [c for circuit in circuits for c in circuit.directions]
        power = await self._device.power(
            {port for c in directions for port in (c.inp, c.out)}
        )
        rows = []
        for circuit in circuits:
            first, *second = (
                self._half(circuit, c, power) for c in circuit.directions
            )
            name, group = _names(self._device, circuit)
            row = {
                "name": name,
                "group": group,
                "dir": "bi" if circuit.two_way else "uni",
            }
            halves = {"half1": first, "half2": second[0] if second else {}}
            rows.append({**row, "band": "CBAND", **halves})
        return rows

    def _half(
        self,
        circuit: SwitchedCircuit,
        c: CrossConnect,
        power: dict[int, tuple[float | None, float | None]],
    ) -> dict[str, str]:
        arriving = power[c.inp][0]
        leaving = power[c.out][1]
        loss = (
            None if arriving is None or leaving is None else arriving - leaving
        )
        return {
            "conn": f"{to_aid(c.inp)}>{to_aid(c.out)}",
            "inp": _dbm(arriving, ""),
            "outp": _dbm(leaving, ""),
            "loss": _dbm(loss, ""),
            "alarm": "CR" if circuit.phase is Phase.FAILED else "CL",
            "state": _in_use(circuit),
            **dict(
                zip(("as", "os", "oc"), _STATES[circuit.phase], strict=True)
            ),
        }

    async def _ports(self, request: HttpRequest) -> list[dict[str, str]]:
        matrix = self._device.matrix
        numbers = range(1, self._device.switch.ports + 1)
        power = await self._device.power(numbers)
        rows = []
        for port in numbers:
            circuit = matrix.at("in", port) or matrix.at("out", port)
            conn = _circuit_id(circuit) if circuit else ""
            name = self._device.name_of(circuit, conn) if circuit else ""
            row = {"port": to_aid(port), "conn": conn, "connid": name}
            rows.append(
                row
                | {
                    "power": _dbm(power[port][0], ""),
                    "inalias": "",
                    "outalias": "",
                }
            )
        return rows

    def _node(self, request: HttpRequest) -> Any:
        switch = self._device.switch
        if request.query.get("detail") == "SOFTWARE":
            return [{"version": _SOFTWARE}]
        return {
            "partnumber": _model_of(switch.ports),
            "serialnumber": f"EMU-{switch.name}",
        }

    def _add_bulk(self, request: HttpRequest) -> None:
        if not isinstance(request.body, list):
            raise ValueError("expected a list of connections")
        failures = []
        last = None
        for connection in request.body:
            try:
                self._added(connection)
            except RequestRefused as refusal:
                last = refusal
                failures.append(
                    f"{connection.get('conn', '')}: {_refusal_words(refusal)}"
                )
        if last is not None:
            raise RequestRefused(last.reason, message=_failed(failures))

    def _activate(self, request: HttpRequest) -> None:
        self._device.activate(self._named(request))

    def _added(self, connection: Any) -> SwitchedCircuit:
        if not isinstance(connection, dict):
            raise ValueError("a connection is an object")
        aids = (
            str(connection.get(key, "")).partition("/")[0]
            for key in ("in", "out")
        )
        src, dst = map(to_port, aids)
        if src is None or dst is None:
            raise RequestRefused(Reason.NO_PORT)
        two_way = connection.get("dir", "bi") == "bi"
        directions = _directions_of(CrossConnect(src, dst), two_way=two_way)
        name = str(connection.get("conn", ""))
        group = str(connection.get("group") or _GROUP)
        return self._device.make(directions, name, group)

    def _named(self, request: HttpRequest) -> SwitchedCircuit:
        """By its id, else by its name."""
        conn, name = (request.query.get(key, "") for key in ("conn", "name"))
        ids = {
            _circuit_id(circuit): circuit for circuit in self._device.matrix
        }
        named = (
            c
            for c in ids.values()
            if name and self._device.name_of(c, "") == name
        )
        circuit = ids.get(conn) or ids.get(name) or next(named, None)
        if circuit is None:
            raise RequestRefused(Reason.NOT_FOUND)
        return circuit


def _directions_of(
    there: CrossConnect, *, two_way: bool
) -> tuple[CrossConnect, ...]:
    """One direction or both; a port with itself has one only."""
    return (
        (there, there.reverse)
        if two_way and there.inp != there.out
        else (there,)
    )


def _pair(aid: str) -> tuple[int, int]:
    ports = [to_port(part.strip()) for part in aid.split(",")]
    if len(ports) != 2 or ports[0] is None or ports[1] is None:
        raise RequestRefused(Reason.NO_PORT)
    return ports[0], ports[1]


def _directions(conn: str) -> tuple[CrossConnect, ...]:
    mark = ">" if ">" in conn else "-"
    return _directions_of(
        CrossConnect(*_pair(conn.replace(mark, ",", 1))), two_way=mark == "-"
    )


def _model_of(ports: int) -> str:
    return next(
        (name for most, name in _MODELS if ports <= most), _MODELS[-1][1]
    )


def _circuit_id(circuit: SwitchedCircuit) -> str:
    c = circuit.directions[0]
    return f"{to_aid(c.inp)}{'-' if circuit.two_way else '>'}{to_aid(c.out)}"


def _in_use(circuit: SwitchedCircuit) -> str:
    return "NONE" if circuit.phase is Phase.PARKED else "ACT"


def _dbm(power: float | None, dark: str) -> str:
    return dark if power is None else f"{power:.2f}"


def _refusal_words(refusal: RequestRefused) -> str:
    port = (
        to_aid(refusal.port)
        if refusal.port is not None and refusal.port > 0
        else "port"
    )
    there = _circuit_id(refusal.circuit) if refusal.circuit else ""
    return {
        Reason.NO_PORT: f"Invalid port {port}",
        Reason.BUSY: f"Invalid Connection: {port} is in use by {there}",
        Reason.EXISTS: f"Invalid: {there} is entered already",
        Reason.LOCKED: f"Failed: port {port} is locked",
        Reason.FAILED: f"Failed: port {port}",
        Reason.ACTIVE: f"Failed: {there} is in service already",
        Reason.NOT_FOUND: "Invalid Connection: no such connection",
    }[refusal.reason]


def _names(device: EmulatedOcs, circuit: SwitchedCircuit) -> tuple[str, str]:
    group = device.faults.names or circuit.group or _GROUP
    return device.name_of(circuit, _circuit_id(circuit)), group


def _failed(failures: list[str]) -> str:
    return f"{len(failures)} connections failed: {'; '.join(failures[:8])}"
