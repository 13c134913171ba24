"""Devices that number inputs and outputs apart, as vendors do it, and their drivers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from patchlight.controller.circuits.contract import Capabilities, DirectedPort, Side
from patchlight.controller.circuits.dialects import NumberedDialect
from patchlight.controller.circuits.drivers.base import SessionDriver
from patchlight.controller.circuits.drivers.table import Row
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.portmap import CrossConnect


@dataclass(frozen=True, slots=True)
class Numbering:
    """``ins`` inputs from ``in_base`` + 1 on, ``outs`` outputs from ``out_base`` + 1 on."""

    ins: int
    outs: int
    in_base: int
    out_base: int

    @classmethod
    def polatis(cls, ins: int, outs: int) -> Numbering:
        """Inputs (ingress) 1…N, outputs (egress) N+1…N+M."""
        return cls(ins, outs, 0, ins)

    def __str__(self) -> str:
        return f"{self.ins}x{self.outs}"

    def to_number(self, side: Side, port: int) -> int:
        """Canonical ``out:3`` → ``out_base`` + 3. ``BadInput`` outside the switch."""
        if not 1 <= port <= (self.ins if side == "in" else self.outs):
            raise BadInput(f"{side}:{port} is outside a switch of {self}")
        return port + (self.in_base if side == "in" else self.out_base)

    def to_port(self, number: int) -> DirectedPort | None:
        """``out_base`` + 3 → ``out:3``; ``None`` if the switch has no such port."""
        if 1 <= number - self.in_base <= self.ins:
            return DirectedPort("in", number - self.in_base)
        if 1 <= number - self.out_base <= self.outs:
            return DirectedPort("out", number - self.out_base)
        return None

    def to_directed(self, inp: int, out: int) -> CrossConnect | None:
        """An input's number and an output's → a cross-connect; ``None`` if they are not that."""
        first, second = self.to_port(inp), self.to_port(out)
        if first is None or second is None or (first.side, second.side) != ("in", "out"):
            return None
        return CrossConnect(first.number, second.number)

    def to_cross_connect(self, one: int, other: int) -> CrossConnect | None:
        """The same, for numbers in any order."""
        return self.to_directed(min(one, other), max(one, other))

    def check_holds(self, name: str, ports: int) -> None:
        """``PatchlightError`` if the lab's ``ports`` on each side are more than there are."""
        if min(self.ins, self.outs) < ports:
            raise PatchlightError(
                f"{name} is a switch of {self}, but the lab file says {ports} ports",
                hint="correct 'ports' of the circuit switch in the lab file",
            )


class NumberedDriver(SessionDriver[Row]):
    """See ``CircuitDriver`` for what the methods do."""

    _dialect: NumberedDialect
    _known: Numbering | None = None
    _capabilities = Capabilities()

    @abstractmethod
    async def _learn(self) -> Numbering:
        """The size of the device; and what else never changes, into ``_capabilities``."""

    @property
    def _list_limit(self) -> int:
        return self._dialect.list_limit

    @property
    def capabilities(self) -> Capabilities:
        """Which power monitors it has; known after ``open``."""
        return self._capabilities

    async def open(self) -> None:
        """Reach the device, log in, and learn its size and which power monitors there are."""
        await super().open()
        await self._numbering()

    async def _numbering(self) -> Numbering:
        """How many inputs and outputs there are, and their numbers; asked once."""
        if self._known is None:
            numbering = await self._learn()
            numbering.check_holds(self.name, self.ports)
            self._known = numbering
        return self._known

    async def _numbers(self, pairs: Iterable[CrossConnect]) -> list[tuple[int, int]]:
        """The device's numbers for the input and the output of each."""
        to_number = (await self._numbering()).to_number
        return [(to_number("in", c.inp), to_number("out", c.out)) for c in pairs]
