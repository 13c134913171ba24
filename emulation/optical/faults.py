"""Faults that an emulated OCS shows on demand, and the socket by which they are asked for.

The control socket takes one JSON object a line and answers each with one. Keys are the
fields of ``Faults`` (present ones replace what was), and the actions that the device knows:
``report`` (say an alarm), ``lose`` (a cross-connect) and ``reboot``.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from patchlight.testbed.emulated import OcsFault
from patchlight.testbed.errors import BadInput

log = logging.getLogger("patchlight.optical")

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
    only) or ``"none"``, where a vendor sells such models.

    Used up by the next command that changes something: ``refuse_next``: the words to refuse
    with. ``cut``: drop the connection ``"before"`` or ``"after"`` doing it. ``stall_s``: do
    it so much later; ``acknowledge``: and keep saying that it is in progress.

    Used up by the next answers, whatever to: ``garble`` and ``answer_twice``: so many come
    broken, or twice. ``flood``: so many alarms come before the next one.
    """

    refuse_ports: list[int] = field(default_factory=list)
    fail_ports: list[int] = field(default_factory=list)
    drift_db: dict[str, float] = field(default_factory=dict)
    read_only: bool = False
    repeat_pages: bool = False
    monitors: str = "both"
    acknowledge: bool = False
    refuse_next: str = ""
    cut: str = ""
    stall_s: float = 0.0
    garble: int = 0
    answer_twice: int = 0
    flood: int = 0

    def __post_init__(self) -> None:
        self.changes = 0
        self.before_change: Callable[[int], None] = lambda changes: None

    def update(self, request: dict[str, Any]) -> None:
        """Replace fields; ``BadInput`` names the first that is not one or has a wrong type."""
        known = {f.name: getattr(self, f.name) for f in fields(self)}
        for key, value in request.items():
            if key not in known:
                raise BadInput(f"no fault is called {key!r}: known are {', '.join(known)}")
            if not _fits(value, known[key]):
                raise BadInput(f"{key} cannot be {value!r}: like {known[key]!r}")
        for key, choices in _CHOICES.items():
            if key in request and request[key] not in choices:
                raise BadInput(f"{key} cannot be {request[key]!r}: one of {choices}")
        for key, value in request.items():
            setattr(self, key, value)

    @asynccontextmanager
    async def around_command(
        self, *, changes: bool, stall: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> AsyncIterator[str]:
        """Let befall a command what is to: gives the words that it is refused with, or ``""``.

        Raises ``HungUp`` before or after it. What happens once is over after that. ``stall``
        waits so many seconds. ``before_change`` is told how many commands that change something
        came before this one.
        """
        if not changes:
            yield ""
            return
        self.before_change(self.changes)
        self.changes += 1
        refusal, cut, stall_s = self.refuse_next, self.cut, self.stall_s
        self.refuse_next, self.cut, self.stall_s = "", "", 0.0
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


Action = Callable[[Any], Awaitable[None] | None]


class FaultRequests:
    """Takes objects that ask for faults and actions, and brings them about.

    ``applied`` is called after each change of ``faults``, ``settled`` then takes what time it
    needs. ``actions`` do at once what is asked for by their name, with its value, like
    ``{"report": "*C EQPT: 1.1.1: mirror stuck"}``; they raise ``BadInput``.
    """

    def __init__(
        self,
        faults: Faults,
        applied: Callable[[], None],
        settled: Callable[[], Awaitable[None]],
        actions: Mapping[str, Action],
    ) -> None:
        self._faults = faults
        self._applied, self._settled, self._actions = applied, settled, actions
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, path: Path) -> asyncio.Server:
        """Take requests on a Unix socket, replacing one that nobody serves any more."""
        await asyncio.to_thread(path.unlink, missing_ok=True)
        server = await asyncio.start_unix_server(self._serve, path)
        await asyncio.to_thread(path.chmod, 0o600)
        return server

    async def schedule(self, faults: Sequence[OcsFault]) -> None:
        """Bring about a lab file's faults in their time: at once, later, or before a change.

        Those that are to be there from the start are there on return.
        """
        counted = [fault for fault in faults if fault.after_changes]

        def before_change(changes: int) -> None:
            for fault in [fault for fault in counted if fault.after_changes <= changes]:
                counted.remove(fault)
                # Faults stand now, actions come soon after.
                self._start(self._act(self._begin(fault.control)))

        self._faults.before_change = before_change
        for fault in faults:
            if fault.after_s:
                self._start(self._later(fault))
            elif not fault.after_changes:
                await self._take(fault.control)

    def end(self) -> None:
        """Cancel what is still to come."""
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _later(self, fault: OcsFault) -> None:
        await asyncio.sleep(fault.after_s)
        try:
            await self._take(fault.control)
        except BadInput as error:
            log.warning("the fault %s of the lab file: %s", fault.control, error.message)

    async def _take(self, request: Mapping[str, Any]) -> None:
        await self._act(self._begin(request))

    def _begin(self, request: Mapping[str, Any]) -> dict[str, Any]:
        actions = {name: value for name, value in request.items() if name in self._actions}
        self._faults.update({name: request[name] for name in request if name not in actions})
        self._applied()
        return actions

    async def _act(self, actions: dict[str, Any]) -> None:
        await self._settled()
        for name, value in actions.items():
            done = self._actions[name](value)
            if inspect.isawaitable(done):
                await done

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                answer = await self._answer(line)
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            # The other end went, or its line was longer than a line may be.
            return
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise BadInput("expected a JSON object")
            await self._take(request)
        except (BadInput, ValueError) as error:
            return {"ok": False, "error": str(error)}
        return {"ok": True, "faults": asdict(self._faults)}
