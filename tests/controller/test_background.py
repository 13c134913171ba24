"""A background part that fails is started again, and shows."""

import asyncio
from collections.abc import Awaitable, Callable

from patchlight.controller.parts import Background
from patchlight.testbed.errors import PatchlightError
from tests.support.waiting import eventually


def fails_then_runs(
    errors: list[Exception], runs: list[str]
) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        if errors:
            raise errors.pop(0)
        runs.append("runs")
        await never()

    return run


async def never() -> None:
    await asyncio.Event().wait()


async def test_a_part_that_fails_begins_again_and_says_so() -> None:
    told: list[tuple[str, str]] = []
    runs: list[str] = []
    background = Background(lambda part, why: told.append((part, why)))
    background.start(
        "ill",
        fails_then_runs([ZeroDivisionError("x"), PatchlightError("y")], runs),
    )
    background.start("well", never)
    try:
        await eventually(lambda: runs == ["runs"], "the part to begin again")
        ill, well = background.status()
        assert told == [
            ("ill", "unexpected ZeroDivisionError: x"),
            ("ill", "y"),
        ]
        assert (ill.running, ill.faults, ill.last_fault) == (
            True,
            2,
            "y",
        )
        assert (well.running, well.faults) == (True, 0)
    finally:
        await background.close()


async def test_a_part_that_waits_for_what_is_cancelled_begins_again() -> None:
    runs: list[str] = []

    async def run() -> None:
        runs.append("runs")
        waited_for = asyncio.get_running_loop().create_future()
        if len(runs) == 1:
            waited_for.cancel()
        await waited_for

    background = Background(lambda part, why: None)
    background.start("ill", run)
    try:
        await eventually(lambda: len(runs) == 2, "the part to begin again")
        assert background.status()[0].last_fault == "its work was cancelled"
    finally:
        await background.close()
    assert len(runs) == 2


async def test_a_part_that_cannot_be_noted_begins_again_all_the_same() -> None:
    def full(part: str, why: str) -> None:
        raise PatchlightError("the disk is full")

    runs: list[str] = []
    background = Background(full)
    background.start("ill", fails_then_runs([ValueError("x")], runs))
    try:
        await eventually(lambda: runs == ["runs"], "the part to begin again")
    finally:
        await background.close()
