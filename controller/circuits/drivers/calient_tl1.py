"""The driver ``calient-tl1``: Calient S160, S162, S320 and Edge640 over TL1 (TCP 3082).

Every cross-connect is made one-way, so that changing one direction never touches the other. Two-way
circuits made by others are read as two directions, and broken only as a whole. Tested with the
emulated device only.
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from patchlight.controller.circuits import contract
from patchlight.controller.circuits.dialect import (
    Bare,
    Pattern,
    Template,
    shortened,
)
from patchlight.controller.circuits.drivers.base import (
    SessionDriver,
    power_dbm,
)
from patchlight.controller.circuits.drivers.calient import (
    CalientDialect,
    CalientRow,
    circuits_of,
    state_words,
    to_aid,
    to_port,
)
from patchlight.controller.circuits.drivers.table import TABLES_KEPT
from patchlight.controller.circuits.protocols.tl1 import (
    SessionDialect,
    Tl1Client,
)
from patchlight.controller.circuits.protocols.tl1_messages import can_quote
from patchlight.testbed.lab.portmap import CrossConnect

_FEW = 4  # up to this many ports or circuits are read one by one, not as a whole table
_LINES_KEPT = 2048  # a table is read often, and few of its lines are new


@dataclass(frozen=True)
class CalientTl1Dialect(CalientDialect, SessionDialect):
    """What a Calient takes.

    ``{src}`` and ``{dst}`` are port AIDs, ``{conn}`` is the connection's id (``1.1.1>1.1.2``, or
    with ``-`` if it is two-way), ``{group}`` and ``{connname}`` its names on the device, ``{kind}``
    is ``1WAY`` or ``2WAY``, ``{conns}`` is a list of ids. Patterns are matched against one quoted
    line of a reply each and name their groups as below.
    """

    FIELDS: ClassVar[frozenset[str]] = SessionDialect.FIELDS.union(
        ["src", "dst", "conn", "connname", "group", "kind", "conns", "port"]
    )

    enter: Template = "ENT-CRS::{src},{dst}:{ctag}::{group},{kind};"
    activate: Template = "ACT-CRS::{src},{dst}:{ctag}::{conn},{group};"
    deactivate: Template = "CANC-CRS::{src},{dst}:{ctag}::{conn},{group};"
    delete: Template = "DLT-CRS::{src},{dst}:{ctag}::,{group},{connname};"
    enter_bulk: Template = "ENT-CRS-BULK::{conns}:{ctag};"
    delete_bulk: Template = "DLT-CRS-BULK::{conns}:{ctag};"
    retrieve_all: Template = "RTRV-CRS:::{ctag}::ALL;"
    retrieve_one: Template = "RTRV-CRS::{src},{dst}:{ctag}::{conn};"
    ports: Template = "RTRV-PORT::0:{ctag};"
    power_all: Template = "RTRV-PORT-SUM::0:{ctag};"
    power_one: Template = "RTRV-PORT-SUM::{port}:{ctag};"
    identity: Template = "RTRV-NE:::{ctag};"
    bulk_separator: str = "&"
    circuit_line: Pattern = (
        # Names may contain anything, including commas and line ends; a line with two CONNTYPEs is
        # invalid, because a name could then fake another state.
        r"(?s)[^:]*:SRCPORT=(?P<src>[^,]*),DSTPORT=(?P<dst>[^,]*),"
        r"GRPNAME=(?P<group>[^,]*(?:,(?!CONNNAME=)[^,]*)*),"
        r"CONNNAME=(?P<name>[^,]*(?:,(?!CONNTYPE=)[^,]*)*),"
        r"CONNTYPE=(?P<kind>[12])WAY(?!.*,CONNTYPE=).*?,"
        r"AS=(?P<AS>[^,]*),OS=(?P<OS>[^,]*),OC=(?P<OC>[^,]*)"
    )
    port_line: Pattern = (
        r"(?P<port>[\d.]+):.*?INAS=(?P<in_AS>[^,]*),INOS=(?P<in_OS>[^,]*),INOC=(?P<in_OC>[^,]*),"
        r".*?OUTAS=(?P<out_AS>[^,]*),OUTOS=(?P<out_OS>[^,]*),OUTOC=(?P<out_OC>[^,]*)"
    )
    power_line: Pattern = (
        r"(?P<port>[\d.]+):.*?INPWR=(?P<in>[^,]*),OUTPWR=(?P<out>[^,]*)"
    )
    port_circuits: Pattern = (
        r"(?s)(?P<port>[\d.]+):.*?CONNNAME1=(?P<first>[^,]*),CONNSTATE1=(?P<first_state>[^,]*),"
        r"CONNNAME2=(?P<second>[^,]*),CONNSTATE2=(?P<second_state>[^,]*)"
    )
    no_circuit: Pattern = r"NONE|"
    identity_line: Pattern = (
        r"(?P<name>[^:]*):SERIALNUMBER=(?P<serial>[^,]*),SWPACKAGE=(?P<software>[^,]*),"
        r".*?CHASSISTYPE=(?P<model>[^,]*)"
    )
    port_failed: Pattern = r"[^,]*,[^,]*,(FAIL|NOHW)"
    port_absent: Pattern = r"OOS-NP,.*"
    port_locked: Pattern = r"(UMA|OOS).*"
    no_such_circuit: Pattern = (
        r"no such|not found|does not exist|invalid connection"
    )

    @property
    def list_limit(self) -> int:
        """How many circuits one command takes."""
        return self.bulk_limit if self.bulk else 1


CALIENT = CalientTl1Dialect()


class CalientTl1(SessionDriver[CalientRow]):
    """A Calient OCS. See ``CircuitDriver`` for the methods."""

    built_in = CALIENT
    client_class = Tl1Client
    client: Tl1Client
    _dialect: CalientTl1Dialect
    capabilities = contract.Capabilities(
        power_in=True,
        power_out=True,
    )
    _looks_at_once = False

    async def identify(self) -> contract.Identity:
        """From ``RTRV-NE``."""
        dialect = self._dialect
        for line in (await self.client.command(dialect.identity)).lines:
            if found := re.match(dialect.identity_line, line):
                return contract.Identity(
                    dialect.vendor,
                    *found.group(
                        "model",
                        "serial",
                        "software",
                        "name",
                    ),
                )
        return contract.Identity(
            dialect.vendor,
            "",
            "",
            "",
        )

    async def port_states(self) -> contract.PortStates:
        """From ``RTRV-PORT``."""
        reply = await self.client.command(self._dialect.ports, paged=True)
        pattern = re.compile(self._dialect.port_line)
        states = {}
        for line in reply.lines:
            number = (
                to_port(match["port"])
                if (match := pattern.match(line))
                else None
            )
            if match is None or number is None or number > self.ports:
                continue
            for side in contract.SIDES:
                state = ",".join(
                    match[f"{side}_{what}"] for what in ("AS", "OS", "OC")
                )
                words = state_words(state)
                states[contract.DirectedPort(side, number)] = (
                    contract.PortState(self._condition(state), words)
                )
        return states

    async def power(
        self, ports: Iterable[contract.DirectedPort]
    ) -> contract.Powers:
        """From ``RTRV-PORT-SUM``, port by port for a few, else the whole table."""
        requested = self._checked_ports(ports)
        numbers = dict.fromkeys(port.number for port in requested)
        if len(numbers) <= _FEW:
            lines = [
                line
                for number in numbers
                for line in await self._port_summary(number)
            ]
        else:
            reply = await self.client.command(
                self._dialect.power_all, paged=True
            )
            lines = list(reply.lines)
        match_line = re.compile(self._dialect.power_line).match
        powers = {}
        for line in lines:
            # Few lines of a long table are needed, and matching is slow.
            first = to_port(line.partition(":")[0])
            if first is not None and first not in numbers:
                continue
            if (match := match_line(line)) and (
                number := to_port(match["port"])
            ):
                for port in _sides(number):
                    powers[port] = power_dbm(match[port.side])
        return {port: powers[port] for port in requested if port in powers}

    async def _table(self) -> Mapping[CrossConnect, CalientRow]:
        reply = await self.client.command(
            self._dialect.retrieve_all, paged=True
        )
        return self._understood(reply.lines)

    async def _make(self, pairs: Sequence[CrossConnect]) -> None:
        """A list is entered and activated with one command, a single one with two."""
        if len(pairs) > 1:
            await self._in_bulk(self._dialect.enter_bulk, map(conn_id, pairs))
            return
        new = CalientRow.of(self._dialect, pairs[0], conn_id(pairs[0]))
        await self._tell(self._dialect.enter, new)
        await self._tell(self._dialect.activate, new)

    async def _activate(
        self,
        pairs: Sequence[CrossConnect],
        table: Mapping[CrossConnect, CalientRow],
    ) -> None:
        for circuit in circuits_of(pairs, table):
            await self._tell(self._dialect.activate, circuit)

    async def _break(
        self,
        pairs: Sequence[CrossConnect],
        table: Mapping[CrossConnect, CalientRow],
    ) -> None:
        circuits = circuits_of(pairs, table)
        if len(circuits) > 1:
            await self._in_bulk(
                self._dialect.delete_bulk,
                (circuit.conn for circuit in circuits),
            )
            return
        (circuit,) = circuits
        try:
            if circuit.state != "entered":
                await self._tell(self._dialect.deactivate, circuit)
            await self._tell(self._dialect.delete, circuit)
        except contract.DeviceRefused as refusal:
            # Some firmware deletes a circuit when it is deactivated.
            if self._says_no_such(refusal) and not (
                (await self._about(circuit.directions)).keys()
                & set(circuit.directions)
            ):
                return
            refusal.words = f"{circuit.conn}: {refusal.words}"
            raise

    async def _beside(
        self, pairs: Sequence[CrossConnect]
    ) -> Mapping[CrossConnect, CalientRow]:
        if len(pairs) > _FEW:
            return await super()._beside(pairs)
        beside: list[CrossConnect] = []
        for number in {number for c in pairs for number in (c.inp, c.out)}:
            here = self._circuits_at(number, await self._port_summary(number))
            if here is None:
                return await self._table()
            beside += here
        # If nothing uses their ports, they do not exist either.
        about = await self._about(pairs) if beside else {}
        others = [c for c in beside if c not in pairs]
        return {
            c: CalientRow.of(self._dialect, c, conn_id(c)) for c in others
        } | dict(about)

    async def _about(
        self, pairs: Sequence[CrossConnect]
    ) -> Mapping[CrossConnect, CalientRow]:
        if len(pairs) > _FEW:
            return await self._table()
        table: dict[CrossConnect, CalientRow] = {}
        for c in pairs:
            rows = await self._ask(c)
            if rows is None:
                return await self._table()
            table |= rows
        return table

    async def _left(
        self, pairs: Sequence[CrossConnect], words: Mapping[CrossConnect, str]
    ) -> Mapping[CrossConnect, object]:
        """Only a list may be denied for one bad entry, and done in part."""
        single = len(pairs) == 1 or self._list_limit == 1
        return words if single else await super()._left(pairs, words)

    def _in_use(self, port: contract.DirectedPort, by: CrossConnect) -> str:
        return f"{to_aid(port.number)} is in use: {conn_id(by)}"

    async def _ask(
        self, c: CrossConnect
    ) -> dict[CrossConnect, CalientRow] | None:
        """The circuit of ``c``, if it exists; ``None`` if the query is not understood."""
        src = to_aid(c.inp)
        dst = to_aid(c.out)
        values = self._values(CalientRow.of(self._dialect, c, conn_id(c)))
        for conn in (conn_id(c), f"{src}-{dst}", f"{dst}-{src}"):
            try:
                reply = await self.client.command(
                    self._dialect.retrieve_one, {**values, "conn": Bare(conn)}
                )
            except contract.DeviceRefused as refusal:
                if not self._says_no_such(refusal):
                    return None
                continue
            if rows := self._rows(reply.lines):
                return rows
        return {}

    async def _port_summary(self, number: int) -> Sequence[str]:
        reply = await self.client.command(
            self._dialect.power_one, {"port": to_aid(number)}
        )
        return reply.lines

    def _circuits_at(
        self, port: int, lines: Iterable[str]
    ) -> list[CrossConnect] | None:
        """The directions in a port's summary; ``None`` if that is unclear.

        A circuit may have another one's id as name: it is unclear if the named circuit does not use
        the port, or if none is named for a used port.
        """
        dialect = self._dialect
        matches = [
            match
            for line in lines
            if (match := re.match(dialect.port_circuits, line))
        ]
        if len(matches) != 1:
            return None
        directions: list[CrossConnect] = []
        groups = matches[0].groupdict()
        for which in ("first", "second"):
            conn = groups[which]
            state = groups.get(f"{which}_state", "")
            if re.fullmatch(dialect.no_circuit, conn) and re.fullmatch(
                dialect.no_circuit, state
            ):
                continue
            src, dst = (
                to_port(part)
                for part in (conn.replace("-", ">") + ">").split(">")[:2]
            )
            if src is None or dst is None or port not in (src, dst):
                return None
            there = CrossConnect(src, dst)
            directions += [there, there.reverse] if "-" in conn else [there]
        return directions

    @functools.cached_property
    def _entries(
        self,
    ) -> Callable[[str], Sequence[tuple[CrossConnect, CalientRow]]]:
        """What one line adds to the table."""

        def read(line: str) -> Sequence[tuple[CrossConnect, CalientRow]]:
            match = re.match(self._dialect.circuit_line, line)
            src = to_port(match["src"]) if match else None
            dst = to_port(match["dst"]) if match else None
            if match is None or src is None or dst is None:
                # If it were skipped, a circuit would be invisible.
                raise self._nonsense("the query for its map", shortened(line))
            two_way = match["kind"] == "2"
            circuit = CalientRow.of(
                self._dialect,
                CrossConnect(src, dst),
                f"{match['src']}{'-' if two_way else '>'}{match['dst']}",
                state=",".join(match.group("AS", "OS", "OC")),
                two_way=two_way and src != dst,
                group=match["group"],
                name=match["name"],
            )
            return [(direction, circuit) for direction in circuit.directions]

        return functools.lru_cache(_LINES_KEPT)(read)

    @functools.cached_property
    def _understood(
        self,
    ) -> Callable[[tuple[str, ...]], dict[CrossConnect, CalientRow]]:
        return functools.lru_cache(TABLES_KEPT)(self._rows)

    def _rows(self, lines: Iterable[str]) -> dict[CrossConnect, CalientRow]:
        return dict(chain.from_iterable(map(self._entries, lines)))

    def _values(self, circuit: CalientRow) -> dict[str, str]:
        """Values of templates. A circuit is named by its ports, and with Patchlight's group if no
        command can contain its name, or its name is the id of another one."""
        conn = Bare(circuit.conn)
        name = circuit.name
        ends = re.split("[>-]", name)
        is_id = len(ends) == 2 and all(
            to_port(end) is not None for end in ends
        )
        return {
            **circuit.values(),
            "conn": conn,
            "connname": name if can_quote(name) and not is_id else conn,
            "group": circuit.group
            if can_quote(circuit.group)
            else self._dialect.group,
        }

    async def _in_bulk(self, template: str, conns: Iterable[str]) -> None:
        listed = self._dialect.bulk_separator.join(conns)
        await self.client.command(
            template, {"conns": Bare(listed)}, changes=True
        )

    def _condition(self, state: str) -> contract.Condition:
        if re.fullmatch(self._dialect.port_failed, state):
            return "failed"
        if re.fullmatch(self._dialect.port_absent, state):
            return "absent"
        return (
            "locked"
            if re.fullmatch(self._dialect.port_locked, state)
            else "ready"
        )

    async def _tell(self, template: str, circuit: CalientRow) -> None:
        kind = "2WAY" if circuit.two_way else "1WAY"
        await self.client.command(
            template, {**self._values(circuit), "kind": kind}, changes=True
        )
        # If the second of two steps is refused, the first one is still done.
        self._told = True

    def _says_no_such(self, refusal: contract.DeviceRefused) -> bool:
        return (
            re.search(
                self._dialect.no_such_circuit, refusal.words, re.IGNORECASE
            )
            is not None
        )


def conn_id(c: CrossConnect) -> str:
    """The id of a one-way connection: ``1.1.1>1.1.2``."""
    return f"{to_aid(c.inp)}>{to_aid(c.out)}"


@functools.lru_cache(maxsize=4096)
def _sides(number: int) -> tuple[contract.DirectedPort, ...]:
    return tuple(
        contract.DirectedPort(side, number) for side in contract.SIDES
    )
