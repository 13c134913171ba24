"""Nodes that agree on paths over UDP: in one process, and as processes that are killed."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import pytest

from patchlight.agents.path_node import (
    LitPath,
    PathNode,
    PathNotGranted,
    packed,
    unpacked,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.paths.agreement import Bounds, Message
from tests.support.waiting import eventually, free_ports, wait_until

KEY = bytes(range(32))


@asynccontextmanager
async def _nodes(
    bounds: Bounds,
) -> AsyncIterator[tuple[list[PathNode], list[LitPath | None]]]:
    """As many nodes, ready to give, and what their transmitters were told last."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(bounds.nodes)]
    lights: list[LitPath | None] = [None] * bounds.nodes

    def made(number: int) -> PathNode:
        def light(path: LitPath | None) -> None:
            lights[number] = path

        return PathNode(number, bounds, addresses, KEY, light)

    nodes = [made(number) for number in range(bounds.nodes)]
    for node in nodes:
        node.open()
    try:
        # A node that has just begun keeps quiet for as long as an earlier one may hold paths.
        await asyncio.sleep(max(node.ready_s for node in nodes))
        yield nodes, lights
    finally:
        for node in nodes:
            node.close()


async def test_flows_to_one_node_take_turns_and_go_dark_after_it() -> None:
    bounds = Bounds(
        epoch=1,
        nodes=3,
        owners=(0, 1, 2),
        lease_us=1_000_000,
        margin_us=10_000,
    )
    order = []
    async with _nodes(bounds) as (nodes, lights):

        async def send(number: int) -> None:
            async with nodes[number].path(2) as path:
                order.append(("begins", number))
                assert (path.destination, path.channel) == (2, 2)
                assert lights[number] == path
                await asyncio.sleep(0.01)  # it has the path so long
                order.append(("ends", number))
            assert lights[number] is None

        await asyncio.gather(send(0), send(1))
    assert [what for what, _ in order] == ["begins", "ends", "begins", "ends"]
    assert {number for _, number in order} == {0, 1}


async def test_a_path_that_nobody_gives_is_waited_for_no_longer_than_said() -> (
    None
):
    bounds = Bounds(
        epoch=1, nodes=2, owners=(0, 1), lease_us=20_000, margin_us=2000
    )
    async with _nodes(bounds) as (nodes, lights):
        nodes[1].close()
        with pytest.raises(
            PathNotGranted, match="node 0 got no path to node 1 in"
        ):
            async with nodes[0].path(1, patience_s=0.05):
                pytest.fail("it got one")
        assert lights[0] is None


@pytest.mark.parametrize("steps", range(6))
async def test_a_flow_that_is_cancelled_just_as_its_path_is_granted_ends(
    steps: int,
) -> None:
    bounds = Bounds(
        epoch=1, nodes=2, owners=(0, 1), lease_us=1_000_000, margin_us=10_000
    )
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    loop = asyncio.get_running_loop()
    lights: list[LitPath | None] = []

    def light(path: LitPath | None) -> None:
        lights.append(path)
        if path is not None:
            cancel_after(steps)

    def cancel_after(left: int) -> None:
        if left:
            loop.call_soon(cancel_after, left - 1)
        else:
            flow.cancel()

    async def send() -> None:
        async with sender.path(1):
            await asyncio.sleep(60)  # until it is cancelled

    sender = PathNode(0, bounds, addresses, KEY, light, retry_s=60)
    receiver = PathNode(1, bounds, addresses, KEY, lambda path: None)
    for node in (sender, receiver):
        node.open()
    try:
        # Until they are ready.
        await asyncio.sleep(max(sender.ready_s, receiver.ready_s))
        flow = asyncio.create_task(send())
        await asyncio.wait([flow], timeout=10)
        assert flow.cancelled()
        assert [path is None for path in lights] == [True, False, True]
    finally:
        flow.cancel()
        sender.close()
        receiver.close()


async def test_light_ends_with_its_lease() -> None:
    bounds = Bounds(
        epoch=1, nodes=2, owners=(0, 1), lease_us=20_000, margin_us=2000
    )
    async with _nodes(bounds) as (nodes, lights), nodes[0].path(1):
        await eventually(lambda: lights[0] is None, "its lease to be over")


def test_a_datagram_of_others_is_no_message() -> None:
    message = Message("ask", 1, 0, 1, 1 << 50, True, -2)
    datagram = packed(message, KEY)
    assert unpacked(datagram, KEY) == message
    changed = [
        datagram[:at] + bytes([datagram[at] ^ 1]) + datagram[at + 1 :]
        for at in range(42)
    ]
    others = [
        datagram[:-1],
        datagram + b"x",
        b"",
        b"x" * 42,
        packed(message, bytes(32)),
    ]
    assert [unpacked(each, KEY) for each in changed + others] == [None] * (
        len(datagram) + 5
    )


def test_a_key_and_an_address_for_each_are_needed() -> None:
    bounds = Bounds(epoch=1, nodes=2, owners=(0, 1), lease_us=1, margin_us=0)
    with pytest.raises(
        BadInput, match="expected one address each and 32 bytes"
    ):
        PathNode(0, bounds, ["127.0.0.1:1"], KEY, lambda path: None)


class _Use(NamedTuple):
    node: int
    destination: int
    channel: int
    begins_s: float
    ends_s: float


def _uses(texts: list[str]) -> Iterator[_Use]:
    """The paths of one node: each until it was dark again, or its lease was over."""
    lit: _Use | None = None
    for text in texts:
        what, node, *rest = json.loads(text)
        if lit is not None:
            yield lit._replace(ends_s=min(lit.ends_s, rest[-1]))
        lit = None
        if what == "lit":
            destination, channel, until_s, now_s = rest
            lit = _Use(node, destination, channel, now_s, until_s)
    if lit is not None:
        yield lit


def test_light_never_meets_while_nodes_are_killed(tmp_path: Path) -> None:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]

    def start(number: int) -> subprocess.Popen[bytes]:
        told = {
            "number": number,
            "addresses": addresses,
            "owners": [0, 1],
            "key": KEY.hex(),
        }
        command = [
            sys.executable,
            "-m",
            "tests.support.path_node_process",
            json.dumps(told),
        ]
        with (tmp_path / f"{number}.{time.monotonic_ns()}").open("wb") as out:
            return subprocess.Popen(command, stdout=out)

    def lines(number: int) -> list[list[str]]:
        files = sorted(
            tmp_path.glob(f"{number}.*"), key=lambda path: int(path.suffix[1:])
        )
        return [
            text.split("\n")[:-1]
            for text in (path.read_text() for path in files)
        ]

    def has_sent(number: int) -> bool:
        return sum('"lit"' in text for text in lines(number)[-1]) >= 5

    running = [start(number) for number in range(3)]
    try:
        for number in (0, 2):
            for other in range(3):
                wait_until(partial(has_sent, other), "paths")
            running[number].kill()
            running[number].wait()
            running[number] = start(number)
        for number in range(3):
            wait_until(partial(has_sent, number), "paths")
    finally:
        for process in running:
            process.kill()
            process.wait()
    uses = [
        use
        for number in range(3)
        for life in lines(number)
        for use in _uses(life)
    ]
    assert len(uses) >= 25  # five of each of the five lives
    for a, b in combinations(uses, 2):
        if (
            a.node != b.node
            and a.begins_s < b.ends_s
            and b.begins_s < a.ends_s
        ):
            assert a.channel != b.channel, (a, b)
            assert a.destination != b.destination, (a, b)
