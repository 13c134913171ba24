"""The driver ``calient-tl1``: Calient S160, S162, S320 and Edge640 over TL1 (TCP 3082).

Every cross-connect is made one-way, so that changing one direction never touches the other.
Two-way circuits that somebody else made are read as their two directions, and broken only
whole. Run against the emulated device only so far; the commands are in ``tl1_dialects.py``.
"""

import functools
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import chain

from patchlight.controller.circuits.contract import (
    Alarm,
    Capabilities,
    DeviceRefused,
    DirectedPort,
    Identity,
    PortState,
)
from patchlight.controller.circuits.dialects import Bare
from patchlight.controller.circuits.drivers.base import SessionDriver
from patchlight.controller.circuits.drivers.calient import (
    CalientRow,
    circuits_at_port,
    circuits_of,
    conn_id,
    is_conn_id,
    read_circuit,
    read_identity,
    read_port_states,
    read_power,
    to_aid,
)
from patchlight.controller.circuits.drivers.table import TABLES_KEPT
from patchlight.controller.circuits.protocols.session import shortened
from patchlight.controller.circuits.protocols.tl1 import Tl1Client
from patchlight.controller.circuits.protocols.tl1_dialects import CALIENT, CircuitDialect
from patchlight.controller.circuits.protocols.tl1_messages import can_quote
from patchlight.testbed.lab.portmap import CrossConnect

_FEW = 4  # up to so many ports or circuits are asked for one by one, not as a whole table
_LINES_KEPT = 2048  # a table is read again and again, and few of its lines are new


