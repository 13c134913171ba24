"""The driver ``polatis-netconf``: Polatis (HUBER+SUHNER) switches over NETCONF (port 830).

Needs ncclient (``pip install 'patchlight[netconf]'``). Run against the emulated device only so
far. What is sent follows the YANG module ``optical-switch`` of 2018-03-22.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from patchlight.controller.circuits.contract import (
    Alarm,
    Capabilities,
    Condition,
    DirectedPort,
    Identity,
    PortState,
    Side,
    checked,
)
from patchlight.controller.circuits.dialects import Dialect, Pattern, Template, corrected
from patchlight.controller.circuits.drivers.one_step import Held, PatchingDriver, lit_dbm
from patchlight.controller.circuits.numbering import Numbering
from patchlight.controller.circuits.protocols.netconf.client import NetconfClient
from patchlight.controller.circuits.protocols.session import Session
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.portmap import CrossConnect

_SIDES: tuple[Side, ...] = ("in", "out")
_FEW = 16  # up to so many ports are asked for one by one, more all together


@dataclass(frozen=True)
class PolatisNetconfDialect(Dialect):
    """What a Polatis takes, as XML to fill in.

    ``connect``, ``disconnect`` and ``replace`` hold ``{pairs}``: ``pair`` or ``unpair`` for
    each, with the device's port numbers. In ``{ports}`` stand ``port`` for each, or nothing
    for all. Patterns match whole texts; those of the size are searched in the model's name.
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset({"pairs", "ports", "port", "inp", "out"})

    namespace: str = "http://www.polatis.com/yang/optical-switch"
    identity: Template = '<product-information xmlns="http://www.polatis.com/yang/optical-switch"/>'
    read_map: Template = '<cross-connects xmlns="http://www.polatis.com/yang/optical-switch"/>'
    pair: Template = "<pair><ingress>{inp}</ingress><egress>{out}</egress></pair>"
    unpair: Template = '<pair nc:operation="delete"><ingress>{inp}</ingress></pair>'
    connect: Template = (
        '<cross-connects xmlns="http://www.polatis.com/yang/optical-switch">{pairs}'
        "</cross-connects>"
    )
    disconnect: Template = (
        '<cross-connects xmlns="http://www.polatis.com/yang/optical-switch">{pairs}'
        "</cross-connects>"
    )
    replace: Template = (
        '<cross-connects xmlns="http://www.polatis.com/yang/optical-switch" '
        'nc:operation="replace">{pairs}</cross-connects>'
    )
    port_states: Template = (
        '<port-config xmlns="http://www.polatis.com/yang/optical-switch"><port><port-id/><status/>'
        "</port></port-config>"
    )
    power: Template = (
        '<opm-power xmlns="http://www.polatis.com/yang/optical-switch">{ports}</opm-power>'
    )
    port: Template = "<port><port-id>{port}</port-id><power/></port>"
    enable: Template = (
        '<port-set-state xmlns="http://www.polatis.com/yang/optical-switch">{ports}'
        "</port-set-state>"
    )
    port_on: Template = "<port-enab>{port}</port-enab>"
    port_off: Template = "<port-disab>{port}</port-disab>"
    list_limit: int = 512
    vendor: str = "Polatis"
    size: Pattern = r"\b(?P<ins>\d{1,9})x(?P<outs>\d{1,9})\b"
    any_to_any: Pattern = r"\b\d+xCC\b"
    port_ready: Pattern = r"ENABLED|UNSUPPORTED"
    port_disabled: Pattern = r"DISABLED"
    dark_dbm: float = -50.0


POLATIS = PolatisNetconfDialect()


