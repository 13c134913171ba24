"""The driver ``calient-tl1``: Calient S160, S162, S320 and Edge640 over TL1 (TCP 3082).

Every cross-connect is made one-way, so that changing one direction never touches the other.
Two-way circuits that somebody else made are read as their two directions, and broken only
whole. Run against the emulated device only so far; the commands are in ``tl1/dialects.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from patchlight.controller.circuits.contract import (
    Alarm,
    Capabilities,
    DeviceRefused,
    DirectedPort,
    Identity,
    Outcome,
    PortState,
    checked,
)
from patchlight.controller.circuits.dialects import corrected
from patchlight.controller.circuits.drivers.calient.ports import to_aid
from patchlight.controller.circuits.drivers.calient.table import (
    FEW,
    CalientReader,
    Held,
    command_values,
    conn_id,
    read_identity,
    read_port_states,
    read_power,
)
from patchlight.controller.circuits.protocols.session import Session
from patchlight.controller.circuits.protocols.tl1.client import Tl1Client
from patchlight.controller.circuits.protocols.tl1.dialects import CALIENT, CircuitDialect
from patchlight.controller.circuits.writing import Writing, in_the_way, outcome
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.portmap import CrossConnect, PortMap

_SETTLE_S = 10.0  # a circuit that is not up by then has failed (G2MPLS waits as long)
_FIRST_POLL_S, _POLL_GROWTH, _LAST_POLL_S = 0.001, 1.6, 1.0


class CalientTl1:
    """A Calient OCS. See ``CircuitDriver`` for what the methods do."""

    def __init__(
        self, switch: CircuitSwitch, password: str, dialect: CircuitDialect | None = None
    ) -> None:
        self._switch = switch
        self._dialect = dialect or corrected(switch.driver, CALIENT)
        self._client = Tl1Client(Session.of(switch, password), self._dialect)
        self._writing = Writing(switch.name)
        self._table = CalientReader(self._client, self._dialect)

    @property
    def name(self) -> str:
        """The OCS's name in the lab."""
        return self._switch.name

    @property
    def ports(self) -> int:
        """How many ports it has on each side."""
        return self._switch.ports

    @property
    def capabilities(self) -> Capabilities:
        """What the device can do."""
        return Capabilities(
            bulk=self._dialect.bulk, duplex=True, any_to_any=True, power_in=True, power_out=True
        )

    async def open(self) -> None:
        """Connect and log in."""
        await self._client.open()

    async def close(self) -> None:
        """Log out; circuits stay."""
        await self._client.close()

    async def identify(self) -> Identity:
        """From ``RTRV-NE``."""
        reply = await self._client.command(self._dialect.identity)
        return read_identity(reply.lines, self._dialect)

    async def read_map(self) -> PortMap:
        """The circuits of ``RTRV-CRS`` that are not parked (entered but not activated)."""
        table = await self._table.just_read.read(self._table.held)
        active = (held for held in table if not held.matches(self._dialect.parked))
        return PortMap.of(c for held in active for c in held.directions)

    async def alarms(self) -> tuple[Alarm, ...]:
        """Autonomous messages since ``open``, and what ``RTRV-ALM-ALL`` lists."""
        return await self._client.hear()

    async def port_states(self) -> Mapping[DirectedPort, PortState]:
        """From ``RTRV-PORT``."""
        reply = await self._client.command(self._dialect.ports, paged=True)
        states = read_port_states(reply.lines, self._dialect)
        return {port: state for port, state in states.items() if port.number <= self.ports}

    async def power(self, ports: Iterable[DirectedPort]) -> Mapping[DirectedPort, float | None]:
        """From ``RTRV-PORT-SUM``, port by port for a few, else the whole table."""
        wanted = set(ports)
        numbers = sorted({port.number for port in wanted})
        if numbers and not 1 <= numbers[0] <= numbers[-1] <= self.ports:
            raise BadInput(f"{self.name} has ports 1–{self.ports}, not {numbers[0]}–{numbers[-1]}")
        if not numbers:
            return {}
        if len(numbers) <= FEW:
            replies = [
                await self._client.command(self._dialect.power_one, {"port": to_aid(number)})
                for number in numbers
            ]
        else:
            replies = [await self._client.command(self._dialect.power_all, paged=True)]
        lines = (line for reply in replies for line in reply.lines)
        found = read_power(lines, self._dialect, frozenset(numbers))
        return {port: found[port] for port in sorted(wanted) if port in found}

    async def connect(self, pairs: Iterable[CrossConnect]) -> Outcome:
        """``ENT-CRS-BULK`` for several, else ``ENT-CRS`` and ``ACT-CRS``; then wait for light."""
        loop = asyncio.get_running_loop()
        began, wanted = loop.time(), checked(pairs, self.ports)
        async with self._writing.change():
            refused: dict[CrossConnect, str] = {}
            before, beside = await self._table.present(wanted)
            new = [c for c in wanted if c not in before or not before[c].matches(self._dialect.up)]
            # A unit that resolves conflicts itself would break what holds a busy port.
            refused |= in_the_way(
                new, beside, port=lambda port: to_aid(port.number), circuit=conn_id
            )
            new = [c for c in new if c not in refused]
            in_bulk = self._dialect.bulk and len(new) > 1
            if in_bulk:
                await self._in_bulk(self._dialect.enter_bulk, [conn_id(c) for c in new])
            else:
                for cross_connect in new:
                    await self._enter(cross_connect, refused, ours=cross_connect not in before)
            waiting = [c for c in new if c not in refused]
            await self._settle(waiting, refused, frozenset(before), in_bulk=in_bulk)
        return outcome(wanted, refused, loop.time() - began)

    async def disconnect(self, pairs: Iterable[CrossConnect]) -> Outcome:
        """``DLT-CRS-BULK`` for several, else ``CANC-CRS`` and ``DLT-CRS``."""
        loop = asyncio.get_running_loop()
        began, wanted = loop.time(), checked(pairs, self.ports)
        async with self._writing.change():
            refused: dict[CrossConnect, str] = {}
            table = self._table.just_read.table
            table = await self._table.about(wanted) if table is None else table
            going = self._going(wanted, table, refused)
            if self._dialect.bulk and len(going) > 1:
                await self._in_bulk(self._dialect.delete_bulk, [held.conn for held in going])
                left = {held.conn for held in await self._table.just_read.read(self._table.held)}
                going = [held for held in going if held.conn in left]
            for held in going:
                try:
                    await self._delete(held)
                except DeviceRefused as refusal:
                    words = f"{held.conn}: {refusal.words}"
                    refused.update(dict.fromkeys(held.directions, words))
        return outcome(wanted, refused, loop.time() - began)

    async def _tell(self, template: str, values: dict[str, str]) -> None:
        self._table.just_read.forget()
        try:
            await self._client.command(template, values, changes=True)
        finally:
            self._table.just_read.forget()
        self._writing.told = True

    # --- making ----------------------------------------------------------------------------

    async def _in_bulk(self, template: str, conns: list[str]) -> None:
        """Tell the device in lists. What a list's refusal means is read from the map after."""
        limit = self._dialect.bulk_limit
        for start in range(0, len(conns), limit):
            chunk = self._dialect.bulk_separator.join(conns[start : start + limit])
            try:
                await self._tell(template, {"conns": chunk})
            except DeviceRefused:
                # One bad entry may deny the list: the others are tried singly, and the
                # device's words for each are had that way. It may have done some of it.
                self._writing.told = True

    async def _enter(
        self, cross_connect: CrossConnect, refused: dict[CrossConnect, str], *, ours: bool
    ) -> None:
        """Enter and activate one; of a refused one nothing of ours stays on the device."""
        values = command_values(cross_connect, self._dialect)
        try:
            await self._tell(self._dialect.enter, values)
        except DeviceRefused as refusal:
            held = (await self._table.states([cross_connect])).get(cross_connect)
            if held is None:
                refused[cross_connect] = refusal.words
                return
            if not held.matches(f"{self._dialect.parked}|{self._dialect.failed}"):
                return  # it is there already, up or on its way
            # It is there already, but dark: activating it is what was asked, and it is not ours.
            ours = False
            values = command_values(cross_connect, self._dialect, held)
        try:
            await self._tell(self._dialect.activate, values)
        except DeviceRefused as refusal:
            refused[cross_connect] = refusal.words
            if ours:
                await self._clear(cross_connect)

    async def _settle(
        self,
        waiting: list[CrossConnect],
        refused: dict[CrossConnect, str],
        before: frozenset[CrossConnect],
        *,
        in_bulk: bool,
    ) -> None:
        """Poll until every circuit is up or known not to come up.

        ``before``: those that were in the device's table when we came; they are not ours to
        clear away. ``in_bulk``: those that a list did not bring about are still to be tried
        singly.
        """
        loop = asyncio.get_running_loop()
        pause, step = self._switch.switching_time_s, _FIRST_POLL_S
        deadline = loop.time() + pause + _SETTLE_S
        while waiting:
            await asyncio.sleep(pause)
            states = await self._table.states(waiting)
            still: list[CrossConnect] = []
            missing: list[CrossConnect] = []
            for c in waiting:
                held = states.get(c)
                if held is None or held.matches(self._dialect.parked):
                    missing.append(c)
                elif held.matches(self._dialect.up):
                    continue
                elif held.matches(self._dialect.failed) or loop.time() > deadline:
                    refused[c] = f"{held.conn} did not come up: {held.words}"
                else:
                    still.append(c)
            if in_bulk and missing:
                for c in missing:
                    await self._enter(c, refused, ours=c not in before)
                still += [c for c in missing if c not in refused]
                pause, deadline = self._switch.switching_time_s, loop.time() + _SETTLE_S
            else:
                words = "the command was accepted, but the device does not hold it active"
                refused.update(dict.fromkeys(missing, words))
                pause, step = step, min(step * _POLL_GROWTH, _LAST_POLL_S)
            in_bulk = False
            for c in waiting:
                if c in refused and c not in before:
                    await self._clear(c)
            waiting = still

    async def _clear(self, cross_connect: CrossConnect) -> None:
        """Take away what is left of a circuit that did not come up, if the device lets us."""
        held = (await self._table.states([cross_connect])).get(cross_connect)
        if held is not None and held.directions == (cross_connect,):
            try:
                await self._delete(held)
            except DeviceRefused:
                # The refusal that brought us here is what the operator must see.
                return

    # --- breaking --------------------------------------------------------------------------

    def _going(
        self,
        wanted: tuple[CrossConnect, ...],
        table: list[Held],
        refused: dict[CrossConnect, str],
    ) -> list[Held]:
        by_direction = {c: held for held in table for c in held.directions}
        asked = set(wanted)
        going: dict[str, Held] = {}
        for c in wanted:
            held = by_direction.get(c)
            if held is None:
                continue
            if set(held.directions) <= asked:
                going[held.conn] = held
            else:
                other = next(d for d in held.directions if d not in asked)
                refused[c] = (
                    f"{held.conn} is a two-way circuit on the device: {other} would break with it"
                )
        return list(going.values())

    async def _delete(self, held: Held) -> None:
        values = command_values(held.directions[0], self._dialect, held)
        if not held.matches(self._dialect.parked):
            await self._tell(self._dialect.deactivate, values)
        try:
            await self._tell(self._dialect.delete, values)
        except DeviceRefused as refusal:
            # Some firmware forgets a circuit as soon as it is deactivated.
            if not self._table.says_no_such(refusal):
                raise
