"""What the drivers of Polatis (HUBER+SUHNER) switches share, whatever they speak."""

import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence

from patchlight.controller.circuits.contract import (
    Capabilities,
    Condition,
    DirectedPort,
    Identity,
    PortState,
    Side,
)
from patchlight.controller.circuits.dialects import AnyPolatisDialect, power_dbm
from patchlight.controller.circuits.drivers.numbered import NumberedDriver, Numbering
from patchlight.testbed.errors import PatchlightError


class PolatisDriver(NumberedDriver):
    """See ``CircuitDriver`` for what the methods do."""

    _dialect: AnyPolatisDialect

    @abstractmethod
    async def identify(self) -> Identity:
        """Vendor, model, serial number and software of the device."""

    @abstractmethod
    async def _size(self, model: str) -> tuple[int, int]:
        """How many inputs and outputs."""

    @abstractmethod
    async def _monitored_sides(self, numbering: Numbering) -> Collection[Side]:
        """The sides that have power monitors."""

    @abstractmethod
    async def _states(self) -> Mapping[DirectedPort, str]:
        """The state of every port, as the device tells it."""

    @abstractmethod
    async def _powers(self, ports: Sequence[DirectedPort]) -> Mapping[DirectedPort, str]:
        """The power at these ports, or at more, as the device tells it."""

    @abstractmethod
    def _condition(self, state: str) -> Condition:
        """What the device's word for a port's state means."""

    async def port_states(self) -> Mapping[DirectedPort, PortState]:
        """Of each port that the lab knows: enabled, disabled, failed."""
        states, last = await self._states(), self.ports
        known = {state: PortState(self._condition(state), state) for state in {*states.values()}}
        return {port: known[state] for port, state in states.items() if port.number <= last}

    async def power(self, ports: Iterable[DirectedPort]) -> Mapping[DirectedPort, float | None]:
        """At the ports that have monitors."""
        asked = self._checked_ports(ports)
        if not asked:
            return {}
        powers, dark_dbm = await self._powers(asked), self._dialect.dark_dbm
        return {port: power_dbm(powers[port], dark_dbm) for port in asked if port in powers}

    async def _with_monitors(self, ports: Iterable[DirectedPort]) -> list[DirectedPort]:
        await self._numbering()
        power = self._capabilities
        monitored = {"in": power.power_in, "out": power.power_out}
        return [port for port in ports if monitored[port.side]]

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
