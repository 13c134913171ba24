"""The driver ``telescent-ssh``: Telescent robotic patch panels over SSH (port 9861).

A robot moves fibres one by one, minutes each: a change of several is as many commands. Tested with
the emulated device only; the commands are in the table below.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from patchlight.controller.circuits import contract
from patchlight.controller.circuits.dialect import Pattern, Template, filled
from patchlight.controller.circuits.drivers.base import (
    SessionDriver,
    condition,
)
from patchlight.controller.circuits.drivers.table import Row
from patchlight.controller.circuits.protocols.ssh import (
    ShellClient,
    ShellDialect,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.portmap import CrossConnect


@dataclass(frozen=True)
class TelescentDialect(ShellDialect):
    """What a Telescent takes.

    ``connect`` and ``disconnect`` may be several commands, one a line; ``{inp}`` and ``{out}``
    are the device's port numbers, which count from 0 if ``zero_based``. ``row`` matches the
    lines of ``switchstate`` that tell of outputs, ``cell`` each output in one: its status, and
    the input it is joined to. ``move_timeout_s``: how long one move may take.
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset({"inp", "out"})

    read_map: Template = "switchstate"
    # A lock must be released on both sides of a port: otherwise unallocate fails.
    connect: Template = (
        "unlock --force -in {inp}\nunlock --force -out {out}\n"
        "connect --force -in {inp} -out {out}"
    )
    disconnect: Template = (
        "unlock --force {inp}\nunlock --force {out}\n"
        "unallocate --force -in {inp}\nunallocate --force -out {out}"
    )
    row: Pattern = r"\s*R(?P<row>[0-9]{1,6})#[A-Za-z](?P<cells>(?:\s+[A-Za-z]+[0-9]{1,9})+)\s*"
    cell: Pattern = r"(?P<status>[A-Za-z]+)(?P<inp>[0-9]{1,9})(?![0-9])"
    joined: Pattern = r"A\w*"
    free: Pattern = r"U\w*"
    absent: Pattern = r"N\w*"
    locked: Pattern = r"D\w*"
    zero_based: bool = True
    move_timeout_s: float = 600.0
    vendor: str = "Telescent"
    model: str = "NTM"


TELESCENT = TelescentDialect()


@dataclass(frozen=True)
class PortCell:
    """An output in ``switchstate``; ``inp`` only counts if it is connected."""

    status: str
    inp: int


class TelescentSsh(SessionDriver[Row]):
    """A Telescent OCS. See ``CircuitDriver`` for the methods."""

    built_in = TELESCENT
    client_class = ShellClient
    client: ShellClient
    _dialect: TelescentDialect
    capabilities = contract.Capabilities()

    async def open(self) -> None:
        """Log in, and check that it has as many ports as the lab file says."""
        await super().open()
        await self._cells()

    async def identify(self) -> contract.Identity:
        """Vendor and model from the dialect: no command reports more."""
        await self._cells()
        return contract.Identity(
            self._dialect.vendor,
            self._dialect.model,
            "",
            "",
        )

    async def port_states(self) -> contract.PortStates:
        """From ``switchstate``, which lists outputs; an input is ready if its output is."""
        cells = await self._cells()
        dialect = self._dialect
        patterns = (
            f"(?:{dialect.joined})|(?:{dialect.free})",
            dialect.locked,
            dialect.absent,
        )
        states = dict.fromkeys(
            self._all_ports(), contract.PortState("ready", "not told")
        )
        for number in range(1, self.ports + 1):
            status = cells[number].status
            state = contract.PortState(condition(status, *patterns), status)
            states[contract.DirectedPort("out", number)] = state
        return states

    async def _table(self) -> Mapping[CrossConnect, Row]:
        return {
            CrossConnect(cell.inp, out): Row("up", cell.status)
            for out, cell in (await self._cells()).items()
            if re.fullmatch(self._dialect.joined, cell.status)
        }

    async def _make(self, pairs: Sequence[CrossConnect]) -> None:
        await self._tell(self._dialect.connect, pairs)

    async def _break(
        self, pairs: Sequence[CrossConnect], table: Mapping[CrossConnect, Row]
    ) -> None:
        await self._tell(self._dialect.disconnect, pairs)

    @property
    def _base(self) -> int:
        return 0 if self._dialect.zero_based else 1

    async def _tell(
        self, template: str, pairs: Sequence[CrossConnect]
    ) -> None:
        timeout_s = (
            self._dialect.move_timeout_s + 2 * self._switch.switching_time_s
        )
        for c in pairs:
            numbers = {
                "inp": c.inp - 1 + self._base,
                "out": c.out - 1 + self._base,
            }
            for command in filled(
                template, shlex.quote, **numbers
            ).splitlines():
                await self.client.command(
                    command,
                    changes=True,
                    timeout_s=timeout_s,
                )
                # If one of several commands is refused, the earlier ones are done.
                self._told = True

    async def _cells(self) -> dict[int, PortCell]:
        """Every output by its canonical number."""
        outputs: dict[int, PortCell] = {}
        lines = await self.client.command(self._dialect.read_map)
        rows = [
            row
            for line in lines
            if (row := re.fullmatch(self._dialect.row, line))
        ]
        for row in rows:
            cells = list(re.finditer(self._dialect.cell, row["cells"]))
            first = int(row["row"]) * len(cells)
            for column, cell in enumerate(cells, 1):
                number = int(cell["inp"]) - self._base + 1
                outputs[first + column] = PortCell(cell["status"], number)
        if (
            len(
                {
                    len(re.findall(self._dialect.cell, row["cells"]))
                    for row in rows
                }
            )
            > 1
        ):
            raise self._nonsense(
                self._dialect.read_map, "rows of different lengths"
            )
        missing = [
            number
            for number in range(1, self.ports + 1)
            if number not in outputs
        ]
        if not outputs:
            raise self._nonsense(
                self._dialect.read_map, "; ".join(lines)[:200] or "nothing"
            )
        if missing:
            raise PatchlightError(
                f"{self.name} reports {len(outputs)} ports, without port {missing[0]}",
                hint="correct 'ports' of the circuit switch in the lab file",
            )
        return outputs