class PolatisNetconf(PatchingDriver):
    """A Polatis OCS. See ``CircuitDriver`` for what the methods do."""

    def __init__(
        self, switch: CircuitSwitch, password: str, dialect: PolatisNetconfDialect | None = None
    ) -> None:
        self._dialect = dialect or corrected(switch.driver, POLATIS)
        super().__init__(switch, self._dialect.list_limit)
        self._client = NetconfClient(Session.of(switch, password))
        self._size: Numbering | None = None
        self._capabilities = Capabilities(bulk=True, atomic_replace=True, port_enable=True)

    @property
    def capabilities(self) -> Capabilities:
        """What the device can do; which power monitors it has is known after ``open``."""
        return self._capabilities

    async def open(self) -> None:
        """Log in, and learn the size and which power monitors there are."""
        await self._client.open()
        await self._known_size()

    async def close(self) -> None:
        """Log out; circuits stay."""
        await self._client.close()

    async def identify(self) -> Identity:
        """From ``product-information``."""
        data = await self._client.get(self._dialect.identity)
        leaves = ("manufacturer", "model-name", "serial-number", "software-version")
        vendor, *rest = (self._text(data, f".//{{*}}{leaf}") for leaf in leaves)
        return Identity(vendor or self._dialect.vendor, *rest)

    async def alarms(self) -> tuple[Alarm, ...]:
        """Notifications since ``open``."""
        return self._client.hear()

    async def port_states(self) -> Mapping[DirectedPort, PortState]:
        """From ``port-config``: enabled, disabled or failed."""
        size = await self._known_size()
        data = await self._client.get(self._dialect.port_states)
        states = {}
        for port, said in self._per_port(data, size, "status").items():
            if port.number <= self.ports:
                states[port] = PortState(self._condition(said), said)
        return states

    async def power(self, ports: Iterable[DirectedPort]) -> Mapping[DirectedPort, float | None]:
        """From ``opm-power``; ports without a monitor are not in it."""
        wanted = self._wanted_ports(ports)
        if not wanted:
            return {}
        size = await self._known_size()
        data = await self._client.get(self._power_filter(size, wanted))
        found = self._per_port(data, size, "power")
        dark = self._dialect.dark_dbm
        return {port: lit_dbm(found[port], dark) for port in wanted if port in found}

    async def replace_map(self, pairs: Iterable[CrossConnect]) -> None:
        """Replace the whole map in one edit (capability ``atomic_replace``).

        Breaks every circuit that is not in ``pairs``, whoever made it. Nothing in a change
        of single circuits comes here. Raises as ``connect`` does; read the map after it.
        """
        size, wanted = await self._known_size(), checked(pairs, self.ports)
        async with self._writing.change():
            self._just_read.forget()
            await self._edit(self._dialect.replace, self._dialect.pair, size, wanted)

    async def enable(self, ports: Iterable[DirectedPort], *, on: bool = True) -> None:
        """Switch single ports on or off (capability ``port_enable``)."""
        size, wanted = await self._known_size(), self._wanted_ports(ports)
        leaf = self._dialect.port_on if on else self._dialect.port_off
        numbers = (size.to_number(port.side, port.number) for port in wanted)
        listed = "".join(leaf.format(port=number) for number in numbers)
        async with self._writing.change():
            self._just_read.forget()
            await self._client.rpc(self._dialect.enable.format(ports=listed))

    # --- what a patching driver needs -------------------------------------------------------

    async def _table(self) -> Mapping[CrossConnect, Held]:
        size, table = await self._known_size(), {}
        data = await self._client.get(self._dialect.read_map)
        for pair in data.iterfind(f".//{{{self._dialect.namespace}}}pair"):
            said = self._text(pair, "{*}ingress"), self._text(pair, "{*}egress")
            cross_connect = None
            if all(re.fullmatch(r"[0-9]{1,9}", number) for number in said):
                cross_connect = size.to_cross_connect(int(said[0]), int(said[1]))
            if cross_connect is None:
                raise self._nonsense("the question for its map", ",".join(said))
            table[cross_connect] = Held()
        return table

    async def _make(self, pairs: Sequence[CrossConnect]) -> None:
        size = await self._known_size()
        await self._edit(self._dialect.connect, self._dialect.pair, size, pairs)

    async def _break(self, pairs: Sequence[CrossConnect]) -> None:
        size = await self._known_size()
        await self._edit(self._dialect.disconnect, self._dialect.unpair, size, pairs)

    # --- inside -----------------------------------------------------------------------------

    async def _known_size(self) -> Numbering:
        """How many inputs and outputs; asked once, with all else that never changes."""
        if self._size is not None:
            return self._size
        model = (await self.identify()).model
        if re.search(self._dialect.any_to_any, model):
            raise PatchlightError(
                f"{self.name} is a {model}: a switch of single fibres, any to any",
                hint="this driver knows switches with inputs and outputs only",
            )
        said = re.search(self._dialect.size, model)
        if said is None:
            raise self._nonsense("the question for its size", model or "nothing")
        size = Numbering.polatis(int(said["ins"]), int(said["outs"]))
        size.check_holds(self.name, self.ports)
        first = [DirectedPort(side, 1) for side in _SIDES]
        data = await self._client.get(self._power_filter(size, first))
        monitored = self._per_port(data, size, "power")
        self._capabilities = replace(
            self._capabilities, power_in=first[0] in monitored, power_out=first[1] in monitored
        )
        self._size = size
        return size

    async def _edit(
        self, template: str, pair: str, size: Numbering, pairs: Sequence[CrossConnect]
    ) -> None:
        numbers = ((size.to_number("in", c.inp), size.to_number("out", c.out)) for c in pairs)
        listed = "".join(pair.format(inp=inp, out=out) for inp, out in numbers)
        await self._client.edit(template.format(pairs=listed))

    def _power_filter(self, size: Numbering, ports: Sequence[DirectedPort]) -> str:
        listed = ""
        if len(ports) <= _FEW:
            numbers = (size.to_number(port.side, port.number) for port in ports)
            listed = "".join(self._dialect.port.format(port=number) for number in numbers)
        return self._dialect.power.format(ports=listed)

    def _per_port(self, data: ET.Element, size: Numbering, leaf: str) -> dict[DirectedPort, str]:
        """What a leaf says of each port that the device tells of."""
        found = {}
        for entry in data.iterfind(f".//{{{self._dialect.namespace}}}port"):
            number, said = self._text(entry, "{*}port-id"), self._text(entry, f"{{*}}{leaf}")
            port = size.to_port(int(number)) if re.fullmatch(r"[0-9]{1,9}", number) else None
            if port is not None and said:
                found[port] = said
        return found

    def _text(self, element: ET.Element, path: str) -> str:
        return (element.findtext(path) or "").strip()

    def _condition(self, said: str) -> Condition:
        if re.fullmatch(self._dialect.port_ready, said):
            return "ready"
        return "locked" if re.fullmatch(self._dialect.port_disabled, said) else "failed"
