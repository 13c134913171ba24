"""Paths of light: what schedulers decide a second, and how long a path takes to come by.

Over the controller: from the request for a path between two of four hosts to its grant, over a kept
connection on loopback, by one client and by four at a time. Among the nodes: from asking to
light, over UDP on loopback, all four nodes in this one process, each towards the next (nobody
waits for anybody) and each towards any (some do). Times of a machine that does other things are
longer; the processor time is of the controller, or of all nodes, for one path.
"""

import asyncio
import http.client
import json
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import figure
from benchmarks.api import cpu_s
from patchlight.agents.path_node import PathNode
from patchlight.testbed.paths.agreement import Bounds
from patchlight.testbed.paths.schedulers import (
    SCHEDULERS,
    in_time,
    path_scheduler,
)
from patchlight.testbed.paths.scheduling import FlowRequest, PathNetwork
from tests.support.coloured_labs import STAR
from tests.support.controller_process import ControllerProcess
from tests.support.waiting import free_ports

NODES = (4, 16, 64, 256, 1024)
FLOWS_OF_A_NODE = 4
PATHS_OVER_API = 100
PATHS_AMONG_NODES = 300
HOSTS = [f"server{number}.nic0" for number in range(1, 5)]


def run() -> list[dict[str, Any]]:
    """The figures."""
    return [*_schedulers(), *_central(), *asyncio.run(_distributed())]


def _schedulers() -> Iterator[dict[str, Any]]:
    for name in SCHEDULERS:
        for nodes in NODES:
            network = PathNetwork(
                nodes, nodes, rate_bps=100e9, tuning_s=100e-9
            )
            ring = [
                FlowRequest(n, n, (n + 1) % nodes, 1e6, collective="r")
                for n in range(nodes)
            ]
            scheduler = path_scheduler(name, network)
            began_s = time.process_time()
            scheduler.admit(ring, 0.0)
            given = scheduler.grants(0.0)
            took_s = time.process_time() - began_s
            assert len(given) == nodes
            yield figure(
                f"{name}: a ring's round of {nodes} flows, CPU",
                1e3 * took_s,
                "ms",
            )
            flows = _random_flows(nodes)
            began_s = time.process_time()
            done = sum(
                1 for _ in in_time(path_scheduler(name, network), flows)
            )
            took_s = time.process_time() - began_s
            words = f"{name}: decisions a CPU second, {nodes} nodes"
            yield figure(words, done / took_s, "1/s")


def _random_flows(nodes: int) -> list[tuple[float, FlowRequest]]:
    """Flows between any two, that keep every node busy for most of the time."""
    chance = random.Random(nodes)
    flows = []
    for number in range(FLOWS_OF_A_NODE * nodes):
        source, destination = chance.sample(range(nodes), 2)
        nbytes = chance.expovariate(1e-6) + 1
        at_s = chance.uniform(0.0, FLOWS_OF_A_NODE * 80e-6)
        flows.append((at_s, FlowRequest(number, source, destination, nbytes)))
    return flows


class _Star(ControllerProcess):
    """A controller of four servers on a star coupler."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (openflow,) = free_ports(1)
        self.lab.write_text(
            f'{STAR}controller: {{openflow: "127.0.0.1:{openflow}"}}\n'
        )


def _central() -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        process = _Star(Path(folder))
        process.start()
        try:
            for clients in (1, 4):
                delays_s: list[float] = []
                used_s = cpu_s(process)

                def ask(number: int, delays_s: list[float] = delays_s) -> None:
                    delays_s += _asked(process.api, number)

                _side_by_side(clients, ask)
                used_s = cpu_s(process) - used_s
                yield from _delays(
                    f"over the controller, clients {clients}", delays_s, used_s
                )
        finally:
            process.stop()


def _asked(api: str, number: int) -> list[float]:
    """From request to grant, each to the next host, where nobody else sends to."""
    connection = http.client.HTTPConnection(api, timeout=60)
    ends = {
        "source": HOSTS[number],
        "destination": HOSTS[(number + 1) % len(HOSTS)],
    }
    delays_s = []
    for _ in range(PATHS_OVER_API):
        began_s = time.monotonic()
        path = _answer(connection, "POST", "/v1/paths", {**ends, "bytes": 1e6})
        while path["state"] == "waiting":
            path = _answer(
                connection, "GET", f"/v1/paths/{path['id']}?wait_s=10"
            )
        delays_s.append(time.monotonic() - began_s)
        _answer(connection, "DELETE", f"/v1/paths/{path['id']}")
    connection.close()
    return delays_s


def _answer(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
) -> Any:
    text = None if body is None else json.dumps(body)
    connection.request(
        method,
        path,
        text,
        {"Content-Type": "application/json"} if text else {},
    )
    answer = connection.getresponse()
    found = json.loads(answer.read())
    assert answer.status < 300, found
    return found


def _side_by_side(count: int, act: Callable[[int], None]) -> None:
    threads = [
        threading.Thread(target=act, args=(number,)) for number in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def _distributed() -> list[dict[str, Any]]:
    bounds = Bounds(1, 4, (0, 1, 2, 3), lease_us=100_000, margin_us=10_000)
    addresses = [f"127.0.0.1:{port}" for port in free_ports(4)]
    key = bytes(32)
    nodes = [
        PathNode(n, bounds, addresses, key, lambda path: None)
        for n in range(4)
    ]
    for node in nodes:
        node.open()
    await asyncio.sleep(max(node.ready_s for node in nodes))
    found: list[dict[str, Any]] = []
    try:
        for words, senders, to_any in (
            ("senders 1", 1, False),
            ("senders 4", 4, False),
            ("senders 4, to any", 4, True),
        ):
            used_s = time.process_time()
            delays_s = await asyncio.gather(
                *(_granted(nodes, number, to_any) for number in range(senders))
            )
            used_s = time.process_time() - used_s
            found += _delays(
                f"among nodes, {words}",
                [s for each in delays_s for s in each],
                used_s,
            )
    finally:
        for node in nodes:
            node.close()
    return found


async def _granted(
    nodes: list[PathNode], number: int, to_any: bool
) -> list[float]:
    chance = random.Random(number)
    delays_s = []
    for _ in range(PATHS_AMONG_NODES):
        to = (number + (chance.randint(1, 3) if to_any else 1)) % 4
        began_s = time.monotonic()
        async with nodes[number].path(to, patience_s=60.0):
            delays_s.append(time.monotonic() - began_s)
            await asyncio.sleep(0)
    return delays_s


def _delays(
    words: str, delays_s: list[float], used_s: float
) -> Iterator[dict[str, Any]]:
    name = f"a path {words}"
    yield figure(f"{name}: median", 1e3 * statistics.median(delays_s), "ms")
    yield figure(
        f"{name}: p99", 1e3 * statistics.quantiles(delays_s, n=100)[98], "ms"
    )
    yield figure(f"{name}: CPU", 1e3 * used_s / len(delays_s), "ms")
