"""The driver ``polatis-netconf``: Polatis (HUBER+SUHNER) switches over NETCONF (port 830).

Tested with the emulated device only. Requests follow the YANG module ``optical-switch`` of
2018-03-22.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar
from xml.sax.saxutils import escape

from patchlight.controller.circuits.contract import (
    SIDES,
    DirectedPort,
    Identity,
    Side,
)
from patchlight.controller.circuits.dialect import (
    Bare,
    Pattern,
    PolatisDialect,
    Template,
    filled,
)
from patchlight.controller.circuits.drivers.base import (
    Numbering,
    PolatisDriver,
)
from patchlight.controller.circuits.drivers.table import UP, Row
from patchlight.controller.circuits.protocols.netconf import NetconfClient
from patchlight.testbed.lab.portmap import CrossConnect

_NAMESPACE = "http://www.polatis.com/yang/optical-switch"
_XMLNS = f'xmlns="{_NAMESPACE}"'
_FEW = 16  # up to this many ports are read one by one, more all together


@dataclass(frozen=True)
class PolatisNetconfDialect(PolatisDialect):
    """What a Polatis takes, as XML to fill in.

    ``connect`` and ``disconnect`` hold ``{pairs}``: ``pair`` or ``unpair`` for each, with the
    device's port numbers. ``{ports}`` has ``port`` for each; empty: all.
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset(
        {"pairs", "ports", "port", "inp", "out"}
    )

    namespace: str = _NAMESPACE
    identity: Template = f"<product-information {_XMLNS}/>"
    read_map: Template = f"<cross-connects {_XMLNS}/>"
    pair: Template = (
        "<pair><ingress>{inp}</ingress><egress>{out}</egress></pair>"
    )
    unpair: Template = (
        '<pair nc:operation="delete"><ingress>{inp}</ingress></pair>'
    )
    connect: Template = f"<cross-connects {_XMLNS}>{{pairs}}</cross-connects>"
    disconnect: Template = connect
    port_states: Template = (
        f"<port-config {_XMLNS}><port><port-id/><status/></port></port-config>"
    )
    power: Template = f"<opm-power {_XMLNS}>{{ports}}</opm-power>"
    port: Template = "<port><port-id>{port}</port-id><power/></port>"
    port_ready: Pattern = r"ENABLED|UNSUPPORTED"


POLATIS = PolatisNetconfDialect()


class PolatisNetconf(PolatisDriver):
    """A Polatis OCS. See ``CircuitDriver`` for the methods."""

    built_in = POLATIS
    client_class = NetconfClient
    client: NetconfClient
    _dialect: PolatisNetconfDialect

    async def identify(self) -> Identity:
        """From ``product-information``."""
        data = await self.client.get(self._dialect.identity)
        leaves = (
            "manufacturer",
            "model-name",
            "serial-number",
            "software-version",
        )
        vendor, *rest = (
            self._text(data, f".//{{*}}{leaf}") for leaf in leaves
        )
        return Identity(vendor or self._dialect.vendor, *rest)

    async def _rows(self, numbering: Numbering) -> Mapping[CrossConnect, Row]:
        table = {}
        data = await self.client.get(self._dialect.read_map)
        for pair in data.iterfind(f".//{{{self._dialect.namespace}}}pair"):
            numbers = (
                self._text(pair, "{*}ingress"),
                self._text(pair, "{*}egress"),
            )
            cross_connect = None
            if all(re.fullmatch(r"[0-9]{1,9}", number) for number in numbers):
                cross_connect = numbering.to_cross_connect(
                    int(numbers[0]), int(numbers[1])
                )
            if cross_connect is None:
                raise self._nonsense(
                    "the query for its map", ",".join(numbers)
                )
            table[cross_connect] = UP
        return table

    async def _make(self, pairs: Sequence[CrossConnect]) -> None:
        await self._edit(self._dialect.connect, self._dialect.pair, pairs)

    async def _break(
        self, pairs: Sequence[CrossConnect], table: Mapping[CrossConnect, Row]
    ) -> None:
        await self._edit(self._dialect.disconnect, self._dialect.unpair, pairs)

    async def _monitored_sides(self, numbering: Numbering) -> set[Side]:
        first = [DirectedPort(side, 1) for side in SIDES]
        data = await self.client.get(self._power_filter(numbering, first))
        return {port.side for port in self._per_port(data, numbering, "power")}

    async def _states(self) -> dict[DirectedPort, str]:
        data = await self.client.get(self._dialect.port_states)
        return self._per_port(data, await self._numbering(), "status")

    async def _powers(
        self, ports: Sequence[DirectedPort]
    ) -> dict[DirectedPort, str]:
        numbering = await self._numbering()
        data = await self.client.get(self._power_filter(numbering, ports))
        return self._per_port(data, numbering, "power")

    async def _edit(
        self,
        template: str,
        pair: str,
        pairs: Sequence[CrossConnect],
    ) -> None:
        numbers = await self._numbers(pairs)
        listed = "".join(
            filled(
                pair,
                escape,
                inp=inp,
                out=out,
            )
            for inp, out in numbers
        )
        await self.client.edit(filled(template, escape, pairs=Bare(listed)))

    def _power_filter(
        self, numbering: Numbering, ports: Sequence[DirectedPort]
    ) -> str:
        listed = ""
        if len(ports) <= _FEW:
            numbers = numbering.to_numbers(ports)
            listed = "".join(
                filled(self._dialect.port, escape, port=number)
                for number in numbers
            )
        return filled(self._dialect.power, escape, ports=Bare(listed))

    def _per_port(
        self,
        data: ET.Element,
        numbering: Numbering,
        leaf: str,
    ) -> dict[DirectedPort, str]:
        """The value of a leaf for each port in the device's list."""
        leaves = {}
        for entry in data.iterfind(f".//{{{self._dialect.namespace}}}port"):
            number = self._text(entry, "{*}port-id")
            text = self._text(entry, f"{{*}}{leaf}")
            port = (
                numbering.to_port(int(number))
                if re.fullmatch(r"[0-9]{1,9}", number)
                else None
            )
            if port is not None and text:
                leaves[port] = text
        return leaves

    def _text(self, element: ET.Element, path: str) -> str:
        return (element.findtext(path) or "").strip()
