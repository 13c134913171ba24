"""What a Calient says of its circuits, ports and power: lines of replies → values."""

from __future__ import annotations

import functools
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from patchlight.controller.circuits.contract import (
    Condition,
    DeviceRefused,
    DirectedPort,
    Identity,
    PortState,
    Side,
)
from patchlight.controller.circuits.drivers.calient.ports import to_aid, to_port
from patchlight.controller.circuits.protocols.tl1.client import Tl1Client
from patchlight.controller.circuits.protocols.tl1.dialects import CircuitDialect
from patchlight.controller.circuits.writing import JustRead
from patchlight.testbed.portmap import CrossConnect

FEW = 4
"""Up to so many ports or circuits are asked for one by one, not as a whole table."""


class CalientReader:
    """Reads circuits over a client. ``just_read`` has the whole table for a moment."""

    def __init__(self, client: Tl1Client, dialect: CircuitDialect) -> None:
        self._client, self._dialect = client, dialect
        self.just_read = JustRead[list[Held]]()

    async def held(self) -> list[Held]:
        """The whole table."""
        reply = await self._client.command(self._dialect.retrieve_all, paged=True)
        return read_circuits(reply.lines, self._dialect)

    async def states(self, wanted: Sequence[CrossConnect]) -> dict[CrossConnect, Held]:
        """What the device's table has on ``wanted``, by direction."""
        return {c: held for held in await self.about(wanted) for c in held.directions}

    async def about(self, wanted: Sequence[CrossConnect]) -> list[Held]:
        """The device's table as far as it concerns ``wanted``."""
        table: list[Held] = []
        if len(wanted) > FEW:
            return await self.held()
        for c in wanted:
            found = await self._ask(c)
            if found is None:
                return await self.held()
            table += found
        return table

    async def _ask(self, c: CrossConnect) -> list[Held] | None:
        """The circuit of ``c``, if there is one; ``None`` if the question is not understood."""
        values = command_values(c, self._dialect)
        two_way = f"{values['src']}-{values['dst']}", f"{values['dst']}-{values['src']}"
        for conn in (values["conn"], *two_way):
            try:
                reply = await self._client.command(
                    self._dialect.retrieve_one, {**values, "conn": conn}
                )
            except DeviceRefused as refusal:
                if not self.says_no_such(refusal):
                    return None
                continue
            if found := read_circuits(reply.lines, self._dialect):
                return found
        return []

    async def present(
        self, wanted: Sequence[CrossConnect]
    ) -> tuple[dict[CrossConnect, Held], list[CrossConnect]]:
        """What of ``wanted`` is in the device's table, and the directions that hold their ports.

        Both may have others, too.
        """
        if len(wanted) <= FEW:
            beside = await self._beside(wanted)
            # Where nothing holds their ports, they are not there either.
            return (await self.states(wanted) if beside else {}), beside
        table = await self.just_read.again(self.held)
        there = {c: held for held in table for c in held.directions}
        return there, list(there)

    async def _beside(self, wanted: Sequence[CrossConnect]) -> list[CrossConnect]:
        """The directions that hold a port of a few ``wanted``, and perhaps others."""
        found: list[CrossConnect] = []
        for port in {port for c in wanted for port in (c.inp, c.out)}:
            reply = await self._client.command(self._dialect.power_one, {"port": to_aid(port)})
            here = circuits_at_port(reply.lines, self._dialect)
            if here is None:
                return [c for held in await self.held() for c in held.directions]
            found += here
        return found

    def says_no_such(self, refusal: DeviceRefused) -> bool:
        """Whether that was refused because there is no such circuit."""
        return re.search(self._dialect.no_such_circuit, refusal.words, re.IGNORECASE) is not None


_SIDES: tuple[Side, ...] = ("in", "out")


@dataclass(frozen=True, slots=True)
class Held:
    """A circuit in the device's table: its directions, id, group, name and ``AS,OS,OC``."""

    directions: tuple[CrossConnect, ...]
    conn: str
    group: str
    name: str
    state: str

    def matches(self, pattern: str) -> bool:
        """Whether its state is one of those a dialect's pattern describes."""
        return _matches(pattern, self.state)

    @property
    def words(self) -> str:
        """Its state as the device writes it."""
        return _state_words(self.state.split(","))


def conn_id(c: CrossConnect) -> str:
    """The id of a one-way connection: ``1.1.1>1.1.2``."""
    return f"{to_aid(c.inp)}>{to_aid(c.out)}"


