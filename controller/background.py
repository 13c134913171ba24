"""The controller's background parts: each runs apart from the others, and again where it fails."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from patchlight.testbed.errors import in_words

_log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
# One that ran for this long did not fail of the same thing again.
_LONG_LIFE_S = 60.0


@dataclass
class _Part:
    name: str
    task: asyncio.Task[None] | None = None
    waits: bool = False
    faults: int = 0
    last_fault: str = ""
    last_fault_at: float | None = None


class Background:
    """Runs parts that have no end. One that fails begins again after a pause, and says so.

    The pause doubles from 0.2 s to 30 s, and is short again after a minute without a fault.
    ``on_fault`` is told the part and what happened, in words.
    """

    def __init__(self, on_fault: Callable[[str, str], None]) -> None:
        self._on_fault = on_fault
        self._parts: list[_Part] = []

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run this from now on, each time anew, until ``close``."""
        part = _Part(name)
        part.task = asyncio.create_task(self._keep(part, run), name=name)
        self._parts.append(part)

    def status(self) -> list[dict[str, Any]]:
        """Each part: whether it runs now, how often it failed, and of what the last time."""
        return [
            {
                "name": part.name,
                "running": not part.waits,
                "faults": part.faults,
                "last_fault": part.last_fault,
                "last_fault_at": part.last_fault_at,
            }
            for part in self._parts
        ]

    async def close(self) -> None:
        """End all parts."""
        tasks = [part.task for part in self._parts if part.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, part: _Part, run: Callable[[], Awaitable[None]]) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            try:
                await run()
                why = "it ended by itself"
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                why = "what it waited for was cancelled"  # and not the part itself
            except Exception as error:
                why = in_words(error)
                _log.exception("the controller's %s failed and begins again", part.name)
            part.waits, part.faults = True, part.faults + 1
            part.last_fault, part.last_fault_at = why, time.time()
            try:
                self._on_fault(part.name, why)
            except Exception:  # A disk that is full, say: the part is to begin again all the same.
                _log.exception("noting a fault of %s", part.name)
            if time.monotonic() - began > _LONG_LIFE_S:
                pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            part.waits = False
