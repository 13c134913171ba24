"""Emulates devices over HTTP: a Polatis, an OCS with SONiC in both revisions, a WaveShaper.

Polatis (RESTCONF): reads have an ETag, which changes with the data; a change with ``If-Match`` is
done only if the ETag still matches.

SONiC (RESTCONF): resources and keys follow the YANG modules ``sonic-ocs`` and ``sonic-ocs-states``
and published answers of an earlier revision; the refusal messages are invented. A list of new
entries is accepted whole or not at all, and answered before the mirrors have turned.

WaveShaper: profiles of its whole band, without a password. Channels that are unchanged in a new
profile, or change only in attenuation, have no outage. All others have one of the switching time.
"""

import hashlib
import json
import re
import time
from collections.abc import Iterable
from typing import Any, ClassVar

from patchlight.controller.circuits.contract import SIDES, Side
from patchlight.controller.circuits.drivers.waveshaper import Passing, Profile
from patchlight.emulation.optical.device import EmulatedOcs, EmulatedWss
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
from patchlight.emulation.optical.vendors.polatis import STATUS, PolatisSwitch
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import CrossConnect
from patchlight.testbed.lab.spectrum import ChannelConnect, SpectrumMap

_PAIR = re.compile(r"/api/data/cross-connects/pair(?:=(\d{1,9}))?")
_POLATIS_REFUSALS = {
    Reason.NO_PORT: (400, "Port {port} is out of range"),
    Reason.BUSY: (409, "Port {port} twice"),
    Reason.LOCKED: (409, "Port {port} is disabled"),
    Reason.FAILED: (409, "Port {port} has failed"),
}


class _RestconfServer(HttpServer):
    """``error_tag`` is for errors other than those of access or path."""

    media_type = "application/yang-data+json"
    error_tag: ClassVar[str]
    refused = (409, "{reason}")

    _device: EmulatedOcs

    def _problem(self, status: int, message: str) -> HttpResponse:
        tags = {
            401: "access-denied",
            403: "access-denied",
            404: "invalid-value",
        }
        tag = tags.get(status, self.error_tag)
        error = {
            "error-type": "application",
            "error-tag": tag,
            "error-message": message,
        }
        return HttpResponse(
            status, {"ietf-restconf:errors": {"error": [error]}}
        )

    def _not_possible(self, request: HttpRequest) -> HttpResponse:
        return self._problem(405, f"{request.method} is not possible there")


