"""Drivers of devices that make cross-connects in one step and are driven over TL1."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from patchlight.controller.circuits.contract import Alarm, Capabilities
from patchlight.controller.circuits.drivers.one_step import Held, PatchingDriver
from patchlight.controller.circuits.numbering import Numbering
from patchlight.controller.circuits.protocols.session import Session
from patchlight.controller.circuits.protocols.tl1.client import Reply, Tl1Client
from patchlight.controller.circuits.protocols.tl1.dialects import ListDialect
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.portmap import CrossConnect

D = TypeVar("D", bound=ListDialect)


class ListingDriver(PatchingDriver, Generic[D]):
    """See ``CircuitDriver`` for what the methods do."""

    def __init__(
        self, switch: CircuitSwitch, password: str, dialect: D, capabilities: Capabilities
    ) -> None:
        super().__init__(switch, dialect.list_limit)
        self._dialect = dialect
        self._client = Tl1Client(Session.of(switch, password), dialect)
        self._numbering: Numbering | None = None
        self._capabilities = capabilities

    @abstractmethod
    async def _learn(self) -> Numbering:
        """The size of the device; and what else never changes, into ``_capabilities``."""

    @abstractmethod
    def _held(self, line: re.Match[str]) -> Held:
        """How the cross-connect of that line stands."""

    @property
    def capabilities(self) -> Capabilities:
        """What the device can do; which power monitors it has is known after ``open``."""
        return self._capabilities

    async def open(self) -> None:
        """Log in, and learn the size of the device."""
        await self._client.open()
        await self._known()

    async def close(self) -> None:
        """Log out; circuits stay."""
        await self._client.close()

    async def alarms(self) -> tuple[Alarm, ...]:
        """Autonomous messages since ``open``, and what ``RTRV-ALM-ALL`` lists."""
        return await self._client.hear()

    # --- what a patching driver needs -------------------------------------------------------

    async def _table(self) -> Mapping[CrossConnect, Held]:
        numbering, table = await self._known(), {}
        for line in await self._circuit_lines():
            numbers = int(line["in"]), int(line["out"])
            cross_connect = numbering.to_cross_connect(*numbers)
            if cross_connect is not None:
                table[cross_connect] = self._held(line)
            elif all(numbers):
                raise self._nonsense("the question for its map", line.string)
        return table

    async def _make(self, pairs: Sequence[CrossConnect]) -> None:
        await self._client.command(self._dialect.enter, await self._listed(pairs), changes=True)

    async def _break(self, pairs: Sequence[CrossConnect]) -> None:
        await self._client.command(self._dialect.delete, await self._listed(pairs), changes=True)

    # --- inside -----------------------------------------------------------------------------

    async def _known(self) -> Numbering:
        """Asked once: how many inputs and outputs there are, and their numbers."""
        if self._numbering is None:
            numbering = await self._learn()
            numbering.check_holds(self.name, self.ports)
            self._numbering = numbering
        return self._numbering

    async def _size(self) -> tuple[int, int]:
        """Inputs and outputs, from the reply that tells the size."""
        reply = await self._client.command(self._dialect.size, paged=True)
        said = first(self._dialect.size_line, reply)
        if said is None:
            words = "; ".join((*reply.lines, reply.words))
            raise self._nonsense("the question for its size", words)
        return int(said["ins"]), int(said["outs"])

    async def _circuit_lines(self) -> list[re.Match[str]]:
        reply = await self._client.command(self._dialect.retrieve, paged=True)
        return matching(self._dialect.circuit_line, reply)

    async def _listed(self, pairs: Sequence[CrossConnect]) -> dict[str, str]:
        numbering = await self._known()
        return {
            "ins": self._joined(numbering.to_number("in", c.inp) for c in pairs),
            "outs": self._joined(numbering.to_number("out", c.out) for c in pairs),
        }

    def _joined(self, numbers: Iterable[int]) -> str:
        return self._dialect.list_separator.join(map(str, numbers))


def matching(pattern: str, reply: Reply) -> list[re.Match[str]]:
    """The lines of a reply that begin as the pattern says."""
    compiled = re.compile(pattern)
    return [match for line in reply.lines if (match := compiled.match(line))]


def first(pattern: str, reply: Reply) -> re.Match[str] | None:
    """The first of them."""
    return next(iter(matching(pattern, reply)), None)
