"""An emulated Lumentum ROADM whitebox: connections of its mux and demux over NETCONF.

Of its models what other programs use: connections, physical ports, system state, chassis. Which of
its fibres a lab has is in the driver (``controller/circuits/drivers/lumentum.py``).
"""

import re
import xml.etree.ElementTree as ET
from typing import Any
from xml.sax.saxutils import escape

from patchlight.emulation.optical.device import EmulatedWss
from patchlight.emulation.optical.matrices import Reason, RequestRefused
from patchlight.emulation.optical.protocols.netconf_server import (
    BASE,
    NetconfError,
    NetconfServer,
    local,
)
from patchlight.testbed.lab.spectrum import Channel, ChannelConnect
from patchlight.testbed.lab.wavelengths import WavelengthSwitch

CONNECTION = "http://www.lumentum.com/lumentum-ote-connection"
_EQUIPMENT = "http://www.lumentum.com/lumentum-ote-equipment"
_PORT = "http://www.lumentum.com/lumentum-ote-port"
_OPTICAL = "http://www.lumentum.com/lumentum-ote-port-optical"
_SYSTEM = "urn:ietf:params:xml:ns:yang:ietf-system"
_MUX, _DEMUX = 1, 2
_LINE_IN, _LINE_OUT, _ADD, _DROP = 5101, 4201, 4100, 5200
_MOST = 130
_DARK_DBM = -60.0
_CARD = "ne=1;chassis=1;card=1"
_DN = re.compile(rf"{_CARD};module=([12]);connection=([0-9]{{1,4}})")
_FIBRE = re.compile(rf"{_CARD};port=([0-9]{{1,5}})")

Connection = tuple[int, int]
"""Its module and its number."""

ET.register_namespace("lotet", CONNECTION)


