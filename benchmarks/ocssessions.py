"""Random faulty sessions against the parsers of protocols, and what a connection may hold.

Between a driver and its emulated device a line that garbles, cuts, repeats and floods. Then floods
without an end: how much memory does each connection take before it gives up?
"""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import figure
from benchmarks.faulty_sessions import session
from patchlight.controller.circuits.protocols.tcp import (
    BUFFER_LIMIT,
    DeviceConnection,
    LineFramer,
)
from patchlight.controller.circuits.protocols.tl1_messages import Tl1Framer
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.ocs_drivers import OCS_DRIVERS

SESSIONS = {
    "calient-tl1": 3000,
    "polatis-tl1": 1000,
    "glimmerglass-tl1": 1000,
    "polatis-scpi": 5000,
    "calient-rest": 100,
    "polatis-restconf": 100,
    "sonic-ocs": 100,
}
_AT_ONCE = 40
_AT_ONCE_OVER_TLS = 10  # TLS takes processor time, and there are deadlines
_HANG_S = (
    60.0  # a session is some operations, each with deadlines that come to less
)
_CONNECTIONS = 64
_POLL_S = 0.02
# Nothing of these ever ends a message: an open quote in TL1, a line of numbers in SCPI.
_ENDLESS = {
    "TL1": b'\r\n\n   X 01-01-01 00:00:00\r\nM  1 COMPLD\r\n   "',
    "SCPI": b"(@",
}
_FRAMERS: dict[str, Any] = {"TL1": Tl1Framer, "SCPI": LineFramer}


def run() -> list[dict[str, Any]]:
    figures = [_faulty_sessions()]
    for kind in _FRAMERS:
        grown = asyncio.run(_memory(kind))
        name = f"memory that a connection flooded without an end holds at most, {kind}"
        name += f" (growth of {_CONNECTIONS} of them)"
        figures.append(figure(name, grown / 2**20, "MiB", "≤ 1 MiB"))
    return figures


def _faulty_sessions() -> dict[str, Any]:
    began = time.monotonic()
    before = _rss()
    seed = int(time.time()) % 1_000_000
    ended, wrong = asyncio.run(_all(seed))
    told = ", ".join(f"{n} {kind}" for kind, n in sorted(ended.items()))
    grown = (_rss() - before) / 1024
    for words in wrong[:5]:
        print(f"seed {seed}: {words}", file=sys.stderr)
    count = sum(SESSIONS.values())
    name = (
        f"of {count} random faulty sessions (TL1, SCPI, HTTPS): hung, raised what is not ours or "
        f"were wrong afterwards; {told}; {time.monotonic() - began:.0f} s, "
        f"{grown / count:.2f} KiB more memory a session"
    )
    return figure(name, len(wrong), "", "0")


async def _all(seed: int) -> tuple[Counter[str], list[str]]:
    ended = Counter[str]()
    wrong = list[str]()

    async def one(driver: str, number: int, turn: asyncio.Semaphore) -> None:
        async with turn:
            try:
                async with asyncio.timeout(_HANG_S):
                    ended[await session(driver, number)] += 1
            except Exception as error:  # whatever it is, it is what we count
                ended["wrong"] += 1
                wrong.append(
                    f"{driver} {number}: {type(error).__name__}: {error}"
                )

    for driver, count in SESSIONS.items():
        over_tls = "HTTPS" in OCS_DRIVERS[driver].transport
        turn = asyncio.Semaphore(_AT_ONCE_OVER_TLS if over_tls else _AT_ONCE)
        await asyncio.gather(
            *(one(driver, seed + number, turn) for number in range(count))
        )
    return ended, wrong


# -- what a connection holds -----------------------------------------------------------------


async def _memory(kind: str) -> float:
    """How many bytes a process grows by for each connection that is flooded."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(
        lambda _, writer: writers.append(writer), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.ocssessions",
        kind,
        str(port),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        await child.stdout.readline()  # all are connected
        begun = _ENDLESS[kind]
        # As much as is kept, and no more: so that all of them hold it at the same time.
        filling = b"1," * ((BUFFER_LIMIT - 4096) // 2)
        await asyncio.gather(
            *(_say(writer, begun + filling) for writer in writers)
        )
        child.stdin.write(b"measure\n")
        held = json.loads(await child.stdout.readline())
        await asyncio.gather(
            *(_say(writer, b"1," * 65536) for writer in writers)
        )
        child.stdin.write(b"end\n")
        given_up = json.loads(await child.stdout.readline())
    finally:
        for writer in writers:
            writer.close()
        server.close()
        await child.wait()
    if given_up["alive"]:
        raise PatchlightError(
            f"{given_up['alive']} {kind} connections took a flood for an answer"
        )
    return float(held["grown"]) / _CONNECTIONS


async def _say(writer: asyncio.StreamWriter, data: bytes) -> None:
    with suppress(OSError):  # it gives up, as it should
        writer.write(data)
        await writer.drain()


async def _hold(kind: str, port: int) -> None:
    """The flooded side: a process of its own, so that nothing else counts as its memory."""
    before = _rss()
    connections = []
    framers = [_FRAMERS[kind]() for _ in range(_CONNECTIONS)]
    for framer in framers:
        connections.append(
            await DeviceConnection.open(
                "127.0.0.1", port, framer, lambda _: False
            )
        )
    print("connected", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    held = BUFFER_LIMIT - 65536
    await _until(lambda: all(f.buffered >= held for f in framers))
    print(json.dumps({"grown": _rss() - before}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await _until(lambda: all(c.trouble for c in connections))
    print(
        json.dumps({"alive": sum(not c.trouble for c in connections)}),
        flush=True,
    )


async def _until(
    condition: Callable[[], bool], deadline_s: float = 30.0
) -> None:
    for _ in range(int(deadline_s / _POLL_S)):
        if condition():
            return
        await asyncio.sleep(_POLL_S)


def _rss() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        asyncio.run(_hold(sys.argv[1], int(sys.argv[2])))
    else:
        print(json.dumps(run(), indent=2, ensure_ascii=False))
