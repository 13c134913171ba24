"""Events as they happen: in order, without loss over a break, and said where some are gone."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from patchlight.controller.api.events import EventFeed
from patchlight.controller.storage.store import Store
from tests.support.controller_process import controller_process
from tests.support.waiting import PATIENCE_S, eventually


def told(frame: bytes) -> dict[str, Any]:
    lines = frame.decode().strip().splitlines()
    return dict(json.loads(lines[-1].removeprefix("data: ")))


async def some(
    pieces: AsyncIterator[bytes], count: int
) -> list[dict[str, Any]]:
    """So many events, of pieces that may have several."""
    frames: list[bytes] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(frames) < count:
            frames += (await anext(pieces)).split(b"\n\n")[:-1]
    assert len(frames) == count
    return [told(frame) for frame in frames]


def filled(count: int) -> Store:
    store = Store(":memory:")
    store.add_events(
        "alarm", [(float(n), {"n": n}) for n in range(1, count + 1)]
    )
    return store


async def test_events_come_in_order_also_from_far_back() -> None:
    store = filled(2500)
    frames = EventFeed(store).follow(3)
    rows = await some(frames, 2497)
    assert [row["number"] for row in rows] == list(range(4, 2501))
    store.add_event(1.0, "drift", {"text": "two\nlines \ud800"})
    (row,) = await some(frames, 1)
    assert (row["number"], row["kind"], row["text"]) == (
        2501,
        "drift",
        "two\nlines ?",
    )


async def test_who_names_no_number_hears_of_what_is_new() -> None:
    store = filled(3)
    feed = EventFeed(store)
    listening = [
        asyncio.create_task(some(feed.follow(), 2)) for _ in range(20)
    ]
    await asyncio.sleep(0)
    for n in range(2):
        store.add_event(1.0, "drift", {"n": n})
    heard = await asyncio.gather(*listening)
    assert [[row["number"] for row in rows] for rows in heard] == [[4, 5]] * 20


async def test_what_is_not_kept_any_more_is_said() -> None:
    store = filled(10)
    store.forget(before=6.0)
    rows = await some(EventFeed(store).follow(2), 6)
    assert rows[0] == {"kind": "skipped", "first": 3, "last": 5}
    assert rows[1]["number"] == 6
    (row,) = await some(EventFeed(store).follow(50), 1)
    assert row == {"kind": "skipped", "first": 11, "last": 50}


async def test_a_listener_hears_that_there_is_nothing_new() -> None:
    pieces = EventFeed(filled(1), sign_of_life_s=0.1).follow()
    async with asyncio.timeout(PATIENCE_S):
        assert [await anext(pieces) for _ in range(2)] == [
            b": nothing new\n\n"
        ] * 2


async def test_listeners_hear_on_after_a_disk_in_trouble() -> None:
    store = filled(1)
    feed = EventFeed(store)
    hearing = asyncio.create_task(some(feed.follow(), 1))
    await asyncio.sleep(0)
    # Until it has looked once; no query of the table succeeds meanwhile.
    store.script("ALTER TABLE events RENAME TO away")
    await asyncio.sleep(0.3)  # some of its looks fail
    store.script("ALTER TABLE away RENAME TO events")
    store.add_event(1.0, "drift", {})
    (row,) = await hearing
    assert row["number"] == 2


async def test_nobody_is_listened_for_when_nobody_listens() -> None:
    feed = EventFeed(filled(1))
    before = len(asyncio.all_tasks())
    frames = feed.follow(0)
    await some(frames, 1)
    assert len(asyncio.all_tasks()) == before + 1
    waiting = asyncio.create_task(some(frames, 1))
    await asyncio.sleep(0)
    feed.close()
    with contextlib.suppress(StopAsyncIteration, RuntimeError):
        await waiting
    await eventually(
        lambda: len(asyncio.all_tasks()) == before, "the feed to end"
    )


def test_a_client_goes_on_after_the_controller_was_started_again(
    tmp_path: Path,
) -> None:
    with controller_process(tmp_path) as process:
        first = process.client.last_event()
        heard: list[int] = []
        done = threading.Event()

        def listen() -> None:
            for event in process.client.follow_events(first):
                if event["kind"] == "circuits":
                    heard.append(event["id"])
                if len(heard) == 3:
                    done.set()
                    return

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        made = [
            process.client.reconfigure({"o1": [f"{n}-{n + 1}"]}).id
            for n in (7, 9)
        ]
        # A listener does not keep it from ending.
        assert process.stop() == 0
        process.start()
        made.append(process.client.reconfigure({"o1": ["11-12"]}).id)
        assert done.wait(PATIENCE_S)
        assert heard == made
        stream = {"Accept": "text/event-stream", "Last-Event-ID": str(first)}
        url = f"http://{process.api}/v1/events?after=0"
        options: dict[str, Any] = {"trust_env": False, "timeout": PATIENCE_S}
        with httpx.stream("GET", url, headers=stream, **options) as answer:
            assert answer.headers["content-type"].startswith(
                "text/event-stream"
            )
            assert next(answer.iter_lines()) == f"id: {first + 1}"
