"""Shared by the drivers of Calient switches: port numbers, and the rows of their tables."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from patchlight.controller.circuits.dialect import Dialect, Pattern
from patchlight.controller.circuits.drivers.table import Row, RowState
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import CrossConnect

# A port is "shelf.module.port": eight ports per module, eight modules per shelf.
_AID = re.compile(r"([1-9][0-9]{0,3})\.([1-8])\.([1-8])")


@functools.lru_cache(maxsize=4096)
def to_aid(port: int) -> str:
    """Canonical port 1, 2, … → ``1.1.1``, ``1.1.2``, …; port 65 is ``2.1.1``."""
    if port < 1:
        raise BadInput(f"{port} is not a port: ports count from 1")
    module, index = divmod(port - 1, 8)
    shelf, module = divmod(module, 8)
    return f"{shelf + 1}.{module + 1}.{index + 1}"


@functools.lru_cache(maxsize=4096)
def to_port(aid: str) -> int | None:
    """``2.1.1`` → 65; ``None`` for any other text."""
    match = _AID.fullmatch(aid)
    if match is None:
        return None
    shelf, module, index = (int(part) for part in match.groups())
    return ((shelf - 1) * 8 + module - 1) * 8 + index


@dataclass(frozen=True)
class CalientDialect(Dialect):
    """What both protocols share. ``up``, ``failed`` and ``parked`` match a circuit's ``AS,OS,OC``.

    A parked circuit is entered but not activated. ``bulk``: whether lists of circuits are sent.
    """

    vendor: str = "Calient"
    group: str = "SYSTEM"
    bulk: bool = True
    bulk_limit: int = 64
    up: Pattern = r"IS,IS,OK"
    failed: Pattern = r"[^,]*,[^,]*,(FAIL|NOHW)"
    parked: Pattern = r"UMA,.*"


@dataclass(
    frozen=True,
    slots=True,
    kw_only=True,
)
class CalientRow(Row):
    """A circuit in the table: ``first`` is the direction at the start of its id."""

    first: CrossConnect
    group: str
    name: str

    @classmethod
    def of(
        cls,
        dialect: CalientDialect,
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
            _row_state(
                state,
                dialect.parked,
                dialect.up,
                dialect.failed,
            ),
            state_words(state),
            conn,
            two_way,
            first=first,
            group=group or dialect.group,
            name=name or conn,
        )

    @property
    def directions(self) -> tuple[CrossConnect, ...]:
        """The cross-connects that it consists of."""
        return (
            (self.first, self.first.reverse) if self.two_way else (self.first,)
        )

    def values(self) -> dict[str, str]:
        """The values for a dialect's templates."""
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
    """The circuits in the table with these directions, each once."""
    return list({(row := table[c]).conn: row for c in pairs}.values())


# A long table has few different states.
@functools.lru_cache(maxsize=256)
def _row_state(
    state: str,
    parked: str,
    up: str,
    failed: str,
) -> RowState:
    if re.fullmatch(parked, state):
        return "entered"
    if re.fullmatch(up, state):
        return "up"
    return "failed" if re.fullmatch(failed, state) else "coming"


@functools.lru_cache(maxsize=256)
def state_words(state: str) -> str:
    """``IS,IS,OK`` → ``AS=IS,OS=IS,OC=OK``."""
    keys = ("AS", "OS", "OC")
    return ",".join(
        f"{key}={value}"
        for key, value in zip(keys, state.split(","), strict=False)
    )
