"""Drivers of devices that are told lists of cross-connects over TL1."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from patchlight.controller.circuits.contract import Alarm
from patchlight.controller.circuits.dialects import Bare
from patchlight.controller.circuits.drivers.numbered import NumberedDriver
from patchlight.controller.circuits.drivers.table import UP, Row
from patchlight.controller.circuits.protocols.session import shortened
from patchlight.controller.circuits.protocols.tl1.client import Reply, Tl1Client
from patchlight.controller.circuits.protocols.tl1.dialects import ListDialect
from patchlight.testbed.lab.portmap import CrossConnect

D = TypeVar("D", bound=ListDialect)


class Tl1ListDriver(NumberedDriver, Generic[D]):
    """See ``CircuitDriver`` for what the methods do."""

    client_class = Tl1Client
    client: Tl1Client
    _dialect: D

    def _row(self, line: re.Match[str]) -> Row:
        """How the cross-connect of that line stands."""
        return UP

    async def alarms(self) -> tuple[Alarm, ...]:
        """Autonomous messages since ``open``, and what ``RTRV-ALM-ALL`` lists."""
        return await self.client.hear()

    async def _table(self) -> Mapping[CrossConnect, Row]:
        numbering, table = await self._numbering(), {}
        for line in await self._circuit_lines():
            numbers = int(line["in"]), int(line["out"])
            cross_connect = numbering.to_cross_connect(*numbers)
            if cross_connect is not None:
                table[cross_connect] = self._row(line)
            elif all(numbers):
                raise self._nonsense("the question for its map", line.string)
        return table

    async def _make(self, pairs: Sequence[CrossConnect]) -> None:
        await self.client.command(self._dialect.enter, await self._lists(pairs), changes=True)

    async def _break(
        self, pairs: Sequence[CrossConnect], table: Mapping[CrossConnect, Row]
    ) -> None:
        await self.client.command(self._dialect.delete, await self._lists(pairs), changes=True)

    async def _size(self, model: str = "") -> tuple[int, int]:
        """Inputs and outputs, from the reply that tells the size."""
        reply = await self.client.command(self._dialect.size, paged=True)
        size = first(self._dialect.size_line, reply)
        if size is None:
            words = "; ".join((*reply.lines, reply.words))
            raise self._nonsense("the question for its size", words)
        return int(size["ins"]), int(size["outs"])

    async def _circuit_lines(self) -> list[re.Match[str]]:
        """Every line of the table; one that cannot be read would be a circuit that is not seen."""
        reply = await self.client.command(self._dialect.retrieve, paged=True)
        found = matching(self._dialect.circuit_line, reply)
        if len(found) < len(reply.lines):
            read = {line.string for line in found}
            unread = next(line for line in reply.lines if line not in read)
            raise self._nonsense("the question for its map", shortened(unread))
        return found

    async def _lists(self, pairs: Sequence[CrossConnect]) -> dict[str, Bare]:
        ins, outs = zip(*await self._numbers(pairs), strict=True)
        return {"ins": self._joined(ins), "outs": self._joined(outs)}

    def _joined(self, numbers: Iterable[int]) -> Bare:
        return Bare(self._dialect.list_separator.join(map(str, numbers)))


def matching(pattern: str, reply: Reply) -> list[re.Match[str]]:
    """The lines of a reply that begin as the pattern says."""
    compiled = re.compile(pattern)
    return [match for line in reply.lines if (match := compiled.match(line))]


def first(pattern: str, reply: Reply) -> re.Match[str] | None:
    """The first of them."""
    return next(iter(matching(pattern, reply)), None)
