"""The REST API beside a 320-port OCS: reads over kept connections, and 200 listeners to events.

Clients are bare sockets in this process. The processor time is the controller's alone, by what the
kernel counts for it; rates and delays are those of this machine as busy as it is.
"""

import json
import os
import selectors
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import figure
from tests.support.controller_process import ControllerProcess

PORTS = 320
PATHS = (
    "/v1/circuits",
    "/v1/links",
    "/v1/status",
    "/v1/jobs",
    "/v1/reconfigurations?last=20",
)
READS = 3000
LISTENERS = 200
EVENTS = 100
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def run() -> list[dict[str, Any]]:
    """The figures."""
    with tempfile.TemporaryDirectory() as folder:
        process = ControllerProcess(Path(folder))
        process.lab.write_text(
            process.lab.read_text().replace("ports: 16", f"ports: {PORTS}")
        )
        process.start()
        try:
            pairs = [f"{port}-{port + 1}" for port in range(7, PORTS, 2)]
            process.client.reconfigure({"o1": pairs})
            return [*_reads(process), *_listeners(process)]
        finally:
            process.stop()


def _reads(process: ControllerProcess) -> Iterator[dict[str, Any]]:
    with connected(process, b"") as connection:
        times_s = []
        used_s = cpu_s(process)
        began = time.monotonic()
        for n in range(READS):
            asked = time.monotonic()
            read(connection, PATHS[n % len(PATHS)])
            times_s.append(time.monotonic() - asked)
        took_s = time.monotonic() - began
        used_s = cpu_s(process) - used_s
    name = f"API with an OCS of {PORTS} ports"
    p99_s = statistics.quantiles(times_s, n=100)[98]
    yield figure(
        f"{name}: reads, one client",
        READS / took_s,
        "1/s",
        "at least 500 on 2 cores",
    )
    yield figure(
        f"{name}: reads a second of the controller's processor",
        READS / used_s,
        "1/s",
    )
    yield figure(
        f"{name}: 99th percentile of a read", 1e3 * p99_s, "ms", "at most 50"
    )


def _listeners(process: ControllerProcess) -> Iterator[dict[str, Any]]:
    ask = b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
    with ExitStack() as stack, selectors.DefaultSelector() as ready:
        heard: dict[socket.socket, bytearray] = {}
        for _ in range(LISTENERS):
            connection = stack.enter_context(connected(process, ask))
            heard[connection] = bytearray(connection.recv(4096))
            ready.register(connection, selectors.EVENT_READ)
        used_s = cpu_s(process)
        first = process.client.last_event()
        delays_s: list[float] = []
        for _ in range(EVENTS // 2):
            process.client.lock("o1", [1])
            process.client.unlock("o1", [1])
            delays_s += _take(ready, heard, 0.02)
        deadline = time.monotonic() + 30
        wanted = LISTENERS * (process.client.last_event() - first)
        while len(delays_s) < wanted and time.monotonic() < deadline:
            delays_s += _take(ready, heard, 0.2)
        used_s = cpu_s(process) - used_s
    name = f"{LISTENERS} listeners, {EVENTS} events"
    yield figure(f"{name}: lost", wanted - len(delays_s), "events", "0")
    yield figure(
        f"{name}: median delay", 1e3 * statistics.median(delays_s), "ms"
    )
    p99_s = statistics.quantiles(delays_s, n=100)[98]
    yield figure(
        f"{name}: 99th percentile of the delay",
        1e3 * p99_s,
        "ms",
        "at most 250",
    )
    yield figure(f"{name}: the controller's processor", used_s, "s")


def _take(
    ready: selectors.BaseSelector,
    heard: dict[socket.socket, bytearray],
    wait_s: float,
) -> list[float]:
    """How old the events are that have come, in seconds."""
    ages_s = []
    for key, _ in ready.select(wait_s):
        connection = key.fileobj
        assert isinstance(connection, socket.socket)
        come = heard[connection]
        come += connection.recv(1 << 16)
        now = time.time()
        *frames, rest = bytes(come).split(b"\n\n")
        heard[connection] = bytearray(rest)
        for frame in frames:
            if b"data: " in frame:
                event = json.loads(
                    frame.partition(b"data: ")[2].splitlines()[0]
                )
                ages_s.append(now - event["at"])
    return ages_s


@contextmanager
def connected(
    process: ControllerProcess, text: bytes
) -> Iterator[socket.socket]:
    """A connection to the controller's API, over which this was sent."""
    host, _, port = process.api.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(text)
        yield connection


def read(connection: socket.socket, path: str) -> bytes:
    """The body of an answer."""
    connection.sendall(
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    )
    come = b""
    while b"\r\n\r\n" not in come:
        come += connection.recv(1 << 16)
    head, _, body = come.partition(b"\r\n\r\n")
    assert b" 200 " in head.splitlines()[0], head
    length = int(
        head.lower().partition(b"content-length: ")[2].splitlines()[0]
    )
    while len(body) < length:
        body += connection.recv(1 << 16)
    return body


def cpu_s(process: ControllerProcess) -> float:
    """The processor time that the controller has had."""
    fields = (
        Path(f"/proc/{process.process.pid}/stat")
        .read_text()
        .rpartition(")")[2]
        .split()
    )
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
