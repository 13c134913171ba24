"""One change of a device at a time, and what is known when it does not end well."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Generic, TypeVar

from patchlight.controller.circuits.contract import (
    DeviceRefused,
    DeviceUnreachable,
    LoginRefused,
    Outcome,
    Refusal,
)
from patchlight.testbed.errors import OutcomeUnknown
from patchlight.testbed.lab.portmap import JoinsPorts

_JUST_READ_S = 0.01
T = TypeVar("T")
C = TypeVar("C", bound=JoinsPorts)


class SerialWrites:
    """Serialises the changes of the device ``name``.

    ``told``: whether the change under way has told the device anything yet. Whoever tells it
    something sets that, or does so within ``telling``.
    """

    def __init__(self, name: str) -> None:
        self.told = False
        self._name = name
        self._lock = asyncio.Lock()

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """The device is told something in the block: some of it may be done where it refuses."""
        try:
            yield
        except DeviceRefused:
            self.told = True
            raise
        self.told = True

    @contextlib.asynccontextmanager
    async def change(self) -> AsyncIterator[None]:
        """Once something was told, not reaching the device any more is an unknown outcome."""
        async with self._lock:
            self.told = False
            try:
                yield
            except (DeviceUnreachable, DeviceRefused, LoginRefused) as error:
                if not self.told:
                    raise
                raise OutcomeUnknown(
                    f"{self._name} was told to change, then: {error.message}",
                    hint="read the device's map before anything else",
                ) from error


class JustRead(Generic[T]):
    """A device's table, for as long as it is as good as one that is asked for now.

    That is 10 ms from when the question was sent, what a question takes on its way to a device
    in another building, and until something is told to the device. It spares reading a map
    again that was read for the same change a moment ago; nothing is kept for longer.
    """

    def __init__(self) -> None:
        self._table: T | None = None
        self._asked_at = 0.0
        self._told = 0

    async def read(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask, and keep the answer."""
        asked_at, told = asyncio.get_running_loop().time(), self._told
        table = await ask()
        # Somebody else may have told the device something while this question was on its way.
        if told == self._told:
            self._table, self._asked_at = table, asked_at
        return table

    @property
    def table(self) -> T | None:
        """The table that was just read; ``None`` if it was not."""
        age_s = asyncio.get_running_loop().time() - self._asked_at
        return self._table if age_s <= _JUST_READ_S else None

    async def again(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The table that was just read, or else a new one."""
        table = self.table
        return await self.read(ask) if table is None else table

    def forget(self) -> None:
        """The device is told something now, or has just done it: say so before and after."""
        self._told += 1
        self._table = None


def outcome(asked: tuple[C, ...], refused: dict[C, str], elapsed_s: float) -> Outcome[C]:
    """What came of ``asked``, given the words for those that were refused."""
    return Outcome(
        done=tuple(c for c in asked if c not in refused),
        refused=tuple(Refusal(c, refused[c]) for c in asked if c in refused),
        elapsed_s=elapsed_s,
    )
