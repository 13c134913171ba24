"""Shared by drivers of SONiC's OCS: it has the same tables over each protocol.

A cross-connect is an entry of the configuration, from a port of side A (``1A``, an input) to one of
side B (``16B``, an output). It is up when the device reports both sides as tuned. The device has no
power monitors, but the factory insertion loss of each path.
"""

import functools
import logging
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from patchlight.controller.circuits import contract
from patchlight.controller.circuits.dialect import (
    Bare,
    Dialect,
    Pattern,
    Template,
    filled,
)
from patchlight.controller.circuits.drivers import rest
from patchlight.controller.circuits.drivers.base import (
    Numbering,
    SessionDriver,
)
from patchlight.controller.circuits.drivers.table import Row, RowState
from patchlight.controller.circuits.protocols.session import AlarmLog
from patchlight.testbed.lab.portmap import CrossConnect

log = logging.getLogger("patchlight.ocs.sonic")


@dataclass(frozen=True)
class SonicDialect(Dialect):
    """Where the tables are, and the names in them.

    ``up``, ``failed`` and ``parked`` match what ``state_keys`` hold of a cross-connect; other
    states are transitional. ``normal`` matches what ``override_key`` holds of a port in service.
    Without ``losses`` the device tells no factory losses.
    """

    circuits: str = ""
    ports: str = ""
    states: str = ""
    port_states: str = ""
    losses: str = ""
    circuit_id: Template = "{inp}A-{out}B"
    circuit: Pattern = r"(?P<inp>\d{1,9})A-(?P<out>\d{1,9})B"
    port: Pattern = r"(?P<number>\d{1,9})(?P<side>[AB])"
    id_key: str = ""
    state_keys: str = "a_side_status,b_side_status"
    port_key: str = ""
    override_key: str = ""
    port_state_key: str = "status"
    loss_key: str = "loss_dB"
    vendor: str = "SONiC"
    up: Pattern = "tuned,tuned"
    failed: Pattern = ".*failed.*"
    parked: Pattern = "invalid"
    normal: Pattern = "normal|"
    list_limit: int = 512


@dataclass(
    frozen=True,
    slots=True,
)
class SonicRow(Row):
    """``configured``: it is in the configuration, not only in the hardware."""

    configured: bool = True


UNREPORTED = "its state is not reported"


