"""One node as a process: computes, requests an optical path, all-reduces over it, releases it.

The process lives in the control network, and the sockets of its rings in its server's namespace.
The first line of its standard input is its ``NodeTask``, each further one a ``Stretch`` of
iterations; it answers a line for each iteration, and one when it is ready. Its end is that of its
standard input.
"""

import asyncio
import itertools
import json
import os
import socket
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from patchlight.agents.path_node import LitPath, PathNode
from patchlight.agents.training.ring import Neighbours, join_ring
from patchlight.agents.training.task import Member, TrainingError, TrainingTask
from patchlight.agents.training.trainer import ring_all_reduce
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.tuning import LightClient
from patchlight.testbed.linux import namespaces
from patchlight.testbed.paths.agreement import Bounds

READY = "ready"
_PORTS = (5001, 5002)
_JOIN_S = 60.0
_MARGIN_S = 0.05
_PATIENCE = 10.0  # An iteration that takes so many times as long as it should, and a minute.
_RETRY_S = 0.05


@dataclass(frozen=True)
class LightTask:
    """How a node sends; ``channels`` are what nodes receive on, ``key`` is in hexadecimal."""

    socket: str
    transmitter: str
    channels: tuple[str, ...]
    control: tuple[str, ...]
    key: str
    lease_s: float


