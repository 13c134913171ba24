"""Faults that an emulated switch shows on demand: in its answers, its ports and its connections."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from typing import Any

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import PortMap

_CHOICES: dict[str, tuple[str, ...]] = {
    "cut": ("", "before", "after"),
    "monitors": ("both", "out", "none"),
}


class HungUp(ConnectionError):
    """The device drops the connection: a fault asks for it."""


@dataclass
class Faults:
    """What goes wrong, and what the device lacks.

    For as long as they are set: ``refuse_ports``: locked, refuse every circuit.
    ``fail_ports``: mirrors stuck, circuits fail. ``drift_db``: more loss at these outputs.
    ``read_only``: whoever logs in may only look. ``repeat_pages``: long replies come as whole
    replies one after another. ``monitors``: power monitors ``"both"``, ``"out"`` (on outputs
    only) or ``"none"``, where a vendor sells such models. ``names``: what every circuit and port is
    called, where the protocol tells of names, quotes and line ends and all.

    Used up by the next command that changes something: ``refuse_next``: the words to refuse
    with. ``cut``: drop the connection ``"before"`` or ``"after"`` doing it. ``stall_s``: do
    it so much later; ``acknowledge``: and keep saying that it is in progress. ``meddle``:
    cross-connects that another client breaks, or makes where they are not, just before it.

    Used up by the next answers, whatever to: ``garble`` and ``answer_twice``: so many come
    broken, or twice. ``strays``: before so many comes another, to nothing that was sent (TL1: a
    denial with CTAG 0). ``flood``: so many alarms come before the next one.

    ``parse_map`` raises ``BadInput`` for texts that are no entries of such a switch's map.
    """

    refuse_ports: list[int] = field(default_factory=list)
    fail_ports: list[int] = field(default_factory=list)
    drift_db: dict[str, float] = field(default_factory=dict)
    read_only: bool = False
    repeat_pages: bool = False
    monitors: str = "both"
    names: str = ""
    acknowledge: bool = False
    refuse_next: str = ""
    cut: str = ""
    stall_s: float = 0.0
    meddle: str = ""
    garble: int = 0
    answer_twice: int = 0
    strays: int = 0
    flood: int = 0

    def __post_init__(self) -> None:
        self.parse_map: Callable[[list[str]], object] = PortMap.parse
        self.changes = 0
        self.before_change: Callable[[int], None] = lambda changes: None
        self.on_meddling: Callable[[str], Awaitable[None]] | None = None

    def update(self, request: dict[str, Any]) -> None:
        """Replace fields; ``BadInput`` names the first that is not one or has a wrong type."""
        known = {f.name: getattr(self, f.name) for f in fields(self)}
        for key, value in request.items():
            if key not in known:
                raise BadInput(f"no fault is called {key!r}: known are {', '.join(known)}")
            if not _fits(value, known[key]):
                raise BadInput(f"{key} cannot be {value!r}: like {known[key]!r}")
            if key in _CHOICES and value not in _CHOICES[key]:
                raise BadInput(f"{key} cannot be {value!r}: one of {_CHOICES[key]}")
            if key == "meddle" and value:
                self.parse_map(value.split(","))
        for key, value in request.items():
            setattr(self, key, value)

    @asynccontextmanager
    async def around_command(
        self, *, changes: bool, stall: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> AsyncIterator[str]:
        """Let befall a command what is to: gives the words that it is refused with, or ``""``.

        Raises ``HungUp`` before or after it. What happens once is over after that. ``stall``
        waits so many seconds. ``before_change`` is told how many commands that change something
        came before this one, ``on_meddling`` what another client makes or breaks first.
        """
        if not changes:
            yield ""
            return
        self.before_change(self.changes)
        self.changes += 1
        refusal, cut, stall_s = self.refuse_next, self.cut, self.stall_s
        meddled = self.meddle
        self.refuse_next, self.cut, self.stall_s, self.meddle = "", "", 0.0, ""
        if meddled and self.on_meddling is not None:
            await self.on_meddling(meddled)
        if cut == "before":
            raise HungUp
        await stall(stall_s)
        yield refusal
        if cut == "after":
            raise HungUp

    def spoilt(self, answer: bytes) -> bytes:
        """An answer as it leaves the device."""
        if self.garble > 0:
            self.garble -= 1
            answer = bytes(b ^ 0x15 if at % 5 == 2 else b for at, b in enumerate(answer))
        if self.answer_twice > 0:
            self.answer_twice -= 1
            answer *= 2
        return answer

    def take_stray(self) -> bool:
        """Whether an answer to nothing comes now."""
        if self.strays <= 0:
            return False
        self.strays -= 1
        return True

    def take_flood(self) -> int:
        """How many alarms come now."""
        count, self.flood = self.flood, 0
        return count


def _fits(value: object, like: object) -> bool:
    if isinstance(like, list):
        return isinstance(value, list) and all(type(item) is int for item in value)
    if isinstance(like, dict):
        return isinstance(value, dict) and all(
            key.isdigit() and type(item) in (int, float) for key, item in value.items()
        )
    if isinstance(like, float):
        return type(value) in (int, float)
    return type(value) is type(like)
