"""Emulates devices over NETCONF: a Polatis, and a Lumentum ROADM whitebox.

The Polatis has the YANG module ``optical-switch`` of 2018-03-22: product information,
cross-connects, port configuration, optical power, port-set-state. The Lumentum has the parts of its
models that other programs use: connections of its mux and demux, physical ports, system state,
chassis. The driver (``controller/circuits/drivers/lumentum.py``) says how a lab's ports map to its
fibres.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from xml.sax.saxutils import escape

from patchlight.emulation.optical.device import EmulatedOcs, EmulatedWss
from patchlight.emulation.optical.matrices import Reason
from patchlight.emulation.optical.protocols import ssh_server
from patchlight.emulation.optical.protocols.ssh_server import (
    BASE,
    NetconfError,
    NetconfServer,
)
from patchlight.emulation.optical.vendors.polatis import STATUS, PolatisSwitch
from patchlight.testbed.lab.spectrum import Channel, ChannelConnect
from patchlight.testbed.lab.wavelengths import WavelengthSwitch

NAMESPACE = "http://www.polatis.com/yang/optical-switch"
_OPERATION = f"{{{BASE}}}operation"
_PAIR_OPERATIONS = ("merge", "replace", "create", "delete", "remove")
_POLATIS_REFUSALS = {
    Reason.NO_PORT: ("invalid-value", "Invalid OXC port: {port}"),
    Reason.BUSY: ("invalid-value", "Port {port} is named twice"),
    Reason.LOCKED: ("operation-failed", "Port {port} is disabled"),
    Reason.FAILED: ("operation-failed", "Port {port} has failed"),
}
_RUNNING = f"{{{BASE}}}running"

ET.register_namespace("opsw", NAMESPACE)


class PolatisNetconfServer(NetconfServer):
    """NETCONF with a Polatis's operations."""

    by_hand = "ssh -s -p {port} {user}@{host} netconf"
    module = f"{NAMESPACE}?module=optical-switch&revision=2018-03-22"
    changing = ("edit-config", "port-set-state")
    refusals = _POLATIS_REFUSALS
    refused = ("operation-failed", "failed")

    _device: EmulatedOcs

    def __init__(self, device: EmulatedOcs) -> None:
        super().__init__(device)
        self._switch = PolatisSwitch(device)
        self._operations |= {
            "get-config": self._get_config,
            "edit-config": self._edit,
            "port-set-state": self._set_state,
        }
        self._containers = {
            _tag("product-information"): self._product,
            _tag("port-config"): self._ports,
            _tag("opm-power"): self._power,
            _tag("cross-connects"): self._cross_connects,
        }

    def report(self, text: str) -> None:
        """Send it as a ``system-error`` to subscribed clients."""
        event = _element(NAMESPACE, "system-error", {"message": text})
        self._notify(ET.tostring(event, encoding="unicode"))

    async def _get_config(self, request: ET.Element) -> str:
        if request.find(f"{{{BASE}}}source/{_RUNNING}") is None:
            raise NetconfError(
                "invalid-value", "the only datastore is running", "protocol"
            )
        return await self._data(
            request, {_tag("cross-connects"): self._cross_connects}
        )

    async def _product(self) -> ET.Element:
        return _element(
            NAMESPACE, "product-information", self._switch.product()
        )

    async def _ports(self) -> ET.Element:
        switch = self._switch
        rows = (
            {"port-id": n, "status": STATUS[switch.state(n)]}
            for n in switch.numbers
        )
        return _list("port-config", "port", rows)

    async def _power(self) -> ET.Element:
        powers = await self._switch.monitored(self._switch.numbers)
        rows = (
            {"port-id": number, "power": f"{dbm:.2f}"}
            for number, dbm in powers.items()
        )
        return _list("opm-power", "port", rows)

    async def _cross_connects(self) -> ET.Element:
        rows = (
            {"ingress": inp, "egress": out}
            for inp, out in sorted(self._switch.pairs())
        )
        return _list("cross-connects", "pair", rows)

    async def _edit(self, request: ET.Element) -> str:
        for part in _edited(request, _tag("cross-connects")):
            await self._edit_pairs(part)
        return ""

    async def _edit_pairs(self, part: ET.Element) -> None:
        held = dict(self._switch.pairs())
        whole = part.get(_OPERATION, "merge")
        makes: dict[int, int] = {}
        breaks: list[int] = []
        for pair in part.iterfind(_tag("pair")):
            inp = _port(pair, "ingress")
            operation = pair.get(_OPERATION, "merge")
            if operation not in _PAIR_OPERATIONS:
                raise NetconfError(
                    "bad-attribute", f"no operation {operation}", "protocol"
                )
            if operation in ("delete", "remove"):
                if inp in held:
                    breaks.append(inp)
                elif operation == "delete":
                    raise NetconfError(
                        "data-missing", f"Port {inp} has no connection"
                    )
                continue
            if operation == "create" and inp in held:
                raise NetconfError(
                    "data-exists", f"Port {inp} has a connection"
                )
            makes[inp] = _port(pair, "egress")
        if whole == "replace":
            await self._switch.only(list(makes), list(makes.values()))
        elif whole in ("delete", "remove"):
            await self._switch.disconnect_all()
        else:
            if breaks:
                await self._switch.disconnect(breaks, ())
            if makes:
                await self._switch.connect(list(makes), list(makes.values()))

    async def _set_state(self, request: ET.Element) -> str:
        for leaf, on in (("port-enab", True), ("port-disab", False)):
            if numbers := [
                _number(port) for port in request.iterfind(_tag(leaf))
            ]:
                await self._switch.enable(numbers, on=on)
        return ""


