"""What drivers of circuit switches have in common: a table of cross-connects, over a session."""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from patchlight.controller.circuits.contract import DirectedPort, Side, checked
from patchlight.controller.circuits.dialects import Dialect, corrected
from patchlight.controller.circuits.drivers.table import Client, R, TableDriver
from patchlight.controller.circuits.protocols.session import DEFAULT_TIMEOUTS, Session, Timeouts
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.portmap import CrossConnect, PortMap


class CircuitTableDriver(TableDriver[CrossConnect, PortMap, R]):
    """See ``CircuitDriver`` for what the methods do. A driver sets ``client``."""

    _switch: CircuitSwitch

    @property
    def ports(self) -> int:
        """How many ports it has on each side."""
        return self._switch.ports

    def _checked(self, pairs: Iterable[CrossConnect]) -> tuple[CrossConnect, ...]:
        return checked(pairs, self.ports)

    def _map_of(self, entries: Iterable[CrossConnect]) -> PortMap:
        return PortMap.of(entries)

    def _count(self, side: Side) -> int:
        return self.ports

    def _in_use(self, port: DirectedPort, by: CrossConnect) -> str:
        return f"{port} is in use on the device: {by}"

    def _busy(
        self, pairs: Sequence[CrossConnect], table: Mapping[CrossConnect, R]
    ) -> dict[CrossConnect, str]:
        """Those that are not in the table and need a port of what is, with words."""
        at_input, at_output = {c.inp: c for c in table}, {c.out: c for c in table}
        words = {}
        for c in pairs:
            if c in table:
                continue
            if other := at_input.get(c.inp):
                words[c] = self._in_use(DirectedPort("in", c.inp), other)
            elif other := at_output.get(c.out):
                words[c] = self._in_use(DirectedPort("out", c.out), other)
        return words


class SessionDriver(CircuitTableDriver[R]):
    """See ``CircuitDriver``. A driver says which ``client_class`` it talks with, and its table."""

    built_in: ClassVar[Dialect]
    client_class: ClassVar[type[Client]]
    _dialect: Dialect

    def __init__(
        self,
        switch: CircuitSwitch,
        password: str,
        dialect: Dialect | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        super().__init__(switch)
        self._dialect = dialect or corrected(switch.driver, self.built_in)
        self.client = self.client_class(Session.of(switch, password, timeouts), self._dialect)