class CalientTl1(SessionDriver[CalientRow]):
    """A Calient OCS. See ``CircuitDriver`` for what the methods do."""

    built_in = CALIENT
    client_class = Tl1Client
    client: Tl1Client
    _dialect: CircuitDialect
    capabilities = Capabilities(power_in=True, power_out=True)

    async def identify(self) -> Identity:
        """From ``RTRV-NE``."""
        reply = await self.client.command(self._dialect.identity)
        return read_identity(reply.lines, self._dialect)

    async def alarms(self) -> tuple[Alarm, ...]:
        """Autonomous messages since ``open``, and what ``RTRV-ALM-ALL`` lists."""
        return await self.client.hear()

    async def port_states(self) -> Mapping[DirectedPort, PortState]:
        """From ``RTRV-PORT``."""
        reply = await self.client.command(self._dialect.ports, paged=True)
        states = read_port_states(reply.lines, self._dialect)
        return {port: state for port, state in states.items() if port.number <= self.ports}

    async def power(self, ports: Iterable[DirectedPort]) -> Mapping[DirectedPort, float | None]:
        """From ``RTRV-PORT-SUM``, port by port for a few, else the whole table."""
        asked = self._checked_ports(ports)
        numbers = dict.fromkeys(port.number for port in asked)
        if len(numbers) <= _FEW:
            lines = [line for number in numbers for line in await self._port_summary(number)]
        else:
            reply = await self.client.command(self._dialect.power_all, paged=True)
            lines = list(reply.lines)
        powers = read_power(lines, self._dialect, numbers)
        return {port: powers[port] for port in asked if port in powers}

    async def _table(self) -> Mapping[CrossConnect, CalientRow]:
        reply = await self.client.command(self._dialect.retrieve_all, paged=True)
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
        self, pairs: Sequence[CrossConnect], table: Mapping[CrossConnect, CalientRow]
    ) -> None:
        for circuit in circuits_of(pairs, table):
            await self._tell(self._dialect.activate, circuit)

    async def _break(
        self, pairs: Sequence[CrossConnect], table: Mapping[CrossConnect, CalientRow]
    ) -> None:
        circuits = circuits_of(pairs, table)
        if len(circuits) > 1:
            await self._in_bulk(self._dialect.delete_bulk, (circuit.conn for circuit in circuits))
            return
        (circuit,) = circuits
        try:
            if circuit.state != "entered":
                await self._tell(self._dialect.deactivate, circuit)
            await self._tell(self._dialect.delete, circuit)
        except DeviceRefused as refusal:
            # Some firmware forgets a circuit as soon as it is deactivated.
            if self._says_no_such(refusal) and not (
                (await self._about(circuit.directions)).keys() & set(circuit.directions)
            ):
                return
            refusal.words = f"{circuit.conn}: {refusal.words}"
            raise

    async def _beside(self, pairs: Sequence[CrossConnect]) -> Mapping[CrossConnect, CalientRow]:
        if len(pairs) > _FEW:
            return await super()._beside(pairs)
        beside: list[CrossConnect] = []
        for number in {number for c in pairs for number in (c.inp, c.out)}:
            here = circuits_at_port(await self._port_summary(number), self._dialect, number)
            if here is None:
                return await self._table()
            beside += here
        # Where nothing holds their ports, they are not there either.
        about = await self._about(pairs) if beside else {}
        others = [c for c in beside if c not in pairs]
        return {c: CalientRow.of(self._dialect, c, conn_id(c)) for c in others} | dict(about)

    async def _about(self, pairs: Sequence[CrossConnect]) -> Mapping[CrossConnect, CalientRow]:
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
    ) -> Container[CrossConnect]:
        """Only a list may be denied for one bad entry, and done in part."""
        single = len(pairs) == 1 or self._list_limit == 1
        return words if single else await super()._left(pairs, words)

    def _in_use(self, port: DirectedPort, by: CrossConnect) -> str:
        return f"{to_aid(port.number)} is in use: {conn_id(by)}"

    @property
    def _list_limit(self) -> int:
        return self._dialect.bulk_limit if self._dialect.bulk else 1

    @property
    def _first_look_s(self) -> float:
        return self._switch.switching_time_s

    async def _ask(self, c: CrossConnect) -> dict[CrossConnect, CalientRow] | None:
        """The circuit of ``c``, if there is one; ``None`` if the question is not understood."""
        src, dst = to_aid(c.inp), to_aid(c.out)
        values = self._values(CalientRow.of(self._dialect, c, conn_id(c)))
        for conn in (conn_id(c), f"{src}-{dst}", f"{dst}-{src}"):
            try:
                reply = await self.client.command(
                    self._dialect.retrieve_one, {**values, "conn": Bare(conn)}
                )
            except DeviceRefused as refusal:
                if not self._says_no_such(refusal):
                    return None
                continue
            if rows := self._rows(reply.lines):
                return rows
        return {}

    async def _port_summary(self, number: int) -> Sequence[str]:
        reply = await self.client.command(self._dialect.power_one, {"port": to_aid(number)})
        return reply.lines

    @functools.cached_property
    def _entries(self) -> Callable[[str], Sequence[tuple[CrossConnect, CalientRow]]]:
        """What one line puts into the table."""

        def read(line: str) -> Sequence[tuple[CrossConnect, CalientRow]]:
            if (circuit := read_circuit(self._dialect, line)) is None:
                # Passed over, it would be a circuit that nobody sees.
                raise self._nonsense("the question for its map", shortened(line))
            return [(direction, circuit) for direction in circuit.directions]

        return functools.lru_cache(_LINES_KEPT)(read)

    @functools.cached_property
    def _understood(self) -> Callable[[tuple[str, ...]], dict[CrossConnect, CalientRow]]:
        return functools.lru_cache(TABLES_KEPT)(self._rows)

    def _rows(self, lines: Iterable[str]) -> dict[CrossConnect, CalientRow]:
        return dict(chain.from_iterable(map(self._entries, lines)))

    def _values(self, circuit: CalientRow) -> dict[str, str]:
        """What fills templates. A circuit goes by its ports, and as one of our group, where no
        command can hold what it is called, or its name is the id of another one."""
        conn, name = Bare(circuit.conn), circuit.name
        return {
            **circuit.values(),
            "conn": conn,
            "connname": name if can_quote(name) and not is_conn_id(name) else conn,
            "group": circuit.group if can_quote(circuit.group) else self._dialect.group,
        }

    async def _in_bulk(self, template: str, conns: Iterable[str]) -> None:
        listed = self._dialect.bulk_separator.join(conns)
        await self.client.command(template, {"conns": Bare(listed)}, changes=True)

    async def _tell(self, template: str, circuit: CalientRow) -> None:
        kind = "2WAY" if circuit.two_way else "1WAY"
        await self.client.command(template, {**self._values(circuit), "kind": kind}, changes=True)
        # Of two steps the first one stays done if the second is refused.
        self._writes.told = True

    def _says_no_such(self, refusal: DeviceRefused) -> bool:
        return re.search(self._dialect.no_such_circuit, refusal.words, re.IGNORECASE) is not None
