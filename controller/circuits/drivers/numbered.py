"""Drivers of devices that number inputs and outputs apart; the numbers follow from the size."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from patchlight.controller.circuits.contract import Capabilities
from patchlight.controller.circuits.drivers.base import Row, TableDriver
from patchlight.controller.circuits.numbering import Numbering
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.portmap import CrossConnect


class NumberedDriver(TableDriver[Row]):
    """See ``CircuitDriver`` for what the methods do."""

    def __init__(self, switch: CircuitSwitch, list_limit: int) -> None:
        super().__init__(switch, list_limit)
        self._known: Numbering | None = None
        self._capabilities = Capabilities()

    @abstractmethod
    async def _learn(self) -> Numbering:
        """The size of the device; and what else never changes, into ``_capabilities``."""

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
