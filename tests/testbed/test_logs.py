"""The log of a process: no flood of one kind, and nothing that means nothing."""

import asyncio
import logging
from pathlib import Path

import httpx
import pytest

from patchlight.testbed.logs import Sparing, log_to_stderr, log_trouble
from tests.support.waiting import eventually


def test_a_flood_of_one_kind_is_counted_and_others_are_not_touched() -> None:
    now = 0.0
    handled: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: handled.append(record.getMessage())  # type: ignore[method-assign]
    handler.addFilter(Sparing(lambda: now))
    log = logging.Logger("library")
    log.addHandler(handler)

    def garbled(peer: int) -> None:
        # As libraries do it: no two texts are the same.
        log.error(f"garbled by {peer}")

    for peer in range(500):
        garbled(peer)
    log.error("quite another")
    assert len(handled) == 11
    assert (
        handled[9]
        == "garbled by 9 (similar messages are suppressed for a minute)"
    )
    assert handled[10] == "quite another"
    now = 61.0
    garbled(500)
    assert (
        handled[11] == "garbled by 500 (490 similar messages were suppressed)"
    )


def test_only_standard_error_is_limited(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log_to_stderr(logging.INFO, "%(message)s")
    caplog.set_level(logging.INFO)
    for _ in range(30):
        logging.getLogger("library").info("the same again")
    assert len(caplog.records) == 30


async def test_a_read_cancelled_as_its_answer_comes_is_no_trouble(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = asyncio.Event()

    async def answer_late(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n")
        asked.set()
        await reader.read()
        writer.close()

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log_trouble)
    server = await asyncio.start_unix_server(answer_late, tmp_path / "agent")
    async with (
        server,
        httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(tmp_path / "agent"))
        ) as client,
    ):
        asking = asyncio.create_task(client.get("http://agent/"))
        await asked.wait()
        # In one turn of the loop the answer's first line is there, and the request is given up.
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert "InvalidStateError" not in caplog.text
    loop.call_soon(asyncio.Future[None]().exception)
    await eventually(lambda: "InvalidStateError" in caplog.text)


def test_what_is_logged_of_others_moves_no_cursor_of_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.Logger("root")
    monkeypatch.setattr(logging, "root", root)
    log_to_stderr(logging.INFO, "%(message)s")
    root.warning("ocs1 says %s", "\x1b[2Jgone")
    assert capsys.readouterr().err == "ocs1 says \\x1b[2Jgone\n"
