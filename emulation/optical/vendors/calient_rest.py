"""The REST side of an emulated Calient: paths and keys as its one known client uses them.

A circuit that is added is lit at once. A list is done as far as it can be.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from patchlight.controller.circuits.drivers.calient import to_aid, to_port
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.matrices import Phase, Reason, RequestRefused, SwitchedCircuit
from patchlight.emulation.optical.protocols.http_server import (
    HttpRequest,
    HttpResponse,
    HttpServer,
    read_map_by_hand,
)
from patchlight.emulation.optical.vendors.calient import (
    GROUP,
    SOFTWARE,
    STATES,
    circuit_id,
    directions_of,
    in_use,
    model_of,
    refusal_words,
)
from patchlight.testbed.lab.portmap import CrossConnect


class CalientRestServer(HttpServer):
    """REST with its paths."""

    by_hand = read_map_by_hand("/rest/crossconnects/?id=list")

    _device: EmulatedOcs

    def __init__(self, device: EmulatedOcs) -> None:
        super().__init__(device)
        self._resources: dict[tuple[str, str, str], Callable[[HttpRequest], Awaitable[object]]] = {
            ("GET", "crossconnects", "list"): self._circuits,
            ("POST", "crossconnects", "add"): self._add,
            ("POST", "crossconnects", "badd"): self._add_bulk,
            ("POST", "crossconnects", "activate"): self._activate,
            ("POST", "crossconnects", "deactivate"): self._deactivate,
            ("DELETE", "crossconnects", "delete"): self._delete,
            ("GET", "ports", "summary"): self._ports,
            ("GET", "node", "summary"): self._node,
            ("GET", "info", "softwareversion"): self._software,
        }

    def report(self, text: str) -> None:
        """Nothing: this interface neither speaks unasked nor lists alarms of the device."""

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        base, _, name = request.path.strip("/").partition("/")
        key = (request.method, name, request.query.get("id", ""))
        if base != "rest" or key not in self._resources:
            return self._problem(404, f"no such resource: {request.method} {request.path}")
        try:
            body = await self._resources[key](request)
        except ValueError as error:
            return self._problem(400, f"Invalid request: {error}")
        return HttpResponse(200, {"status": "ok"} if body is None else body)

    def _problem(self, status: int, message: str) -> HttpResponse:
        return HttpResponse(status, {"status": "failed", "message": message})

    def _refusal(self, refusal: RequestRefused) -> HttpResponse:
        status = 404 if refusal.reason is Reason.NOT_FOUND else 409
        return self._problem(status, refusal.message or refusal_words(refusal))

    async def _circuits(self, request: HttpRequest) -> list[dict[str, Any]]:
        circuits = tuple(self._device.matrix)
        ports = {
            port for circuit in circuits for c in circuit.directions for port in (c.inp, c.out)
        }
        power = await self._device.power(ports)
        rows = []
        for circuit in circuits:
            first, *second = (self._half(circuit, c, power) for c in circuit.directions)
            row: dict[str, Any] = {
                "name": self._device.name_of(circuit, circuit_id(circuit)),
                "group": self._device.faults.names or circuit.group or GROUP,
                "dir": "bi" if circuit.two_way else "uni",
                "band": "CBAND",
            }
            rows.append(row | {"half1": first, "half2": second[0] if second else {}})
        return rows

    def _half(
        self,
        circuit: SwitchedCircuit,
        c: CrossConnect,
        power: dict[int, tuple[float | None, float | None]],
    ) -> dict[str, str]:
        arriving, leaving = power[c.inp][0], power[c.out][1]
        loss = None if arriving is None or leaving is None else arriving - leaving
        return {
            "conn": f"{to_aid(c.inp)}>{to_aid(c.out)}",
            "inp": _dbm(arriving),
            "outp": _dbm(leaving),
            "loss": _dbm(loss),
            "alarm": "CR" if circuit.phase is Phase.FAILED else "CL",
            "state": in_use(circuit),
            **dict(zip(("as", "os", "oc"), STATES[circuit.phase], strict=True)),
        }

    async def _ports(self, request: HttpRequest) -> list[dict[str, str]]:
        matrix, numbers = self._device.matrix, range(1, self._device.switch.ports + 1)
        power = await self._device.power(numbers)
        rows = []
        for port in numbers:
            circuit = matrix.at_input(port) or matrix.at_output(port)
            conn = circuit_id(circuit) if circuit else ""
            name = self._device.name_of(circuit, conn) if circuit else ""
            row = {"port": to_aid(port), "conn": conn, "connid": name}
            rows.append(row | {"power": _dbm(power[port][0]), "inalias": "", "outalias": ""})
        return rows

    async def _node(self, request: HttpRequest) -> Any:
        switch = self._device.switch
        if request.query.get("detail") == "SOFTWARE":
            return [{"version": SOFTWARE}]
        return {"partnumber": model_of(switch.ports), "serialnumber": f"EMU-{switch.name}"}

    async def _software(self, request: HttpRequest) -> dict[str, str]:
        return {"version": SOFTWARE}

    async def _add(self, request: HttpRequest) -> dict[str, str]:
        return {"status": "ok", "conn": circuit_id(self._added(request.body))}

    async def _add_bulk(self, request: HttpRequest) -> None:
        if not isinstance(request.body, list):
            raise ValueError("expected a list of connections")
        failures, last = [], None
        for connection in request.body:
            try:
                self._added(connection)
            except RequestRefused as refusal:
                last = refusal
                failures.append(f"{connection.get('conn', '')}: {refusal_words(refusal)}")
        if last is not None:
            summary = f"{len(failures)} connections failed: {'; '.join(failures[:8])}"
            raise RequestRefused(last.reason, message=summary)

    async def _activate(self, request: HttpRequest) -> None:
        self._device.activate(self._named(request))

    async def _deactivate(self, request: HttpRequest) -> None:
        self._device.deactivate(self._named(request))

    async def _delete(self, request: HttpRequest) -> None:
        self._device.remove(self._named(request))

    def _added(self, connection: Any) -> SwitchedCircuit:
        if not isinstance(connection, dict):
            raise ValueError("a connection is an object")
        aids = (str(connection.get(key, "")).partition("/")[0] for key in ("in", "out"))
        src, dst = map(to_port, aids)
        if src is None or dst is None:
            raise RequestRefused(Reason.NO_PORT)
        two_way = connection.get("dir", "bi") == "bi"
        directions = directions_of(CrossConnect(src, dst), two_way=two_way)
        name, group = str(connection.get("conn", "")), str(connection.get("group") or GROUP)
        return self._device.make(directions, name, group)

    def _named(self, request: HttpRequest) -> SwitchedCircuit:
        """By its id, else by its name."""
        conn, name = (request.query.get(key, "") for key in ("conn", "name"))
        ids = {circuit_id(circuit): circuit for circuit in self._device.matrix}
        named = (c for c in ids.values() if name and self._device.name_of(c, "") == name)
        circuit = ids.get(conn) or ids.get(name) or next(named, None)
        if circuit is None:
            raise RequestRefused(Reason.NOT_FOUND)
        return circuit


def _dbm(power: float | None) -> str:
    return "" if power is None else f"{power:.2f}"