@dataclass(frozen=True)
class NodeTask:
    """A node's task; ``neighbours`` are file numbers of the sockets to both."""

    number: int
    namespace: str
    addresses: tuple[str, ...]
    gradient_bytes: int
    compute_s: float
    sends_s: float
    window_bytes: int | None
    neighbours: tuple[int, int]
    light: LightTask | None = None

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The task that ``to_json`` wrote."""
        found = json.loads(text)
        light = found.pop("light")
        return cls(
            **found,
            light=None if light is None else LightTask(**light),
        )


class Stretch(NamedTuple):
    """So many iterations; ``turning``: the first, third, … go the other way round the ring."""

    iterations: int
    turning: bool


class _Node:
    """The node's rings, one for each way round, and its light if it has any."""

    def __init__(self, task: NodeTask) -> None:
        self._task = task
        self._size = len(task.addresses)
        self._gradient = np.empty(max(1, task.gradient_bytes // 4), np.float32)
        self._rings = [self._joined(turned=False), self._joined(turned=True)]
        self._control = [
            socket.socket(fileno=number) for number in task.neighbours
        ]
        for each in self._control:
            each.setblocking(False)
        self._paths: PathNode | None = None

    def _joined(self, *, turned: bool) -> Neighbours:
        """The connections to both neighbours, made in the namespace of the NIC."""
        order = [
            -rank % self._size if turned else rank
            for rank in range(self._size)
        ]
        addresses = self._task.addresses
        ring = tuple(
            Member(r, addresses[n], _PORTS[turned])
            for r, n in enumerate(order)
        )
        task = TrainingTask(
            id=str(self._task.number),
            job="oddl",
            rank=order.index(self._task.number),
            ring=ring,
            iterations=1,
            gradient_bytes=self._gradient.nbytes,
            deadline_s=_JOIN_S,
            window_bytes=self._task.window_bytes,
        )
        with namespaces.entered(Path(self._task.namespace)):
            return join_ring(task)

    def _send_light(self, path: LitPath | None) -> None:
        """Called by the agreement at each change."""
        light = self._task.light
        assert light is not None
        if path is None:
            self._light.darken(light.transmitter)
        else:
            self._light.tune(
                light.transmitter, light.channels[path.channel], wait=False
            )

    async def open(self) -> None:
        """Use both rings once, go dark, and wait until all nodes may give paths."""
        for turned in (False, True):
            await asyncio.to_thread(self._exchange, 0, turned)
            await self._acknowledged(turned)
        light = self._task.light
        if light is None:
            return
        everybody = tuple(range(self._size))
        lease_us = round(1e6 * light.lease_s)
        margin_us = round(1e6 * _MARGIN_S)
        bounds = Bounds(
            1,
            self._size,
            everybody,
            lease_us,
            margin_us,
        )
        self._light = LightClient(Path(light.socket))
        self._waiting_light = LightClient(Path(light.socket))
        key = bytes.fromhex(light.key)
        number = self._task.number
        self._paths = PathNode(
            number,
            bounds,
            light.control,
            key,
            self._send_light,
            _RETRY_S,
        )
        self._paths.open()
        await asyncio.sleep(self._paths.ready_s)

    async def iterate(self, index: int, *, turned: bool) -> dict[str, Any]:
        """One iteration, and how long each stage of it took in seconds."""
        ends_s = {"began": time.monotonic()}

        def ended(stage: str) -> None:
            ends_s[stage] = time.monotonic()

        await asyncio.sleep(self._task.compute_s)
        ended("compute")
        if self._paths is None:
            await asyncio.to_thread(self._exchange, index, turned)
            ended("send")
        else:
            to = (self._task.number + (-1 if turned else 1)) % self._size
            async with self._paths.path(to, _JOIN_S) as path:
                ended("ask")
                light = self._task.light
                assert light is not None
                channel = light.channels[path.channel]
                await asyncio.to_thread(
                    self._waiting_light.tune, light.transmitter, channel
                )
                ended("tune")
                await asyncio.to_thread(self._exchange, index, turned)
                ended("send")
                await self._acknowledged(turned)
                ended("acknowledge")
                if time.monotonic() > path.until_s:
                    raise TrainingError(
                        "the lease of the path ended before all data was sent"
                    )
            ended("release")
        names = list(ends_s)[1:]
        times_s = list(ends_s.values())
        stages = [
            after - before for before, after in itertools.pairwise(times_s)
        ]
        return {
            "began_s": times_s[0],
            "ended_s": times_s[-1],
            "stages_s": dict(zip(names, stages, strict=True)),
        }

    def _exchange(self, index: int, turned: bool) -> None:
        number = self._task.number
        self._gradient.fill(number + 1)
        rank = -number % self._size if turned else number
        ring_all_reduce(
            self._gradient,
            rank,
            self._size,
            self._rings[turned],
            index,
        )
        expected = self._size * (self._size + 1) / 2
        if not (self._gradient == expected).all():
            raise TrainingError(
                f"the sum of iteration {index} is wrong: expected {expected:g}"
            )

    async def _acknowledged(self, turned: bool) -> None:
        """Wait until neither neighbour needs this node's light any more.

        What is sent into the dark is sent again only after long: acknowledgements count, too.
        """
        await asyncio.to_thread(self._rings[turned].drain, _JOIN_S)
        before, after = self._control[::-1] if turned else self._control
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(after, b".")
        if not await loop.sock_recv(before, 1):
            raise TrainingError("the previous node has disappeared")


async def _run(task: NodeTask) -> None:
    node = await asyncio.to_thread(_Node, task)
    await node.open()
    _say({"state": READY})
    patience_s = 60.0 + _PATIENCE * (task.compute_s + task.sends_s)
    index = 1
    while line := await asyncio.to_thread(sys.stdin.readline):
        stretch = Stretch(**json.loads(line))
        for number in range(stretch.iterations):
            turned = stretch.turning and number % 2 == 0
            async with asyncio.timeout(patience_s):
                found = await node.iterate(index, turned=turned)
            _say(found)
            index += 1


def _say(words: dict[str, Any]) -> None:
    print(json.dumps(words), flush=True)


def main() -> None:
    """Until the end of standard input, or until something fails: then it says what."""
    task = NodeTask.parse(sys.stdin.readline())
    try:
        asyncio.run(_run(task))
    except (TimeoutError, PatchlightError, TrainingError, OSError) as error:
        words = str(error) or "an iteration did not end"
        _say({"error": f"node {task.number + 1}: {words}"})
        sys.stdout.flush()
        os._exit(1)  # A thread may still wait for a neighbour.


if __name__ == "__main__":
    main()
