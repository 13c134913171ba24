"""The driver ``polatis-tl1``: Polatis (HUBER+SUHNER) switches over TL1 (TCP 3082).

Run against the emulated device only so far; the commands are in ``tl1/dialects.py``.
"""

from collections.abc import Sequence

from patchlight.controller.circuits.contract import (
    SIDES,
    Condition,
    DeviceRefused,
    DirectedPort,
    Identity,
    Side,
)
from patchlight.controller.circuits.dialects import Bare, condition
from patchlight.controller.circuits.drivers.numbered import Numbering
from patchlight.controller.circuits.drivers.polatis.base import PolatisDriver
from patchlight.controller.circuits.drivers.tl1_lists import Tl1ListDriver, first, matching
from patchlight.controller.circuits.protocols.tl1.dialects import POLATIS, PolatisDialect

_FEW = 16  # up to so many ports are listed, more are asked for as the range of them all


class PolatisTl1(Tl1ListDriver[PolatisDialect], PolatisDriver):
    """A Polatis OCS. See ``CircuitDriver`` for what the methods do."""

    built_in = POLATIS
    _dialect: PolatisDialect

    async def identify(self) -> Identity:
        """From ``RTRV-NETYPE``, the serial number from ``RTRV-INV``."""
        kind = await self.client.command(self._dialect.identity)
        inventory = await self.client.command(self._dialect.serial)
        line = first(self._dialect.identity_line, kind)
        serial = first(self._dialect.serial_line, inventory)
        return Identity(
            line["vendor"].strip() if line else self._dialect.vendor,
            line["model"].strip() if line else "",
            serial["serial"] if serial else "",
            line["software"].strip() if line else "",
        )

    async def _monitored_sides(self, numbering: Numbering) -> list[Side]:
        return [side for side in SIDES if await self._has_monitor(numbering.to_number(side, 1))]

    async def _states(self) -> dict[DirectedPort, str]:
        dialect = self._dialect
        return await self._per_port(self._all_ports(), dialect.ports, dialect.port_line, "state")

    async def _powers(self, ports: Sequence[DirectedPort]) -> dict[DirectedPort, str]:
        dialect, monitored = self._dialect, await self._with_monitors(ports)
        return await self._per_port(monitored, dialect.power, dialect.power_line, "power")

    def _condition(self, state: str) -> Condition:
        return condition(state, self._dialect.port_ready, self._dialect.port_closed)

    async def _has_monitor(self, number: int) -> bool:
        try:
            reply = await self.client.command(
                self._dialect.power, {"ports": self._joined([number])}
            )
        except DeviceRefused:
            return False
        return first(self._dialect.power_line, reply) is not None

    async def _per_port(
        self, ports: Sequence[DirectedPort], template: str, pattern: str, group: str
    ) -> dict[DirectedPort, str]:
        """One value for each port that the device tells of."""
        if not ports:
            return {}
        numbering, asked = await self._numbering(), set(ports)
        numbers = sorted(numbering.to_number(port.side, port.number) for port in ports)
        if len(numbers) <= _FEW:
            listed = self._joined(numbers)
        else:
            listed = Bare(f"{numbers[0]}{self._dialect.range_separator}{numbers[-1]}")
        reply = await self.client.command(template, {"ports": listed}, paged=True)
        values = {
            port: line[group].strip()
            for line in matching(pattern, reply)
            if (port := numbering.to_port(int(line["port"])))
        }
        return {port: value for port, value in values.items() if port in asked}