class PolatisRestconfServer(_RestconfServer):
    """RESTCONF with a Polatis's resources."""

    by_hand = HttpServer.curl("/api/data/cross-connects/pair")
    refusals = _POLATIS_REFUSALS
    error_tag = "operation-failed"

    def __init__(self, device: EmulatedOcs) -> None:
        super().__init__(device)
        self._switch = PolatisSwitch(device)
        self._alarms: list[dict[str, Any]] = []

    def report(self, text: str) -> None:
        """Add it to the list of alarms."""
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._alarms.append(
            {"id": len(self._alarms) + 1, "date-time": at, "description": text}
        )

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        for number in range(self._device.faults.take_flood()):
            self.report(f"Alarm {number}")
        if (pair := _PAIR.fullmatch(request.path)) is not None:
            return await self._cross_connects(request, pair[1])
        if (
            request.path == "/api/data/port-config/port"
            and request.method == "PATCH"
        ):
            return await self._configure(request)
        if request.method != "GET":
            return self._not_possible(request)
        match request.path:
            case "/api/data/port-config/port":
                states = {
                    n: STATUS[self._switch.state(n)]
                    for n in self._switch.numbers
                }
                ports = [
                    {
                        "port-id": n,
                        "status": status,
                        "label": "",
                        "peer-port": "",
                    }
                    for n, status in states.items()
                ]
                return _read(request, "polatis-switch:port", ports)
            case "/api/data/opm-power/port":
                powers = await self._switch.monitored(self._switch.numbers)
                rows = [
                    {"port-id": n, "power": round(dbm, 2)}
                    for n, dbm in powers.items()
                ]
                return _read(request, "optical-switch:port", rows)
            case "/api/data/product-information":
                return _read(
                    request,
                    "optical-switch:product-information",
                    self._switch.product(),
                )
            case "/api/data/system-alarms/alarm":
                return _read(request, "polatis-switch:alarm", self._alarms)
        return self._problem(404, f"no such resource: {request.path}")

    def _pairs(self) -> list[dict[str, int]]:
        return [
            {"ingress": inp, "egress": out}
            for inp, out in self._switch.pairs()
        ]

    async def _cross_connects(
        self, request: HttpRequest, ingress: str | None
    ) -> HttpResponse:
        if request.method == "GET":
            pairs = self._pairs()
            if ingress is not None:
                pairs = [
                    pair for pair in pairs if pair["ingress"] == int(ingress)
                ]
            if ingress is not None and not pairs:
                return self._problem(404, f"Port {ingress} is not connected")
            return _read(request, "optical-switch:pair", pairs)
        if request.headers.get("if-match", "*") not in (
            "*",
            _etag(self._pairs()),
        ):
            return self._problem(412, "The cross-connects have changed")
        if request.method == "PATCH" and ingress is None:
            body = (
                request.body.get("pair")
                if isinstance(request.body, dict)
                else None
            )
            rows = body if isinstance(body, list) else [None]
            given: list[Any] = [
                row if isinstance(row, dict) else {} for row in rows
            ]
            ins, outs = (
                [pair.get(key) for pair in given]
                for key in ("ingress", "egress")
            )
            if not all(type(number) is int for number in (*ins, *outs)):
                return self._problem(
                    400, "expected a list of pairs of ingress and egress"
                )
            await self._switch.connect(ins, outs)
        elif request.method == "DELETE":
            numbers = [inp for inp, _ in self._switch.pairs()]
            if ingress is not None:
                if int(ingress) not in numbers:
                    return self._problem(
                        404, f"Port {ingress} is not connected"
                    )
                numbers = [int(ingress)]
            await self._switch.disconnect(numbers, [])
        else:
            return self._not_possible(request)
        return HttpResponse(204, None, {"ETag": _etag(self._pairs())})

    async def _configure(self, request: HttpRequest) -> HttpResponse:
        rows = (
            request.body.get("port")
            if isinstance(request.body, dict)
            else None
        )
        numbers_by_status: dict[str, list[int]] = {
            "ENABLED": [],
            "DISABLED": [],
        }
        for row in rows if isinstance(rows, list) else [None]:
            number = row.get("port-id") if isinstance(row, dict) else None
            status = row.get("status") if isinstance(row, dict) else None
            if type(number) is not int or status not in numbers_by_status:
                return self._problem(
                    400, "expected a list of ports, ENABLED or DISABLED"
                )
            numbers_by_status[status].append(number)
        for status, numbers in numbers_by_status.items():
            if numbers:
                await self._switch.enable(numbers, on=status == "ENABLED")
        return HttpResponse(204)


def _read(
    request: HttpRequest,
    name: str,
    content: Any,
) -> HttpResponse:
    etag = _etag(content)
    if request.headers.get("if-none-match") == etag:
        return HttpResponse(304, None, {"ETag": etag})
    return HttpResponse(200, {name: content}, {"ETag": etag})


def _etag(content: Any) -> str:
    return f'"{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:24]}"'


_CIRCUITS = "/restconf/data/sonic-ocs:sonic-ocs/OCS_CROSS_CONNECT"
_METADATA = "/restconf/data/sonic-device_metadata:sonic-device_metadata/DEVICE_METADATA/localhost"
_ONE = re.compile(rf"{re.escape(_CIRCUITS)}/OCS_CROSS_CONNECT_LIST=(.*)")
_ID = re.compile(r"(\d{1,9})A-(\d{1,9})B")
_LETTERS: dict[Side, str] = {"in": "A", "out": "B"}
_STATUS = {
    Phase.PARKED: "blocked",
    Phase.SWITCHING: "tuning",
    Phase.LIT: "tuned",
}
_SONIC_REFUSALS = {
    Reason.NO_PORT: (409, "port {port} is not in OCS_PORT"),
    Reason.BUSY: (409, "port {port} has a cross-connect"),
    Reason.LOCKED: (
        409,
        "port {port} is force_blocked, not normal: it is locked",
    ),
}
_MEASURED_AT = {
    "frequency_THz": "193.500",
    "temperature_C": "25.00",
    "accuracy_dB": "0.05",
}


