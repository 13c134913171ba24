"""The RESTCONF side of an emulated Polatis: resources of its YANG models, as JSON.

Reads carry an ETag, which changes with what they read; a change that carries ``If-Match``
is done only if the resource is still that.
"""

import hashlib
import json
import re
import time
from typing import Any

from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.matrices import Reason, RequestRefused
from patchlight.emulation.optical.protocols.http_server import (
    HttpRequest,
    HttpResponse,
    HttpServer,
    read_map_by_hand,
)
from patchlight.emulation.optical.vendors.polatis import STATUS, PolatisSwitch

_PAIR = re.compile(r"/api/data/cross-connects/pair(?:=(\d{1,9}))?")


class PolatisRestconfServer(HttpServer):
    """RESTCONF with its resources."""

    by_hand = read_map_by_hand("/api/data/cross-connects/pair")
    media_type = "application/yang-data+json"

    _device: EmulatedOcs

    def __init__(self, device: EmulatedOcs) -> None:
        super().__init__(device)
        self._switch = PolatisSwitch(device)
        self._alarms: list[dict[str, Any]] = []

    def report(self, text: str) -> None:
        """Put it on the list of alarms."""
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._alarms.append({"id": len(self._alarms) + 1, "date-time": at, "description": text})

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        for number in range(self._device.faults.take_flood()):
            self.report(f"Alarm {number}")
        if (pair := _PAIR.fullmatch(request.path)) is not None:
            return await self._cross_connects(request, pair[1])
        if request.path == "/api/data/port-config/port" and request.method == "PATCH":
            return await self._configure(request)
        if request.method != "GET":
            return self._problem(405, f"{request.method} is not possible there")
        match request.path:
            case "/api/data/port-config/port":
                return _read(request, "polatis-switch:port", self._ports())
            case "/api/data/opm-power/port":
                return _read(request, "optical-switch:port", await self._power())
            case "/api/data/product-information":
                return _read(request, "optical-switch:product-information", self._switch.product())
            case "/api/data/system-alarms/alarm":
                return _read(request, "polatis-switch:alarm", self._alarms)
        return self._problem(404, f"no such resource: {request.path}")

    def _problem(self, status: int, message: str) -> HttpResponse:
        error = {"error-type": "application", "error-tag": _tag(status), "error-message": message}
        return HttpResponse(status, {"ietf-restconf:errors": {"error": [error]}})

    def _refusal(self, refusal: RequestRefused) -> HttpResponse:
        messages = {
            Reason.NO_PORT: f"Port {refusal.port} is out of range",
            Reason.BUSY: f"Port {refusal.port} twice",
            Reason.LOCKED: f"Port {refusal.port} is disabled",
            Reason.FAILED: f"Port {refusal.port} has failed",
        }
        status = 400 if refusal.reason is Reason.NO_PORT else 409
        return self._problem(status, messages.get(refusal.reason, refusal.reason.value))

    # --- cross-connects ---------------------------------------------------------------------

    def _pairs(self) -> list[dict[str, int]]:
        return [{"ingress": inp, "egress": out} for inp, out in self._switch.pairs()]

    async def _cross_connects(self, request: HttpRequest, ingress: str | None) -> HttpResponse:
        if request.method == "GET":
            pairs = self._pairs()
            if ingress is not None:
                pairs = [pair for pair in pairs if pair["ingress"] == int(ingress)]
                if not pairs:
                    return self._problem(404, f"Port {ingress} is not connected")
            return _read(request, "optical-switch:pair", pairs)
        if request.headers.get("if-match", "*") not in ("*", _etag(self._pairs())):
            return self._problem(412, "The cross-connects have changed")
        if request.method == "PATCH" and ingress is None:
            ins, outs = _numbers(request.body)
            if ins is None or outs is None:
                return self._problem(400, "expected a list of pairs of ingress and egress")
            await self._switch.connect(ins, outs)
        elif request.method == "DELETE":
            numbers = [inp for inp, _ in self._switch.pairs()]
            if ingress is not None:
                if int(ingress) not in numbers:
                    return self._problem(404, f"Port {ingress} is not connected")
                numbers = [int(ingress)]
            await self._switch.disconnect(numbers, [])
        else:
            return self._problem(405, f"{request.method} is not possible there")
        return HttpResponse(204, None, {"ETag": _etag(self._pairs())})

    def _ports(self) -> list[dict[str, Any]]:
        return [
            {"port-id": n, "status": STATUS[self._switch.state(n)], "label": "", "peer-port": ""}
            for n in self._switch.numbers
        ]

    async def _configure(self, request: HttpRequest) -> HttpResponse:
        rows = request.body.get("port") if isinstance(request.body, dict) else None
        numbers_by_status: dict[str, list[int]] = {"ENABLED": [], "DISABLED": []}
        for row in rows if isinstance(rows, list) else [None]:
            number = row.get("port-id") if isinstance(row, dict) else None
            status = row.get("status") if isinstance(row, dict) else None
            if type(number) is not int or status not in numbers_by_status:
                return self._problem(400, "expected a list of ports, ENABLED or DISABLED")
            numbers_by_status[status].append(number)
        for status, numbers in numbers_by_status.items():
            if numbers:
                await self._switch.enable(numbers, on=status == "ENABLED")
        return HttpResponse(204)

    async def _power(self) -> list[dict[str, Any]]:
        powers = await self._switch.monitored(self._switch.numbers)
        return [{"port-id": number, "power": round(dbm, 2)} for number, dbm in powers.items()]


def _read(request: HttpRequest, name: str, content: Any) -> HttpResponse:
    etag = _etag(content)
    if request.headers.get("if-none-match") == etag:
        return HttpResponse(304, None, {"ETag": etag})
    return HttpResponse(200, {name: content}, {"ETag": etag})


def _etag(content: Any) -> str:
    return f'"{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:24]}"'


def _numbers(body: Any) -> tuple[list[int] | None, list[int] | None]:
    pairs = body.get("pair") if isinstance(body, dict) else None
    if not isinstance(pairs, list) or not all(isinstance(pair, dict) for pair in pairs):
        return None, None
    ins, outs = ([pair.get(key) for pair in pairs] for key in ("ingress", "egress"))
    if not all(type(number) is int for number in (*ins, *outs)):
        return None, None
    return ins, outs


def _tag(status: int) -> str:
    return {401: "access-denied", 403: "access-denied", 404: "invalid-value"}.get(
        status, "operation-failed"
    )