class LumentumServer(NetconfServer):
    """NETCONF with its operations."""

    by_hand = "ssh -s -p {port} {user}@{host} netconf"
    module = f"{CONNECTION}?module=lumentum-ote-connection&revision=2017-02-13"
    changing = ("edit-config", "delete-connection", "remove-all-connections")

    _device: EmulatedWss

    def __init__(self, device: EmulatedWss) -> None:
        super().__init__(device)
        self._held: dict[ChannelConnect, Connection] = {}
        self._operations |= {
            "get": self._get,
            "edit-config": self._edit,
            "delete-connection": self._delete,
            "remove-all-connections": self._delete_all,
        }

    def report(self, text: str) -> None:
        """Say it as an alarm to whoever has subscribed."""
        self._notify(
            f'<alarm xmlns="http://www.lumentum.com/lumentum-alarms"><text>{escape(text)}</text>'
            "</alarm>"
        )

    def _refusal(self, refusal: RequestRefused) -> NetconfError:
        tag, message = {
            Reason.NO_PORT: ("invalid-value", f"no such port: {refusal.port}"),
            Reason.BUSY: ("operation-failed", refusal.message),
            Reason.LOCKED: ("operation-failed", f"port {refusal.port} is out of service"),
        }.get(refusal.reason, ("operation-failed", refusal.message or refusal.reason.value))
        return NetconfError(tag, message)

    async def _get(self, request: ET.Element) -> str:
        containers = {
            f"{{{CONNECTION}}}connections": self._connections,
            f"{{{_PORT}}}physical-ports": self._ports,
            f"{{{_SYSTEM}}}system-state": self._system,
            f"{{{_EQUIPMENT}}}chassis-list": self._chassis,
        }
        return await self._data(request, containers)

    async def _system(self) -> ET.Element:
        platform = {"machine": "ROADM-20", "os-version": "0.1"}
        return _made(_SYSTEM, "system-state", {"platform": platform})

    async def _chassis(self) -> ET.Element:
        state = {"serial-no": f"EMU-{self._device.switch.name}"}
        chassis = {"dn": "ne=1;chassis=1", "state": state}
        return _made(_EQUIPMENT, "chassis-list", {"chassis": chassis})

    async def _ports(self) -> ET.Element:
        switch, locked = self._device.switch, self._device.matrix.locked
        ports = _made(_PORT, "physical-ports", {})
        for side, powers in (
            ("in", await self._device.input_powers()),
            ("out", await self._device.output_powers()),
        ):
            for number, dbm in powers.items():
                fibre = _fibre_in(switch, number) if side == "in" else _fibre_out(switch, number)
                port = _made(_PORT, "physical-port", {"dn": f"{_CARD};port={fibre}"})
                state = _made(_OPTICAL, "state", {f"{side}put-power": _dbm(dbm)})
                state.tag = f"{{{_PORT}}}state"
                port.append(state)
                in_service = "out-of-service" if number in locked else "in-service"
                port.append(_made(_PORT, "config", {"maintenance-state": in_service}))
                ports.append(port)
        return ports

    async def _connections(self) -> ET.Element:
        switch, held = self._device.switch, self._numbered()
        connections = _made(CONNECTION, "connections", {})
        for way, (entering, leaving) in (await self._device.channel_powers()).items():
            module, number = held[way]
            first, last = (193_100 + edge * 6.25 for edge in way.channel.edges)
            config = {
                "maintenance-state": "in-service",
                "blocked": "false",
                "start-freq": first,
                "end-freq": last,
                "attenuation": way.attenuation_db,
                "input-port-reference": f"{_CARD};port={_fibre_in(switch, way.inp)}",
                "output-port-reference": f"{_CARD};port={_fibre_out(switch, way.out)}",
                "custom-name": self._device.faults.names or f"CH{number}",
            }
            state = {
                "input-channel-attributes": {"power": _dbm(entering)},
                "output-channel-attributes": {"power": _dbm(leaving)},
            }
            dn = f"{_CARD};module={module};connection={number}"
            entry = {"dn": dn, "config": config, "state": state}
            connections.append(_made(CONNECTION, "connection", entry))
        return connections

    async def _edit(self, request: ET.Element) -> str:
        if request.find(f"{{{BASE}}}target/{{{BASE}}}running") is None:
            raise NetconfError("invalid-value", "the only datastore is running", "protocol")
        config = request.find(f"{{{BASE}}}config")
        held, made = set(self._numbered().values()), dict[ChannelConnect, Connection]()
        for part in () if config is None else config:
            if part.tag != f"{{{CONNECTION}}}connections":
                raise NetconfError("unknown-element", f"{local(part.tag)} cannot be edited")
            for entry in part.iterfind(f"{{{CONNECTION}}}connection"):
                connection = _connection(entry)
                if connection in held or connection in made.values():
                    raise NetconfError("data-exists", f"connection {connection[1]} exists")
                made[self._way(entry, connection)] = connection
        self._device.make(made)
        self._held |= made
        await self._device.settle()
        return ""

    async def _delete(self, request: ET.Element) -> str:
        connection = _connection(request)
        found = [way for way, held in self._numbered().items() if held == connection]
        if not found:
            raise NetconfError("data-missing", f"no connection {connection[1]}")
        self._device.remove(found)
        await self._device.settle()
        return ""

    async def _delete_all(self, request: ET.Element) -> str:
        module = (request.findtext(f"{{{CONNECTION}}}dn") or "").rpartition("module=")[2]
        held = self._numbered().items()
        self._device.remove(way for way, (m, _) in list(held) if str(m) == module)
        await self._device.settle()
        return ""

    def _numbered(self) -> dict[ChannelConnect, Connection]:
        """Every entry with its connection; one that came from elsewhere gets the next number."""
        now = {way: self._held[way] for way in self._device.matrix if way in self._held}
        for way in self._device.matrix:
            if way not in now:
                line = _fibre_out(self._device.switch, way.out) == _LINE_OUT
                module, taken = _MUX if line else _DEMUX, set(now.values())
                free = (n for n in range(1, _MOST + 1) if (module, n) not in taken)
                now[way] = (module, next(free))
        self._held = now
        return now

    def _way(self, entry: ET.Element, connection: Connection) -> ChannelConnect:
        def leaf(name: str) -> str:
            text = entry.findtext(f"{{{CONNECTION}}}config/{{{CONNECTION}}}{name}")
            if text is None:
                raise NetconfError("missing-element", f"a connection has no {name}")
            return text.strip()

        switch = self._device.switch
        fibres = [_FIBRE.fullmatch(leaf(f"{side}put-port-reference")) for side in ("in", "out")]
        ins = {_fibre_in(switch, n): n for n in range(1, switch.inputs + 1)}
        outs = {_fibre_out(switch, n): n for n in range(1, switch.outputs + 1)}
        numbers = [int(match[1]) if match else 0 for match in fibres]
        line = (numbers[0] == _LINE_IN, numbers[1] == _LINE_OUT)
        if line != ((False, True) if connection[0] == _MUX else (True, False)):
            raise NetconfError("invalid-value", "these fibres are not of that module")
        if numbers[0] not in ins or numbers[1] not in outs:
            raise NetconfError("invalid-value", f"no such port: {numbers}")
        try:
            first, last = (float(leaf(name)) for name in ("start-freq", "end-freq"))
            low, high = ((ghz - 193_100) / 6.25 for ghz in (first, last))
            less_db = float(leaf("attenuation"))
        except ValueError as error:
            raise NetconfError("invalid-value", str(error)) from error
        if low % 1 or high % 1 or (high - low) % 2 or not 1 <= (high - low) // 2 <= 400:
            raise NetconfError("invalid-value", f"no slot is {first} to {last} GHz")
        channel = Channel(int(low + high) // 2, int(high - low) // 2)
        return ChannelConnect(ins[numbers[0]], outs[numbers[1]], channel, less_db)


def _fibre_in(switch: WavelengthSwitch, number: int) -> int:
    """The device's number of the fibre that is the lab's ``in:number``."""
    if switch.inputs == 1 or (number == 1 and switch.outputs > 1):
        return _LINE_IN
    return _ADD + number - (switch.outputs > 1)


def _fibre_out(switch: WavelengthSwitch, number: int) -> int:
    """The device's number of the fibre that is the lab's ``out:number``."""
    if switch.outputs == 1 or (number == 1 and switch.inputs > 1):
        return _LINE_OUT
    return _DROP + number - (switch.inputs > 1)


def _connection(entry: ET.Element) -> Connection:
    match = _DN.fullmatch((entry.findtext(f"{{{CONNECTION}}}dn") or "").strip())
    if match is None or not 1 <= int(match[2]) <= _MOST:
        raise NetconfError("invalid-value", "no connection has that dn")
    return int(match[1]), int(match[2])


def _dbm(power: float | None) -> str:
    return f"{_DARK_DBM if power is None else power:.1f}"


def _made(namespace: str, name: str, content: Any) -> ET.Element:
    """An element with these leaves, and groups of leaves."""
    element = ET.Element(f"{{{namespace}}}{name}")
    if isinstance(content, dict):
        element.extend(_made(namespace, key, value) for key, value in content.items())
    else:
        element.text = str(content)
    return element
