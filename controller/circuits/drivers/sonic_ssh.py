"""The driver ``sonic-ocs-ssh``: switches that run SONiC with its OCS commands, over SSH.

Tested with the emulated device only. It never sends the mode ``overwrite`` nor ``config reload``,
which break other circuits.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from patchlight.controller.circuits import contract
from patchlight.controller.circuits.dialect import (
    Bare,
    Pattern,
    Template,
    filled,
)
from patchlight.controller.circuits.drivers.sonic_tables import (
    UNREPORTED,
    SonicDialect,
    SonicRow,
    SonicTables,
    log,
)
from patchlight.controller.circuits.protocols.ssh_commands import (
    CommandClient,
    CommandDialect,
)
from patchlight.testbed.lab.portmap import CrossConnect


@dataclass(frozen=True)
class SonicSshDialect(CommandDialect, SonicDialect):
    """What the command line of an OCS that runs SONiC takes.

    ``{ids}`` is a list of cross-connects. A command for one of them (``{id}``, ``{inp}``,
    ``{out}``) needs ``list_limit = 1``. A change is done if its output has ``done``. ``save`` is
    run after each change. ``blocked`` matches the states of a cross-connect that an overridden port
    may keep dark. A device that has not these commands but those of ``sonic-cli-gen`` is recognized
    (``GENERATED``).
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset({"inp", "out", "id", "ids"})

    circuits: str = "show ocs cross-connect config"
    ports: str = "show ocs port config"
    states: str = "show ocs cross-connect status"
    port_states: str = "show ocs port status"
    losses: str = "show ocs factory-insertion-loss"
    identity: str = "show version"
    add: Template = "sudo config ocs cross-connect add {ids} safe"
    delete: Template = "sudo config ocs cross-connect delete {ids}"
    done: Pattern = "(?i)succeeded"
    save: str = ""
    id_key: str = "id"
    port_key: str = "id"
    override_key: str = "state"
    blocked: Pattern = ".*blocked.*"


SONIC_SSH = SonicSshDialect()
GENERATED = replace(
    SONIC_SSH,
    circuits="show ocs-cross-connect",
    ports="show ocs-port",
    states="show ocs-cross-connect-table",
    port_states="show ocs-port-table",
    losses="",
    add="sudo config ocs-cross-connect add {id} --a-side {inp}A --b-side {out}B",
    delete="sudo config ocs-cross-connect delete {id}",
    done="",
    save="sudo config save -y",
    id_key="CROSS CONNECT ID",
    state_keys="STATUS",
    port_key="SIMPLEX PORT ID",
    override_key="CONFIG STATUS",
    port_state_key="OPER STATUS",
    up="enabled",
    blocked="(?!enabled|failed).*",
    list_limit=1,
)
"""The commands that ``sonic-cli-gen`` makes from the model."""


