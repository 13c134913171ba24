"""The driver ``polatis-tl1``: Polatis (HUBER+SUHNER) switches over TL1 (TCP 3082).

Run against the emulated device only so far; the commands are in ``tl1/dialects.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from patchlight.controller.circuits.contract import (
    Capabilities,
    Condition,
    DeviceRefused,
    DirectedPort,
    Identity,
    PortState,
    Side,
)
from patchlight.controller.circuits.dialects import corrected
from patchlight.controller.circuits.drivers.one_step import Held, lit_dbm
from patchlight.controller.circuits.drivers.tl1_patching import ListingDriver, first, matching
from patchlight.controller.circuits.numbering import Numbering
from patchlight.controller.circuits.protocols.tl1.dialects import POLATIS, PolatisDialect
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab import CircuitSwitch

_SIDES: tuple[Side, ...] = ("in", "out")
_FEW = 16  # up to so many ports are listed, more are asked for as the range of them all


class PolatisTl1(ListingDriver[PolatisDialect]):
    """A Polatis OCS. See ``CircuitDriver`` for what the methods do."""

    def __init__(
        self, switch: CircuitSwitch, password: str, dialect: PolatisDialect | None = None
    ) -> None:
        dialect = dialect or corrected(switch.driver, POLATIS)
        super().__init__(switch, password, dialect, Capabilities(bulk=True, port_enable=True))

    async def identify(self) -> Identity:
        """From ``RTRV-NETYPE``, the serial number from ``RTRV-INV``."""
        kind = await self._client.command(self._dialect.identity)
        inventory = await self._client.command(self._dialect.serial)
        said = first(self._dialect.identity_line, kind)
        serial = first(self._dialect.serial_line, inventory)
        return Identity(
            said["vendor"].strip() if said else self._dialect.vendor,
            said["model"].strip() if said else "",
            serial["serial"] if serial else "",
            said["software"].strip() if said else "",
        )

    async def port_states(self) -> Mapping[DirectedPort, PortState]:
        """From ``RTRV-PORT-SHUTTER``: open or closed."""
        ports = [DirectedPort(side, n) for side in _SIDES for n in range(1, self.ports + 1)]
        states = await self._per_port(ports, self._dialect.ports, self._dialect.port_line, "state")
        return {port: PortState(self._condition(said), said) for port, said in states.items()}

    async def power(self, ports: Iterable[DirectedPort]) -> Mapping[DirectedPort, float | None]:
        """From ``RTRV-PORT-POWER``; ports without a monitor are not in its answer."""
        wanted = self._wanted_ports(ports)
        await self._known()
        monitored = {"in": self._capabilities.power_in, "out": self._capabilities.power_out}
        read = [port for port in wanted if monitored[port.side]]
        said = await self._per_port(read, self._dialect.power, self._dialect.power_line, "power")
        return {port: lit_dbm(text, self._dialect.dark_dbm) for port, text in said.items()}

    async def enable(self, ports: Iterable[DirectedPort], *, on: bool = True) -> None:
        """Open or close the shutters of single ports (capability ``port_enable``)."""
        numbering, wanted = await self._known(), self._wanted_ports(ports)
        template = self._dialect.enable if on else self._dialect.disable
        numbers = self._joined(numbering.to_number(port.side, port.number) for port in wanted)
        async with self._writing.change():
            self._just_read.forget()
            await self._client.command(template, {"ports": numbers}, changes=True)

    # --- inside -----------------------------------------------------------------------------

    def _held(self, line: re.Match[str]) -> Held:
        return Held()

    async def _learn(self) -> Numbering:
        model = (await self.identify()).model
        if re.search(self._dialect.any_to_any, model):
            raise PatchlightError(
                f"{self.name} is a {model}: a switch of single fibres, any to any",
                hint="this driver knows switches with inputs and outputs only",
            )
        numbering = Numbering.polatis(*await self._size())
        monitored = [await self._has_monitor(numbering.to_number(side, 1)) for side in _SIDES]
        self._capabilities = replace(
            self._capabilities, power_in=monitored[0], power_out=monitored[1]
        )
        return numbering

    async def _has_monitor(self, number: int) -> bool:
        try:
            reply = await self._client.command(self._dialect.power, {"ports": str(number)})
        except DeviceRefused:
            return False
        return first(self._dialect.power_line, reply) is not None

    async def _per_port(
        self, ports: Sequence[DirectedPort], template: str, pattern: str, group: str
    ) -> dict[DirectedPort, str]:
        """One value for each port that the device tells of."""
        if not ports:
            return {}
        numbering, wanted = await self._known(), set(ports)
        numbers = sorted(numbering.to_number(port.side, port.number) for port in ports)
        if len(numbers) <= _FEW:
            asked = self._joined(numbers)
        else:
            asked = f"{numbers[0]}{self._dialect.range_separator}{numbers[-1]}"
        reply = await self._client.command(template, {"ports": asked}, paged=True)
        found = {
            port: line[group].strip()
            for line in matching(pattern, reply)
            if (port := numbering.to_port(int(line["port"])))
        }
        return {port: said for port, said in found.items() if port in wanted}

    def _condition(self, said: str) -> Condition:
        if re.fullmatch(self._dialect.port_ready, said):
            return "ready"
        return "locked" if re.fullmatch(self._dialect.port_closed, said) else "failed"
