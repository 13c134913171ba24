"""The driver ``sonic-ocs``: switches that run SONiC with its OCS model, over RESTCONF (HTTPS).

A cross-connect is an entry of the configuration, from a port of side A (``1A``, an input) to one of
side B (``16B``, an output). It is up when the device reports both sides as tuned. The model has no
power monitors, but the factory insertion loss of each path. Tested with the emulated device only.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from patchlight.controller.circuits import contract
from patchlight.controller.circuits.dialect import (
    Bare,
    Pattern,
    Template,
    filled,
)
from patchlight.controller.circuits.drivers import rest
from patchlight.controller.circuits.drivers.base import Numbering
from patchlight.controller.circuits.drivers.table import Row, RowState
from patchlight.controller.circuits.protocols.http import (
    HttpDialect,
    in_json,
    in_url,
)
from patchlight.testbed.lab.portmap import CrossConnect

log = logging.getLogger("patchlight.ocs.sonic")


@dataclass(frozen=True)
class SonicOcsDialect(HttpDialect):
    """What a switch that runs SONiC takes, by its models ``sonic-ocs`` and ``sonic-ocs-states``.

    ``{inp}`` and ``{out}`` are port numbers, ``{id}`` is a cross-connect's id, ``{rows}`` a list of
    ``row``. ``up``, ``failed`` and ``parked`` match what ``state_keys`` hold of a cross-connect;
    other states are transitional. An earlier revision of the model has one status for a
    cross-connect::

        states = "/data/sonic-ocs:sonic-ocs/OCS_CROSS_CONNECT_TABLE"
        state_keys = "status"
        up = "enabled"
        port_states = "/data/sonic-ocs:sonic-ocs/OCS_PORT_TABLE"
        port_state_key = "oper_status"
        losses = "/data/sonic-ocs:sonic-ocs/OCS_FACTORY_INSERTION_LOSS_TABLE"
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset({"inp", "out", "id", "rows"})

    base: str = "/restconf"
    media_type: str = "application/yang-data+json"
    circuits: str = "/data/sonic-ocs:sonic-ocs/OCS_CROSS_CONNECT"
    ports: str = "/data/sonic-ocs:sonic-ocs/OCS_PORT"
    states: str = "/data/sonic-ocs-states:sonic-ocs-states/OCS_CROSS_CONNECT"
    port_states: str = "/data/sonic-ocs-states:sonic-ocs-states/OCS_PORT"
    losses: str = (
        "/data/sonic-ocs-states:sonic-ocs-states/OCS_FACTORY_INSERTION_LOSS"
    )
    identity: str = "/data/sonic-device_metadata:sonic-device_metadata/DEVICE_METADATA/localhost"
    row: Template = (
        '{{"cross_connect_id":"{id}","a_side":"{inp}A","b_side":"{out}B"}}'
    )
    body: Template = '{{"sonic-ocs:OCS_CROSS_CONNECT":{{"OCS_CROSS_CONNECT_LIST":[{rows}]}}}}'
    delete: Template = "/data/sonic-ocs:sonic-ocs/OCS_CROSS_CONNECT/OCS_CROSS_CONNECT_LIST={id}"
    circuit_id: Template = "{inp}A-{out}B"
    circuit: Pattern = r"(?P<inp>\d{1,9})A-(?P<out>\d{1,9})B"
    port: Pattern = r"(?P<number>\d{1,9})(?P<side>[AB])"
    id_key: str = "cross_connect_id"
    state_keys: str = "a_side_status,b_side_status"
    port_key: str = "simplex_port_id"
    override_key: str = "config_status"
    port_state_key: str = "status"
    loss_key: str = "loss_dB"
    vendor: str = "SONiC"
    model_key: str = "hwsku"
    name_key: str = "hostname"
    up: Pattern = "tuned,tuned"
    failed: Pattern = ".*failed.*"
    parked: Pattern = "invalid"
    normal: Pattern = "normal|"
    list_limit: int = 512


SONIC = SonicOcsDialect()


@dataclass(
    frozen=True,
    slots=True,
)
class SonicRow(Row):
    """``configured``: it is in the configuration, not only in the hardware."""

    configured: bool = True


