"""Implements what all emulated optical switches share: users, faults, saved maps, and the crossbar.

A protocol server calls plain methods to make changes, then awaits ``settle`` before it answers, so
the crossbar has done what the answer reports. It awaits ``settle`` before reading, too.
"""

import asyncio
import functools
import json
import os
import random
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
)
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol, TypedDict

from patchlight.emulation.optical.crossbar import ChannelCrossbar, Crossbar
from patchlight.emulation.optical.matrices import (
    RequestRefused,
    SpectrumMatrix,
    SwitchMatrix,
)
from patchlight.testbed.errors import BadInput, PatchlightError, reason
from patchlight.testbed.lab.model import OpticalSwitch

_CHOICES: dict[str, tuple[str, ...]] = {
    "cut": ("", "before", "after"),
    "monitors": ("both", "out", "none"),
    "groups": ("", "any", "three", "fabrics"),
}


class HungUp(ConnectionError):
    """The device drops the connection because of a fault."""


@dataclass
class EmulatedFaults:
    """Faults of a device, and features that it lacks.

    As long as they are set: ``refuse_ports``: locked, refuse every circuit. ``fail_ports``: mirrors
    stuck, circuits fail. ``dark_ports``: circuits there are reported as up, and pass nothing.
    ``drift_db``: more loss at these outputs. ``read_only``: users may not make changes.
    ``repeat_pages``: long replies are sent as several whole replies. ``monitors``: power monitors
    ``"both"``, ``"out"`` (on outputs only) or ``"none"``, if a vendor sells such models. ``names``:
    the name of every circuit and port, where the protocol has names, with any quotes and line ends.
    ``groups``: which ports may be joined, where the protocol tells it: any input and any output,
    ``"any"`` two, ``"three"`` groups of which some may be joined, or four ``"fabrics"`` in a box.

    For the next command that changes something: ``refuse_next``: the message to refuse with.
    ``cut``: drop the connection ``"before"`` or ``"after"`` doing it. ``stall_s``: delay it;
    ``acknowledge``: and keep reporting that it is in progress. ``meddle``: cross-connects that
    another client breaks, or makes if missing, just before it.

    For the next answers: ``garble``, ``answer_twice`` and ``truncate``: how many are corrupted,
    sent twice, or end half-way. ``strays``: how many follow an unsolicited one (TL1: a denial with
    CTAG 0). ``flood``: how many alarms precede the next one.

    ``parse_map`` raises ``BadInput`` for texts that are not entries of the switch's map.
    """

    refuse_ports: list[int] = field(default_factory=list)
    fail_ports: list[int] = field(default_factory=list)
    dark_ports: list[int] = field(default_factory=list)
    drift_db: dict[str, float] = field(default_factory=dict)
    read_only: bool = False
    repeat_pages: bool = False
    monitors: str = "both"
    groups: str = ""
    names: str = ""
    acknowledge: bool = False
    refuse_next: str = ""
    cut: str = ""
    stall_s: float = 0.0
    meddle: str = ""
    garble: int = 0
    answer_twice: int = 0
    truncate: int = 0
    strays: int = 0
    flood: int = 0

    def __post_init__(self) -> None:
        self.parse_map: Callable[[list[str]], object] = list
        self.changes = 0
        self.before_change: Callable[[int], None] = lambda changes: None
        self.on_meddling: Callable[[str], Awaitable[None]] | None = None

    def update(self, request: dict[str, Any]) -> None:
        """Replace fields; ``BadInput`` names the first unknown field or wrong value."""
        known = {f.name: getattr(self, f.name) for f in fields(self)}
        for key, value in request.items():
            if key not in known:
                raise BadInput(
                    f"unknown fault {key!r}: expected one of {', '.join(known)}"
                )
            if not _fits(value, known[key]):
                raise BadInput(
                    f"{key} cannot be {value!r}: expected a value like {known[key]!r}"
                )
            if key in _CHOICES and value not in _CHOICES[key]:
                raise BadInput(
                    f"{key} cannot be {value!r}: expected one of {_CHOICES[key]}"
                )
            if key == "meddle" and value:
                self.parse_map(value.split(","))
        for key, value in request.items():
            setattr(self, key, value)

    @asynccontextmanager
    async def around_command(
        self,
        *,
        changes: bool,
        stall: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> AsyncIterator[str]:
        """Apply the faults to a command: yields the message to refuse it with, or ``""``.

        Raises ``HungUp`` before or after it; then one-time faults are over. ``stall`` waits that
        many seconds. ``before_change`` gets the number of earlier changing commands,
        ``on_meddling`` what another client changes first.
        """
        if not changes:
            yield ""
            return
        self.before_change(self.changes)
        self.changes += 1
        refusal = self.refuse_next
        cut = self.cut
        stall_s = self.stall_s
        meddled = self.meddle
        self.refuse_next = ""
        self.cut = ""
        self.stall_s = 0.0
        self.meddle = ""
        if meddled and self.on_meddling is not None:
            await self.on_meddling(meddled)
        if cut == "before":
            raise HungUp
        await stall(stall_s)
        yield refusal
        if cut == "after":
            raise HungUp

    def spoilt(self, answer: bytes) -> bytes:
        """An answer as the device sends it."""
        if self.garble > 0:
            self.garble -= 1
            answer = bytes(
                b ^ 0x15 if at % 5 == 2 else b for at, b in enumerate(answer)
            )
        if self.answer_twice > 0:
            self.answer_twice -= 1
            answer *= 2
        if self.truncate > 0:
            self.truncate -= 1
            answer = answer[: len(answer) // 2]
        return answer

    def take_stray(self) -> bool:
        """Whether an unsolicited answer comes now."""
        now = self.strays > 0
        self.strays -= now
        return now

    def take_flood(self) -> int:
        """How many alarms come now."""
        count = self.flood
        self.flood = 0
        return count


def _fits(value: object, like: object) -> bool:
    if isinstance(like, list):
        return isinstance(value, list) and all(
            type(item) is int for item in value
        )
    if isinstance(like, dict):
        return isinstance(value, dict) and all(
            key.isdigit() and type(item) in (int, float)
            for key, item in value.items()
        )
    if isinstance(like, float):
        return type(value) in (int, float)
    return type(value) is type(like)


class Timer(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None:
        """Cancel it."""


class Clock(Protocol):
    """A monotonic clock with scheduled calls, like an event loop's."""

    def time(self) -> float:
        """The time."""

    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer:
        """Call ``callback`` at ``when``."""


class DeviceOptions(TypedDict, total=False):
    """``state_file`` saves the map across restarts.

    ``users`` may log in with these passwords (``None``: with any); by default the lab file's users,
    with passwords from their environment variables. ``clock``: by default the running event loop.
    """

    users: Mapping[str, str | None] | None
    state_file: Path | None
    clock: Clock | None


class EmulatedSwitch(ABC):
    """One emulated device. ``crossbar`` connects its ports."""

    switch: OpticalSwitch
    matrix: SwitchMatrix | SpectrumMatrix
    _crossbar: Crossbar | ChannelCrossbar
    _parse_entries: Callable[[str], Iterable[Any]]
    _parse_map: Callable[[list[str]], Iterable[Any]]

    def __init__(
        self,
        switch: OpticalSwitch,
        matrix: SwitchMatrix | SpectrumMatrix,
        crossbar: Crossbar | ChannelCrossbar,
        *,
        users: Mapping[str, str | None] | None = None,
        state_file: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.switch = switch
        self.matrix = matrix
        self._crossbar = crossbar
        self.faults = EmulatedFaults()
        self.faults.parse_map = self._parse_map
        self.faults.on_meddling = self._meddle
        if users is None:
            variables = {switch.user: switch.password_env}
            variables |= {
                user.name: user.password_env for user in switch.emulated.users
            }
            users = {
                name: os.environ.get(var) if var else None
                for name, var in variables.items()
            }
        self._users = users
        self._viewers = frozenset(
            u.name for u in switch.emulated.users if u.read_only
        )
        self._own_clock = clock
        self._state_file = state_file
        self._lock = asyncio.Lock()
        self._timer: Timer | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = False

    # --- what a kind of switch adds ---------------------------------------------------------

    @abstractmethod
    def _add(self, entry: Any) -> None:
        """Make an entry of the map; ``RequestRefused``."""

    @abstractmethod
    def _drop(self, entry: Any) -> bool:
        """Remove an entry; ``False`` if it does not exist."""

    @abstractmethod
    async def _follow(self, now: float) -> None:
        """Let the crossbar apply the changes up to ``now``."""

    @abstractmethod
    def _kept(self) -> list[dict[str, Any]]:
        """The saved entries."""

    @abstractmethod
    def _restore(self, kept: list[dict[str, Any]]) -> None:
        """Restore saved entries."""

    @abstractmethod
    async def reboot(self, *, keep_map: bool) -> None:
        """Power cycle: all connections go down, then the active ones return, or none."""

    # --- from here on the same for all ------------------------------------------------------

    async def open(self) -> None:
        """Power on: the saved map, else the lab file's, becomes active immediately."""
        await self._crossbar.open()
        if self._state_file is not None and self._state_file.exists():
            try:
                self._restore(
                    json.loads(self._state_file.read_text())["circuits"]
                )
            except (
                OSError,
                ValueError,
                KeyError,
                TypeError,
                RequestRefused,
                PatchlightError,
            ) as e:
                raise PatchlightError(
                    f"{self.switch.name}: reading its circuits from {self._state_file}: "
                    f"{reason(e)}",
                    hint="delete the file to start with the lab file's cross-connects",
                ) from e
        else:
            for entry in self.switch.initial:
                self._add(entry)
        self.apply_faults()
        async with self._lock:
            # The mirrors were in place before the clock started.
            await self._follow(float("inf"))
            self._save()

    async def close(self) -> None:
        """Power off; the crossbar stays as it is."""
        if self._timer is not None:
            self._timer.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._crossbar.close()

    @property
    def _clock(self) -> Clock:
        return self._own_clock or asyncio.get_running_loop()

    def lets_in(self, user: str, password: str) -> bool:
        """Whether this user exists and has that password."""
        return user in self._users and self._users[user] in (None, password)

    def may_change(self, user: str) -> bool:
        """Whether this user may make changes."""
        return not self.faults.read_only and user not in self._viewers

    async def settle(self) -> None:
        """Update the crossbar and the saved map."""
        async with self._lock:
            await self._follow(self._clock.time())
            if self._changed:
                self._changed = False
                self._save()
            if self._timer is not None:
                self._timer.cancel()
            due = self.matrix.next_due()
            self._timer = (
                None if due is None else self._clock.call_at(due, self._on_due)
            )

    def _on_due(self) -> None:
        task = asyncio.get_running_loop().create_task(self.settle())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def come_to_rest(self) -> None:
        """Wait until no mirror moves."""
        while True:
            await self.settle()
            due = self.matrix.next_due()
            if due is None:
                return
            await asyncio.sleep(max(due - self._clock.time(), 0.0))

    async def lose(self, entries: str) -> None:
        """Remove these entries of the map without an event; may raise ``BadInput``."""
        for entry in self._parse_entries(entries):
            self._drop(entry)
        await self.settle()

    async def _meddle(self, entries: str) -> None:
        for entry in self._parse_map(entries.split(",")):
            if not self._drop(entry):
                # The other client is refused, too, if a port or channel is in use.
                with suppress(RequestRefused):
                    self._add(entry)
        await self.settle()

    async def faults_changed(self) -> None:
        """Apply the faults of ports and update the crossbar."""
        self.apply_faults()
        await self.settle()

    def apply_faults(self) -> None:
        """Lock and fail ports according to ``faults``; ``settle`` updates the crossbar."""
        self.matrix.locked = set(self.faults.refuse_ports)
        self.matrix.failed = set(self.faults.fail_ports)

    def loss_db(self, entry: object) -> float:
        """The insertion loss of one path: the device's plus a small deviation."""
        own = _own_loss_db(f"{self.switch.name}/{entry}")
        return max(self.switch.insertion_loss_db + own, 0.0)

    def _save(self) -> None:
        if self._state_file is None:
            return
        new = self._state_file.with_name(self._state_file.name + ".new")
        new.write_text(json.dumps({"version": 1, "circuits": self._kept()}))
        os.replace(new, self._state_file)


@functools.lru_cache(maxsize=1 << 17)
def _own_loss_db(path: str) -> float:
    return random.Random(path).uniform(-0.3, 0.3)
