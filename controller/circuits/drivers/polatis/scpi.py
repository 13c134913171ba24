"""The driver ``polatis-scpi``: Polatis (HUBER+SUHNER) switches over SCPI (TCP 5025).

Run against the emulated device only so far; the commands are in ``scpi/dialects.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from patchlight.controller.circuits.contract import (
    Alarm,
    Capabilities,
    Condition,
    DeviceRefused,
    DirectedPort,
    Identity,
    PortState,
    Side,
    checked,
)
from patchlight.controller.circuits.dialects import corrected
from patchlight.controller.circuits.drivers.one_step import Held, PatchingDriver, lit_dbm
from patchlight.controller.circuits.numbering import Numbering
from patchlight.controller.circuits.protocols.scpi.client import ScpiClient
from patchlight.controller.circuits.protocols.scpi.dialects import POLATIS, PolatisScpiDialect
from patchlight.controller.circuits.protocols.scpi.framing import channels
from patchlight.controller.circuits.protocols.session import Session
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.portmap import CrossConnect

_SIDES: tuple[Side, ...] = ("in", "out")
_UP = Held()
_FOUND_KEPT = 1 << 14


class PolatisScpi(PatchingDriver):
    """A Polatis OCS. See ``CircuitDriver`` for what the methods do."""

    def __init__(
        self, switch: CircuitSwitch, password: str, dialect: PolatisScpiDialect | None = None
    ) -> None:
        self._dialect = dialect or corrected(switch.driver, POLATIS)
        super().__init__(switch, self._dialect.list_limit)
        self._client = ScpiClient(Session.of(switch, password), self._dialect)
        self._size: Numbering | None = None
        self._found: dict[tuple[int, int], CrossConnect] = {}
        self._capabilities = Capabilities(bulk=True, atomic_replace=True, port_enable=True)

    @property
    def capabilities(self) -> Capabilities:
        """What the device can do; which power monitors it has is known after ``open``."""
        return self._capabilities

    async def open(self) -> None:
        """Connect, and learn the size and which power monitors there are."""
        await self._client.open()
        await self._known_size()

    async def close(self) -> None:
        """Disconnect; circuits stay."""
        await self._client.close()

    async def identify(self) -> Identity:
        """From ``*IDN?``."""
        said = await self._ask(self._dialect.identity, self._dialect.identity_answer)
        vendor = said["vendor"].strip().strip('"') or self._dialect.vendor
        rest = (said[part].strip().strip('"') for part in ("model", "serial", "software"))
        return Identity(vendor, *rest)

    async def alarms(self) -> tuple[Alarm, ...]:
        """What the error queue held that no command of ours explains."""
        await self._client.look()
        return self._client.alarms

    async def port_states(self) -> Mapping[DirectedPort, PortState]:
        """From ``port:stat?``: enabled, disabled or failed."""
        size = await self._known_size()
        ports = [DirectedPort(side, n) for side in _SIDES for n in range(1, self.ports + 1)]
        letters = await self._per_port(
            size, ports, self._dialect.port_states, self._dialect.states_answer, "states"
        )
        return {port: PortState(self._condition(said), said) for port, said in letters.items()}

    async def power(self, ports: Iterable[DirectedPort]) -> Mapping[DirectedPort, float | None]:
        """From ``pmon:pow?``, for the sides that have monitors."""
        size, wanted = await self._known_size(), self._wanted_ports(ports)
        monitored = {"in": self._capabilities.power_in, "out": self._capabilities.power_out}
        read = [port for port in wanted if monitored[port.side]]
        said = await self._per_port(
            size, read, self._dialect.power, self._dialect.power_answer, "powers"
        )
        return {port: lit_dbm(text, self._dialect.dark_dbm) for port, text in said.items()}

    async def replace_map(self, pairs: Iterable[CrossConnect]) -> None:
        """Replace the whole map in one command (capability ``atomic_replace``).

        Breaks every circuit that is not in ``pairs``, whoever made it. Nothing in a change
        of single circuits comes here. Raises as ``connect`` does; read the map after it.
        """
        size, wanted = await self._known_size(), checked(pairs, self.ports)
        async with self._writing.change():
            self._just_read.forget()
            await self._client.tell(self._listed(self._dialect.replace, size, wanted))

    async def enable(self, ports: Iterable[DirectedPort], *, on: bool = True) -> None:
        """Switch single ports on or off (capability ``port_enable``)."""
        size, wanted = await self._known_size(), self._wanted_ports(ports)
        template = self._dialect.enable if on else self._dialect.disable
        numbers = ",".join(str(size.to_number(port.side, port.number)) for port in wanted)
        async with self._writing.change():
            self._just_read.forget()
            await self._client.tell(template.format(ports=numbers))

    # --- what a patching driver needs -------------------------------------------------------

    async def _table(self) -> Mapping[CrossConnect, Held]:
        size = await self._known_size()
        said = await self._ask(self._dialect.read_map, self._dialect.map_answer)
        try:
            numbers = list(zip(channels(said["ins"]), channels(said["outs"]), strict=True))
        except ValueError as error:
            raise self._nonsense(self._dialect.read_map, said[0]) from error
        found = self._found
        if len(found) > _FOUND_KEPT:
            found.clear()
        table = {}
        for pair in numbers:
            # A map is read several times in each change, and few of its pairs are new.
            cross_connect = found.get(pair) or size.to_cross_connect(*pair)
            if cross_connect is None:
                raise self._nonsense(self._dialect.read_map, f"{pair[0]},{pair[1]}")
            found[pair] = cross_connect
            table[cross_connect] = _UP
        return table

    async def _make(self, pairs: Sequence[CrossConnect]) -> None:
        size = await self._known_size()
        await self._client.tell(self._listed(self._dialect.connect, size, pairs))

    async def _break(self, pairs: Sequence[CrossConnect]) -> None:
        size = await self._known_size()
        await self._client.tell(self._listed(self._dialect.disconnect, size, pairs))

    # --- inside -----------------------------------------------------------------------------

    async def _known_size(self) -> Numbering:
        """How many inputs and outputs; asked once, with all else that never changes."""
        if self._size is not None:
            return self._size
        model = (await self.identify()).model
        if re.search(self._dialect.any_to_any, model):
            raise PatchlightError(
                f"{self.name} is a {model}: a switch of single fibres, any to any",
                hint="this driver knows switches with inputs and outputs only",
            )
        said = await self._ask(self._dialect.size, self._dialect.size_answer)
        size = Numbering.polatis(int(said["ins"]), int(said["outs"]))
        size.check_holds(self.name, self.ports)
        monitored = [await self._has_monitor(size.to_number(side, 1)) for side in _SIDES]
        self._capabilities = replace(
            self._capabilities, power_in=monitored[0], power_out=monitored[1]
        )
        self._size = size
        return size

    async def _has_monitor(self, number: int) -> bool:
        command = self._dialect.power.format(ports=number)
        try:
            await self._client.ask(command, self._dialect.power_answer)
        except DeviceRefused:
            return False
        return True

    async def _ask(self, command: str, answer: str) -> re.Match[str]:
        said = re.fullmatch(answer, await self._client.ask(command, answer))
        assert said is not None  # the client has matched it
        return said

    async def _per_port(
        self,
        size: Numbering,
        ports: Sequence[DirectedPort],
        template: str,
        answer: str,
        group: str,
    ) -> dict[DirectedPort, str]:
        """One value for each port, asked for in lists as long as the device takes."""
        found: dict[DirectedPort, str] = {}
        limit = self._dialect.ask_limit
        for start in range(0, len(ports), limit):
            chunk = ports[start : start + limit]
            numbers = ",".join(str(size.to_number(port.side, port.number)) for port in chunk)
            said = await self._ask(template.format(ports=numbers), answer)
            values = [value.strip() for value in said[group].split(",")]
            if len(values) != len(chunk):
                raise self._nonsense(template, f"{len(values)} values for {len(chunk)} ports")
            found.update(zip(chunk, values, strict=True))
        return found

    def _listed(self, template: str, size: Numbering, pairs: Sequence[CrossConnect]) -> str:
        ins = ",".join(str(size.to_number("in", c.inp)) for c in pairs)
        outs = ",".join(str(size.to_number("out", c.out)) for c in pairs)
        return template.format(ins=ins, outs=outs)

    def _condition(self, said: str) -> Condition:
        if re.fullmatch(self._dialect.port_enabled, said):
            return "ready"
        return "locked" if re.fullmatch(self._dialect.port_disabled, said) else "failed"
