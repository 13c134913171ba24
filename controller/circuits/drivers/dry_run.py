"""The driver ``dry-run``: talks to nothing and remembers, for rehearsals."""

from collections.abc import Iterable, Mapping, Sequence

from patchlight.controller.circuits.contract import (
    Alarm,
    Capabilities,
    DirectedPort,
    Identity,
    PortState,
)
from patchlight.controller.circuits.drivers.base import UP, Row, TableDriver
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.portmap import CrossConnect, PortMapChange


class DryRun(TableDriver[Row]):
    """An OCS that exists only in memory; begins with the lab file's cross-connects."""

    capabilities = Capabilities()
    _list_limit = 1 << 16

    def __init__(self, switch: CircuitSwitch, password: str = "") -> None:
        super().__init__(switch)
        self._map = switch.initial

    async def open(self) -> None:
        """Nothing to reach."""

    async def close(self) -> None:
        """Nothing to let go; the map stays in memory."""

    async def identify(self) -> Identity:
        """It says that it is a rehearsal."""
        return Identity("Patchlight", "dry-run", "", "", self.name)

    async def port_states(self) -> Mapping[DirectedPort, PortState]:
        """Every port is ready."""
        return dict.fromkeys(self._all_ports(), PortState("ready", "dry run"))

    async def power(self, ports: Iterable[DirectedPort]) -> Mapping[DirectedPort, float | None]:
        """Nothing: there is no power monitor."""
        self._checked_ports(ports)
        return {}

    async def alarms(self) -> tuple[Alarm, ...]:
        """There are none."""
        return ()

    async def _table(self) -> Mapping[CrossConnect, Row]:
        return dict.fromkeys(self._map, UP)

    async def _make(self, pairs: Sequence[CrossConnect]) -> None:
        self._map = self._map.apply(PortMapChange(makes=tuple(pairs)))

    async def _break(
        self, pairs: Sequence[CrossConnect], table: Mapping[CrossConnect, Row]
    ) -> None:
        self._map = self._map.apply(PortMapChange(breaks=tuple(pairs)))

    def _in_use(self, port: DirectedPort, by: CrossConnect) -> str:
        return f"{port} is in use: {by}"