class SonicOcs(rest.RestDriver[SonicRow]):
    """An OCS that runs SONiC. See ``CircuitDriver`` for the methods."""

    built_in = SONIC
    _dialect: SonicOcsDialect
    capabilities = contract.Capabilities()
    _losses: Mapping[CrossConnect, float] | None = None

    async def open(self) -> None:
        """Connect to the device, and check that it has the lab's ports."""
        counted = Counter(
            port.number for port in await self._per_port(self._dialect.ports)
        )
        both_sides = sum(count == 2 for count in counted.values())
        Numbering.polatis(both_sides, both_sides).check_holds(
            self.name, self.ports
        )

    async def identify(self) -> contract.Identity:
        """From the device's metadata: its hardware and name."""
        dialect = self._dialect
        (metadata,) = await self._rows(dialect.identity) or [{}]
        model = rest.json_text(metadata, dialect.model_key) or "OCS"
        return contract.Identity(
            dialect.vendor,
            model,
            "",
            "",
            rest.json_text(metadata, dialect.name_key),
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
        alarms = self.client.alarms
        alarms.stands(
            contract.Standing("major", str(port), f"{port}: {words}")
            for port, words in failed
        )
        return alarms.all

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
        for row in await self._rows(self._dialect.losses):
            try:
                c = self._circuit(row)
                loss_db = float(row[self._dialect.loss_key])
            except (KeyError, TypeError, ValueError) as error:
                words = f"invalid loss {rest.json_short(row)}"
                raise self.client.nonsense(
                    self._dialect.losses, words
                ) from error
            losses[c] = max(loss_db, losses.get(c, loss_db))
        return losses

    async def _table(self) -> Mapping[CrossConnect, SonicRow]:
        dialect = self._dialect
        configured = [
            self._circuit(row) for row in await self._rows(dialect.circuits)
        ]
        table = dict.fromkeys(
            configured, SonicRow("coming", "its state is not reported")
        )
        for row in await self._rows(dialect.states):
            c = self._circuit(row)
            words = ",".join(
                rest.json_text(row, key)
                for key in dialect.state_keys.split(",")
            )
            table[c] = SonicRow(
                self._state(words), words, configured=c in table
            )
        return table

    def _state(self, words: str) -> RowState:
        if re.fullmatch(self._dialect.up, words):
            return "up"
        if re.fullmatch(self._dialect.parked, words):
            return "entered"
        return (
            "failed" if re.fullmatch(self._dialect.failed, words) else "coming"
        )

    async def _make(self, pairs: Sequence[CrossConnect]) -> None:
        dialect = self._dialect
        rows = ",".join(
            filled(
                dialect.row,
                in_json,
                id=self._id(c),
                inp=c.inp,
                out=c.out,
            )
            for c in pairs
        )
        await self._tell(
            "PATCH",
            dialect.circuits,
            filled(dialect.body, in_json, rows=Bare(rows)),
        )

    async def _activate(
        self,
        pairs: Sequence[CrossConnect],
        table: Mapping[CrossConnect, SonicRow],
    ) -> None:
        # An invalid entry stays invalid when it is entered again: delete it first.
        await self._break(pairs, table)
        await self._make(pairs)

    async def _break(
        self,
        pairs: Sequence[CrossConnect],
        table: Mapping[CrossConnect, SonicRow],
    ) -> None:
        # What only the hardware has can be deleted once it is in the configuration.
        if unknown := [
            c for c in pairs if c in table and not table[c].configured
        ]:
            await self._make(unknown)
        refused: list[str] = []
        async with self.client.series(len(pairs)):
            for c in pairs:
                with self._noting(refused, done="404"):
                    await self._tell(
                        "DELETE",
                        filled(self._dialect.delete, in_url, id=self._id(c)),
                    )
        self._raise_if(refused)

    async def _per_port(
        self, path: str, key: str = ""
    ) -> dict[contract.DirectedPort, str]:
        """The value at ``key`` of each port's row in a list."""
        found = {}
        for row in await self._rows(path):
            match = re.fullmatch(
                self._dialect.port, rest.json_text(row, self._dialect.port_key)
            )
            if match is None:
                raise self.client.nonsense(
                    path, f"invalid port {rest.json_short(row)}"
                )
            port = contract.DirectedPort(
                "in" if match["side"] == "A" else "out", int(match["number"])
            )
            found[port] = rest.json_text(row, key)
        return found

    async def _rows(self, path: str) -> list[Mapping[str, Any]]:
        """The rows of a list, wherever it is nested; an empty list is not found."""
        return await self.client.read(path, _innermost, missing=[])

    def _circuit(self, row: Mapping[str, Any]) -> CrossConnect:
        match = re.fullmatch(
            self._dialect.circuit, rest.json_text(row, self._dialect.id_key)
        )
        if match is None:
            words = f"invalid cross-connect {rest.json_short(row)}"
            raise self.client.nonsense(self._dialect.circuits, words)
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


def _innermost(body: object) -> list[Mapping[str, Any]]:
    """The list, or one object as a list, within objects of one key each."""
    while isinstance(body, dict) and len(body) == 1:
        (inner,) = body.values()
        if not isinstance(inner, (dict, list)):
            return [body]
        body = inner
    if isinstance(body, dict):
        return [body] if body else []
    return rest.json_rows(body)
