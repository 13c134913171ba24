"""Port numbers of devices that number inputs and outputs apart, as vendors do it."""

from __future__ import annotations

from dataclasses import dataclass

from patchlight.controller.circuits.contract import DirectedPort, Side
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.portmap import CrossConnect

SIDES: tuple[Side, ...] = ("in", "out")


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