def command_values(
    c: CrossConnect, dialect: CircuitDialect, held: Held | None = None
) -> dict[str, str]:
    """What fills a dialect's templates for ``c``: as the device holds it, or for a new one."""
    conn = held.conn if held else conn_id(c)
    return {
        "src": to_aid(c.inp),
        "dst": to_aid(c.out),
        "conn": conn,
        "connname": held.name if held else conn,
        "group": held.group if held else dialect.group,
        "kind": "2WAY" if "-" in conn else "1WAY",
    }


def read_circuits(lines: Iterable[str], dialect: CircuitDialect) -> list[Held]:
    """The circuits that a reply to ``RTRV-CRS`` lists."""
    found = (_read_circuit(dialect.circuit_line, line) for line in lines)
    return [held for held in found if held is not None]


# A table is read again and again, and few of its lines are new.
@functools.lru_cache(maxsize=2048)
def _read_circuit(pattern: str, line: str) -> Held | None:
    if (match := re.match(pattern, line)) is None:
        return None
    src, dst = to_port(match["src"]), to_port(match["dst"])
    if src is None or dst is None:
        return None
    there = CrossConnect(src, dst)
    two_way = match["kind"] == "2"
    directions = (there, there.reverse) if two_way and src != dst else (there,)
    conn = f"{match['src']}{'-' if two_way else '>'}{match['dst']}"
    state = f"{match['AS']},{match['OS']},{match['OC']}"
    return Held(directions, conn, match["group"], match["name"], state)


@functools.lru_cache(maxsize=256)
def _matches(pattern: str, state: str) -> bool:
    return re.fullmatch(pattern, state) is not None


def read_port_states(
    lines: Iterable[str], dialect: CircuitDialect
) -> dict[DirectedPort, PortState]:
    """Both sides of the ports that a reply to ``RTRV-PORT`` lists."""
    pattern, states = re.compile(dialect.port_line), {}
    for line in lines:
        if (match := pattern.match(line)) is None or (number := to_port(match["port"])) is None:
            continue
        for side in _SIDES:
            said = [match[f"{side}_{what}"] for what in ("AS", "OS", "OC")]
            condition = _condition(",".join(said), dialect)
            states[DirectedPort(side, number)] = PortState(condition, _state_words(said))
    return states


def read_power(
    lines: Iterable[str], dialect: CircuitDialect, asked: Container[int]
) -> dict[DirectedPort, float | None]:
    """Both sides' power (dBm) of the ports ``asked`` that a reply to ``RTRV-PORT-SUM`` lists."""
    pattern, found = re.compile(dialect.power_line), {}
    for line in lines:
        # Few of a long table's lines are wanted, and a pattern costs more than a look.
        first = to_port(line.partition(":")[0])
        if first is not None and first not in asked:
            continue
        if (match := pattern.match(line)) and (number := to_port(match["port"])):
            for side in _SIDES:
                found[DirectedPort(side, number)] = _dbm(match[side])
    return found


def circuits_at_port(lines: Iterable[str], dialect: CircuitDialect) -> list[CrossConnect] | None:
    """The directions that a reply to ``RTRV-PORT-SUM`` for one port names; ``None``: unclear."""
    found = [match for line in lines if (match := re.match(dialect.port_circuits, line))]
    if len(found) != 1:
        return None
    directions: list[CrossConnect] = []
    for conn in (found[0]["first"], found[0]["second"]):
        if re.fullmatch(dialect.no_circuit, conn):
            continue
        src, dst = (to_port(part) for part in (conn.replace("-", ">") + ">").split(">")[:2])
        if src is None or dst is None:
            return None
        there = CrossConnect(src, dst)
        directions += [there, there.reverse] if "-" in conn else [there]
    return directions


def read_identity(lines: Iterable[str], dialect: CircuitDialect) -> Identity:
    """Who answers, from a reply to ``RTRV-NE``; empty where it does not say."""
    pattern = re.compile(dialect.identity_line)
    for line in lines:
        if match := pattern.match(line):
            return Identity(
                dialect.vendor, match["model"], match["serial"], match["software"], match["name"]
            )
    return Identity(dialect.vendor, "", "", "")


def _condition(state: str, dialect: CircuitDialect) -> Condition:
    if re.fullmatch(dialect.port_failed, state):
        return "failed"
    if re.fullmatch(dialect.port_absent, state):
        return "absent"
    return "locked" if re.fullmatch(dialect.port_locked, state) else "ready"


def _state_words(said: Iterable[str]) -> str:
    return ",".join(f"{key}={value}" for key, value in zip(("AS", "OS", "OC"), said, strict=True))


def _dbm(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
