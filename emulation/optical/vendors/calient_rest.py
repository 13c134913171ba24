"""The REST side of an emulated Calient: paths and keys as its one known client uses them.

A circuit that is added is lit at once. A list is done as far as it can be.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from patchlight.controller.circuits.drivers.calient.table import to_aid, to_port
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.protocols.http_server import (
    HttpServer,
    Request,
    Response,
    read_map_by_hand,
)
from patchlight.emulation.optical.protocols.server import Users
from patchlight.emulation.optical.switch_matrix import Circuit, Phase, Reason, RequestRefused
from patchlight.emulation.optical.vendors.calient import (
    GROUP,
    SOFTWARE,
    STATES,
    circuit_id,
    model_of,
    refusal_words,
)
from patchlight.testbed.portmap import CrossConnect


class CalientRestServer(HttpServer):
    """REST with its paths."""

    port = 443
    by_hand = read_map_by_hand("/rest/crossconnects/?id=list")

    def __init__(self, device: EmulatedOcs, users: Users) -> None:
        super().__init__(device, users)
        self._resources: dict[tuple[str, str, str], Callable[[Request], Awaitable[Any]]] = {
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

    async def _answer(self, request: Request) -> Response:
        base, _, name = request.path.strip("/").partition("/")
        key = (request.method, name, request.query.get("id", ""))
        if base != "rest" or key not in self._resources:
            return self._problem(404, f"no such resource: {request.method} {request.path}")
        try:
            return Response(200, await self._resources[key](request))
        except ValueError as error:
            return self._problem(400, f"Invalid request: {error}")

    def _problem(self, status: int, words: str) -> Response:
        return Response(status, {"status": "failed", "message": words})

    def _refusal(self, refusal: RequestRefused) -> Response:
        status = 404 if refusal.reason is Reason.NOT_FOUND else 409
        return self._problem(status, _words(refusal))

    # --- reading ----------------------------------------------------------------------------

    async def _circuits(self, request: Request) -> list[dict[str, Any]]:
        circuits = tuple(self._device.matrix)
        ports = {
            port for circuit in circuits for c in circuit.directions for port in (c.inp, c.out)
        }
        power = await self._device.power(ports)
        rows = []
        for circuit in circuits:
            halves = [self._half(circuit, c, power) for c in circuit.directions]
            rows.append(
                {
                    "name": circuit.name or circuit_id(circuit),
                    "group": circuit.group or GROUP,
                    "dir": "bi" if circuit.two_way else "uni",
                    "band": "CBAND",
                    "half1": halves[0],
                    "half2": halves[1] if circuit.two_way else {},
                }
            )
        return rows

    def _half(
        self, circuit: Circuit, c: CrossConnect, power: dict[int, tuple[float | None, float | None]]
    ) -> dict[str, str]:
        arriving, leaving = power[c.inp][0], power[c.out][1]
        state = dict(zip(("as", "os", "oc"), STATES[circuit.phase], strict=True))
        lost = "" if arriving is None or leaving is None else f"{arriving - leaving:.2f}"
        return {
            "conn": f"{to_aid(c.inp)}>{to_aid(c.out)}",
            "inp": _dbm(arriving),
            "outp": _dbm(leaving),
            "loss": lost,
            "alarm": "CR" if circuit.phase is Phase.FAILED else "CL",
            "state": "NONE" if circuit.phase is Phase.PARKED else "ACT",
            **state,
        }

    async def _ports(self, request: Request) -> list[dict[str, str]]:
        matrix, numbers = self._device.matrix, range(1, self._device.switch.ports + 1)
        power = await self._device.power(numbers)
        rows = []
        for port in numbers:
            circuit = matrix.at_input(port) or matrix.at_output(port)
            conn = circuit_id(circuit) if circuit else ""
            rows.append(
                {
                    "port": to_aid(port),
                    "conn": conn,
                    "connid": circuit.name or conn if circuit else "",
                    "power": _dbm(power[port][0]),
                    "inalias": "",
                    "outalias": "",
                }
            )
        return rows

    async def _node(self, request: Request) -> Any:
        switch = self._device.switch
        if request.query.get("detail") == "SOFTWARE":
            return [{"version": SOFTWARE}]
        return {"partnumber": model_of(switch.ports), "serialnumber": f"EMU-{switch.name}"}

    async def _software(self, request: Request) -> dict[str, str]:
        return {"version": SOFTWARE}

    # --- changing ---------------------------------------------------------------------------

    async def _add(self, request: Request) -> dict[str, str]:
        return {"status": "ok", "conn": circuit_id(self._added(request.body))}

    async def _add_bulk(self, request: Request) -> dict[str, str]:
        if not isinstance(request.body, list):
            raise ValueError("expected a list of connections")
        failures, last = [], None
        for wanted in request.body:
            try:
                self._added(wanted)
            except RequestRefused as refusal:
                last = refusal
                failures.append(f"{wanted.get('conn', '')}: {_words(refusal)}")
        if last is not None:
            raise ListRefused(
                f"{len(failures)} connections failed: {'; '.join(failures[:8])}", last
            )
        return {"status": "ok"}

    async def _activate(self, request: Request) -> dict[str, str]:
        self._device.activate(self._named(request))
        return {"status": "ok"}

    async def _deactivate(self, request: Request) -> dict[str, str]:
        self._device.deactivate(self._named(request))
        return {"status": "ok"}

    async def _delete(self, request: Request) -> dict[str, str]:
        self._device.remove(self._named(request))
        return {"status": "ok"}

    # --- inside -----------------------------------------------------------------------------

    def _added(self, wanted: Any) -> Circuit:
        if not isinstance(wanted, dict):
            raise ValueError("a connection is an object")
        src, dst = (to_port(str(wanted.get(key, "")).partition("/")[0]) for key in ("in", "out"))
        if src is None or dst is None:
            raise RequestRefused(Reason.NO_PORT)
        there = CrossConnect(src, dst)
        two_way = wanted.get("dir", "bi") == "bi" and src != dst
        directions = (there, there.reverse) if two_way else (there,)
        return self._device.make(
            directions, str(wanted.get("conn", "")), str(wanted.get("group") or GROUP)
        )

    def _named(self, request: Request) -> Circuit:
        """By its id, else by its name."""
        said = {request.query.get("conn", ""), request.query.get("name", "")} - {""}
        for circuit in self._device.matrix:
            if {circuit_id(circuit), circuit.name} & said:
                return circuit
        raise RequestRefused(Reason.NOT_FOUND)


class ListRefused(RequestRefused):
    """What of a list could not be done."""

    def __init__(self, words: str, last: RequestRefused) -> None:
        super().__init__(last.reason, port=last.port, circuit=last.circuit)
        self.words = words


def _words(refusal: RequestRefused) -> str:
    return refusal.words if isinstance(refusal, ListRefused) else refusal_words(refusal)


def _dbm(power: float | None) -> str:
    return "" if power is None else f"{power:.2f}"
