"""The RESTCONF side of an emulated OCS that runs SONiC: its OCS model, in both revisions.

Resources and their keys follow the YANG modules ``sonic-ocs`` and ``sonic-ocs-states`` and printed
answers of an earlier revision; the words of refusals are ours. A list of new entries is taken whole
or not at all, and answered before the mirrors have turned.
"""

import re
from collections.abc import Iterable
from typing import Any

from patchlight.controller.circuits.contract import SIDES, Side
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.matrices import Phase, Reason, RequestRefused, SwitchedCircuit
from patchlight.emulation.optical.protocols.http_server import (
    HttpRequest,
    HttpResponse,
    HttpServer,
    read_map_by_hand,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import CrossConnect

_CIRCUITS = "/restconf/data/sonic-ocs:sonic-ocs/OCS_CROSS_CONNECT"
_ONE = re.compile(rf"{re.escape(_CIRCUITS)}/OCS_CROSS_CONNECT_LIST=(.*)")
_ID = re.compile(r"(\d{1,9})A-(\d{1,9})B")
_LETTERS: dict[Side, str] = {"in": "A", "out": "B"}
_STATUS = {Phase.PARKED: "blocked", Phase.SWITCHING: "tuning", Phase.LIT: "tuned"}
_MEASURED_AT = {"frequency_THz": "193.500", "temperature_C": "25.00", "accuracy_dB": "0.05"}


class SonicOcsServer(HttpServer):
    """RESTCONF with its resources.

    ``unconfigured``: cross-connects that the hardware holds and the configuration does not.
    ``invalid``: entries whose ports others hold.
    """

    by_hand = read_map_by_hand(_CIRCUITS)
    media_type = "application/yang-data+json"

    _device: EmulatedOcs

    def __init__(self, device: EmulatedOcs) -> None:
        super().__init__(device)
        self.unconfigured: set[CrossConnect] = set()
        self.invalid: set[CrossConnect] = set()
        data = "/restconf/data"
        states = f"{data}/sonic-ocs-states:sonic-ocs-states"
        earlier = f"{data}/sonic-ocs:sonic-ocs"
        metadata = f"{data}/sonic-device_metadata:sonic-device_metadata/DEVICE_METADATA/localhost"
        self._resources = {
            _CIRCUITS: ("OCS_CROSS_CONNECT", self._circuits),
            f"{earlier}/OCS_PORT": ("OCS_PORT", self._ports),
            f"{states}/OCS_PORT": ("OCS_PORT", self._port_states),
            f"{earlier}/OCS_PORT_TABLE": ("OCS_PORT", self._port_states),
            f"{states}/OCS_CROSS_CONNECT": ("OCS_CROSS_CONNECT", self._states),
            f"{earlier}/OCS_CROSS_CONNECT_TABLE": ("OCS_CROSS_CONNECT", self._states),
            f"{states}/OCS_FACTORY_INSERTION_LOSS": ("OCS_FACTORY_INSERTION_LOSS", self._losses),
        }
        self._metadata = metadata

    def report(self, text: str) -> None:
        """Nothing can be reported: alarms are the states of ports."""
        raise BadInput("a SONiC OCS reports nothing: let ports fail with fail_ports")

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        if request.method == "PATCH" and request.path == _CIRCUITS:
            return await self._add(request.body)
        if request.method == "DELETE" and (one := _ONE.fullmatch(request.path)):
            return await self._delete(one[1])
        if request.method != "GET":
            return self._problem(405, f"{request.method} is not possible there")
        if request.path == self._metadata:
            about = {"hwsku": "OCS-V", "hostname": self._device.switch.name, "switch_type": "ocs"}
            return HttpResponse(200, {"sonic-device_metadata:localhost": about})
        if request.path not in self._resources:
            return self._problem(404, f"no such resource: {request.path}")
        name, resource = self._resources[request.path]
        if rows := list(resource()):
            module = request.path.split("/")[3].partition(":")[0]
            table = request.path.rpartition("/")[2]
            return HttpResponse(200, {f"{module}:{table}": {f"{name}_LIST": rows}})
        return self._problem(404, "Resource not found")

    def _problem(self, status: int, message: str) -> HttpResponse:
        tag = "access-denied" if status in (401, 403) else "invalid-value"
        error = {"error-type": "application", "error-tag": tag, "error-message": message}
        return HttpResponse(status, {"ietf-restconf:errors": {"error": [error]}})

    def _refusal(self, refusal: RequestRefused) -> HttpResponse:
        messages = {
            Reason.NO_PORT: f"port {refusal.port} is not in OCS_PORT",
            Reason.BUSY: f"port {refusal.port} has a cross-connect",
            Reason.LOCKED: f"port {refusal.port} is force_blocked, not normal: it is locked",
        }
        return self._problem(409, messages.get(refusal.reason, refusal.reason.value))

    async def _add(self, body: Any) -> HttpResponse:
        inner = body.get("sonic-ocs:OCS_CROSS_CONNECT") if isinstance(body, dict) else None
        rows = inner.get("OCS_CROSS_CONNECT_LIST") if isinstance(inner, dict) else None
        ids = [row.get("cross_connect_id") for row in rows] if isinstance(rows, list) else []
        pairs = [_parsed(str(text)) for text in ids]
        if not pairs or None in pairs:
            return self._problem(400, "expected a list of cross-connects like 1A-2B")
        made: list[SwitchedCircuit] = []
        try:
            for c in pairs:
                assert c is not None
                self.unconfigured.discard(c)
                # What is entered already stays as it is, valid or not.
                if self._device.matrix.find(c) is None and c not in self.invalid:
                    made.append(self._device.make((c,)))
        except RequestRefused:
            self._device.remove_all(made)
            raise
        return HttpResponse(204)

    async def _delete(self, text: str) -> HttpResponse:
        c = _parsed(text)
        if c is None or c not in self._configured():
            return self._problem(404, "Resource not found")
        self.invalid.discard(c)
        self._device.remove_all([self._device.matrix.find(c)])
        return HttpResponse(204)

    def _configured(self) -> list[CrossConnect]:
        held = (c for circuit in self._device.matrix for c in circuit.directions)
        return [c for c in (*held, *self.invalid) if c not in self.unconfigured]

    def _circuits(self) -> Iterable[dict[str, str]]:
        return map(_sides, self._configured())

    def _states(self) -> Iterable[dict[str, str]]:
        for circuit in self._device.matrix:
            status = _STATUS.get(circuit.phase, "failed")
            whole = {"tuned": "enabled", "failed": "failed"}.get(status, "switching")
            for c in circuit.directions:
                sides = {"a_side_status": status, "b_side_status": status}
                yield {**_sides(c), **sides, "status": whole}
        for c in self.invalid:
            sides = {"a_side_status": "blocked", "b_side_status": "blocked"}
            yield {**_sides(c), **sides, "status": "invalid"}

    def _ports(self) -> Iterable[dict[str, str]]:
        for number, side in self._each_port():
            locked = number in self._device.matrix.locked
            override = "force_blocked" if locked else "normal"
            yield {"simplex_port_id": f"{number}{_LETTERS[side]}", "config_status": override}

    def _port_states(self) -> Iterable[dict[str, str]]:
        matrix = self._device.matrix
        for number, side in self._each_port():
            circuit = matrix.at_input(number) if side == "in" else matrix.at_output(number)
            status = "blocked" if circuit is None else _STATUS.get(circuit.phase, "failed")
            status = "failed" if number in matrix.failed else status
            yield {
                "simplex_port_id": f"{number}{_LETTERS[side]}",
                "status": status,
                "oper_status": "connected" if status == "tuned" else status,
            }

    def _losses(self) -> Iterable[dict[str, str]]:
        numbers = range(1, self._device.switch.ports + 1)
        for c in (CrossConnect(inp, out) for inp in numbers for out in numbers):
            loss = f"{self._device.loss_db(c):.2f}"
            yield {
                "cross_connect_id": _sides(c)["cross_connect_id"],
                **_MEASURED_AT,
                "loss_dB": loss,
            }

    def _each_port(self) -> Iterable[tuple[int, Side]]:
        numbers = range(1, self._device.switch.ports + 1)
        return ((number, side) for number in numbers for side in SIDES)


def _sides(c: CrossConnect) -> dict[str, str]:
    a_side, b_side = f"{c.inp}A", f"{c.out}B"
    return {"cross_connect_id": f"{a_side}-{b_side}", "a_side": a_side, "b_side": b_side}


def _parsed(text: str) -> CrossConnect | None:
    match = _ID.fullmatch(text)
    return None if match is None else CrossConnect(int(match[1]), int(match[2]))
