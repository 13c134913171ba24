"""Waiting with a deadline, ports that are free, and one question to a Unix socket."""

import asyncio
import contextlib
import inspect
import itertools
import json
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


PATIENCE_S = 120
"""How long a test waits for what has to come, also on a busy machine."""


def wait_until(
    condition: Callable[[], T],
    what: str = "it to come about",
    patience_s: float = PATIENCE_S,
) -> T:
    """Poll until the condition holds, the longer it takes the more seldom; its value."""
    deadline = time.monotonic() + patience_s
    pause_s = 0.01
    while not (value := condition()):
        assert time.monotonic() < deadline, (
            f"waited {patience_s} s for {what}; last: {value!r}"
        )
        time.sleep(pause_s)  # the pause between two looks
        pause_s = min(1.2 * pause_s, 0.1)
    return value


async def eventually(
    condition: Callable[[], object], what: str = "it to come about"
) -> None:
    """The same while the loop goes on; the condition may be a coroutine's."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        value = condition()
        if await value if inspect.isawaitable(value) else value:
            return
        assert time.monotonic() < deadline, f"in vain waited for {what}"
        await asyncio.sleep(0.02)  # the pause between two looks


def _ports_of_this_process() -> Iterator[int]:
    """Ports that no other process of the session takes, each once before one comes again.

    The kernel chooses ports above them, so a port that is free now is still free when a program
    that starts slowly listens on it.
    """
    number = int(
        os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    )
    first = 10_000 + 2_500 * (number % 8)
    ports = list(range(first, first + 2_500))
    # Another session may run beside this one.
    random.Random(os.getpid()).shuffle(ports)
    return itertools.cycle(ports)


_ports = _ports_of_this_process()


def free_ports(count: int) -> list[int]:
    """So many different TCP ports of this machine that nobody listens on now."""
    found: list[int] = []
    while len(found) < count:
        port = next(_ports)
        with (
            contextlib.suppress(OSError),
            socket.create_server(("127.0.0.1", port)),
        ):
            found.append(port)
    return found


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A TCP port of this machine that nobody listens on and no other program is given."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def unix_socket_answers(path: Path) -> bool:
    """Whether somebody listens there: a socket's file is there a moment before."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def ask(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    """What a Unix socket answers to one JSON line."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE_S)
        client.connect(str(path))
        client.sendall(json.dumps(request).encode() + b"\n")
        return dict(json.loads(client.makefile().readline()))
