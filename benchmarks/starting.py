"""How long a worker in a container takes from the request to the end of its first iteration.

By real agents, image present, one at a time and six at once; beside it, in turns, how long the same
engine takes to run `true` in the same image, from creation to exit, which nobody can do without.
"""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import figure
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux import docker_engine
from tests.support.agent_bench import Agent, Bench

TURNS = 7
AT_ONCE = 6
IMAGE = "patchlight-worker:latest"
_PEER = "the engine alone: true"


def run() -> list[dict[str, Any]]:
    """The medians in seconds; ``PatchlightError`` without an engine that has the image."""
    if os.geteuid() != 0 or not docker_engine.has_image(IMAGE):
        raise PatchlightError(
            f"workers in containers need root, and an engine with {IMAGE}",
            hint="sudo deploy/with-docker-engine.sh .venv/bin/python -m benchmarks "
            "benchmarks.starting",
        )
    import docker

    engine = docker.from_env()
    with _agents() as agents, ThreadPoolExecutor(AT_ONCE) as pool:
        figures = []
        for count, limit in ((1, "at most 1.0"), (AT_ONCE, "at most 2.5")):
            ours = []
            alone = []
            for _ in range(TURNS):
                ours.append(
                    _longest(
                        pool,
                        lambda agent: _first_iteration(*agent),
                        agents[:count],
                    )
                )
                alone.append(
                    _longest(pool, lambda _: _alone(engine), agents[:count])
                )
            name = f"worker in a container, request to first iteration, {count} at once"
            value = statistics.median(ours)
            peer = statistics.median(alone)
            figures.append(
                figure(name, value, "s", limit, peer=_PEER, peer_value=peer)
            )
    engine.close()
    return figures


def _longest(
    pool: ThreadPoolExecutor,
    measure: Callable[[tuple[Agent, int]], float],
    agents: list[tuple[Agent, int]],
) -> float:
    return max(pool.map(measure, agents))


def _first_iteration(agent: Agent, number: int) -> float:
    spec = agent.bench.spec(
        number, AT_ONCE, iterations=1, compute_s=0.001, gradient_bytes=4
    )
    spec |= {"id": f"alone-{number}", "rank": 0, "neighbours": []}
    spec["ring"] = [{**spec["ring"][number], "rank": 0}]
    began = time.monotonic()
    made = agent.client.post("/workers", json=spec)
    if made.status_code != 201:
        raise PatchlightError(f"making a worker: {made.text}")
    worker = f"/workers/{spec['id']}"
    while agent.client.get(worker).json()["state"] == "starting":
        time.sleep(0.01)
    agent.client.post(f"{worker}/start").raise_for_status()
    while not agent.client.get(f"{worker}/reports").json()["reports"]:
        time.sleep(0.01)
    took_s = time.monotonic() - began
    agent.client.delete(worker).raise_for_status()
    return took_s


def _alone(engine: Any) -> float:
    began = time.monotonic()
    container = engine.containers.create(
        IMAGE, entrypoint=["true"], network_mode="none"
    )
    container.start()
    container.wait()
    took_s = time.monotonic() - began
    container.remove()
    return took_s


@contextmanager
def _agents() -> Iterator[list[tuple[Agent, int]]]:
    folder = Path(tempfile.mkdtemp(prefix="pl-", dir="/tmp"))
    bench = Bench(folder, AT_ONCE)
    try:
        bench.build()
        started = bench.start_agents(AT_ONCE, workers="docker")
        yield list(zip(started, range(AT_ONCE), strict=True))
    finally:
        try:
            bench.clear()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
