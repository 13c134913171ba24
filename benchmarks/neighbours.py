"""What a worker loses to a bad one beside it: one that forks wildly, fills memory or its disk.

Two workers of real agents on this machine. Counted is how often the neighbour gets round alone and
beside the bad one, in turns of one run, so that what else the machine does meanwhile falls on both.
It computes and touches memory, on one processor; the last figure is of one that writes files, too.
With fewer than two processors free, what it loses is its share of them; how often it gets round in
a second of processor time is told as well, and that hardly depends on what else runs.
"""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import figure
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux import docker_engine
from tests.support.agent_bench import Agent, Bench

TURNS = 5
TURN_S = 3.0
# So long a bad worker is given to get bad.
_WARM_S = 1.5
_MEMORY_BYTES = 256 * 2**20
LIMIT = "at least 0.9"

# It tells four times a second how often it got round, and in how many microseconds of a processor;
# the second word is what it writes each time.
NEIGHBOUR = """
import hashlib, os, sys, time
block, count, told = bytes(1 << 18), 0, 0.0
written = os.open("written", os.O_WRONLY | os.O_CREAT)
counted = os.open("count", os.O_WRONLY | os.O_CREAT)
while True:
    hashlib.sha256(block)
    bytearray(1 << 20)
    os.pwrite(written, block[: int(sys.argv[1])], 0)
    count += 1
    if time.monotonic() > told + 0.25:
        told = time.monotonic()
        os.pwrite(counted, b"%012d %012d" % (count, time.process_time_ns() // 1000), 0)
"""
FORKS = """
import os
while True:
    try:
        if not os.fork():
            os.setsid()
    except OSError:
        pass
"""
FILLS_MEMORY = """
import os
while True:
    child = os.fork()
    if not child:
        kept = []
        while True:
            kept.append(bytearray(os.urandom(1 << 12) * (1 << 10)))
    os.waitpid(child, 0)
"""
WRITES = """
import os
block = os.urandom(1 << 20)
while True:
    with open("much", "wb") as file:
        for _ in range(256):
            file.write(block)
        os.fsync(file.fileno())
"""
BAD = {
    "forks wildly": FORKS,
    "fills its memory": FILLS_MEMORY,
    "writes without end": WRITES,
}
_WRITTEN_BYTES = 1 << 18


def run() -> list[dict[str, Any]]:
    """A figure for each kind of bad worker, for processes and, where an engine is, containers."""
    if os.geteuid() != 0:
        raise PatchlightError(
            "workers need root", hint="run the benchmark with sudo"
        )
    has_image = docker_engine.has_image("patchlight-worker:latest")
    return [
        each
        for kind in ("process", *(["docker"] * has_image))
        for each in _measure(kind)
    ]


def _measure(kind: str) -> Iterator[dict[str, Any]]:
    with _bench() as bench:
        good, bad = bench.start_agents(2, workers=kind)
        for what, program in BAD.items():
            name = f"{kind}: rounds beside a worker that {what}"
            share, by_processor = _share(bench, good, bad, program, 0)
            yield figure(name, share, "of those alone", LIMIT)
            yield figure(
                f"{name}, for the same processor time",
                by_processor,
                "of those alone",
            )
        share, _ = _share(bench, good, bad, WRITES, _WRITTEN_BYTES)
        yield figure(
            f"{kind}: the same, of one that writes itself",
            share,
            "of those alone",
        )


def _share(
    bench: Bench, good: Agent, bad: Agent, program: str, written_bytes: int
) -> tuple[float, float]:
    """How often the neighbour gets round beside a bad worker, as a part of how often alone.

    In a second, and in a second of processor time.
    """
    _begin(
        good,
        bench.command(0, 2, "python3", "-c", NEIGHBOUR, str(written_bytes)),
    )
    count = bench.directory / "state-server1/workers/job-0/count"
    while not count.exists() or not count.read_text():
        time.sleep(0.05)
    # The other rank of the same job: to the agents any two workers are strangers.
    spec = bench.command(1, 2, "python3", "-c", program) | {
        "memory_bytes": _MEMORY_BYTES
    }
    shares = list[tuple[float, float]]()
    for _ in range(TURNS):
        alone = _rounds(count)
        _begin(bad, spec)
        time.sleep(_WARM_S)
        beside = _rounds(count)
        shares.append((beside[0] / alone[0], beside[1] / alone[1]))
        _end(bad, "job-1")
    _end(good, "job-0")
    by_time, by_processor = zip(*shares, strict=True)
    return statistics.median(by_time), statistics.median(by_processor)


def _begin(agent: Agent, spec: dict[str, Any]) -> None:
    made = agent.client.post("/workers", json=spec)
    if made.status_code != 201:
        raise PatchlightError(f"making worker {spec['id']}: {made.text}")
    agent.until_state(spec["id"], "ready")
    agent.client.post(f"/workers/{spec['id']}/start").raise_for_status()
    agent.until_state(spec["id"], "running")


def _end(agent: Agent, worker: str) -> None:
    answer = agent.client.delete(f"/workers/{worker}")
    if answer.status_code != 200:
        raise PatchlightError(f"ending worker {worker}: {answer.text}")


def _rounds(count: Path) -> tuple[float, float]:
    """Rounds in a second, and in a second of processor time."""
    began = time.monotonic()
    rounds, used_us = _counted(count)
    time.sleep(TURN_S)
    took_s = time.monotonic() - began
    rounds_then, used_then_us = _counted(count)
    more = rounds_then - rounds
    more_us = used_then_us - used_us
    return more / took_s, more / max(1, more_us) * 1e6


def _counted(count: Path) -> tuple[int, int]:
    rounds, used_us = count.read_text().split()
    return int(rounds), int(used_us)


@contextmanager
def _bench() -> Iterator[Bench]:
    folder = Path(tempfile.mkdtemp(prefix="pl-", dir="/tmp"))
    bench = Bench(folder, 2)
    try:
        bench.build()
        yield bench
    finally:
        try:
            bench.clear()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