def _tag(name: str) -> str:
    return f"{{{NAMESPACE}}}{name}"


def _list(
    name: str,
    entry: str,
    rows: Iterable[Mapping[str, object]],
) -> ET.Element:
    return _element(
        NAMESPACE, name, [_element(NAMESPACE, entry, row) for row in rows]
    )


def _port(pair: ET.Element, leaf: str) -> int:
    port = pair.find(_tag(leaf))
    if port is None:
        raise NetconfError("missing-element", f"a pair has no {leaf}")
    return _number(port)


def _number(leaf: ET.Element) -> int:
    text = (leaf.text or "").strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise NetconfError("invalid-value", f"Invalid OXC port: {text[:20]}")
    return int(text)


def _edited(request: ET.Element, tag: str) -> Iterable[ET.Element]:
    if request.find(f"{{{BASE}}}target/{_RUNNING}") is None:
        raise NetconfError(
            "invalid-value", "the only datastore is running", "protocol"
        )
    for part in request.iterfind(f"{{{BASE}}}config/*"):
        if part.tag != tag:
            raise NetconfError(
                "unknown-element",
                f"{ssh_server.local(part.tag)} cannot be edited",
            )
        yield part


def _element(
    namespace: str,
    name: str,
    content: object,
) -> ET.Element:
    """An element with text, a mapping's leaves and groups, or these elements."""
    made = ET.Element(f"{{{namespace}}}{name}")
    if isinstance(content, Mapping):
        made.extend(
            _element(namespace, key, value) for key, value in content.items()
        )
    elif isinstance(content, list):
        made.extend(content)
    else:
        made.text = str(content)
    return made


CONNECTION = "http://www.lumentum.com/lumentum-ote-connection"
_EQUIPMENT = "http://www.lumentum.com/lumentum-ote-equipment"
_PORT = "http://www.lumentum.com/lumentum-ote-port"
_OPTICAL = "http://www.lumentum.com/lumentum-ote-port-optical"
_SYSTEM = "urn:ietf:params:xml:ns:yang:ietf-system"
_MUX = 1
_DEMUX = 2
_LINE_IN = 5101
_LINE_OUT = 4201
_ADD = 4100
_DROP = 5200
_MOST = 130
_DARK_DBM = -60.0
_CARD = "ne=1;chassis=1;card=1"
_DN = re.compile(rf"{_CARD};module=([12]);connection=([0-9]{{1,4}})")
_FIBRE = re.compile(rf"{_CARD};port=([0-9]{{1,5}})")

_LUMENTUM_REFUSALS = {
    Reason.NO_PORT: ("invalid-value", "no such port: {port}"),
    Reason.LOCKED: ("operation-failed", "port {port} is out of service"),
}

Connection = tuple[int, int]
"""Its module and its number."""

