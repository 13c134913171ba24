"""Waits for several coroutines, and for one that may be interrupted."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def run_all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all; the first error once all have ended. ``asyncio.gather`` would leave the
    others at work after an error."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]


class EndRequested(Exception):
    """Work was interrupted, because its end was requested."""


async def run_unless(
    ordered: asyncio.Event, work: Callable[[], Coroutine[Any, Any, T]]
) -> T:
    """The result of ``work``; ``EndRequested`` if ``ordered`` is set before it is done.

    In each case ``work`` is over. It may never have begun, as a task that is cancelled before its
    first step runs no ``finally``: the caller, whom nobody cancels, cleans up after it.
    """
    if ordered.is_set():
        raise EndRequested
    task = asyncio.create_task(work())
    order = asyncio.create_task(ordered.wait())
    try:
        await asyncio.wait((task, order), return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
        order.cancel()
        await asyncio.wait((task, order))
    if not task.cancelled():
        return task.result()
    if ordered.is_set():
        raise EndRequested
    raise RuntimeError("the awaited work was cancelled")
