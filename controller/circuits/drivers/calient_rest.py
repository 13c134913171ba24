"""The driver ``calient-rest``: Calient S160, S162, S320 and Edge640 over HTTPS.

Every cross-connect is made one-way, so that changing one direction never touches the other. Two-way
circuits made by others are read as two directions, and broken only as a whole. The interface
reports circuits and power, but neither events nor port states. Tested with the emulated device
only.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from patchlight.controller.circuits import contract
from patchlight.controller.circuits.dialect import Pattern, Template, filled
from patchlight.controller.circuits.drivers import calient, rest
from patchlight.controller.circuits.drivers.base import power_dbm
from patchlight.controller.circuits.protocols.http import (
    HttpDialect,
    in_json,
    in_url,
)
from patchlight.testbed.lab.portmap import CrossConnect


@dataclass(frozen=True)
class CalientRestDialect(calient.CalientDialect, HttpDialect):
    """What a Calient takes.

    ``{src}`` and ``{dst}`` are ports like ``1.1.1``, ``{conn}`` is a connection's id, ``{group}``
    and ``{connname}`` its names on the device. ``deactivate``, if set, precedes ``delete``. The
    ``…_key`` entries are keys of the answers. ``up``, ``failed`` and ``parked`` match a half's
    ``AS,OS,OC``. At or below ``dark_dbm`` there is no signal.
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset(
        {"src", "dst", "conn", "group", "connname"}
    )

    base: str = "/rest"
    circuits: str = "/crossconnects/?id=list"
    add: str = "/crossconnects/?id=add"
    add_bulk: str = "/crossconnects/?id=badd"
    body: Template = (
        '{{"in":"{src}","out":"{dst}","group":"{group}","conn":"{conn}",'
        '"dir":"uni","band":"CBAND"}}'
    )
    activate: Template = (
        "/crossconnects/?id=activate&conn={conn}&group={group}&name={connname}"
    )
    deactivate: Template = ""
    delete: Template = (
        "/crossconnects/?id=delete&conn={conn}&group={group}&name={connname}"
    )
    ports: str = "/ports/?id=summary"
    hardware: str = "/node/?id=summary&detail=SYSCFG"
    software: str = "/node/?id=summary&detail=SOFTWARE"
    one_way_id: Template = "{src}>{dst}"
    two_way_id: Template = "{src}-{dst}"
    first_half_key: str = "half1"
    second_half_key: str = "half2"
    half_conn_key: str = "conn"
    half_conn: Pattern = r"(?P<src>[\d.]+)(?:/\d+)?>(?P<dst>[\d.]+)(?:/\d+)?"
    state_keys: str = "as,os,oc"
    in_power_key: str = "inp"
    out_power_key: str = "outp"
    alarm_key: str = "alarm"
    name_key: str = "name"
    group_key: str = "group"
    port_key: str = "port"
    port_power_key: str = "power"
    model_key: str = "partnumber"
    serial_key: str = "serialnumber"
    version_key: str = "version"
    no_alarm: Pattern = r"|CL|NONE"
    critical: Pattern = r"CR.*"
    major: Pattern = r"MJ.*"
    dark_dbm: float = -90.0


CALIENT = CalientRestDialect()


@dataclass(
    frozen=True,
    slots=True,
)
class Half:
    """One direction of a circuit: its ``AS,OS,OC``, alarm, and power as text."""

    cross_connect: CrossConnect
    state: str
    alarm: str
    in_power: str
    out_power: str


