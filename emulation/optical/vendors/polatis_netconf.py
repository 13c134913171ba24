"""The NETCONF side of an emulated Polatis: the YANG module ``optical-switch`` of 2018-03-22.

Of it: product information, cross-connects, port configuration, optical power, port-set-state.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Awaitable, Callable

from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.protocols.netconf_server import (
    BASE,
    NetconfError,
    NetconfServer,
    local,
    selected,
)
from patchlight.emulation.optical.protocols.server import Users
from patchlight.emulation.optical.switch_matrix import Reason, RequestRefused
from patchlight.emulation.optical.vendors.polatis import SOFTWARE, PolatisSwitch

NAMESPACE = "http://www.polatis.com/yang/optical-switch"
_STATUS = {"E": "ENABLED", "D": "DISABLED", "F": "FAILED"}
_OPERATION = f"{{{BASE}}}operation"
_PAIR_OPERATIONS = ("merge", "replace", "create", "delete", "remove")

ET.register_namespace("opsw", NAMESPACE)


class PolatisNetconfServer(NetconfServer):
    """NETCONF with its operations."""

    port = 830
    by_hand = "ssh -s -p {port} {user}@{host} netconf"
    module = f"{NAMESPACE}?module=optical-switch&revision=2018-03-22"

    def __init__(self, device: EmulatedOcs, users: Users) -> None:
        super().__init__(device, users)
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
        tag, words = {
            Reason.NO_PORT: ("invalid-value", f"Invalid OXC port: {refusal.port}"),
            Reason.BUSY: ("invalid-value", f"Port {refusal.port} is named twice"),
            Reason.LOCKED: ("operation-failed", f"Port {refusal.port} is disabled"),
            Reason.FAILED: ("operation-failed", f"Port {refusal.port} has failed"),
        }.get(refusal.reason, ("operation-failed", "failed"))
        return NetconfError(tag, words)

    # --- reading ----------------------------------------------------------------------------

    async def _get(self, request: ET.Element) -> str:
        made: dict[str, Callable[[], Awaitable[ET.Element]]] = {
            "product-information": self._product,
            "port-config": self._ports,
            "opm-power": self._power,
            "cross-connects": self._cross_connects,
        }
        return await self._data(request, made)

    async def _get_config(self, request: ET.Element) -> str:
        source = request.find(f"{{{BASE}}}source/{{{BASE}}}running")
        if source is None:
            raise NetconfError("invalid-value", "the only datastore is running", "protocol")
        return await self._data(request, {"cross-connects": self._cross_connects})

    async def _data(
        self, request: ET.Element, made: dict[str, Callable[[], Awaitable[ET.Element]]]
    ) -> str:
        wanted = request.find(f"{{{BASE}}}filter")
        if wanted is None:
            found = [await make() for make in made.values()]
        elif wanted.get("type", "subtree") != "subtree":
            raise NetconfError("operation-not-supported", "filters are subtrees", "protocol")
        else:
            found = []
            for part in wanted:
                name = local(part.tag)
                if name in made and part.tag == _tag(name):
                    kept = selected(await made[name](), part)
                    found += [] if kept is None else [kept]
        return f"<data>{''.join(map(_text, found))}</data>"

    async def _product(self) -> ET.Element:
        said = {
            "manufacturer": "Polatis",
            "serial-number": self._switch.serial,
            "model-name": self._switch.model,
            "software-version": SOFTWARE,
        }
        leaves = (_element(name, value) for name, value in said.items())
        return _element("product-information", *leaves)

    async def _ports(self) -> ET.Element:
        return _element(
            "port-config",
            *(
                _element(
                    "port",
                    _element("port-id", str(number)),
                    _element("status", _STATUS[self._switch.state(number)]),
                )
                for number in self._switch.numbers
            ),
        )

    async def _power(self) -> ET.Element:
        numbers = [number for number in self._switch.numbers if self._switch.has_monitor(number)]
        powers = await self._switch.power(numbers)
        return _element(
            "opm-power",
            *(
                _element("port", _element("port-id", str(number)), _element("power", f"{dbm:.2f}"))
                for number, dbm in zip(numbers, powers, strict=True)
            ),
        )

    async def _cross_connects(self) -> ET.Element:
        return _element(
            "cross-connects",
            *(
                _element("pair", _element("ingress", str(inp)), _element("egress", str(out)))
                for inp, out in sorted(self._switch.pairs())
            ),
        )

    # --- changing ---------------------------------------------------------------------------

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


def _text(element: ET.Element) -> str:
    return ET.tostring(element, encoding="unicode")


def _port(pair: ET.Element, leaf: str) -> int:
    found = pair.find(_tag(leaf))
    if found is None:
        raise NetconfError("missing-element", f"a pair has no {leaf}")
    return _number(found)


def _number(leaf: ET.Element) -> int:
    text = (leaf.text or "").strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise NetconfError("invalid-value", f"Invalid OXC port: {text[:20]}")
    return int(text)
