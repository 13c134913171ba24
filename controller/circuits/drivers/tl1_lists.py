"""The drivers ``glimmerglass-tl1`` and ``polatis-tl1``, for devices with lists over TL1.

Glimmerglass switches (TCP 10034) number inputs 10001… and outputs 20001…; Polatis (HUBER+SUHNER)
listens on TCP 3082. Tested with the emulated devices only.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from patchlight.controller.circuits import contract
from patchlight.controller.circuits.dialect import (
    Bare,
    NumberedDialect,
    Pattern,
    PolatisDialect,
    Template,
    shortened,
)
from patchlight.controller.circuits.drivers import base
from patchlight.controller.circuits.drivers.table import UP, Row
from patchlight.controller.circuits.protocols.tl1 import (
    SessionDialect,
    Tl1Client,
    Tl1Reply,
)
from patchlight.testbed.lab.portmap import CrossConnect


@dataclass(frozen=True)
class ListDialect(SessionDialect, NumberedDialect):
    """What a device takes that makes cross-connects in one step, in lists.

    ``{ins}`` and ``{outs}`` are the device's port numbers joined with ``list_separator``,
    ``{ports}`` is one, such a list, or a range joined with ``range_separator``. Patterns
    match the beginning of one quoted line of a reply each and name their groups as below.
    """

    FIELDS: ClassVar[frozenset[str]] = SessionDialect.FIELDS | {
        "ins",
        "outs",
        "ports",
    }

    enter: Template = "ENT-PATCH::{ins},{outs}:{ctag}:;"
    delete: Template = "DLT-PATCH::{ins}:{ctag}:;"
    retrieve: Template = "RTRV-PATCH:::{ctag}:;"
    size: Template = "RTRV-EQPT::SYSTEM:{ctag}:::PARAMETER=SIZE;"
    identity: Template = "RTRV-NETYPE:::{ctag}:;"
    list_separator: str = "&"
    range_separator: str = "&&"
    list_limit: int = 256
    vendor: str = ""
    circuit_line: Pattern = r"(?P<in>[0-9]{1,9}),(?P<out>[0-9]{1,9})(?![0-9])"
    size_line: Pattern = r"SYSTEM:SIZE=(?P<ins>\d{1,9})x(?P<outs>\d{1,9})"
    port_line: Pattern = r"(?P<port>[0-9]{1,9}):(?P<state>\w+)"
    port_ready: Pattern = r"OPEN"


@dataclass(frozen=True)
class PolatisTl1Dialect(ListDialect, PolatisDialect):
    """What a Polatis switch takes; closed shutters switch a port off."""

    vendor: str = "Polatis"
    serial: Template = "RTRV-INV::OCS:{ctag}:;"
    ports: Template = "RTRV-PORT-SHUTTER::{ports}:{ctag}:;"
    power: Template = "RTRV-PORT-POWER::{ports}:{ctag}:;"
    identity_line: Pattern = (
        r"(?P<vendor>[^,]*),"
        r"(?P<model>[^,]*),(?P<type>[^,]*),(?P<software>[^,]*)"
    )
    serial_line: Pattern = r".*\bSN=(?P<serial>\w+)"
    any_to_any: Pattern = r"\d+xCC\b"
    port_locked: Pattern = r"CLOSED"
    power_line: Pattern = r"(?P<port>[0-9]{1,9}):(?P<power>[^,]*)"


@dataclass(frozen=True)
class GlimmerglassDialect(ListDialect):
    """What a Glimmerglass switch takes. ``up`` and ``failed`` match ``CONNSTATE,CONNCAUSE``.

    Without a signal at its input a circuit cannot be fine-tuned, and the switch reports *fault*
    after a timeout; the mirrors are in place, so it counts as up.
    """

    enter: Template = "ent-crs-fiber::{ins},{outs}:{ctag}:::opmode=sync;"
    delete: Template = "dlt-crs-fiber::{ins},{outs}:{ctag}:::opmode=sync;"
    retrieve: Template = "rtrv-crs-fiber::all:{ctag};"
    size: Template = "rtrv-system-info:::{ctag};"
    identity: Template = "rtrv-system-info:::{ctag};"
    ports: Template = "rtrv-cfg-fiber::all:{ctag};"
    vendor: str = "Glimmerglass"
    in_base: int = 10000
    out_base: int = 20000
    circuit_line: Pattern = (
        # As for Calient: a name must not fake another output or state.
        r"(?s)[^:]*:IPORTID=(?P<in>[0-9]{1,9}),(?:(?!OPORTID=).)*OPORTID=(?P<out>[0-9]{1,9}),"
        r"(?!.*OPORTID=)(?:(?!CONNSTATE=).)*CONNSTATE=(?P<state>[^,]*),(?!.*CONNSTATE=)"
        r"CONNCAUSE=(?P<cause>[^,]*),INPWR=(?P<inpwr>[^,]*),OUTPWR=(?P<outpwr>[^,]*)"
    )
    size_line: Pattern = (
        r".*LicensedPortMatrix=(?P<ins>\d{1,9})x(?P<outs>\d{1,9})"
    )
    identity_item: Pattern = (
        r"[^:]*:(?:ChassisType=(?P<model>.*)|SerialNumber=(?P<serial>.*)"
        r"|SoftwareActiveVersion=(?P<software>.*))"
    )
    port_line: Pattern = (
        r"(?s)[^:]*:PORTID=(?P<port>[0-9]{1,9}),"
        r".*?PORTHEALTH=(?P<state>\w+)(?!.*,PORTHEALTH=)"
    )
    port_ready: Pattern = r"good"
    up: Pattern = r"steady,.*|fault,initial_connection_timer_expired"
    failed: Pattern = r"fault,.*"
    dark_dbm: float = -45.0


POLATIS = PolatisTl1Dialect()


GLIMMERGLASS = GlimmerglassDialect()


D = TypeVar("D", bound=ListDialect)


class Tl1ListDriver(base.NumberedDriver, Generic[D]):
    """See ``CircuitDriver`` for the methods."""

    client_class = Tl1Client
    client: Tl1Client
    _dialect: D

    def _row(self, line: re.Match[str]) -> Row:
        """The state of the cross-connect in that line."""
        return UP

    async def _rows(
        self, numbering: base.Numbering
    ) -> Mapping[CrossConnect, Row]:
        table = {}
        for line in await self._circuit_lines():
            numbers = int(line["in"]), int(line["out"])
            cross_connect = numbering.to_cross_connect(*numbers)
            if cross_connect is not None:
                table[cross_connect] = self._row(line)
            elif all(numbers):
                raise self._nonsense("the query for its map", line.string)
        return table

    async def _make(self, pairs: Sequence[CrossConnect]) -> None:
        await self.client.command(
            self._dialect.enter, await self._lists(pairs), changes=True
        )

    async def _break(
        self, pairs: Sequence[CrossConnect], table: Mapping[CrossConnect, Row]
    ) -> None:
        await self.client.command(
            self._dialect.delete, await self._lists(pairs), changes=True
        )

    async def _size(self, model: str = "") -> tuple[int, int]:
        """Inputs and outputs, from the reply with the size."""
        reply = await self.client.command(self._dialect.size, paged=True)
        size = first(self._dialect.size_line, reply)
        if size is None:
            words = "; ".join((*reply.lines, reply.words))
            raise self._nonsense("the query for its size", words)
        return int(size["ins"]), int(size["outs"])

    async def _circuit_lines(self) -> list[re.Match[str]]:
        """Every line of the table; an unreadable one would hide a circuit."""
        reply = await self.client.command(self._dialect.retrieve, paged=True)
        found = matching(self._dialect.circuit_line, reply)
        if len(found) < len(reply.lines):
            read = {line.string for line in found}
            unread = next(line for line in reply.lines if line not in read)
            raise self._nonsense("the query for its map", shortened(unread))
        return found

    async def _lists(self, pairs: Sequence[CrossConnect]) -> dict[str, Bare]:
        ins, outs = zip(*await self._numbers(pairs), strict=True)
        return {"ins": self._joined(ins), "outs": self._joined(outs)}

    def _joined(self, numbers: Iterable[int]) -> Bare:
        return Bare(self._dialect.list_separator.join(map(str, numbers)))


def matching(pattern: str, reply: Tl1Reply) -> list[re.Match[str]]:
    """The lines of a reply that match the pattern at their start."""
    return [
        match for line in reply.lines if (match := re.match(pattern, line))
    ]


def first(pattern: str, reply: Tl1Reply) -> re.Match[str] | None:
    """The first of them."""
    return next(iter(matching(pattern, reply)), None)


class GlimmerglassTl1(Tl1ListDriver[GlimmerglassDialect]):
    """A Glimmerglass OCS. See ``CircuitDriver`` for the methods."""

    built_in = GLIMMERGLASS
    capabilities = contract.Capabilities(
        power_in=True,
        power_out=True,
    )

    async def identify(self) -> contract.Identity:
        """From ``rtrv-system-info``, which has a line for each item."""
        reply = await self.client.command(self._dialect.identity, paged=True)
        items = {"model": "", "serial": "", "software": ""}
        for line in matching(self._dialect.identity_item, reply):
            items.update(
                (item, value)
                for item, value in line.groupdict().items()
                if value
            )
        return contract.Identity(self._dialect.vendor, **items)

    async def port_states(self) -> contract.PortStates:
        """From ``rtrv-cfg-fiber``: the port's health."""
        numbering = await self._numbering()
        reply = await self.client.command(self._dialect.ports, paged=True)
        states: dict[contract.DirectedPort, contract.PortState] = {}
        for line in matching(self._dialect.port_line, reply):
            port = numbering.to_port(int(line["port"]))
            if port is not None and port.number <= self.ports:
                well = re.fullmatch(self._dialect.port_ready, line["state"])
                states[port] = contract.PortState(
                    "ready" if well else "failed", line["state"]
                )
        return states

    async def power(
        self, ports: Iterable[contract.DirectedPort]
    ) -> contract.Powers:
        """From ``rtrv-crs-fiber``, which has the power at both ends of each circuit."""
        requested = self._checked_ports(ports)
        if not requested:
            return {}
        numbering = await self._numbering()
        powers: dict[contract.DirectedPort, float | None] = {}
        for line in await self._circuit_lines():
            for number, power in (
                (line["in"], line["inpwr"]),
                (line["out"], line["outpwr"]),
            ):
                if port := numbering.to_port(int(number)):
                    powers[port] = base.power_dbm(
                        power, self._dialect.dark_dbm
                    )
        # An output without a line is not connected and has no signal.
        return {port: powers.get(port) for port in requested}

    def _row(self, line: re.Match[str]) -> Row:
        state = f"{line['state']},{line['cause']}"
        words = f"CONNSTATE={line['state']},CONNCAUSE={line['cause']}"
        if re.fullmatch(self._dialect.up, state):
            return Row("up", words)
        return Row(
            "failed"
            if re.fullmatch(self._dialect.failed, state)
            else "coming",
            words,
        )

    async def _learn(self) -> base.Numbering:
        return base.Numbering(
            *await self._size(), self._dialect.in_base, self._dialect.out_base
        )


