"""What drivers of devices that make a cross-connect in one step have in common.

Such a device may break what stands in the way of a new cross-connect without a word. So the
map is read before each write, and what would need a busy port is refused here; it is read
again after, and what it then shows is the outcome.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from patchlight.controller.circuits.contract import DeviceRefused, DirectedPort, Outcome, checked
from patchlight.controller.circuits.writing import JustRead, Writing, outcome
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.portmap import CrossConnect, PortMap

_SETTLE_S = 10.0  # a circuit that is not up by then has failed
_FIRST_POLL_S, _POLL_GROWTH, _LAST_POLL_S = 0.001, 1.6, 1.0

Send = Callable[[Sequence[CrossConnect]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Held:
    """How a cross-connect in the device's table stands; ``words`` are the device's."""

    state: Literal["up", "coming", "failed"] = "up"
    words: str = ""


class PatchingDriver(ABC):
    """See ``CircuitDriver`` for what the methods do. ``list_limit``: pairs in one command."""

    def __init__(self, switch: CircuitSwitch, list_limit: int) -> None:
        self._switch = switch
        self._writing = Writing(switch.name)
        self._just_read = JustRead[Mapping[CrossConnect, Held]]()
        self._list_limit = list_limit

    @abstractmethod
    async def _table(self) -> Mapping[CrossConnect, Held]:
        """The device's cross-connects."""

    @abstractmethod
    async def _make(self, pairs: Sequence[CrossConnect]) -> None:
        """Tell the device to make these; raises ``DeviceRefused``."""

    @abstractmethod
    async def _break(self, pairs: Sequence[CrossConnect]) -> None:
        """Tell the device to break these, which its table holds; raises ``DeviceRefused``."""

    @property
    def name(self) -> str:
        """The OCS's name in the lab."""
        return self._switch.name

    @property
    def ports(self) -> int:
        """How many ports it has on each side."""
        return self._switch.ports

    async def read_map(self) -> PortMap:
        """All that the device's table holds, failed ones too: they hold their ports."""
        table = await self._just_read.read(self._table)
        try:
            return PortMap.of(table)
        except BadInput as error:
            raise self._nonsense("the question for its map", error.message) from error

    async def connect(self, pairs: Iterable[CrossConnect]) -> Outcome:
        """In lists as long as the device takes; what a list did not bring about, singly."""
        loop = asyncio.get_running_loop()
        began, wanted = loop.time(), checked(pairs, self.ports)
        async with self._writing.change():
            refused: dict[CrossConnect, str] = {}
            table = await self._just_read.again(self._table)
            new = _placeable(wanted, table, refused)
            dark = [c for c in new if c in table and table[c].state == "failed"]
            await self._send(self._break, dark)
            told = [c for c in new if c not in table or c in dark]
            words = await self._send(self._make, told)
            await self._settle(new, words, refused)
        return outcome(wanted, refused, loop.time() - began)

    async def disconnect(self, pairs: Iterable[CrossConnect]) -> Outcome:
        """In lists as long as the device takes; what a list did not bring about, singly."""
        loop = asyncio.get_running_loop()
        began, wanted = loop.time(), checked(pairs, self.ports)
        async with self._writing.change():
            table = await self._just_read.again(self._table)
            going = [c for c in wanted if c in table]
            words = await self._send(self._break, going)
            left = await self._just_read.read(self._table) if going else {}
            again = [c for c in going if c in left]
            if again and len(going) > 1 and self._list_limit > 1:
                words = await self._send(self._break, again, most=1)
                left = await self._just_read.read(self._table)
            refused = {
                c: words.get(c, "the command was accepted, but the device holds it still")
                for c in again
                if c in left
            }
        return outcome(wanted, refused, loop.time() - began)

    # --- inside -----------------------------------------------------------------------------

    def _wanted_ports(self, ports: Iterable[DirectedPort]) -> list[DirectedPort]:
        """Each once, in order; ``BadInput`` for one outside the device."""
        wanted = sorted(set(ports))
        for port in wanted:
            if not 1 <= port.number <= self.ports:
                raise BadInput(f"{self.name} has ports 1–{self.ports}, not {port}")
        return wanted

    def _nonsense(self, command: str, said: str) -> DeviceRefused:
        return DeviceRefused(
            f"{self.name} answered {command} with what cannot be: {said}",
            words=said,
            hint=f"if its firmware says it differently, correct the dialect {self._switch.driver}",
        )

    async def _send(
        self, send: Send, pairs: Sequence[CrossConnect], most: int | None = None
    ) -> dict[CrossConnect, str]:
        """Tell the device in lists; its words for the pairs of each list that it refused."""
        limit, words = most or self._list_limit, {}
        for start in range(0, len(pairs), limit):
            chunk = pairs[start : start + limit]
            self._just_read.forget()
            try:
                await send(chunk)
            except DeviceRefused as refusal:
                words.update(dict.fromkeys(chunk, refusal.words))
            finally:
                self._just_read.forget()
            # Of a refused list some may have been done.
            self._writing.told = True
        return words

    async def _settle(
        self,
        waiting: list[CrossConnect],
        words: dict[CrossConnect, str],
        refused: dict[CrossConnect, str],
    ) -> None:
        """Poll until every circuit is up or known not to come up, and clear those away."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._switch.switching_time_s + _SETTLE_S
        step, singly = _FIRST_POLL_S, len(waiting) > 1 and self._list_limit > 1
        while waiting:
            table = await self._table()
            missing = [c for c in waiting if c not in table]
            failed = [c for c in waiting if c in table and table[c].state == "failed"]
            coming = [c for c in waiting if c in table and table[c].state == "coming"]
            if loop.time() > deadline:
                failed, coming = failed + coming, []
            if missing and singly:
                # One bad entry may deny a list: each has the device's own words this way.
                words = await self._send(self._make, missing, most=1)
                coming += missing
            else:
                accepted = "the command was accepted, but the device does not hold it"
                refused.update((c, words.get(c, accepted)) for c in missing)
                if coming:
                    await asyncio.sleep(step)
                    step = min(step * _POLL_GROWTH, _LAST_POLL_S)
            singly = False
            refused.update((c, f"{c} did not come up: {table[c].words}") for c in failed)
            await self._send(self._break, failed)
            waiting = coming


def _placeable(
    wanted: tuple[CrossConnect, ...],
    table: Mapping[CrossConnect, Held],
    refused: dict[CrossConnect, str],
) -> list[CrossConnect]:
    """Those to be made: not up yet, and no other cross-connect in their way."""
    at_input, at_output = {c.inp: c for c in table}, {c.out: c for c in table}
    new = []
    for c in wanted:
        if c in table:
            if table[c].state != "up":
                new.append(c)
            continue
        if there := at_input.get(c.inp):
            refused[c] = f"in:{c.inp} is in use on the device: {there}"
        elif there := at_output.get(c.out):
            refused[c] = f"out:{c.out} is in use on the device: {there}"
        else:
            new.append(c)
    return new


def lit_dbm(text: str, dark_dbm: float) -> float | None:
    """A power as the device writes it, in dBm; ``None`` at or below ``dark_dbm`` or if none."""
    try:
        power = float(text)
    except ValueError:
        return None
    return power if dark_dbm < power < 100 else None
