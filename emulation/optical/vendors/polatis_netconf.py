"""The NETCONF side of an emulated Polatis: the YANG module ``optical-switch`` of 2018-03-22.

Of it: product information, cross-connects, port configuration, optical power, port-set-state.
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping

from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.matrices import Reason, RequestRefused
from patchlight.emulation.optical.protocols.netconf_server import (
    BASE,
    NetconfError,
    NetconfServer,
    local,
)
from patchlight.emulation.optical.vendors.polatis import STATUS, PolatisSwitch

NAMESPACE = "http://www.polatis.com/yang/optical-switch"
_OPERATION = f"{{{BASE}}}operation"
_PAIR_OPERATIONS = ("merge", "replace", "create", "delete", "remove")

ET.register_namespace("opsw", NAMESPACE)


class PolatisNetconfServer(NetconfServer):
    """NETCONF with its operations."""

    by_hand = "ssh -s -p {port} {user}@{host} netconf"
    module = f"{NAMESPACE}?module=optical-switch&revision=2018-03-22"
    changing = ("edit-config", "port-set-state")

    _device: EmulatedOcs

    def __init__(self, device: EmulatedOcs) -> None:
        super().__init__(device)
        self._switch = PolatisSwitch(device)
        self._operations |= {
            "get": self._get,
            "get-config": self._get_config,
            "edit-config": self._edit,
            "port-set-state": self._set_state,
        }

    def report(self, text: str) -> None:
        """Say it as a ``system-error`` to whoever has subscribed."""
        self._notify(_text(_element("system-error", _element("message", text))))

    def _refusal(self, refusal: RequestRefused) -> NetconfError:
        tag, message = {
            Reason.NO_PORT: ("invalid-value", f"Invalid OXC port: {refusal.port}"),
            Reason.BUSY: ("invalid-value", f"Port {refusal.port} is named twice"),
            Reason.LOCKED: ("operation-failed", f"Port {refusal.port} is disabled"),
            Reason.FAILED: ("operation-failed", f"Port {refusal.port} has failed"),
        }.get(refusal.reason, ("operation-failed", "failed"))
        return NetconfError(tag, message)

    async def _get(self, request: ET.Element) -> str:
        containers = {
            _tag("product-information"): self._product,
            _tag("port-config"): self._ports,
            _tag("opm-power"): self._power,
            _tag("cross-connects"): self._cross_connects,
        }
        return await self._data(request, containers)

    async def _get_config(self, request: ET.Element) -> str:
        source = request.find(f"{{{BASE}}}source/{{{BASE}}}running")
        if source is None:
            raise NetconfError("invalid-value", "the only datastore is running", "protocol")
        return await self._data(request, {_tag("cross-connects"): self._cross_connects})

    async def _product(self) -> ET.Element:
        leaves = (_element(name, value) for name, value in self._switch.product().items())
        return _element("product-information", *leaves)

    async def _ports(self) -> ET.Element:
        switch = self._switch
        rows = ({"port-id": n, "status": STATUS[switch.state(n)]} for n in switch.numbers)
        return _list("port-config", "port", rows)

    async def _power(self) -> ET.Element:
        powers = await self._switch.monitored(self._switch.numbers)
        rows = ({"port-id": number, "power": f"{dbm:.2f}"} for number, dbm in powers.items())
        return _list("opm-power", "port", rows)

    async def _cross_connects(self) -> ET.Element:
        rows = ({"ingress": inp, "egress": out} for inp, out in sorted(self._switch.pairs()))
        return _list("cross-connects", "pair", rows)

    async def _edit(self, request: ET.Element) -> str:
        if request.find(f"{{{BASE}}}target/{{{BASE}}}running") is None:
            raise NetconfError("invalid-value", "the only datastore is running", "protocol")
        config = request.find(f"{{{BASE}}}config")
        for part in () if config is None else config:
            if part.tag != _tag("cross-connects"):
                raise NetconfError("unknown-element", f"{local(part.tag)} cannot be edited")
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
                raise NetconfError("bad-attribute", f"no operation {operation}", "protocol")
            if operation in ("delete", "remove"):
                if inp in held:
                    breaks.append(inp)
                elif operation == "delete":
                    raise NetconfError("data-missing", f"Port {inp} has no connection")
                continue
            if operation == "create" and inp in held:
                raise NetconfError("data-exists", f"Port {inp} has a connection")
            makes[inp] = _port(pair, "egress")
        if whole == "replace":
            await self._switch.only(list(makes), list(makes.values()))
            return
        if whole in ("delete", "remove"):
            await self._switch.disconnect_all()
            return
        if breaks:
            await self._switch.disconnect(breaks, ())
        if makes:
            await self._switch.connect(list(makes), list(makes.values()))

    async def _set_state(self, request: ET.Element) -> str:
        for leaf, on in (("port-enab", True), ("port-disab", False)):
            numbers = [_number(port) for port in request.iterfind(_tag(leaf))]
            if numbers:
                await self._switch.enable(numbers, on=on)
        return ""


def _tag(name: str) -> str:
    return f"{{{NAMESPACE}}}{name}"


def _element(name: str, *content: ET.Element | str) -> ET.Element:
    element = ET.Element(_tag(name))
    for part in content:
        if isinstance(part, str):
            element.text = part
        else:
            element.append(part)
    return element


def _list(name: str, entry: str, rows: Iterable[Mapping[str, object]]) -> ET.Element:
    """A container of list entries with these leaves."""
    leaves = ([_element(leaf, str(value)) for leaf, value in row.items()] for row in rows)
    return _element(name, *(_element(entry, *entry_leaves) for entry_leaves in leaves))


def _text(element: ET.Element) -> str:
    return ET.tostring(element, encoding="unicode")


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