class SonicTables(SessionDriver[SonicRow]):
    """The tables of an OCS that runs SONiC. See ``CircuitDriver`` for the methods."""

    _dialect: SonicDialect
    capabilities = contract.Capabilities()
    _losses: Mapping[CrossConnect, float] | None = None

    @functools.cached_property
    def _alarm_log(self) -> AlarmLog:
        return AlarmLog()

    @abstractmethod
    async def _rows(self, place: str) -> Sequence[Mapping[str, Any]]:
        """The rows of the table there."""

    async def _check_ports(self) -> None:
        counted = Counter(
            port.number for port in await self._per_port(self._dialect.ports)
        )
        both_sides = sum(count == 2 for count in counted.values())
        Numbering.polatis(both_sides, both_sides).check_holds(
            self.name, self.ports
        )

    async def port_states(self) -> contract.PortStates:
        """Overridden in the configuration means locked; the device itself reports failed."""
        dialect = self._dialect
        overrides = await self._per_port(dialect.ports, dialect.override_key)
        now = await self._per_port(dialect.port_states, dialect.port_state_key)
        states = {}
        for port in self._all_ports():
            if port not in overrides and port not in now:
                states[port] = contract.PortState("absent", "not listed")
            elif not re.fullmatch(
                dialect.normal, override := overrides.get(port, "")
            ):
                states[port] = contract.PortState("locked", override)
            else:
                words = now.get(port, "")
                failed = re.fullmatch(dialect.failed, words)
                states[port] = contract.PortState(
                    "failed" if failed else "ready", words
                )
        return states

    async def alarms(self) -> tuple[contract.Alarm, ...]:
        """The ports that have failed, each as it appeared."""
        states = (await self.port_states()).items()
        failed = [
            (port, state.words)
            for port, state in states
            if state.condition == "failed"
        ]
        self._alarm_log.stands(
            contract.Standing("major", str(port), f"{port}: {words}")
            for port, words in failed
        )
        return self._alarm_log.all

    async def factory_losses_db(
        self, cross_connects: Iterable[CrossConnect]
    ) -> Mapping[CrossConnect, float]:
        """The factory insertion loss of each path, if it was measured.

        The largest one if it was measured at several wavelengths or temperatures. Empty if the list
        cannot be read: it may exceed the limit of an answer.
        """
        if self._losses is None:
            try:
                self._losses = await self._read_losses()
            except (
                contract.DeviceUnreachable,
                contract.DeviceRefused,
            ) as error:
                log.warning(
                    "%s: its factory losses are unknown: %s",
                    self.name,
                    error.message,
                )
                self._losses = {}
        return {
            c: self._losses[c] for c in cross_connects if c in self._losses
        }

    async def _read_losses(self) -> Mapping[CrossConnect, float]:
        losses: dict[CrossConnect, float] = {}
        if not self._dialect.losses:
            return losses
        for row in await self._rows(self._dialect.losses):
            try:
                c = self._circuit(row)
                loss_db = float(row[self._dialect.loss_key])
            except (KeyError, TypeError, ValueError) as error:
                words = f"invalid loss {rest.json_short(row)}"
                raise self._nonsense(self._dialect.losses, words) from error
            losses[c] = max(loss_db, losses.get(c, loss_db))
        return losses

    async def _table(self) -> Mapping[CrossConnect, SonicRow]:
        dialect = self._dialect
        configured = [
            self._circuit(row) for row in await self._rows(dialect.circuits)
        ]
        table = dict.fromkeys(configured, SonicRow("coming", UNREPORTED))
        for c, row in (await self._states()).items():
            table[c] = replace(row, configured=c in table)
        return table

    async def _states(self) -> dict[CrossConnect, SonicRow]:
        """What the hardware has, whether or not it is configured."""
        table = {}
        for row in await self._rows(self._dialect.states):
            words = ",".join(
                rest.json_text(row, key)
                for key in self._dialect.state_keys.split(",")
            )
            table[self._circuit(row)] = SonicRow(self._state(words), words)
        return table

    async def _activate(
        self,
        pairs: Sequence[CrossConnect],
        table: Mapping[CrossConnect, SonicRow],
    ) -> None:
        # An invalid entry stays invalid when it is entered again: delete it first.
        await self._break(pairs, table)
        await self._make(pairs)

    def _state(self, words: str) -> RowState:
        if re.fullmatch(self._dialect.up, words):
            return "up"
        if re.fullmatch(self._dialect.parked, words):
            return "entered"
        return (
            "failed" if re.fullmatch(self._dialect.failed, words) else "coming"
        )

    async def _per_port(
        self, place: str, key: str = ""
    ) -> dict[contract.DirectedPort, str]:
        """The value at ``key`` of each port's row in a table."""
        found = {}
        for row in await self._rows(place):
            match = re.fullmatch(
                self._dialect.port, rest.json_text(row, self._dialect.port_key)
            )
            if match is None:
                raise self._nonsense(
                    place, f"invalid port {rest.json_short(row)}"
                )
            port = contract.DirectedPort(
                "in" if match["side"] == "A" else "out", int(match["number"])
            )
            found[port] = rest.json_text(row, key)
        return found

    def _circuit(self, row: Mapping[str, Any]) -> CrossConnect:
        match = re.fullmatch(
            self._dialect.circuit, rest.json_text(row, self._dialect.id_key)
        )
        if match is None:
            words = f"invalid cross-connect {rest.json_short(row)}"
            raise self._nonsense(self._dialect.circuits, words)
        return CrossConnect(int(match["inp"]), int(match["out"]))

    def _id(self, c: CrossConnect) -> Bare:
        return Bare(
            filled(
                self._dialect.circuit_id,
                str,
                inp=c.inp,
                out=c.out,
            )
        )
