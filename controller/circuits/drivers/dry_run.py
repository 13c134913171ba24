"""The driver ``dry-run``: talks to nothing and remembers, for rehearsals."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from patchlight.controller.circuits.contract import (
    Alarm,
    Capabilities,
    DirectedPort,
    Identity,
    PortState,
)
from patchlight.controller.circuits.drivers.base import CircuitTableDriver, WavelengthTableDriver
from patchlight.controller.circuits.drivers.table import UP, Row, TableDriver
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.portmap import CrossConnect, JoinsPorts, PortMap
from patchlight.testbed.lab.spectrum import ChannelConnect, SpectrumMap
from patchlight.testbed.lab.wavelengths import WavelengthSwitch

C = TypeVar("C", bound=JoinsPorts)
M = TypeVar("M")


class _Rehearsed(TableDriver[C, M, Row]):
    """A switch that exists only in memory."""

    capabilities = Capabilities()
    _list_limit = 1 << 16
    _entries: Mapping[C, Row]

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

    async def _table(self) -> Mapping[C, Row]:
        return self._entries

    async def _make(self, pairs: Sequence[C]) -> None:
        self._entries = {**self._entries, **dict.fromkeys(pairs, UP)}

    async def _break(self, pairs: Sequence[C], table: Mapping[C, Row]) -> None:
        gone = frozenset(pairs)
        self._entries = {c: row for c, row in self._entries.items() if c not in gone}


class DryRun(_Rehearsed[CrossConnect, PortMap], CircuitTableDriver[Row]):
    """An OCS that exists only in memory; begins with the lab file's cross-connects."""

    def __init__(self, switch: CircuitSwitch, password: str = "") -> None:
        super().__init__(switch)
        self._entries = dict.fromkeys(switch.initial, UP)

    def _in_use(self, port: DirectedPort, by: CrossConnect) -> str:
        return f"{port} is in use: {by}"


class DryRunWavelengths(_Rehearsed[ChannelConnect, SpectrumMap], WavelengthTableDriver[Row]):
    """A WSS that exists only in memory; begins with the lab file's channels."""

    def __init__(self, switch: WavelengthSwitch, password: str = "") -> None:
        super().__init__(switch)
        self._entries = dict.fromkeys(switch.initial, UP)
