"""News of what takes long, for whoever watches it: a number that grows, and waiting for it."""

import asyncio
from contextlib import suppress


class News:
    """``step`` counts what was told."""

    def __init__(self) -> None:
        self.step = 0
        self._next: asyncio.Event | None = None

    def tell(self) -> None:
        """There is something new: wake who waits for that."""
        self.step += 1
        if self._next is not None:
            self._next.set()
            self._next = None

    async def after(self, step: int, wait_s: float) -> None:
        """Wait until there is a step after that one, at most so long."""
        if self.step > step:
            return
        told = self._next = self._next or asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await told.wait()
