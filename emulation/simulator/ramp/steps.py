"""One training step on RAMP, simulated: when does the last part and the last transfer end?

Each server runs one part at a time, the shortest ready one first, and lets a shorter one that
becomes ready go before it; all transfers run at once, without contention. A part is ready when
as many transfers to it have ended as it has parents; as in PAC-ML's simulator, transfers that
synchronise it with its siblings count among these. The step ends with the last transfer.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence

from patchlight.emulation.simulator.ramp.collectives import RampTiming
from patchlight.emulation.simulator.ramp.ramp import Ramp
from patchlight.testbed.graphs.partitioning import PartitionedGraph

Servers = Sequence[tuple[int, ...]]


def step_time(
    graph: PartitionedGraph,
    ramp: Ramp,
    timing: RampTiming,
    servers: Servers,
    seconds_per_ms: float = 1e-3,
) -> float:
    """Seconds that one step takes.

    ``servers[i]`` are those of operation i's parts (places as in the training graph, 2n of
    them). With ``seconds_per_ms`` 1 the graph's milliseconds count as seconds, as PAC-ML's
    simulator takes them.
    """
    return _Step(graph, ramp, timing, servers, seconds_per_ms).run()


class _Step:
    def __init__(
        self,
        graph: PartitionedGraph,
        ramp: Ramp,
        timing: RampTiming,
        servers: Servers,
        seconds_per_ms: float,
    ) -> None:
        self.ramp, self.timing, self.servers, self.graph = ramp, timing, servers, graph
        edges, splits = graph.training.edges, graph.splits
        self.first = [0, *itertools.accumulate(splits)]
        self.edge_s = self._edge_times()
        self.out: list[list[int]] = [[] for _ in splits]
        parents = [0] * len(splits)
        for number, (source, target) in enumerate(edges):
            self.out[source].append(number)
            parents[target] += splits[source]
        self.missing = [parents[i] for i, n in enumerate(splits) for _ in range(n)]
        self.owner = [i for i, n in enumerate(splits) for _ in range(n)]
        self.home = [server for each in servers for server in each]
        cost = (graph.part_ms * seconds_per_ms).tolist()
        self.left = [cost[i] for i in self.owner]
        # Ties go to the part placed last: those of later operations.
        rank = {op: -turn for turn, op in enumerate(_placed(graph))}
        self.priority = [(cost[i], rank[i]) for i in self.owner]

    # What each transfer takes.

    def _edge_times(self) -> list[float]:
        """Each training edge's time between parts on different servers."""
        graph, timing = self.graph, self.timing
        half, edges = graph.training.half, graph.training.edges
        sizes = graph.edge_bytes.tolist()
        times = [timing.one_to_one_s(size) for size in sizes]
        # The out-edges of a split forward operation, and the in-edges of a split backward one,
        # are one collective if they leave from and arrive at the same servers.
        for operation, count in enumerate(graph.splits):
            if count == 1:
                continue
            end = 0 if operation < half else 1
            mine = [number for number, edge in enumerate(edges) if edge[end] == operation]
            if mine and self._symmetric(mine):
                seconds = self._collective_s(mine)
                for number in mine:
                    times[number] = seconds if sizes[number] else 0.0
        return times

    def _symmetric(self, numbers: list[int]) -> bool:
        leaving, arriving = Counter[int](), Counter[int]()
        for source, target in (self.graph.training.edges[number] for number in numbers):
            for server in self.servers[source]:
                leaving[server] += self.graph.splits[target]
            for server in self.servers[target]:
                arriving[server] += self.graph.splits[source]
        return leaving == arriving

    def _collective_s(self, numbers: list[int]) -> float:
        edges, splits, sizes = self.graph.training.edges, self.graph.splits, self.graph.edge_bytes
        ends = {end for number in numbers for end in edges[number]}
        cells = {server for end in ends for server in self.servers[end]}
        size = sum(float(sizes[n]) * splits[edges[n][0]] * splits[edges[n][1]] for n in numbers)
        return self._all_reduce_s(size, cells)

    def _all_reduce_s(self, size: float, cells: set[int]) -> float:
        if len(cells) == 1:
            return 0.0
        groups, racks, places = (
            len(set(each)) for each in zip(*map(self.ramp.coordinates, cells), strict=True)
        )
        return self.timing.all_reduce_s(size, groups, racks, places)

    def _synchronisations(self, operation: int) -> dict[int, list[tuple[float, list[int]]]]:
        """For each part of a backward operation, its siblings by the time to reach them.

        Each pair of siblings is a collective of its own, of both directions' bytes.
        """
        size = 2 * float(self.graph.part_bytes[operation])
        servers, start = self.servers[operation], self.first[operation]
        found: dict[int, list[tuple[float, list[int]]]] = {}
        known: dict[tuple[int, ...], float] = {}
        for here, server in enumerate(servers):
            at: dict[float, list[int]] = defaultdict(list)
            mine = self.ramp.coordinates(server)
            for there, other in enumerate(servers):
                if there == here:
                    continue
                apart = tuple(
                    1 + (a != b) for a, b in zip(mine, self.ramp.coordinates(other), strict=True)
                )
                if apart not in known:
                    known[apart] = self.timing.all_reduce_s(size, *apart) if size else 0.0
                at[known[apart]].append(start + there)
            found[start + here] = list(at.items())
        return found

    # The step itself.

    def run(self) -> float:
        graph, splits, edges = self.graph, self.graph.splits, self.graph.training.edges
        half, first, home, owner = graph.training.half, self.first, self.home, self.owner
        left, priority, missing, edge_s = self.left, self.priority, self.missing, self.edge_s
        synchronise: dict[int, list[tuple[float, list[int]]]] = {}
        for operation in range(half, 2 * half):
            if splits[operation] > 1:
                synchronise |= self._synchronisations(operation)
        ready: dict[int, list[tuple[tuple[float, int], int]]] = defaultdict(list)
        running: dict[int, tuple[int, float, int]] = {}  # server → part, since, ticket
        tickets = itertools.count()
        events: list[tuple[float, int, int, Sequence[int]]] = []
        now, touched = 0.0, set[int]()

        def arrive(parts: Sequence[int]) -> None:
            for part in parts:
                missing[part] -= 1
                if not missing[part]:
                    heapq.heappush(ready[home[part]], (priority[part], part))
                    touched.add(home[part])

        def finish(part: int) -> None:
            operation, server = owner[part], home[part]
            for number in self.out[operation]:
                target = edges[number][1]
                parts = range(first[target], first[target] + splits[target])
                wait = edge_s[number]
                if not wait:
                    arrive(parts)
                    continue
                same = [p for p in parts if home[p] == server]
                if same:
                    arrive(same)
                    parts_away: Sequence[int] = [p for p in parts if home[p] != server]
                else:
                    parts_away = parts
                if parts_away:
                    heapq.heappush(events, (now + wait, next(tickets), -1, parts_away))
            for wait, siblings in synchronise.get(part, ()):
                heapq.heappush(events, (now + wait, next(tickets), -1, siblings))

        def start() -> None:
            """On each touched server, let the part with the highest priority run."""
            for server in touched:
                queue = ready[server]
                if server in running and queue:
                    part, since, _ = running[server]
                    if priority[part] <= queue[0][0]:
                        continue
                    left[part] -= now - since
                    heapq.heappush(queue, (priority[part], part))
                    del running[server]
                if server not in running and queue:
                    part = heapq.heappop(queue)[1]
                    ticket = next(tickets)
                    running[server] = (part, now, ticket)
                    heapq.heappush(events, (now + left[part], ticket, part, ()))
            touched.clear()

        for part, count in enumerate(missing):
            if not count:
                heapq.heappush(ready[home[part]], (priority[part], part))
                touched.add(home[part])
        start()
        while events:
            now = events[0][0]
            while events and events[0][0] == now:
                _, ticket, part, parts = heapq.heappop(events)
                if part < 0:
                    arrive(parts)
                elif running.get(home[part], (0, 0, -1))[2] == ticket:
                    del running[home[part]]
                    touched.add(home[part])
                    finish(part)
            start()
        return now


def _placed(graph: PartitionedGraph) -> list[int]:
    """All operations in the order in which they are put on servers, twins together."""
    half = graph.training.half
    return [place for op in graph.training.forward.order for place in (op, half + op)]