class SonicOcsServer(_RestconfServer):
    """RESTCONF with SONiC's resources.

    ``unconfigured``: cross-connects in the hardware but not in the configuration. ``invalid``:
    entries whose ports are in use.
    """

    by_hand = HttpServer.curl(_CIRCUITS)
    refusals = _SONIC_REFUSALS
    error_tag = "invalid-value"

    def __init__(self, device: EmulatedOcs) -> None:
        super().__init__(device)
        self.unconfigured: set[CrossConnect] = set()
        self.invalid: set[CrossConnect] = set()
        states = "/restconf/data/sonic-ocs-states:sonic-ocs-states"
        earlier = "/restconf/data/sonic-ocs:sonic-ocs"
        self._resources = {
            _CIRCUITS: ("OCS_CROSS_CONNECT", self._circuits),
            f"{earlier}/OCS_PORT": ("OCS_PORT", self._ports),
            f"{states}/OCS_PORT": ("OCS_PORT", self._port_states),
            f"{earlier}/OCS_PORT_TABLE": ("OCS_PORT", self._port_states),
            f"{states}/OCS_CROSS_CONNECT": ("OCS_CROSS_CONNECT", self._states),
            f"{earlier}/OCS_CROSS_CONNECT_TABLE": (
                "OCS_CROSS_CONNECT",
                self._states,
            ),
            f"{states}/OCS_FACTORY_INSERTION_LOSS": (
                "OCS_FACTORY_INSERTION_LOSS",
                self._losses,
            ),
        }

    def report(self, text: str) -> None:
        """Refuse: alarms are the states of ports."""
        raise BadInput("a SONiC OCS has no alarms: use fail_ports")

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        if request.method == "PATCH" and request.path == _CIRCUITS:
            return await self._add(request.body)
        if request.method == "DELETE" and (
            one := _ONE.fullmatch(request.path)
        ):
            return await self._delete(one[1])
        if request.method != "GET":
            return self._not_possible(request)
        if request.path == _METADATA:
            about = {
                "hwsku": "OCS-V",
                "hostname": self._device.switch.name,
                "switch_type": "ocs",
            }
            return HttpResponse(
                200, {"sonic-device_metadata:localhost": about}
            )
        if request.path not in self._resources:
            return self._problem(404, f"no such resource: {request.path}")
        name, resource = self._resources[request.path]
        if rows := list(resource()):
            module = request.path.split("/")[3].partition(":")[0]
            table = request.path.rpartition("/")[2]
            return HttpResponse(
                200, {f"{module}:{table}": {f"{name}_LIST": rows}}
            )
        return self._problem(404, "Resource not found")

    async def _add(self, body: Any) -> HttpResponse:
        inner = (
            body.get("sonic-ocs:OCS_CROSS_CONNECT")
            if isinstance(body, dict)
            else None
        )
        rows = (
            inner.get("OCS_CROSS_CONNECT_LIST")
            if isinstance(inner, dict)
            else None
        )
        ids = (
            [row.get("cross_connect_id") for row in rows]
            if isinstance(rows, list)
            else []
        )
        pairs = [_parsed(str(text)) for text in ids]
        if not pairs or None in pairs:
            return self._problem(
                400, "expected a list of cross-connects like 1A-2B"
            )
        made: list[SwitchedCircuit] = []
        try:
            for c in pairs:
                assert c is not None
                self.unconfigured.discard(c)
                # Existing entries stay unchanged, valid or not.
                if (
                    self._device.matrix.find(c) is None
                    and c not in self.invalid
                ):
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
        held = (
            c for circuit in self._device.matrix for c in circuit.directions
        )
        return [
            c for c in (*held, *self.invalid) if c not in self.unconfigured
        ]

    def _circuits(self) -> Iterable[dict[str, str]]:
        return map(_sides, self._configured())

    def _states(self) -> Iterable[dict[str, str]]:
        for circuit in self._device.matrix:
            status = _STATUS.get(circuit.phase, "failed")
            whole = {"tuned": "enabled", "failed": "failed"}.get(
                status, "switching"
            )
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
            yield {
                "simplex_port_id": f"{number}{_LETTERS[side]}",
                "config_status": override,
            }

    def _port_states(self) -> Iterable[dict[str, str]]:
        matrix = self._device.matrix
        for number, side in self._each_port():
            circuit = matrix.at(side, number)
            status = (
                "blocked"
                if circuit is None
                else _STATUS.get(circuit.phase, "failed")
            )
            status = "failed" if number in matrix.failed else status
            yield {
                "simplex_port_id": f"{number}{_LETTERS[side]}",
                "status": status,
                "oper_status": "connected" if status == "tuned" else status,
            }

    def _losses(self) -> Iterable[dict[str, str]]:
        numbers = range(1, self._device.switch.ports + 1)
        for c in (
            CrossConnect(inp, out) for inp in numbers for out in numbers
        ):
            name = _sides(c)["cross_connect_id"]
            loss = f"{self._device.loss_db(c):.2f}"
            yield {"cross_connect_id": name, **_MEASURED_AT, "loss_dB": loss}

    def _each_port(self) -> Iterable[tuple[int, Side]]:
        numbers = range(1, self._device.switch.ports + 1)
        return ((number, side) for number in numbers for side in SIDES)


