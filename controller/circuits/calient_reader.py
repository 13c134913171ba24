"""What a Calient holds, asked as cheaply as its TL1 allows: a few by name, many as a table."""

from __future__ import annotations

import re
from collections.abc import Sequence

from controller.circuits.calient_ports import to_aid
from controller.circuits.calient_table import Held, circuits_at_port, command_values, read_circuits
from controller.circuits.contract import DeviceRefused
from controller.circuits.tl1.client import Tl1Client
from controller.circuits.tl1.dialects import CircuitDialect
from controller.circuits.writing import JustRead
from testbed.portmap import CrossConnect

FEW = 4
"""Up to so many ports or circuits are asked for one by one, not as a whole table."""


class CalientReader:
    """Reads circuits over a client. ``just_read`` has the whole table for a moment."""

    def __init__(self, client: Tl1Client, dialect: CircuitDialect) -> None:
        self._client, self._dialect = client, dialect
        self.just_read = JustRead[list[Held]]()

    async def held(self) -> list[Held]:
        """The whole table."""
        reply = await self._client.command(self._dialect.retrieve_all, paged=True)
        return read_circuits(reply.lines, self._dialect)

    async def states(self, wanted: Sequence[CrossConnect]) -> dict[CrossConnect, Held]:
        """What the device's table has on ``wanted``, by direction."""
        return {c: held for held in await self.about(wanted) for c in held.directions}

    async def about(self, wanted: Sequence[CrossConnect]) -> list[Held]:
        """The device's table as far as it concerns ``wanted``."""
        table: list[Held] = []
        if len(wanted) > FEW:
            return await self.held()
        for c in wanted:
            found = await self._ask(c)
            if found is None:
                return await self.held()
            table += found
        return table

    async def _ask(self, c: CrossConnect) -> list[Held] | None:
        """The circuit of ``c``, if there is one; ``None`` if the question is not understood."""
        values = command_values(c, self._dialect)
        two_way = f"{values['src']}-{values['dst']}", f"{values['dst']}-{values['src']}"
        for conn in (values["conn"], *two_way):
            try:
                reply = await self._client.command(
                    self._dialect.retrieve_one, {**values, "conn": conn}
                )
            except DeviceRefused as refusal:
                if not self.says_no_such(refusal):
                    return None
                continue
            if found := read_circuits(reply.lines, self._dialect):
                return found
        return []

    async def present(
        self, wanted: Sequence[CrossConnect]
    ) -> tuple[dict[CrossConnect, Held], list[CrossConnect]]:
        """What of ``wanted`` is in the device's table, and the directions that hold their ports.

        Both may have others, too.
        """
        if len(wanted) <= FEW:
            beside = await self._beside(wanted)
            # Where nothing holds their ports, they are not there either.
            return (await self.states(wanted) if beside else {}), beside
        table = await self.just_read.again(self.held)
        there = {c: held for held in table for c in held.directions}
        return there, list(there)

    async def _beside(self, wanted: Sequence[CrossConnect]) -> list[CrossConnect]:
        """The directions that hold a port of a few ``wanted``, and perhaps others."""
        found: list[CrossConnect] = []
        for port in {port for c in wanted for port in (c.inp, c.out)}:
            reply = await self._client.command(self._dialect.power_one, {"port": to_aid(port)})
            here = circuits_at_port(reply.lines, self._dialect)
            if here is None:
                return [c for held in await self.held() for c in held.directions]
            found += here
        return found

    def says_no_such(self, refusal: DeviceRefused) -> bool:
        """Whether that was refused because there is no such circuit."""
        return re.search(self._dialect.no_such_circuit, refusal.words, re.IGNORECASE) is not None
