"""The driver ``polatis-scpi``: Polatis (HUBER+SUHNER) switches over SCPI (TCP 5025).

Run against the emulated device only so far; the commands are in ``protocols/scpi.py``.
"""

import functools
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import starmap
from typing import cast

from patchlight.controller.circuits.contract import (
    SIDES,
    Alarm,
    Capabilities,
    Condition,
    DeviceRefused,
    DirectedPort,
    Identity,
    PortState,
    Side,
)
from patchlight.controller.circuits.dialects import (
    AnyPolatisDialect,
    Bare,
    condition,
    filled,
    power_dbm,
)
from patchlight.controller.circuits.drivers.base import NumberedDriver, Numbering
from patchlight.controller.circuits.drivers.table import TABLES_KEPT, UP, Row
from patchlight.controller.circuits.protocols.scpi import (
    POLATIS,
    PolatisScpiDialect,
    ScpiClient,
    channels,
    quoted,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.portmap import CrossConnect

_PAIRS_KEPT = 1 << 14


class PolatisDriver(NumberedDriver):
    """What drivers of Polatis switches share, whatever they speak. See ``CircuitDriver``."""

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


class PolatisScpi(PolatisDriver):
    """A Polatis OCS. See ``CircuitDriver`` for what the methods do."""

    built_in = POLATIS
    client_class = ScpiClient
    client: ScpiClient
    _dialect: PolatisScpiDialect

    async def identify(self) -> Identity:
        """From ``*IDN?``."""
        answer = await self._ask(self._dialect.identity, self._dialect.identity_answer)
        vendor = answer["vendor"].strip().strip('"') or self._dialect.vendor
        rest = (answer[part].strip().strip('"') for part in ("model", "serial", "software"))
        return Identity(vendor, *rest)

    async def alarms(self) -> tuple[Alarm, ...]:
        """What the error queue held that no command of ours explains."""
        await self.client.look()
        return self.client.alarms

    async def _table(self) -> Mapping[CrossConnect, Row]:
        await self._numbering()
        dialect = self._dialect
        return self._understood(await self.client.ask(dialect.read_map, dialect.map_answer))

    @functools.cached_property
    def _understood(self) -> Callable[[str], Mapping[CrossConnect, Row]]:
        """The table of an answer. A map is read several times in each change, and mostly as it
        was; if it is another one, few of its pairs are new."""
        assert self._known is not None
        to_cross_connect = functools.lru_cache(_PAIRS_KEPT)(self._known.to_cross_connect)

        def understand(answer: str) -> Mapping[CrossConnect, Row]:
            match = re.fullmatch(self._dialect.map_answer, answer)
            assert match is not None  # the client has matched it
            try:
                pairs = list(zip(channels(match["ins"]), channels(match["outs"]), strict=True))
            except ValueError as error:
                raise self._nonsense(self._dialect.read_map, answer) from error
            table = dict.fromkeys(starmap(to_cross_connect, pairs), UP)
            if None in table:
                one, other = next(pair for pair in pairs if to_cross_connect(*pair) is None)
                raise self._nonsense(self._dialect.read_map, f"{one},{other}")
            return cast(Mapping[CrossConnect, Row], table)

        return functools.lru_cache(TABLES_KEPT)(understand)

    async def _make(self, pairs: Sequence[CrossConnect]) -> None:
        await self.client.tell(await self._filled(self._dialect.connect, pairs))

    async def _break(
        self, pairs: Sequence[CrossConnect], table: Mapping[CrossConnect, Row]
    ) -> None:
        await self.client.tell(await self._filled(self._dialect.disconnect, pairs))

    async def _size(self, model: str) -> tuple[int, int]:
        size = await self._ask(self._dialect.size, self._dialect.size_answer)
        return int(size["ins"]), int(size["outs"])

    async def _monitored_sides(self, numbering: Numbering) -> list[Side]:
        return [side for side in SIDES if await self._has_monitor(numbering.to_number(side, 1))]

    async def _states(self) -> dict[DirectedPort, str]:
        dialect = self._dialect
        return await self._per_port(
            self._all_ports(), dialect.port_states, dialect.states_answer, "states"
        )

    async def _powers(self, ports: Sequence[DirectedPort]) -> dict[DirectedPort, str]:
        dialect, monitored = self._dialect, await self._with_monitors(ports)
        return await self._per_port(monitored, dialect.power, dialect.power_answer, "powers")

    def _condition(self, state: str) -> Condition:
        return condition(state, self._dialect.port_enabled, self._dialect.port_disabled)

    async def _has_monitor(self, number: int) -> bool:
        command = filled(self._dialect.power, quoted, ports=number)
        try:
            await self.client.ask(command, self._dialect.power_answer)
        except DeviceRefused:
            return False
        return True

    async def _ask(self, command: str, answer: str) -> re.Match[str]:
        match = re.fullmatch(answer, await self.client.ask(command, answer))
        assert match is not None  # the client has matched it
        return match

    async def _per_port(
        self, ports: Sequence[DirectedPort], template: str, answer: str, group: str
    ) -> dict[DirectedPort, str]:
        """One value for each port, asked for in lists as long as the device takes."""
        per_port: dict[DirectedPort, str] = {}
        to_number, limit = (await self._numbering()).to_number, self._dialect.ask_limit
        for start in range(0, len(ports), limit):
            chunk = ports[start : start + limit]
            numbers = ",".join(str(to_number(port.side, port.number)) for port in chunk)
            match = await self._ask(filled(template, quoted, ports=Bare(numbers)), answer)
            values = [value.strip() for value in match[group].split(",")]
            if len(values) != len(chunk):
                raise self._nonsense(template, f"{len(values)} values for {len(chunk)} ports")
            per_port.update(zip(chunk, values, strict=True))
        return per_port

    async def _filled(self, template: str, pairs: Sequence[CrossConnect]) -> str:
        ins, outs = zip(*await self._numbers(pairs), strict=True)
        lists = (Bare(",".join(map(str, numbers))) for numbers in (ins, outs))
        return filled(template, quoted, **dict(zip(("ins", "outs"), lists, strict=True)))