ET.register_namespace("lotet", CONNECTION)


class LumentumServer(NetconfServer):
    """NETCONF with a Lumentum's operations."""

    by_hand = "ssh -s -p {port} {user}@{host} netconf"
    module = f"{CONNECTION}?module=lumentum-ote-connection&revision=2017-02-13"
    changing = ("edit-config", "delete-connection", "remove-all-connections")
    refusals = _LUMENTUM_REFUSALS
    refused = ("operation-failed", "{reason}")

    _device: EmulatedWss

    def __init__(self, device: EmulatedWss) -> None:
        super().__init__(device)
        self._held: dict[ChannelConnect, Connection] = {}
        self._operations |= {
            "edit-config": self._edit,
            "delete-connection": self._delete,
            "remove-all-connections": self._delete_all,
        }
        self._containers = {
            f"{{{CONNECTION}}}connections": self._connections,
            f"{{{_PORT}}}physical-ports": self._ports,
            f"{{{_SYSTEM}}}system-state": self._system,
            f"{{{_EQUIPMENT}}}chassis-list": self._chassis,
        }

    def report(self, text: str) -> None:
        """Send it as an alarm to subscribed clients."""
        self._notify(
            f'<alarm xmlns="http://www.lumentum.com/lumentum-alarms"><text>{escape(text)}</text>'
            "</alarm>"
        )

    async def _system(self) -> ET.Element:
        platform = {"machine": "ROADM-20", "os-version": "0.1"}
        return _element(_SYSTEM, "system-state", {"platform": platform})

    async def _chassis(self) -> ET.Element:
        state = {"serial-no": f"EMU-{self._device.switch.name}"}
        chassis = {"dn": "ne=1;chassis=1", "state": state}
        return _element(_EQUIPMENT, "chassis-list", {"chassis": chassis})

    async def _ports(self) -> ET.Element:
        switch = self._device.switch
        locked = self._device.matrix.locked
        ports = []
        for side, powers in (
            ("in", await self._device.input_powers()),
            ("out", await self._device.output_powers()),
        ):
            for number, dbm in powers.items():
                fibre = _fibre(switch, side, number)
                port = _element(
                    _PORT, "physical-port", {"dn": f"{_CARD};port={fibre}"}
                )
                state = _element(
                    _OPTICAL, "state", {f"{side}put-power": _dbm(dbm)}
                )
                state.tag = f"{{{_PORT}}}state"
                port.append(state)
                in_service = (
                    "out-of-service" if number in locked else "in-service"
                )
                port.append(
                    _element(
                        _PORT, "config", {"maintenance-state": in_service}
                    )
                )
                ports.append(port)
        return _element(_PORT, "physical-ports", ports)

    async def _connections(self) -> ET.Element:
        switch = self._device.switch
        held = self._numbered()
        connections = []
        for way, (entering, leaving) in (
            await self._device.channel_powers()
        ).items():
            module, number = held[way]
            first, last = (193_100 + edge * 6.25 for edge in way.channel.edges)
            config = {
                "maintenance-state": "in-service",
                "blocked": "false",
                "start-freq": first,
                "end-freq": last,
                "attenuation": way.attenuation_db,
                "input-port-reference": f"{_CARD};port={_fibre(switch, 'in', way.inp)}",
                "output-port-reference": f"{_CARD};port={_fibre(switch, 'out', way.out)}",
                "custom-name": self._device.faults.names or f"CH{number}",
            }
            state = {
                "input-channel-attributes": {"power": _dbm(entering)},
                "output-channel-attributes": {"power": _dbm(leaving)},
            }
            dn = f"{_CARD};module={module};connection={number}"
            entry = {"dn": dn, "config": config, "state": state}
            connections.append(_element(CONNECTION, "connection", entry))
        return _element(CONNECTION, "connections", connections)

    async def _edit(self, request: ET.Element) -> str:
        held = set(self._numbered().values())
        made = dict[ChannelConnect, Connection]()
        for part in _edited(request, f"{{{CONNECTION}}}connections"):
            for entry in part.iterfind(f"{{{CONNECTION}}}connection"):
                connection = _connection(entry)
                if connection in held or connection in made.values():
                    raise NetconfError(
                        "data-exists", f"connection {connection[1]} exists"
                    )
                made[self._way(entry, connection)] = connection
        self._device.make(made)
        self._held |= made
        await self._device.settle()
        return ""

    async def _delete(self, request: ET.Element) -> str:
        connection = _connection(request)
        found = [
            way for way, held in self._numbered().items() if held == connection
        ]
        if not found:
            raise NetconfError(
                "data-missing", f"no connection {connection[1]}"
            )
        self._device.remove(found)
        await self._device.settle()
        return ""

    async def _delete_all(self, request: ET.Element) -> str:
        module = (request.findtext(f"{{{CONNECTION}}}dn") or "").rpartition(
            "module="
        )[2]
        held = list(self._numbered().items())
        self._device.remove(way for way, (m, _) in held if str(m) == module)
        await self._device.settle()
        return ""

    def _numbered(self) -> dict[ChannelConnect, Connection]:
        """Every entry with its connection; one made elsewhere gets the next number."""
        now = {
            way: self._held[way]
            for way in self._device.matrix
            if way in self._held
        }
        for way in self._device.matrix:
            if way not in now:
                line = _fibre(self._device.switch, "out", way.out) == _LINE_OUT
                module = _MUX if line else _DEMUX
                taken = set(now.values())
                free = (
                    n for n in range(1, _MOST + 1) if (module, n) not in taken
                )
                now[way] = (module, next(free))
        self._held = now
        return now

    def _way(
        self, entry: ET.Element, connection: Connection
    ) -> ChannelConnect:
        def leaf(name: str) -> str:
            text = entry.findtext(
                f"{{{CONNECTION}}}config/{{{CONNECTION}}}{name}"
            )
            if text is None:
                raise NetconfError(
                    "missing-element", f"a connection has no {name}"
                )
            return text.strip()

        switch = self._device.switch
        fibres = [
            _FIBRE.fullmatch(leaf(f"{side}put-port-reference"))
            for side in ("in", "out")
        ]
        ins = {_fibre(switch, "in", n): n for n in range(1, switch.inputs + 1)}
        outs = {
            _fibre(switch, "out", n): n for n in range(1, switch.outputs + 1)
        }
        numbers = [int(match[1]) if match else 0 for match in fibres]
        line = (numbers[0] == _LINE_IN, numbers[1] == _LINE_OUT)
        if line != ((False, True) if connection[0] == _MUX else (True, False)):
            raise NetconfError(
                "invalid-value", "these fibres are not of that module"
            )
        if numbers[0] not in ins or numbers[1] not in outs:
            raise NetconfError("invalid-value", f"no such port: {numbers}")
        try:
            first, last = (
                float(leaf(name)) for name in ("start-freq", "end-freq")
            )
            low, high = ((ghz - 193_100) / 6.25 for ghz in (first, last))
            less_db = float(leaf("attenuation"))
        except ValueError as error:
            raise NetconfError("invalid-value", str(error)) from error
        if (
            low % 1
            or high % 1
            or (high - low) % 2
            or not 1 <= (high - low) // 2 <= 400
        ):
            raise NetconfError(
                "invalid-value", f"no slot is {first} to {last} GHz"
            )
        channel = Channel(int(low + high) // 2, int(high - low) // 2)
        return ChannelConnect(
            ins[numbers[0]],
            outs[numbers[1]],
            channel,
            less_db,
        )


def _fibre(
    switch: WavelengthSwitch,
    side: str,
    number: int,
) -> int:
    """The device's fibre number for the lab's port ``number`` on that side."""
    own = switch.inputs
    other = switch.outputs
    line = _LINE_IN
    first = _ADD
    if side == "out":
        own, other, line, first = other, own, _LINE_OUT, _DROP
    if own == 1 or (number == 1 and other > 1):
        return line
    return first + number - (other > 1)


def _connection(entry: ET.Element) -> Connection:
    match = _DN.fullmatch(
        (entry.findtext(f"{{{CONNECTION}}}dn") or "").strip()
    )
    if match is None or not 1 <= int(match[2]) <= _MOST:
        raise NetconfError("invalid-value", "no connection has that dn")
    return int(match[1]), int(match[2])


def _dbm(power: float | None) -> str:
    return f"{_DARK_DBM if power is None else power:.1f}"
