"""What a Calient says of its circuits, ports and power: lines of replies → values.

Its ports are ``shelf.module.port``: eight ports on a module, eight modules.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from patchlight.controller.circuits.contract import (
    SIDES,
    Condition,
    DirectedPort,
    Identity,
    PortState,
)
from patchlight.controller.circuits.dialects import power_dbm
from patchlight.controller.circuits.drivers.table import Row, RowState
from patchlight.controller.circuits.protocols.http_dialects import CalientRestDialect
from patchlight.controller.circuits.protocols.tl1_dialects import CircuitDialect
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import CrossConnect

PORTS_PER_MODULE = 8
MODULES_PER_SHELF = 8

_AID = re.compile(r"([1-9][0-9]{0,3})\.([1-8])\.([1-8])")


@functools.lru_cache(maxsize=4096)
def to_aid(port: int) -> str:
    """Canonical port 1, 2, … → ``1.1.1``, ``1.1.2``, …; port 65 is ``2.1.1``."""
    if port < 1:
        raise BadInput(f"{port} is not a port: ports count from 1")
    module, index = divmod(port - 1, PORTS_PER_MODULE)
    shelf, module = divmod(module, MODULES_PER_SHELF)
    return f"{shelf + 1}.{module + 1}.{index + 1}"


@functools.lru_cache(maxsize=4096)
def to_port(aid: str) -> int | None:
    """``2.1.1`` → 65; ``None`` if it is not such a number."""
    match = _AID.fullmatch(aid)
    if match is None:
        return None
    shelf, module, index = (int(part) for part in match.groups())
    return ((shelf - 1) * MODULES_PER_SHELF + module - 1) * PORTS_PER_MODULE + index


@dataclass(frozen=True, slots=True, kw_only=True)
class CalientRow(Row):
    """A circuit in the table: ``first`` is the direction that its id begins with."""

    first: CrossConnect
    group: str
    name: str

    @classmethod
    def of(
        cls,
        dialect: CircuitDialect | CalientRestDialect,
        first: CrossConnect,
        conn: str,
        *,
        state: str = "",
        two_way: bool = False,
        group: str = "",
        name: str = "",
    ) -> CalientRow:
        """Without ``group`` and ``name``, as a new one is entered; ``state``: ``AS,OS,OC``."""
        return cls(
            _row_state(state, dialect.parked, dialect.up, dialect.failed),
            _state_words(state),
            conn,
            two_way,
            first=first,
            group=group or dialect.group,
            name=name or conn,
        )

    @property
    def directions(self) -> tuple[CrossConnect, ...]:
        """What it joins."""
        return (self.first, self.first.reverse) if self.two_way else (self.first,)

    def values(self) -> dict[str, str]:
        """What fills a dialect's templates."""
        return {
            "src": to_aid(self.first.inp),
            "dst": to_aid(self.first.out),
            "conn": self.conn,
            "connname": self.name,
            "group": self.group,
        }


def circuits_of(
    pairs: Iterable[CrossConnect], table: Mapping[CrossConnect, CalientRow]
) -> list[CalientRow]:
    """The circuits in the table that have these directions, each once."""
    return list({(row := table[c]).conn: row for c in pairs}.values())


def is_conn_id(text: str) -> bool:
    """Whether this is the id of some circuit, one-way or two-way."""
    ends = re.split("[>-]", text)
    return len(ends) == 2 and all(to_port(end) is not None for end in ends)


def conn_id(c: CrossConnect) -> str:
    """The id of a one-way connection: ``1.1.1>1.1.2``."""
    return f"{to_aid(c.inp)}>{to_aid(c.out)}"


def read_circuit(dialect: CircuitDialect, line: str) -> CalientRow | None:
    """The circuit of one line of a reply to ``RTRV-CRS``; ``None`` if it cannot be read."""
    if (match := re.match(dialect.circuit_line, line)) is None:
        return None
    src_aid, dst_aid, kind, *state = match.group("src", "dst", "kind", "AS", "OS", "OC")
    src, dst = to_port(src_aid), to_port(dst_aid)
    if src is None or dst is None:
        return None
    two_way = kind == "2"
    return CalientRow.of(
        dialect,
        CrossConnect(src, dst),
        f"{src_aid}{'-' if two_way else '>'}{dst_aid}",
        state=",".join(state),
        two_way=two_way and src != dst,
        group=match["group"],
        name=match["name"],
    )


def read_port_states(
    lines: Iterable[str], dialect: CircuitDialect
) -> dict[DirectedPort, PortState]:
    """Both sides of the ports that a reply to ``RTRV-PORT`` lists."""
    pattern, states = re.compile(dialect.port_line), {}
    for line in lines:
        if (match := pattern.match(line)) is None or (number := to_port(match["port"])) is None:
            continue
        for side in SIDES:
            state = ",".join(match[f"{side}_{what}"] for what in ("AS", "OS", "OC"))
            port_state = PortState(_condition(state, dialect), _state_words(state))
            states[DirectedPort(side, number)] = port_state
    return states


def read_power(
    lines: Iterable[str], dialect: CircuitDialect, asked: Container[int]
) -> dict[DirectedPort, float | None]:
    """Both sides' power (dBm) of the ports ``asked`` that a reply to ``RTRV-PORT-SUM`` lists."""
    match_line, powers = re.compile(dialect.power_line).match, {}
    for line in lines:
        # Few of a long table's lines are asked for, and a pattern costs more than a look.
        first = to_port(line.partition(":")[0])
        if first is not None and first not in asked:
            continue
        if (match := match_line(line)) and (number := to_port(match["port"])):
            for port in _sides(number):
                powers[port] = power_dbm(match[port.side])
    return powers


@functools.lru_cache(maxsize=4096)
def _sides(number: int) -> tuple[DirectedPort, ...]:
    return tuple(DirectedPort(side, number) for side in SIDES)


def circuits_at_port(
    lines: Iterable[str], dialect: CircuitDialect, port: int
) -> list[CrossConnect] | None:
    """The directions that a reply to ``RTRV-PORT-SUM`` for ``port`` names; ``None``: unclear.

    A circuit may have been given a name, and the name be that of another one: it is unclear
    where what is named does not use the port, or nothing is named and something in use.
    """
    matches = [match for line in lines if (match := re.match(dialect.port_circuits, line))]
    if len(matches) != 1:
        return None
    directions: list[CrossConnect] = []
    groups = matches[0].groupdict()
    for which in ("first", "second"):
        conn, state = groups[which], groups.get(f"{which}_state", "")
        if re.fullmatch(dialect.no_circuit, conn) and re.fullmatch(dialect.no_circuit, state):
            continue
        src, dst = (to_port(part) for part in (conn.replace("-", ">") + ">").split(">")[:2])
        if src is None or dst is None or port not in (src, dst):
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


# A long table's rows have few different states.
@functools.lru_cache(maxsize=256)
def _row_state(state: str, parked: str, up: str, failed: str) -> RowState:
    if re.fullmatch(parked, state):
        return "entered"
    if re.fullmatch(up, state):
        return "up"
    return "failed" if re.fullmatch(failed, state) else "coming"


@functools.lru_cache(maxsize=256)
def _state_words(state: str) -> str:
    """``IS,IS,OK`` → ``AS=IS,OS=IS,OC=OK``."""
    keys = ("AS", "OS", "OC")
    return ",".join(f"{key}={value}" for key, value in zip(keys, state.split(","), strict=False))
