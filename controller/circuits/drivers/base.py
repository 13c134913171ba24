"""Shared base of drivers: a table of entries over a session, and port numbering."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from patchlight.controller.circuits import contract
from patchlight.controller.circuits.dialect import (
    DEFAULT_TIMEOUTS,
    DeviceLinks,
    Dialect,
    NumberedDialect,
    PolatisDialect,
    Session,
    Timeouts,
    corrected,
)
from patchlight.controller.circuits.drivers.table import R, Row, TableDriver
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import CircuitSwitch, OpticalSwitch
from patchlight.testbed.lab.ocs_drivers import check_shape
from patchlight.testbed.lab.portmap import CrossConnect, JoinsPorts, PortMap
from patchlight.testbed.lab.spectrum import ChannelConnect, Grid, SpectrumMap
from patchlight.testbed.lab.wavelengths import WavelengthSwitch

C = TypeVar("C", bound=JoinsPorts)
M = TypeVar("M")


class Client(Protocol):
    """A driver's connection to its device.

    ``connections`` grows whenever the device may have restarted, or may be another one.
    """

    links: DeviceLinks
    connections: int

    def __init__(self, session: Session, dialect: Any) -> None: ...

    async def open(self) -> None:
        """Connect to the device and log in."""

    async def close(self) -> None:
        """Log out and disconnect."""

    async def hear(self) -> tuple[contract.Alarm, ...]:
        """The device's reports, oldest first."""


