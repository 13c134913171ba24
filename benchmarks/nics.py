"""How long a NIC takes to a worker and back: read, moved, addressed, and put back as it was.

A veth with a rate limit and 15 static neighbours, between two namespaces, and a macvlan on one. A
NIC in hardware takes its driver's time besides: that was not measured.
"""

import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks import figure
from patchlight.agents.nics.moving import give_nic, read_nic, take_nic_back
from patchlight.agents.nics.state import NicAccess, WorkerNetwork
from patchlight.testbed.lab.model import NicMode
from patchlight.testbed.linux import namespaces

ROUNDS = 60
LIMIT_MS = 50
LIMIT = "tbf rate 40mbit burst 16k latency 50ms"
NETWORK = WorkerNetwork(
    "10.79.0.11",
    24,
    mac="02:4c:0a:4f:00:0b",
    neighbours=tuple(
        (f"10.79.0.{n}", f"02:4c:0a:4f:00:{n:02x}") for n in range(20, 35)
    ),
)


def run() -> list[dict[str, Any]]:
    """The medians, in milliseconds."""
    ways: tuple[NicMode, ...] = ("veth", "macvlan")
    return [each for mode in ways for each in _measure(mode)]


def _measure(mode: NicMode) -> Iterator[dict[str, Any]]:
    there_ms = []
    back_ms = []
    with _spaces() as (server, worker):
        home = namespaces.namespace_path(server)
        away = namespaces.namespace_path(worker)
        for _ in range(ROUNDS):
            began = time.perf_counter()
            state = namespaces.inside(
                home, lambda: read_nic(NicAccess(mode, "nic0"))
            )
            namespaces.inside(
                home,
                lambda state=state: give_nic(state, away, NETWORK),  # type: ignore[misc]
            )
            given = time.perf_counter()
            take_nic_back(state, away, home)
            there_ms.append(1e3 * (given - began))
            back_ms.append(1e3 * (time.perf_counter() - given))
    limit = f"at most {LIMIT_MS}"
    for what, times in (("to a worker", there_ms), ("back", back_ms)):
        yield figure(
            f"NIC {what}, {mode}", statistics.median(times), "ms", limit=limit
        )


@contextmanager
def _spaces() -> Iterator[tuple[str, str]]:
    names = [
        f"pl.bench-{os.getpid()}.{part}"
        for part in ("server", "worker", "fabric")
    ]
    server, worker, fabric = names
    try:
        for name in names:
            namespaces.create(name)
        for command in (
            f"ip -n {fabric} link add p0 type veth peer name nic0 netns {server}",
            f"ip -n {fabric} link set p0 up",
            f"ip -n {server} link set nic0 up",
            f"ip netns exec {server} tc qdisc add dev nic0 root {LIMIT}",
        ):
            subprocess.run(command.split(), check=True)
        yield server, worker
    finally:
        for name in names:
            namespaces.delete(name)
