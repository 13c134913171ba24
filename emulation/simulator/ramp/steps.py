"""Simulates one training step on RAMP, from the first operation to the last transfer.

Each server runs one part at a time, the shortest ready one first, and lets a shorter one that
becomes ready go before it; all transfers run at once, without contention. A part is ready when
as many transfers to it have ended as it has parents; as in PAC-ML's simulator, transfers that
synchronise it with its siblings count among these. The step ends with the last transfer.
"""

import heapq
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from patchlight.emulation.simulator.ramp.ramp import Ramp
from patchlight.testbed.graphs.model import PartitionedGraph


@dataclass(
    frozen=True,
    slots=True,
)
class RampTiming:
    """Rates and delays of a RAMP network and its GPUs, as in PAC-ML's experiments.

    The formulas are those of PAC-ML's simulator, its peculiarities included, because they are what
    its published figures rest on: a channel's rate is divided by the number of groups once more in
    a collective, racks never contend, and a collective between the servers of one rack is free.
    """

    groups: int = 4
    channel_bytes_per_s: float = 4e11
    propagation_s: float = 50e-9
    io_s: float = 100e-9
    memory_hz: float = 2e12
    flops: float = 130e12
    bytes_per_number: int = 2

    @property
    def latency_s(self) -> float:
        """The part of any transfer: out of the GPU, over the fibre, into the GPU."""
        return self.propagation_s + 2 * self.io_s

    def one_to_one_s(self, size_bytes: float) -> float:
        """The time of one transfer between two servers; 0 for no data."""
        return (
            self.latency_s + size_bytes / self.channel_bytes_per_s
            if size_bytes
            else 0.0
        )

    def all_reduce_s(
        self,
        size_bytes: float,
        groups: int,
        racks: int,
        places: int,
    ) -> float:
        """An all-reduce over servers in this many groups, racks, and places within racks.

        Reduce-scatter and all-gather go over the groups, the places within the groups, and the
        racks in turn; each step's message is what the step before left.
        """
        steps = (
            groups,
            min(groups, places),
            racks,
            math.ceil(places / self.groups),
        )
        rate = self.channel_bytes_per_s / self.groups
        message = size_bytes
        moving = 0.0
        adding = 0.0
        for members in steps:
            message = math.ceil(message / members)
            if members > 1:
                # At least one, also where there are more racks than groups.
                transceivers = max(1, self.groups // (members - 1))
                moving += self.latency_s + message / (rate * transceivers)
                adding += self._adding_s(message * members, members)
        return 2 * moving + adding

    def _adding_s(self, size_bytes: float, members: int) -> float:
        """Adding the members' shares: a roofline of memory and arithmetic."""
        additions = math.ceil(math.log2(members))
        intensity = additions / ((members + 1) * self.bytes_per_number)
        total = additions * (size_bytes / members) / self.bytes_per_number
        return total / min(self.memory_hz * intensity, self.flops)


Servers = Sequence[tuple[int, ...]]


def step_time(
    graph: PartitionedGraph,
    ramp: Ramp,
    timing: RampTiming,
    servers: Servers,
    seconds_per_ms: float = 1e-3,
    turns: Sequence[float] | None = None,
) -> float:
    """The duration of one step, in seconds.

    ``servers[i]`` are those of operation i's parts (indices as in the training graph, 2n of
    them). With ``seconds_per_ms`` 1 the graph's milliseconds count as seconds, as in PAC-ML's
    simulator. Of operations that are ready on a server the one with the lowest of ``turns`` (2n of
    them) goes first, the shortest without ``turns``.
    """
    step = _Step(
        graph,
        ramp,
        timing,
        servers,
    )
    cost_s = (graph.part_ms * seconds_per_ms).tolist()
    return _Timeline(step, cost_s, cost_s if turns is None else turns).run()


class _Step:
    """The time of each transfer, and the parts that wait for it."""

    def __init__(
        self,
        graph: PartitionedGraph,
        ramp: Ramp,
        timing: RampTiming,
        servers: Servers,
    ) -> None:
        self.ramp = ramp
        self.timing = timing
        self.servers = servers
        self.graph = graph
        edges = graph.training.edges
        splits = graph.splits
        self.first = [0, *itertools.accumulate(splits)]
        self.edge_s = self._edge_times()
        self.out: list[list[int]] = [[] for _ in splits]
        parents = [0] * len(splits)
        for number, (source, target) in enumerate(edges):
            self.out[source].append(number)
            parents[target] += splits[source]
        self.missing = [
            parents[i] for i, n in enumerate(splits) for _ in range(n)
        ]
        self.owner = [i for i, n in enumerate(splits) for _ in range(n)]
        self.home = [server for each in servers for server in each]
        self.synchronise: dict[int, list[tuple[float, list[int]]]] = {}
        half = graph.training.half
        for operation in range(half, 2 * half):
            if splits[operation] > 1:
                self.synchronise |= self._synchronisations(operation)

    def _edge_times(self) -> list[float]:
        """Each training edge's time between parts on different servers."""
        graph = self.graph
        timing = self.timing
        half = graph.training.half
        edges = graph.training.edges
        sizes = graph.edge_bytes.tolist()
        times = [timing.one_to_one_s(size) for size in sizes]
        # The out-edges of a split forward operation, and the in-edges of a split backward one,
        # are one collective if they leave from and arrive at the same servers.
        together: list[list[int]] = [[] for _ in graph.splits]
        for number, (source, target) in enumerate(edges):
            if source < half:
                together[source].append(number)
            if target >= half:
                together[target].append(number)
        for count, mine in zip(graph.splits, together, strict=True):
            if count > 1 and mine and self._symmetric(mine):
                seconds = self._collective_s(mine)
                for number in mine:
                    times[number] = seconds if sizes[number] else 0.0
        return times

    def _symmetric(self, numbers: list[int]) -> bool:
        leaving = Counter[int]()
        arriving = Counter[int]()
        for source, target in (
            self.graph.training.edges[number] for number in numbers
        ):
            for server in self.servers[source]:
                leaving[server] += self.graph.splits[target]
            for server in self.servers[target]:
                arriving[server] += self.graph.splits[source]
        return leaving == arriving

    def _collective_s(self, numbers: list[int]) -> float:
        edges = self.graph.training.edges
        splits = self.graph.splits
        sizes = self.graph.edge_bytes
        ends = {end for number in numbers for end in edges[number]}
        cells = {server for end in ends for server in self.servers[end]}
        size = sum(
            float(sizes[n]) * splits[edges[n][0]] * splits[edges[n][1]]
            for n in numbers
        )
        if len(cells) == 1:
            return 0.0
        groups, racks, places = (
            len(set(each))
            for each in zip(*map(self.ramp.coordinates, cells), strict=True)
        )
        return self.timing.all_reduce_s(
            size,
            groups,
            racks,
            places,
        )

    def _synchronisations(
        self, operation: int
    ) -> dict[int, list[tuple[float, list[int]]]]:
        """For each part of a backward operation, its siblings by the time to reach them.

        Each pair of siblings is a separate collective, with both directions' bytes.
        """
        size = 2 * float(self.graph.part_bytes[operation])
        servers = self.servers[operation]
        start = self.first[operation]
        found: dict[int, list[tuple[float, list[int]]]] = {}
        known: dict[tuple[int, ...], float] = {}
        for here, server in enumerate(servers):
            at: dict[float, list[int]] = defaultdict(list)
            mine = self.ramp.coordinates(server)
            for there, other in enumerate(servers):
                if there == here:
                    continue
                apart = tuple(
                    1 + (a != b)
                    for a, b in zip(
                        mine, self.ramp.coordinates(other), strict=True
                    )
                )
                if apart not in known:
                    known[apart] = (
                        self.timing.all_reduce_s(size, *apart) if size else 0.0
                    )
                at[known[apart]].append(start + there)
            found[start + here] = list(at.items())
        return found


class _Event(NamedTuple):
    """Either ``part`` ends, or transfers to the parts ``to`` do; of one time in ticket order."""

    at_s: float
    ticket: int
    part: int | None
    to: Sequence[int] = ()


class _Server:
    """The parts that are ready on a server, and the one that runs with its end's ticket."""

    __slots__ = ("part", "ready", "since_s", "ticket")

    def __init__(self) -> None:
        self.ready: list[tuple[tuple[float, int], int]] = []
        self.part: int | None = None
        self.since_s = 0.0
        self.ticket = -1


class _Timeline:
    """The step in time, event by event."""

    def __init__(
        self,
        step: _Step,
        cost_s: Sequence[float],
        turns: Sequence[float],
    ) -> None:
        self._step = step
        self._now_s = 0.0
        self._left = [cost_s[i] for i in step.owner]
        # Ties go to the part placed last: those of later operations, twins together.
        half = step.graph.training.half
        placed = [
            twin
            for op in step.graph.training.forward.order
            for twin in (op, half + op)
        ]
        rank = {operation: -turn for turn, operation in enumerate(placed)}
        self._priority = [(turns[i], rank[i]) for i in step.owner]
        self._servers = {server: _Server() for server in step.home}
        self._touched = set[int]()  # servers on which another part may run now
        self._events: list[_Event] = []
        self._tickets = itertools.count()

    def run(self) -> float:
        for part, transfers in enumerate(self._step.missing):
            if not transfers:
                self._make_ready(part)
        self._start()
        events = self._events
        while events:
            self._now_s = events[0].at_s
            while events and events[0].at_s == self._now_s:
                event = heapq.heappop(events)
                if event.part is None:
                    self._arrive(event.to)
                elif (
                    self._servers[self._step.home[event.part]].ticket
                    == event.ticket
                ):
                    self._finish(event.part)
            self._start()
        return self._now_s

    def _make_ready(self, part: int) -> None:
        server = self._step.home[part]
        heapq.heappush(
            self._servers[server].ready, (self._priority[part], part)
        )
        self._touched.add(server)

    def _arrive(self, parts: Sequence[int]) -> None:
        """End a transfer to each of these parts."""
        missing = self._step.missing
        for part in parts:
            missing[part] -= 1
            if not missing[part]:
                self._make_ready(part)

    def _finish(self, part: int) -> None:
        """End a part: its server is free, and its transfers begin."""
        step = self._step
        home = self._step.home
        server = home[part]
        self._servers[server].part = None
        self._servers[server].ticket = -1
        self._touched.add(server)
        for number in step.out[step.owner[part]]:
            target = step.graph.training.edges[number][1]
            to: Sequence[int] = range(
                step.first[target], step.first[target + 1]
            )
            if step.edge_s[number]:
                here = [other for other in to if home[other] == server]
                if here:
                    self._arrive(here)
                    to = [other for other in to if home[other] != server]
                self._transfer(step.edge_s[number], to)
            else:
                self._arrive(to)
        for wait_s, siblings in step.synchronise.get(part, ()):
            self._transfer(wait_s, siblings)

    def _transfer(self, lasts_s: float, to: Sequence[int]) -> None:
        if to:
            heapq.heappush(
                self._events,
                _Event(
                    self._now_s + lasts_s,
                    next(self._tickets),
                    None,
                    to,
                ),
            )

    def _start(self) -> None:
        """On each touched server, run the part with the highest priority."""
        left = self._left
        priority = self._priority
        now_s = self._now_s
        for number in self._touched:
            server = self._servers[number]
            if not server.ready:
                continue
            if server.part is not None:
                if priority[server.part] <= server.ready[0][0]:
                    continue
                left[server.part] -= now_s - server.since_s
                part = heapq.heapreplace(
                    server.ready, (priority[server.part], server.part)
                )[1]
            else:
                part = heapq.heappop(server.ready)[1]
            server.part = part
            server.since_s = now_s
            server.ticket = next(self._tickets)
            heapq.heappush(
                self._events, _Event(now_s + left[part], server.ticket, part)
            )
        self._touched.clear()