_FEW = 16  # up to this many ports are listed, more are read as the range of them all


class PolatisTl1(Tl1ListDriver[PolatisTl1Dialect], base.PolatisDriver):
    """A Polatis OCS. See ``CircuitDriver`` for the methods."""

    built_in = POLATIS
    _dialect: PolatisTl1Dialect

    async def identify(self) -> contract.Identity:
        """From ``RTRV-NETYPE``, the serial number from ``RTRV-INV``."""
        kind = await self.client.command(self._dialect.identity)
        inventory = await self.client.command(self._dialect.serial)
        line = first(self._dialect.identity_line, kind)
        serial = first(self._dialect.serial_line, inventory)
        return contract.Identity(
            line["vendor"].strip() if line else self._dialect.vendor,
            line["model"].strip() if line else "",
            serial["serial"] if serial else "",
            line["software"].strip() if line else "",
        )

    async def _monitored_sides(
        self, numbering: base.Numbering
    ) -> list[contract.Side]:
        return [
            side
            for side in contract.SIDES
            if await self._has_monitor(numbering.to_number(side, 1))
        ]

    async def _states(self) -> dict[contract.DirectedPort, str]:
        dialect = self._dialect
        return await self._per_port(
            self._all_ports(),
            dialect.ports,
            dialect.port_line,
            "state",
        )

    async def _powers(
        self, ports: Sequence[contract.DirectedPort]
    ) -> dict[contract.DirectedPort, str]:
        dialect = self._dialect
        return await self._per_port(
            ports,
            dialect.power,
            dialect.power_line,
            "power",
        )

    async def _has_monitor(self, number: int) -> bool:
        try:
            reply = await self.client.command(
                self._dialect.power, {"ports": self._joined([number])}
            )
        except contract.DeviceRefused:
            return False
        return first(self._dialect.power_line, reply) is not None

    async def _per_port(
        self,
        ports: Sequence[contract.DirectedPort],
        template: str,
        pattern: str,
        group: str,
    ) -> dict[contract.DirectedPort, str]:
        """One value for each port in the device's list."""
        if not ports:
            return {}
        numbering = await self._numbering()
        requested = set(ports)
        numbers = sorted(numbering.to_numbers(ports))
        if len(numbers) <= _FEW:
            listed = self._joined(numbers)
        else:
            listed = Bare(
                f"{numbers[0]}{self._dialect.range_separator}{numbers[-1]}"
            )
        reply = await self.client.command(
            template, {"ports": listed}, paged=True
        )
        values = {
            port: line[group].strip()
            for line in matching(pattern, reply)
            if (port := numbering.to_port(int(line["port"])))
        }
        return {
            port: value for port, value in values.items() if port in requested
        }
