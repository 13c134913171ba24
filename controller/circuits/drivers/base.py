"""What drivers of circuit switches have in common: a table of cross-connects, over a session."""

from collections.abc import Iterable, Mapping, Sequence

from patchlight.controller.circuits.contract import DirectedPort, Side, checked
from patchlight.controller.circuits.drivers.table import R, SessionTable, TableDriver
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.portmap import CrossConnect, PortMap


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


class SessionDriver(SessionTable[CrossConnect, PortMap, R], CircuitTableDriver[R]):
    """See ``CircuitDriver``. A driver says which ``client_class`` it talks with, and its table."""