class CalientRest(rest.RestDriver[calient.CalientRow]):
    """A Calient OCS. See ``CircuitDriver`` for the methods."""

    built_in = CALIENT
    _dialect: CalientRestDialect
    # Lists are only used for making; breaking needs a series.
    _list_limit = 1 << 16
    capabilities = contract.Capabilities(
        power_in=True,
        power_out=True,
    )

    async def open(self) -> None:
        """Query its identity, which tests the user and password."""
        await self.identify()

    async def identify(self) -> contract.Identity:
        """From the node's configuration and software; empty for what is not reported."""
        dialect = self._dialect
        hardware = await self.client.read(
            dialect.hardware, rest.json_object, missing={}
        )
        software = await self.client.read(
            dialect.software, rest.json_object, missing={}
        )
        return contract.Identity(
            dialect.vendor,
            rest.json_text(hardware, dialect.model_key),
            rest.json_text(hardware, dialect.serial_key),
            rest.json_text(software, dialect.version_key),
        )

    async def alarms(self) -> tuple[contract.Alarm, ...]:
        """The alarms of circuits when they were read, each as it appeared."""
        dialect = self._dialect
        now = []
        for half in await self._halves():
            if re.fullmatch(dialect.no_alarm, half.alarm):
                continue
            words = f"{self._id(half.cross_connect)}: {half.alarm}"
            severity = rest.severity(
                half.alarm, dialect.critical, dialect.major
            )
            now.append(
                contract.Standing(severity, str(half.cross_connect), words)
            )
        self.client.alarms.stands(now)
        return self.client.alarms.all

    async def port_states(self) -> contract.PortStates:
        """Listed ports count as ready, others as absent."""
        listed = await self._port_rows()
        states = {
            True: contract.PortState("ready", "listed"),
            False: contract.PortState("absent", "not listed"),
        }
        return {
            port: states[port.number in listed] for port in self._all_ports()
        }

    async def power(
        self, ports: Iterable[contract.DirectedPort]
    ) -> contract.Powers:
        """At circuits, from their rows; at a free input, from the port; at a free output, none."""
        requested = self._checked_ports(ports)
        if not requested:
            return {}
        powers: dict[contract.DirectedPort, str] = {}
        if any(port.side == "in" for port in requested):
            key = self._dialect.port_power_key
            rows = await self._port_rows()
            powers = {
                contract.DirectedPort("in", n): rest.json_text(row, key)
                for n, row in rows.items()
            }
        for half in await self._halves():
            powers[contract.DirectedPort("in", half.cross_connect.inp)] = (
                half.in_power
            )
            powers[contract.DirectedPort("out", half.cross_connect.out)] = (
                half.out_power
            )
        return {
            port: power_dbm(powers.get(port, ""), self._dialect.dark_dbm)
            for port in requested
        }

    async def _table(self) -> Mapping[CrossConnect, calient.CalientRow]:
        table = {}
        for row, halves in await self._circuits():
            two_way = len(halves) == 2
            conn = self._id(halves[0].cross_connect, two_way=two_way)
            for half in halves:
                table[half.cross_connect] = calient.CalientRow.of(
                    self._dialect,
                    halves[0].cross_connect,
                    conn,
                    state=half.state,
                    two_way=two_way,
                    group=rest.json_text(row, self._dialect.group_key),
                    name=rest.json_text(row, self._dialect.name_key),
                )
        return table

    async def _make(self, pairs: Sequence[CrossConnect]) -> None:
        """Some units activate a circuit when it is added, others need a command."""
        dialect = self._dialect
        refused = list[str]()
        new = (calient.CalientRow.of(dialect, c, self._id(c)) for c in pairs)
        bodies = [
            filled(dialect.body, in_json, **circuit.values())
            for circuit in new
        ]
        many = dialect.bulk and len(bodies) > 1
        size = dialect.bulk_limit if many else 1
        for start in range(0, len(bodies), size):
            chunk = bodies[start : start + size]
            path = dialect.add
            body = chunk[0]
            if many:
                path = dialect.add_bulk
                body = f"[{','.join(chunk)}]"
            with self._noting(refused):
                await self._tell("POST", path, body)
        self._raise_if(refused)

    async def _activate(
        self,
        pairs: Sequence[CrossConnect],
        table: Mapping[CrossConnect, calient.CalientRow],
    ) -> None:
        for circuit in calient.circuits_of(pairs, table):
            await self._tell(
                "POST",
                filled(self._dialect.activate, in_url, **circuit.values()),
            )

    async def _break(
        self,
        pairs: Sequence[CrossConnect],
        table: Mapping[CrossConnect, calient.CalientRow],
    ) -> None:
        refused: list[str] = []
        async with self.client.series(len(pairs)):
            for circuit in calient.circuits_of(pairs, table):
                values = circuit.values()
                with self._noting(refused, begin=f"{circuit.conn}: "):
                    if self._dialect.deactivate and circuit.state != "entered":
                        path = filled(
                            self._dialect.deactivate, in_url, **values
                        )
                        await self._tell("POST", path)
                    await self._tell(
                        "DELETE",
                        filled(self._dialect.delete, in_url, **values),
                    )
        self._raise_if(refused)

    async def _circuits(self) -> list[tuple[Mapping[str, Any], list[Half]]]:
        """Each circuit's row, and its one or two directions."""
        return await self.client.read(
            self._dialect.circuits,
            lambda body: [
                (row, self._halves_of(row)) for row in rest.json_rows(body)
            ],
        )

    async def _halves(self) -> list[Half]:
        return [
            half for _, halves in await self._circuits() for half in halves
        ]

    def _halves_of(self, row: Mapping[str, Any]) -> list[Half]:
        dialect = self._dialect
        first = self._half(row.get(dialect.first_half_key))
        if first is None:
            raise ValueError(f"invalid circuit {rest.json_short(row)}")
        second = self._half(row.get(dialect.second_half_key))
        return [first, second] if second and second != first else [first]

    def _half(self, row: object) -> Half | None:
        """``None`` if missing; ``ValueError`` if its ports cannot be read."""
        dialect = self._dialect
        if not isinstance(row, dict) or not (
            conn := rest.json_text(row, dialect.half_conn_key)
        ):
            return None
        match = re.fullmatch(dialect.half_conn, conn)
        src, dst = (
            (calient.to_port(match["src"]), calient.to_port(match["dst"]))
            if match
            else (None, None)
        )
        if src is None or dst is None:
            raise ValueError(f"invalid ports {conn!r}")
        return Half(
            CrossConnect(src, dst),
            ",".join(
                rest.json_text(row, key)
                for key in dialect.state_keys.split(",")
            ),
            rest.json_text(row, dialect.alarm_key),
            rest.json_text(row, dialect.in_power_key),
            rest.json_text(row, dialect.out_power_key),
        )

    async def _port_rows(self) -> dict[int, Mapping[str, Any]]:
        key = self._dialect.port_key
        rows = await self.client.read(self._dialect.ports, rest.json_rows)
        numbers = (
            (calient.to_port(rest.json_text(row, key).partition("/")[0]), row)
            for row in rows
        )
        return {number: row for number, row in numbers if number is not None}

    def _id(self, c: CrossConnect, *, two_way: bool = False) -> str:
        template = (
            self._dialect.two_way_id if two_way else self._dialect.one_way_id
        )
        aids = {"src": calient.to_aid(c.inp), "dst": calient.to_aid(c.out)}
        return filled(
            template,
            str,
            **aids,
            conn="",
            group="",
            connname="",
        )