class SessionTable(TableDriver[C, M, R]):
    """A driver over a session of type ``client_class``."""

    client: Client
    built_in: ClassVar[Dialect]
    client_class: ClassVar[type[Client]]
    _dialect: Dialect

    def __init__(
        self,
        switch: OpticalSwitch,
        password: str,
        dialect: Dialect | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        super().__init__(switch)
        self._dialect = dialect or corrected(switch.driver, self.built_in)
        self._list_limit = getattr(
            self._dialect, "list_limit", self._list_limit
        )
        self.client = self.client_class(
            Session.of(switch, password, timeouts), self._dialect
        )

    async def open(self) -> None:
        """Connect to the device and log in."""
        await self.client.open()

    async def close(self) -> None:
        """Log out; circuits stay."""
        await self.client.close()

    async def alarms(self) -> tuple[contract.Alarm, ...]:
        """The device's reports, and its list of alarms if it has one."""
        return await self.client.hear()


class CircuitTableDriver(TableDriver[CrossConnect, PortMap, R]):
    """See ``CircuitDriver`` for the methods. A driver sets ``client``."""

    _switch: CircuitSwitch

    @property
    def ports(self) -> int:
        """How many ports it has on each side."""
        return self._switch.ports

    def _checked(
        self, pairs: Iterable[CrossConnect]
    ) -> tuple[CrossConnect, ...]:
        unique = tuple(dict.fromkeys(pairs))
        for c in unique:
            if type(c.inp) is not int or type(c.out) is not int:
                raise BadInput(f"cross-connect {c}: ports are whole numbers")
        PortMap.of(unique).check(self.ports)
        return unique

    def _map_of(self, entries: Iterable[CrossConnect]) -> PortMap:
        return PortMap.of(entries)

    def _in_use(self, port: contract.DirectedPort, by: CrossConnect) -> str:
        return f"{port} is in use on the device: {by}"

    def _busy(
        self, pairs: Sequence[CrossConnect], table: Mapping[CrossConnect, R]
    ) -> dict[CrossConnect, str]:
        """Those that are not in the table but conflict with it, with reasons."""
        at_input = {c.inp: c for c in table}
        at_output = {c.out: c for c in table}
        words = {}
        for c in pairs:
            if c in table:
                continue
            if other := at_input.get(c.inp):
                words[c] = self._in_use(
                    contract.DirectedPort("in", c.inp), other
                )
            elif other := at_output.get(c.out):
                words[c] = self._in_use(
                    contract.DirectedPort("out", c.out), other
                )
        return words


class SessionDriver(
    SessionTable[CrossConnect, PortMap, R], CircuitTableDriver[R]
):
    """See ``CircuitDriver``. A driver sets its ``client_class``, and its table."""


def power_dbm(text: str, dark_dbm: float = -math.inf) -> float | None:
    """A power from the device in dBm; ``None`` at or below ``dark_dbm`` or if missing."""
    try:
        power = float(text)
    except ValueError:
        return None
    return power if dark_dbm < power < 100 else None


def powers_dbm(
    texts: Iterable[tuple[contract.DirectedPort, str]], dark_dbm: float
) -> dict[contract.DirectedPort, float | None]:
    """The same for many ports."""
    return {port: power_dbm(text, dark_dbm) for port, text in texts}


def condition(
    answer: str,
    ready: str,
    locked: str,
    absent: str,
) -> contract.Condition:
    """What a port's state means, given the patterns for all but ``failed``."""
    if re.fullmatch(ready, answer):
        return "ready"
    if re.fullmatch(locked, answer):
        return "locked"
    return "absent" if re.fullmatch(absent, answer) else "failed"


@dataclass(
    frozen=True,
    slots=True,
)
class Numbering:
    """``ins`` inputs from ``in_base`` + 1 on, ``outs`` outputs from ``out_base`` + 1 on."""

    ins: int
    outs: int
    in_base: int
    out_base: int

    @classmethod
    def polatis(cls, ins: int, outs: int) -> Numbering:
        """Inputs (ingress) 1…N, outputs (egress) N+1…N+M."""
        return cls(
            ins,
            outs,
            0,
            ins,
        )

    def __str__(self) -> str:
        return f"{self.ins}x{self.outs}"

    def to_number(self, side: contract.Side, port: int) -> int:
        """Canonical ``out:3`` → ``out_base`` + 3. ``BadInput`` outside the switch."""
        if not 1 <= port <= (self.ins if side == "in" else self.outs):
            raise BadInput(f"{side}:{port} is outside a switch of {self}")
        return port + (self.in_base if side == "in" else self.out_base)

    def to_numbers(self, ports: Iterable[contract.DirectedPort]) -> list[int]:
        """The same of many ports."""
        return [self.to_number(*port) for port in ports]

    def to_port(self, number: int) -> contract.DirectedPort | None:
        """``out_base`` + 3 → ``out:3``; ``None`` if the switch has no such port."""
        if 1 <= number - self.in_base <= self.ins:
            return contract.DirectedPort("in", number - self.in_base)
        if 1 <= number - self.out_base <= self.outs:
            return contract.DirectedPort("out", number - self.out_base)
        return None

    def to_directed(self, inp: int, out: int) -> CrossConnect | None:
        """An input's and an output's number → a cross-connect; ``None`` if they are invalid."""
        first = self.to_port(inp)
        second = self.to_port(out)
        if (
            first is None
            or second is None
            or (first.side, second.side) != ("in", "out")
        ):
            return None
        return CrossConnect(first.number, second.number)

    def to_cross_connect(self, one: int, other: int) -> CrossConnect | None:
        """The same, for numbers in any order."""
        return self.to_directed(min(one, other), max(one, other))

    def check_holds(self, name: str, ports: int) -> None:
        """``PatchlightError`` if the lab's ``ports`` exceed the device's."""
        if min(self.ins, self.outs) < ports:
            raise PatchlightError(
                f"{name} is a switch of {self}, but the lab file says {ports} ports",
                hint="correct 'ports' of the circuit switch in the lab file",
            )


_READS = 3


class NumberedDriver(SessionDriver[Row]):
    """See ``CircuitDriver`` for the methods."""

    _dialect: NumberedDialect
    _known: Numbering | None = None
    _learnt_on = 0
    capabilities = contract.Capabilities()

    @abstractmethod
    async def _learn(self) -> Numbering:
        """The size of the device; and what else stays until it restarts, into ``capabilities``."""

    @abstractmethod
    async def _rows(self, numbering: Numbering) -> Mapping[CrossConnect, Row]:
        """The device's cross-connects."""

    async def open(self) -> None:
        """Connect to the device, log in, and read its size and power monitors."""
        await super().open()
        await self._numbering()

    async def _numbering(self) -> Numbering:
        """How many inputs and outputs it has, and their numbers; read once a connection."""
        if self._known is None or self._learnt_on != self.client.connections:
            numbering = await self._learn()
            numbering.check_holds(self.name, self.ports)
            self._known = numbering
            self._learnt_on = self.client.connections
        return self._known

    async def _table(self) -> Mapping[CrossConnect, Row]:
        for _ in range(_READS):
            numbering = await self._numbering()
            try:
                table = await self._rows(numbering)
            except contract.DeviceRefused:
                if self._learnt_on == self.client.connections:
                    raise
            else:
                # On another connection its numbers may mean other ports.
                if self._learnt_on == self.client.connections:
                    return table
        raise contract.DeviceUnreachable(
            f"{self.name} closes every connection"
        )

    async def _numbers(
        self, pairs: Iterable[CrossConnect]
    ) -> list[tuple[int, int]]:
        """The device's numbers for the input and the output of each."""
        to_number = (await self._numbering()).to_number
        return [
            (to_number("in", c.inp), to_number("out", c.out)) for c in pairs
        ]


class PolatisDriver(NumberedDriver):
    """Shared by drivers of Polatis switches, for all protocols. See ``CircuitDriver``."""

    _dialect: PolatisDialect

    @abstractmethod
    async def identify(self) -> contract.Identity:
        """Vendor, model, serial number and software of the device."""

    async def _size(self, model: str) -> tuple[int, int]:
        """How many inputs and outputs."""
        size = re.search(self._dialect.model_size, model)
        if size is None:
            raise self._nonsense(
                "the question for its size", model or "nothing"
            )
        return int(size["ins"]), int(size["outs"])

    @abstractmethod
    async def _monitored_sides(
        self, numbering: Numbering
    ) -> Collection[contract.Side]:
        """The sides with power monitors."""

    @abstractmethod
    async def _states(self) -> Mapping[contract.DirectedPort, str]:
        """The state of every port, as the device tells it."""

    @abstractmethod
    async def _powers(
        self, ports: Sequence[contract.DirectedPort]
    ) -> Mapping[contract.DirectedPort, str]:
        """The power at these ports, or at more, from the device."""

    async def port_states(self) -> contract.PortStates:
        """For each port in the lab: enabled, disabled, failed."""
        states = await self._states()
        last = self.ports
        dialect = self._dialect
        patterns = dialect.port_ready, dialect.port_locked, dialect.port_absent
        known = {
            state: contract.PortState(condition(state, *patterns), state)
            for state in {*states.values()}
        }
        return {
            port: known[state]
            for port, state in states.items()
            if port.number <= last
        }

    async def power(
        self, ports: Iterable[contract.DirectedPort]
    ) -> contract.Powers:
        """Only ports with monitors."""
        checked = self._checked_ports(ports)
        await self._numbering()
        monitored = {
            "in": self.capabilities.power_in,
            "out": self.capabilities.power_out,
        }
        if not (
            requested := [port for port in checked if monitored[port.side]]
        ):
            return {}
        powers = await self._powers(requested)
        dark_dbm = self._dialect.dark_dbm
        return powers_dbm(
            ((port, powers[port]) for port in requested if port in powers),
            dark_dbm,
        )

    async def _learn(self) -> Numbering:
        model = (await self.identify()).model
        if re.search(self._dialect.any_to_any, model):
            raise PatchlightError(
                f"{self.name} is a {model}: a switch of single fibres, any to any",
                hint="this driver supports switches with separate inputs and outputs only",
            )
        numbering = Numbering.polatis(*await self._size(model))
        numbering.check_holds(self.name, self.ports)
        sides = await self._monitored_sides(numbering)
        self.capabilities = contract.Capabilities(
            power_in="in" in sides,
            power_out="out" in sides,
        )
        return numbering


class WavelengthTableDriver(TableDriver[ChannelConnect, SpectrumMap, R]):
    """See ``WavelengthDriver`` for the methods. A driver sets ``client``."""

    _switch: WavelengthSwitch

    @property
    def inputs(self) -> int:
        """How many inputs it has."""
        return self._switch.inputs

    @property
    def outputs(self) -> int:
        """How many outputs it has."""
        return self._switch.outputs

    @property
    def grid(self) -> Grid:
        """Which channels there are."""
        return self._switch.grid

    def _checked(
        self, pairs: Iterable[ChannelConnect]
    ) -> tuple[ChannelConnect, ...]:
        unique = tuple(dict.fromkeys(pairs))
        for way in unique:
            if type(way.inp) is not int or type(way.out) is not int:
                raise BadInput(f"{way}: ports are whole numbers")
            if not 0 <= way.attenuation_db < math.inf:
                raise BadInput(f"{way}: an attenuation is 0 dB or more")
        SpectrumMap.of(unique).check(self.inputs, self.outputs, self.grid)
        return unique

    def _map_of(self, entries: Iterable[ChannelConnect]) -> SpectrumMap:
        return SpectrumMap.of(entries)

    def _busy(
        self,
        pairs: Sequence[ChannelConnect],
        table: Mapping[ChannelConnect, R],
    ) -> dict[ChannelConnect, str]:
        """Entries whose signals would collide with the table's, or that conflict otherwise."""
        words = {}
        for way in pairs:
            if way not in table and (
                other := next((w for w in table if way.clashes(w)), None)
            ):
                words[way] = f"its channel is in use on the device: {other}"
        return words


class WavelengthSessionDriver(
    SessionTable[ChannelConnect, SpectrumMap, R], WavelengthTableDriver[R]
):
    """See ``WavelengthDriver``. A driver sets its ``client_class``, and its table."""

    def __init__(
        self,
        switch: WavelengthSwitch,
        password: str,
        dialect: Dialect | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        try:
            check_shape(switch)
        except BadInput as error:
            raise BadInput(f"{switch.name}: {error.message}") from error
        super().__init__(
            switch,
            password,
            dialect,
            timeouts,
        )
