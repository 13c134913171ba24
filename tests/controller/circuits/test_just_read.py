"""A map that was read a moment ago spares reading it again, and is never kept for longer."""

import asyncio

from patchlight.controller.circuits.drivers.table import JustRead


async def test_a_table_is_used_again_for_a_moment_and_not_after_something_was_told() -> (
    None
):
    asked = 0

    async def ask() -> int:
        nonlocal asked
        asked += 1
        return asked

    loop = asyncio.get_running_loop()
    just_read = JustRead[int]()
    assert just_read.table is None
    began = loop.time()
    assert await just_read.again(ask) == 1
    again = await just_read.again(ask)
    if loop.time() - began <= 0.01:  # else this machine is too busy to tell
        assert again == 1
    just_read.forget()
    assert just_read.table is None
    assert await just_read.again(ask) == again + 1
    assert await just_read.read(ask) == again + 2
    await asyncio.sleep(0.011)  # a table is kept for less
    assert just_read.table is None
    assert await just_read.again(ask) == again + 3


async def test_a_table_that_took_long_to_come_is_old_when_it_is_here() -> None:
    async def ask() -> str:
        await asyncio.sleep(0.02)  # it takes longer than a table is kept
        return "table"

    just_read = JustRead[str]()
    assert await just_read.read(ask) == "table"
    assert just_read.table is None


async def test_a_table_that_was_asked_for_before_something_was_told_is_not_kept() -> (
    None
):
    just_read = JustRead[str]()
    told = asyncio.Event()

    async def ask() -> str:
        await told.wait()
        return "old"

    reading = asyncio.create_task(just_read.read(ask))
    await asyncio.sleep(0)
    just_read.forget()
    told.set()
    assert await reading == "old"
    assert just_read.table is None
