"""Shared by drivers of devices with a table of entries: circuits or channels.

A device makes an entry in one step, or in two: it is entered, then activated. It may silently break
entries that conflict with a new one. So the table is read before each write, and conflicts are
refused here; it is read again afterwards, and then shows the result.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from functools import partial
from typing import Generic, Literal, TypeVar

from patchlight.controller.circuits import contract
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import OpticalSwitch
from patchlight.testbed.lab.portmap import JoinsPorts
from patchlight.testbed.lab.wavelengths import WavelengthSwitch

_JUST_READ_S = 0.01
T = TypeVar("T")
C = TypeVar("C", bound=JoinsPorts)


class JustRead(Generic[T]):
    """A device's table, while it is as good as one read now.

    That is 10 ms from when the query was sent, the round trip to another building, and until a
    command is sent to the device. It avoids reading a map twice in a change.
    """

    def __init__(self) -> None:
        self._table: T | None = None
        self._asked_at = 0.0
        self._told = 0

    async def read(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Read the table and keep it; if that fails, forget what was kept."""
        asked_at = asyncio.get_running_loop().time()
        told = self._told
        self._table = None
        table = await ask()
        # A command may have been sent during this query.
        if told == self._told:
            self._table = table
            self._asked_at = asked_at
        return table

    @property
    def table(self) -> T | None:
        """The table if it was just read, else ``None``."""
        age_s = asyncio.get_running_loop().time() - self._asked_at
        return self._table if age_s <= _JUST_READ_S else None

    async def again(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The table if it was just read, or a new one."""
        table = self.table
        return await self.read(ask) if table is None else table

    def forget(self) -> None:
        """A command is about to be sent or has just finished: call it before and after."""
        self._told += 1
        self._table = None


def outcome(
    requested: tuple[C, ...],
    refused: dict[C, str],
    elapsed_s: float,
) -> contract.Outcome[C]:
    """The result for ``requested``, given the reasons for refused ones."""
    return contract.Outcome(
        done=tuple(c for c in requested if c not in refused),
        refused=tuple(
            contract.Refusal(c, refused[c]) for c in requested if c in refused
        ),
        elapsed_s=elapsed_s,
    )


_SETTLE_S = (
    10.0  # a circuit that is not up by then has failed (G2MPLS waits as long)
)
_NOT_HELD = "the command was accepted, but the map lacks it"
TABLES_KEPT = 2
"""The number of cached answers: most reads repeat one."""
_FIRST_POLL_S = 0.001
_POLL_GROWTH = 1.6
_LAST_POLL_S = 1.0

RowState = Literal["up", "coming", "failed", "entered"]


@dataclass(
    frozen=True,
    slots=True,
)
class Row:
    """The state of a cross-connect in the device's table; ``words`` are the device's.

    ``entered``: it is in the table, but inactive. ``conn`` is the device's id of the circuit. The
    directions of a ``two_way`` circuit are made and broken together.
    """

    state: RowState = "up"
    words: str = ""
    conn: str = ""
    two_way: bool = False


UP = Row()
M = TypeVar("M")
R = TypeVar("R", bound=Row)


class TableDriver(ABC, Generic[C, M, R]):
    """See ``SwitchDriver`` for what the methods do.

    ``_list_limit``: cross-connects in one command. Unless it ``_looks_at_once``, the table is read
    a switching time after some were made.
    """

    _list_limit = 1
    _looks_at_once = True

    def __init__(self, switch: OpticalSwitch) -> None:
        self._switch = switch
        self.name = switch.name
        if isinstance(switch, WavelengthSwitch):
            ins = switch.inputs
            outs = switch.outputs
        else:
            ins = outs = switch.ports
        # Of ports.
        self._counts: dict[contract.Side, int] = {
            "in": ins,
            "out": outs,
        }
        self._told = False  # whether the present change has sent a command yet
        self._one_change = asyncio.Lock()
        self._just_read = JustRead[Mapping[C, R]]()
        self._last_map: tuple[Mapping[C, R], M] | None = None

    # --- what a kind of switch adds ---------------------------------------------------------

    @abstractmethod
    def _checked(self, pairs: Iterable[C]) -> tuple[C, ...]:
        """The pairs without repeats, in order; ``BadInput`` if they are not possible."""

    @abstractmethod
    def _map_of(self, entries: Iterable[C]) -> M:
        """The map of these entries; ``BadInput`` if they are not possible."""

    @abstractmethod
    def _busy(self, pairs: Sequence[C], table: Mapping[C, R]) -> dict[C, str]:
        """Those that are not in the table but conflict with it, with reasons."""

    # --- what a device adds -----------------------------------------------------------------

    @abstractmethod
    async def _table(self) -> Mapping[C, R]:
        """The device's cross-connects."""

    @abstractmethod
    async def _make(self, pairs: Sequence[C]) -> None:
        """Make (or enter) these on the device; raises ``DeviceRefused``."""

    @abstractmethod
    async def _break(self, pairs: Sequence[C], table: Mapping[C, R]) -> None:
        """Break the circuits of these on the device; raises ``DeviceRefused``."""

    async def _activate(
        self, pairs: Sequence[C], table: Mapping[C, R]
    ) -> None:
        """Activate what is only entered, by the same command as before."""
        await self._make(pairs)

    async def _beside(self, pairs: Sequence[C]) -> Mapping[C, R]:
        """The table for the ports of ``pairs``, or more of it."""
        return await self._just_read.again(self._table)

    async def _about(self, pairs: Sequence[C]) -> Mapping[C, R]:
        """The table for ``pairs``, or more of it."""
        return await self._table()

    async def _left(
        self, pairs: Sequence[C], words: Mapping[C, str]
    ) -> Mapping[C, object]:
        """What the table still has of ``pairs``; ``words`` for those it refused to break."""
        return await self._just_read.read(self._table)

    async def read_map(self) -> M:
        """The active entries of the device's table, and failed ones, which use ports."""
        table = await self._just_read.read(self._table)
        if self._last_map is None or self._last_map[0] is not table:
            try:
                port_map = self._map_of(
                    [c for c, row in table.items() if row.state != "entered"]
                )
            except BadInput as error:
                raise self._nonsense(
                    "the query for its map", error.message
                ) from error
            self._last_map = table, port_map
        return self._last_map[1]

    async def connect(self, pairs: Iterable[C]) -> contract.Outcome[C]:
        """In lists as long as the device accepts; failures of a list are retried one by one."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        requested = self._checked(pairs)
        async with self._change():
            table = await self._beside(requested)
            refused = self._busy(requested, table)
            new = []
            ours = []
            failed = []
            for c in requested:
                row = table.get(c)
                if (row and row.state == "up") or (refused and c in refused):
                    continue
                new.append(c)
                if row is None:
                    ours.append(c)
                elif row.state == "failed" and (
                    not row.two_way or c.reverse in requested
                ):
                    ours.append(c)
                    failed.append(c)
            await self._send(
                partial(self._break, table=table), _once(failed, table)
            )
            words = await self._send(self._make, ours)
            await self._settle(
                new,
                ours,
                words,
                refused,
            )
        return outcome(requested, refused, loop.time() - began)

    async def disconnect(self, pairs: Iterable[C]) -> contract.Outcome[C]:
        """In lists as long as the device accepts; failures of a list are retried one by one.

        A two-way circuit breaks as a whole or not at all.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        requested = self._checked(pairs)
        async with self._change():
            table = self._just_read.table
            if table is None:
                table = await self._about(requested)
            refused: dict[C, str] = {}
            going = []
            for c in requested:
                if (row := table.get(c)) is None:
                    continue
                if row.two_way and c.reverse not in requested:
                    refused[c] = (
                        f"{row.conn} is a two-way circuit on the device: {c.reverse} would "
                        "break with it"
                    )
                elif not row.two_way or c.inp < c.out:
                    going.append(c)
            send = partial(self._break, table=table)
            words = await self._send(send, going)
            left = await self._left(going, words) if going else {}
            again = [c for c in going if c in left]
            if again and len(going) > 1 and self._list_limit > 1:
                words = await self._send(send, again, most=1)
                left = await self._left(again, words)
            for c in again:
                if c in left:
                    kept = "the command was accepted, but the map still has it"
                    refused[c] = words.get(c, kept)
                    if table[c].two_way:
                        refused[c.reverse] = refused[c]
        return outcome(requested, refused, loop.time() - began)

    async def power(
        self, ports: Iterable[contract.DirectedPort]
    ) -> contract.Powers:
        """Empty unless a driver overrides it: there are no power monitors."""
        self._checked_ports(ports)
        return {}

    def _checked_ports(
        self, ports: Iterable[contract.DirectedPort]
    ) -> list[contract.DirectedPort]:
        """Each once, in order; ``BadInput`` for one outside the device."""
        unique = sorted(set(ports))
        for port in unique:
            last = self._counts[port.side]
            if type(port.number) is not int or not 1 <= port.number <= last:
                raise BadInput(f"{self.name} has ports 1–{last}, not {port}")
        return unique

    def _all_ports(self) -> list[contract.DirectedPort]:
        sides = self._counts.items()
        return [
            contract.DirectedPort(side, n)
            for side, last in sides
            for n in range(1, last + 1)
        ]

    def _nonsense(self, command: str, answer: str) -> contract.DeviceRefused:
        return contract.DeviceRefused(
            f"{self.name} answered {command} with an invalid value: {answer}",
            words=answer,
            hint=f"if its firmware uses another format, correct the dialect {self._switch.driver}",
        )

    def _will_not(self, words: str) -> contract.DeviceRefused:
        return contract.DeviceRefused(f"{self.name}: {words}", words=words)

    @contextlib.asynccontextmanager
    async def _change(self) -> AsyncIterator[None]:
        """One change at a time; a failure after a command was sent is an unknown result."""
        async with self._one_change:
            self._told = False
            try:
                yield
            except (
                contract.DeviceUnreachable,
                contract.DeviceRefused,
                contract.LoginRefused,
            ) as error:
                if not self._told:
                    raise
                raise contract.outcome_unknown(
                    f"{self.name} got a command, then: {error.message}"
                ) from error

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Commands are sent in the block: if refused, some of it may be done."""
        try:
            yield
        except contract.DeviceRefused:
            self._told = True
            raise
        self._told = True

    @contextlib.contextmanager
    def _noting(
        self,
        refused: list[str],
        done: str = "",
        begin: str = "",
    ) -> Iterator[None]:
        """Refusals in the block are added to ``refused``, unless their code means ``done``."""
        try:
            yield
        except contract.DeviceRefused as refusal:
            if not done or refusal.code != done:
                refused.append(f"{begin}{refusal.words}")

    def _raise_if(self, refused: Sequence[str]) -> None:
        """``DeviceRefused`` with the reasons of all refused ones, if any."""
        if refused:
            raise contract.DeviceRefused(
                f"{self.name} refused {refused[0]}", words="; ".join(refused)
            )

    async def _send(
        self,
        send: Callable[[Sequence[C]], Awaitable[None]],
        pairs: Sequence[C],
        most: int | None = None,
    ) -> dict[C, str]:
        """Send lists to the device; returns its reasons for the pairs of each refused list."""
        limit = most or self._list_limit
        words = dict[C, str]()
        for start in range(0, len(pairs), limit):
            chunk = pairs[start : start + limit]
            self._just_read.forget()
            try:
                await send(chunk)
            except contract.DeviceRefused as refusal:
                words.update(dict.fromkeys(chunk, refusal.words))
            finally:
                self._just_read.forget()
            # Part of a refused list may have been done.
            self._told = True
        return words

    async def _settle(
        self,
        waiting: list[C],
        ours: Sequence[C],
        words: dict[C, str],
        refused: dict[C, str],
    ) -> None:
        """Poll until every circuit is up or has failed.

        Failed ones are removed if they are ``ours``; others existed before.
        """
        loop = asyncio.get_running_loop()
        longest_s = self._switch.switching_time_s + _SETTLE_S
        deadline = loop.time() + longest_s
        step_s = _FIRST_POLL_S
        first_look_s = (
            0.0 if self._looks_at_once else self._switch.switching_time_s
        )
        pause_s = first_look_s if any(c not in words for c in ours) else 0.0
        singly = len(waiting) > 1 and self._list_limit > 1
        requested = waiting
        activated = set[C]()
        while waiting:
            await asyncio.sleep(pause_s)
            pause_s = step_s
            step_s = min(step_s * _POLL_GROWTH, _LAST_POLL_S)
            table = await self._about(waiting)
            coming = []
            missing = []
            entered = []
            for c in waiting:
                row = table.get(c)
                if row is None and singly:
                    missing.append(c)
                elif row is None:
                    refused[c] = words.get(c, _NOT_HELD)
                elif row.state == "entered":
                    if c not in activated and (
                        not row.two_way or c.reverse in requested
                    ):
                        entered.append(c)
                    else:
                        refused[c] = words.get(c, f"{_NOT_HELD} active")
                elif row.state == "failed" or (
                    row.state == "coming" and loop.time() > deadline
                ):
                    refused[c] = f"{c} did not come up: {row.words}"
                elif row.state == "coming":
                    coming.append(c)
            singly = False
            if missing:
                # One bad entry may deny a list: single commands give each its own reason.
                words = await self._send(self._make, missing, most=1)
            activate = partial(self._activate, table=table)
            words |= await self._send(activate, _once(entered, table), most=1)
            activated.update(entered)
            if missing or entered:
                pause_s = first_look_s
                deadline = loop.time() + longest_s
            if refused:
                mine = set(ours)
                failed = [
                    c
                    for c in waiting
                    if c in refused and c in mine and c in table
                ]
                await self._send(partial(self._break, table=table), failed)
            waiting = coming + missing + entered


def _once(pairs: Iterable[C], table: Mapping[C, Row]) -> list[C]:
    """One direction of each circuit."""
    return [c for c in pairs if not table[c].two_way or c.inp < c.out]
