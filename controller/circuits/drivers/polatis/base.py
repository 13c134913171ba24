"""What the drivers of Polatis (HUBER+SUHNER) switches share, whatever they speak."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Collection
from typing import Protocol

from patchlight.controller.circuits.contract import Capabilities, Identity, Side
from patchlight.controller.circuits.drivers.numbered import NumberedDriver
from patchlight.controller.circuits.numbering import Numbering
from patchlight.testbed.errors import PatchlightError


class _Dialect(Protocol):
    @property
    def any_to_any(self) -> str:
        """Searched in the model: such a switch has no inputs and outputs."""


class PolatisDriver(NumberedDriver):
    """See ``CircuitDriver`` for what the methods do."""

    _dialect: _Dialect

    @abstractmethod
    async def identify(self) -> Identity:
        """Vendor, model, serial number and software of the device."""

    @abstractmethod
    async def _size(self, model: str) -> tuple[int, int]:
        """How many inputs and outputs."""

    @abstractmethod
    async def _monitored_sides(self, numbering: Numbering) -> Collection[Side]:
        """The sides that have power monitors."""

    async def _learn(self) -> Numbering:
        model = (await self.identify()).model
        if re.search(self._dialect.any_to_any, model):
            raise PatchlightError(
                f"{self.name} is a {model}: a switch of single fibres, any to any",
                hint="this driver knows switches with inputs and outputs only",
            )
        numbering = Numbering.polatis(*await self._size(model))
        numbering.check_holds(self.name, self.ports)
        sides = await self._monitored_sides(numbering)
        self._capabilities = Capabilities(power_in="in" in sides, power_out="out" in sides)
        return numbering
