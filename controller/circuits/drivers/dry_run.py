"""The driver ``dry-run``: a switch of either kind that exists only in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from patchlight.controller.circuits import contract
from patchlight.controller.circuits.drivers.base import (
    CircuitTableDriver,
    WavelengthTableDriver,
)
from patchlight.controller.circuits.drivers.table import UP, Row, TableDriver
from patchlight.testbed.lab.model import OpticalSwitch
from patchlight.testbed.lab.portmap import CrossConnect, JoinsPorts, PortMap
from patchlight.testbed.lab.spectrum import ChannelConnect, SpectrumMap

C = TypeVar("C", bound=JoinsPorts)
M = TypeVar("M")


class _Rehearsed(TableDriver[C, M, Row]):
    """A switch that exists only in memory."""

    capabilities = contract.Capabilities()
    _list_limit = 1 << 16

    def __init__(self, switch: OpticalSwitch, password: str = "") -> None:
        super().__init__(switch)
        initial: Iterable[Any] = switch.initial
        self._entries: Mapping[C, Row] = dict.fromkeys(initial, UP)

    async def open(self) -> None:
        """Do nothing: there is no device."""

    async def close(self) -> None:
        """Do nothing; the map stays in memory."""

    async def identify(self) -> contract.Identity:
        """The identity of a rehearsal."""
        return contract.Identity(
            "Patchlight",
            "dry-run",
            "",
            "",
            self.name,
        )

    async def port_states(self) -> contract.PortStates:
        """Every port is ready."""
        return dict.fromkeys(
            self._all_ports(), contract.PortState("ready", "dry run")
        )

    async def alarms(self) -> tuple[contract.Alarm, ...]:
        """There are none."""
        return ()

    async def _table(self) -> Mapping[C, Row]:
        return self._entries

    async def _make(self, pairs: Sequence[C]) -> None:
        self._entries = {**self._entries, **dict.fromkeys(pairs, UP)}

    async def _break(self, pairs: Sequence[C], table: Mapping[C, Row]) -> None:
        gone = frozenset(pairs)
        self._entries = {
            c: row for c, row in self._entries.items() if c not in gone
        }


class DryRun(_Rehearsed[CrossConnect, PortMap], CircuitTableDriver[Row]):
    """An OCS that exists only in memory; starts with the lab file's cross-connects."""

    def _in_use(self, port: contract.DirectedPort, by: CrossConnect) -> str:
        return f"{port} is in use: {by}"


class DryRunWavelengths(
    _Rehearsed[ChannelConnect, SpectrumMap], WavelengthTableDriver[Row]
):
    """A WSS that exists only in memory; starts with the lab file's channels."""