class SonicOcsSsh(SonicTables):
    """An OCS that runs SONiC. See ``CircuitDriver`` for the methods."""

    built_in = SONIC_SSH
    client_class = CommandClient
    client: CommandClient
    _dialect: SonicSshDialect
    _looks_at_once = False

    async def open(self) -> None:
        """Log in, find its commands, and check that it has the lab's ports."""
        await self.client.open()
        try:
            await self._check_ports()
        except contract.DeviceRefused as refusal:
            if self._dialect is not self.built_in or refusal.code != "2":
                raise
            self._dialect = GENERATED
            self._list_limit = GENERATED.list_limit
            try:
                await self._check_ports()
            except contract.DeviceRefused:
                raise refusal from None

    async def identify(self) -> contract.Identity:
        """From the version of its software and the name of its hardware."""
        output, _ = await self.client.run(self._dialect.identity)
        told = dict(re.findall(r"(?m)^([^:\n]{1,60}): *(.*?) *$", output))
        return contract.Identity(
            self._dialect.vendor,
            told.get("HwSKU") or "OCS",
            told.get("Serial Number", ""),
            told.get("SONiC Software Version", ""),
        )

    async def _table(self) -> Mapping[CrossConnect, SonicRow]:
        """The mode ``update``, of others, may leave entries whose ports it gave to new ones: these
        are entered, not active."""
        table = dict(await super()._table())
        dialect = self._dialect
        dark = {
            c: row
            for c, row in table.items()
            if row.words == UNREPORTED
            or re.fullmatch(dialect.blocked, row.words)
        }
        if not dark:
            return table
        used = {
            port: c for c in table if c not in dark for port in _ports_of(c)
        }
        overrides = await self._per_port(dialect.ports, dialect.override_key)
        for c, row in dark.items():
            for port in _ports_of(c):
                override = overrides.get(port, "")
                if port in used:
                    words = f"{port} is in use by {used[port]}"
                    table[c] = replace(row, state="entered", words=words)
                elif not re.fullmatch(dialect.normal, override):
                    words = f"{port} is {override}"
                    table[c] = replace(row, state="failed", words=words)
        return table

    async def _about(
        self, pairs: Sequence[CrossConnect]
    ) -> Mapping[CrossConnect, SonicRow]:
        """Once a command was sent, the states tell of good circuits: a table takes long."""
        if self._told:
            states = await self._states()
            if all(
                c in states
                and not re.fullmatch(self._dialect.blocked, states[c].words)
                for c in pairs
            ):
                return states
        return await super()._about(pairs)

    async def _make(self, pairs: Sequence[CrossConnect]) -> None:
        await self._change_list(self._dialect.add, pairs)

    async def _break(
        self,
        pairs: Sequence[CrossConnect],
        table: Mapping[CrossConnect, SonicRow],
    ) -> None:
        # What only the hardware has can be deleted once it is in the configuration.
        if stale := [
            c for c in pairs if c in table and not table[c].configured
        ]:
            await self._make(stale)
        await self._change_list(self._dialect.delete, pairs)

    async def _change_list(
        self, template: str, pairs: Sequence[CrossConnect]
    ) -> None:
        ids = Bare(",".join(map(self._id, pairs)))
        command = filled(
            template,
            shlex.quote,
            inp=pairs[0].inp,
            out=pairs[0].out,
            id=ids,
            ids=ids,
        )
        with self._telling():
            await self.client.run(
                command,
                changes=True,
                expected=self._dialect.done,
            )
        if self._dialect.save:
            try:
                await self.client.run(self._dialect.save, changes=True)
            except contract.DeviceRefused as refusal:
                log.warning(
                    "%s: its changes are not saved: %s",
                    self.name,
                    refusal.message,
                )

    async def _rows(self, place: str) -> Sequence[Mapping[str, str]]:
        """The rows of a table, cut where its line of dashes is: cells may be empty."""
        output, _ = await self.client.run(place)
        lines = [line for line in output.splitlines() if line.strip()]
        at = next(
            (n for n, line in enumerate(lines) if _DASHES.fullmatch(line)), 0
        )
        if at == 0:
            raise self._nonsense(place, "; ".join(lines)[:200] or "nothing")
        head = lines[at - 1 : at + 1]
        starts = [match.start() for match in re.finditer("-+", lines[at])]
        ends = [*starts[1:], None]
        spans = list(map(slice, starts, ends))
        names = [lines[at - 1][span].strip() for span in spans]
        rows: list[Mapping[str, str]] = []
        for line in lines[at + 1 :]:
            if line in head:
                continue
            if any(line[start - 2 : start].strip() for start in starts[1:]):
                raise self._nonsense(place, line)
            cells = (line[span].strip() for span in spans)
            rows.append(dict(zip(names, cells, strict=True)))
        return rows

    def _nonsense(self, command: str, answer: str) -> contract.DeviceRefused:
        return self.client.nonsense(command, answer)


def _ports_of(
    c: CrossConnect,
) -> tuple[contract.DirectedPort, contract.DirectedPort]:
    return (
        contract.DirectedPort("in", c.inp),
        contract.DirectedPort("out", c.out),
    )


_DASHES = re.compile("-+(  -+)+ *")