def _sides(c: CrossConnect) -> dict[str, str]:
    a_side = f"{c.inp}A"
    b_side = f"{c.out}B"
    return {
        "cross_connect_id": f"{a_side}-{b_side}",
        "a_side": a_side,
        "b_side": b_side,
    }


def _parsed(text: str) -> CrossConnect | None:
    match = _ID.fullmatch(text)
    return (
        None if match is None else CrossConnect(int(match[1]), int(match[2]))
    )


FIRST_GHZ = 191_250
LAST_GHZ = 196_275
_WAVESHAPER_REFUSALS = {
    Reason.NO_PORT: (409, "invalid port"),
    Reason.LOCKED: (409, "port is locked"),
}


class WaveShaperServer(HttpServer):
    """HTTP with a WaveShaper's paths."""

    by_hand = 'curl -s "http://{host}:{port}/waveshaper/getprofile"'
    secure = False
    refusals = _WAVESHAPER_REFUSALS
    refused = (409, "failed")

    _device: EmulatedWss

    def __init__(self, device: EmulatedWss) -> None:
        super().__init__(device)
        self._loaded = Profile.blocked(FIRST_GHZ, LAST_GHZ)

    def report(self, text: str) -> None:
        """Refuse: it has no alarms."""
        raise BadInput("a WaveShaper has no alarms")

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        switch = self._device.switch
        match request.method, request.path:
            case "GET", "/waveshaper/devinfo":
                about: dict[str, object] = {
                    "model": "WaveShaper",
                    "sno": f"EMU-{switch.name}",
                }
                about |= {
                    "ver": "0.1",
                    "portcount": switch.ports,
                    "rc": 0,
                    "rctext": "",
                }
                band = {
                    "startfreq": FIRST_GHZ / 1000,
                    "stopfreq": LAST_GHZ / 1000,
                }
                return HttpResponse(200, about | band)
            case "GET", "/waveshaper/getprofile":
                return HttpResponse(200, text=self._now().text)
            case "POST", "/waveshaper/loadprofile":
                return self._load(request.body)
        return HttpResponse(404, {"rc": -1, "rctext": "not found"})

    def _problem(self, status: int, message: str) -> HttpResponse:
        # The interface answers 200 to all valid requests.
        status = 200 if status == 409 else status
        return HttpResponse(status, {"rc": -1, "rctext": message, "sno": ""})

    def _load(self, body: Any) -> HttpResponse:
        kind = body.get("type") if isinstance(body, dict) else None
        try:
            if kind == "blockall":
                profile = Profile.blocked(FIRST_GHZ, LAST_GHZ)
            elif kind == "wsp":
                profile = Profile.parse(str(body.get("wsp", "")))
            else:
                raise ValueError(f"no profile of type {str(kind)[:200]}")
            if (profile.first_ghz, len(profile.lines)) != (
                FIRST_GHZ,
                LAST_GHZ - FIRST_GHZ + 1,
            ):
                raise ValueError(
                    f"a profile of {profile}: this device has another band"
                )
            wanted = SpectrumMap.of(self._ways(profile))
        except (ValueError, BadInput) as error:
            return self._problem(409, f"invalid profile: {error}")
        self._device.load(wanted)
        self._loaded = profile
        return HttpResponse(
            200,
            {"rc": 0, "rctext": "", "sno": f"EMU-{self._device.switch.name}"},
        )

    def _now(self) -> Profile:
        """The last loaded profile, without what was changed at the device since."""
        held = set(self._device.matrix)
        profile = self._loaded
        loaded = set(self._ways(profile))
        for way in loaded - held:
            profile = profile.with_channel(way.channel, None)
        for way in held - loaded:
            port = way.out if self._device.switch.inputs == 1 else way.inp
            profile = profile.with_channel(
                way.channel, Passing(port, way.attenuation_db)
            )
        self._loaded = profile
        return profile

    def _ways(self, profile: Profile) -> list[ChannelConnect]:
        spreads = self._device.switch.inputs == 1
        return [
            ChannelConnect(
                *((1, port) if spreads else (port, 1)), channel, less_db
            )
            for channel, (port, less_db) in profile.channels(
                self._device.switch.grid
            ).items()
        ]
