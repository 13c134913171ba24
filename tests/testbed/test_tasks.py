"""Coroutines that are awaited together, or may be interrupted."""

import asyncio

import pytest

from patchlight.testbed.tasks import EndRequested, run_all, run_unless


async def test_all_have_ended_before_the_first_error_is_raised() -> None:
    ended = []

    async def fails() -> None:
        raise ValueError("first")

    async def lasts() -> None:
        await asyncio.sleep(0.01)  # longer than the other takes to fail
        ended.append("lasts")

    with pytest.raises(ValueError, match="first"):
        await run_all([fails(), lasts(), fails()])
    assert ended == ["lasts"]


async def test_errors_that_are_answers_are_no_failures() -> None:
    async def answer(value: object) -> object:
        return value

    error = ValueError("an answer")
    assert await run_all(map(answer, (1, error))) == [1, error]
    assert await run_all([]) == []


async def test_work_is_interrupted_by_an_order_and_keeps_a_result_that_came_with_it() -> (
    None
):
    order = asyncio.Event()

    async def gives_the_order(then_s: float) -> str:
        order.set()
        # How long after the order its result comes.
        await asyncio.sleep(then_s)
        return "done"

    async def at_once() -> str:
        order.set()
        return "done"

    assert await run_unless(order, at_once) == "done"
    with pytest.raises(EndRequested):
        await run_unless(order, at_once)
    order.clear()
    with pytest.raises(EndRequested):
        await run_unless(order, lambda: gives_the_order(60))


async def test_what_is_cancelled_by_others_is_not_an_order() -> None:
    gone = asyncio.get_running_loop().create_future()
    gone.cancel()

    async def waits() -> None:
        await gone

    with pytest.raises(RuntimeError, match="was cancelled"):
        await run_unless(asyncio.Event(), waits)
