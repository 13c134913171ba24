"""Schedules optical paths, by greedy orders and by matching.

The matching is McKeown's: *The iSLIP scheduling algorithm for input-queued switches* (IEEE/ACM
Transactions on Networking 7(2), 1999). Each free receiver grants the next sender after its pointer,
each sender accepts the next receiver after its own, until no pair is left. Pointers move past those
that accepted in the first turn, so no pair starves. If there are fewer channels than pairs, senders
take turns.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.paths.scheduling import (
    FlowRequest,
    PathGrant,
    PathNetwork,
    PathScheduler,
)

Order = tuple[float, ...]
Turn = Callable[[PathNetwork, FlowRequest], Order]
"""The position of a flow in the order; ties are in order of arrival."""
# Its turn, its number among all that came, itself.
_Place = tuple[Order, int, FlowRequest]


def first_come(network: PathNetwork, flow: FlowRequest) -> Order:
    """First come, first served."""
    return ()


def shortest_first(network: PathNetwork, flow: FlowRequest) -> Order:
    """Fewest bytes first; a large flow waits while smaller ones arrive."""
    return (flow.nbytes,)


def deadline_first(network: PathNetwork, flow: FlowRequest) -> Order:
    """Earliest deadline first; flows without one last."""
    return (flow.deadline_s,)


def rounds_first(network: PathNetwork, flow: FlowRequest) -> Order:
    """Round by round; within a round, nodes with several flows take shifts.

    In an all-to-all every node sends to the next node first, then to the one after: n nodes in step
    finish after n − 1 flows each, the minimum.
    """
    return (flow.round, (flow.destination - flow.source) % network.nodes)


class Greedy(PathScheduler):
    """A ``PathScheduler`` that grants paths in an order.

    ``by_collective``: all flows of a collective come before those of the next one, which get what
    is left. A collective keeps its place while a flow of it waits.
    """

    def __init__(
        self,
        network: PathNetwork,
        turn: Turn,
        *,
        by_collective: bool = False,
    ) -> None:
        super().__init__(network)
        self._turn = turn
        self._by_collective = by_collective
        self._collectives: dict[str, int] = {}  # the number of its first flow
        self._members = Counter[str]()  # how many of its flows wait
        self._came = 0
        # Of each source, in order.
        self._lines: defaultdict[int, list[_Place]] = defaultdict(list)
        self._places: dict[int, _Place] = {}
        # Nothing fitted last time, unless channels ran out: only check sources with changes.
        self._senders_to: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self._to_look_at: set[int] | None = set()

    def _enter(self, flow: FlowRequest) -> None:
        self._came += 1
        turn = self._turn(self.network, flow)
        if self._by_collective:
            first = self._came
            if flow.collective is not None:
                self._members[flow.collective] += 1
                first = self._collectives.setdefault(flow.collective, first)
            turn = (first, *turn)
        place = self._places[flow.flow] = turn, self._came, flow
        insort(self._lines[flow.source], place)
        self._senders_to[flow.destination][flow.source] += 1
        if self._to_look_at is not None:
            self._to_look_at.add(flow.source)

    def _freed(self, grant: PathGrant) -> None:
        if self._to_look_at is not None:
            self._to_look_at.add(grant.source)
            self._to_look_at.update(
                self._senders_to.get(grant.destination, ())
            )

    def _leave(self, flow: FlowRequest) -> None:
        place = self._places.pop(flow.flow)
        line = self._lines[flow.source]
        line.remove(place)
        if not line:
            del self._lines[flow.source]
        senders = self._senders_to[flow.destination]
        senders[flow.source] -= 1
        if not senders[flow.source]:
            del senders[flow.source]
        if (name := flow.collective) in self._members and name is not None:
            self._members[name] -= 1
            if not self._members[name]:
                del self._members[name], self._collectives[name]

    def _chosen(self) -> Iterator[FlowRequest]:
        occupancy = self._occupancy
        # The first flow of each source that fits; after another is chosen it may not fit.
        looked_at = (
            self._lines if self._to_look_at is None else self._to_look_at
        )
        heads = [
            place for source in looked_at if (place := self._first(source))
        ]
        heapq.heapify(heads)
        while heads and occupancy.free_channels:
            flow = heapq.heappop(heads)[-1]
            if occupancy.free_receivers[flow.destination]:
                self._leave(flow)
                yield flow
            if following := self._first(flow.source):
                heapq.heappush(heads, following)
        self._to_look_at = None if heads else set()

    def _first(self, source: int) -> _Place | None:
        occupancy = self._occupancy
        if occupancy.free_transmitters[source]:
            for place in self._lines.get(source, ()):
                if occupancy.free_receivers[place[-1].destination]:
                    return place
        return None


Ints = NDArray[np.int64]


class RoundRobinMatching(PathScheduler):
    """A ``PathScheduler`` that matches senders and receivers; a pair's flows stay in order."""

    def __init__(self, network: PathNetwork) -> None:
        super().__init__(network)
        self._pairs: dict[tuple[int, int], deque[FlowRequest]] = {}
        # Source × destination.
        self._waits = np.zeros((network.nodes, network.nodes), bool)
        # Of each source: a destination.
        self._accepts_next = np.zeros(network.nodes, np.int64)
        # Of each destination: a source.
        self._grants_next = np.zeros(network.nodes, np.int64)
        self._channel_next = 0  # a source

    def _enter(self, flow: FlowRequest) -> None:
        self._pairs.setdefault(
            (flow.source, flow.destination), deque()
        ).append(flow)
        self._waits[flow.source, flow.destination] = True

    def _leave(self, flow: FlowRequest) -> None:
        pair = flow.source, flow.destination
        self._pairs[pair].remove(flow)
        if not self._pairs[pair]:
            del self._pairs[pair]
            self._waits[pair] = False

    def _chosen(self) -> Iterator[FlowRequest]:
        occupancy = self._occupancy
        nodes = self.network.nodes
        is_first = True
        while occupancy.free_channels:
            can_send = _nodes_with(occupancy.free_transmitters)
            can_send = can_send[np.any(self._waits, axis=1)[can_send]]
            can_receive = _nodes_with(occupancy.free_receivers)
            can_receive = can_receive[
                np.any(self._waits[can_send], axis=0)[can_receive]
            ]
            rows, columns = np.nonzero(
                self._waits[np.ix_(can_send, can_receive)]
            )
            if not len(rows):
                return
            receiver, sender = _nearest(
                can_receive[columns], can_send[rows], self._grants_next
            )
            sender, receiver = _nearest(sender, receiver, self._accepts_next)
            turns = np.argsort((sender - self._channel_next) % nodes)[
                : occupancy.free_channels
            ]
            for source, destination in zip(
                sender[turns].tolist(), receiver[turns].tolist(), strict=True
            ):
                if is_first:
                    self._accepts_next[source] = (destination + 1) % nodes
                    self._grants_next[destination] = (source + 1) % nodes
                self._channel_next = (source + 1) % nodes
                flow = self._pairs[source, destination][0]
                self._leave(flow)
                yield flow
            is_first = False


def _nodes_with(free: list[list[int]]) -> Ints:
    return np.flatnonzero([bool(each) for each in free])


def _nearest(
    chooser: Ints,
    other: Ints,
    pointers: Ints,
) -> tuple[Ints, Ints]:
    """For each chooser, the pair with the next partner after its pointer."""
    nodes = len(pointers)
    distance = np.full(nodes, nodes)
    np.minimum.at(distance, chooser, (other - pointers[chooser]) % nodes)
    choosers = np.flatnonzero(distance < nodes)
    return choosers, (distance[choosers] + pointers[choosers]) % nodes


SCHEDULERS: dict[str, Callable[[PathNetwork], PathScheduler]] = {
    "first-come": partial(Greedy, turn=first_come),
    "shortest-first": partial(Greedy, turn=shortest_first),
    "deadline-first": partial(Greedy, turn=deadline_first),
    "matching": RoundRobinMatching,
    "collective": partial(
        Greedy,
        turn=rounds_first,
        by_collective=True,
    ),
}
# Paths that end within this fraction of the time end together.
_AT_ONCE = 1e-12


def path_scheduler(name: str, network: PathNetwork) -> PathScheduler:
    """An empty scheduler for a network; ``BadInput`` for an unknown name."""
    if name not in SCHEDULERS:
        raise BadInput(
            f"unknown path scheduler {name!r}: expected {', '.join(SCHEDULERS)}"
        )
    return SCHEDULERS[name](network)


def in_time(
    scheduler: PathScheduler,
    arrivals: Iterable[tuple[float, FlowRequest]],
    control_s: float = 0.0,
) -> Iterator[PathGrant]:
    """The paths of flows that arrive at given seconds, each released when it is sent, in order.

    Messages to and from the scheduler take ``control_s``. ``PatchlightError`` for a flow that is
    refused.
    """
    requests = sorted(arrivals, key=lambda arrival: arrival[0])
    ending: list[tuple[float, int]] = []
    at = 0
    while at < len(requests) or ending:
        now_s = min(
            *([requests[at][0] + control_s] if at < len(requests) else []),
            *([ending[0][0]] if ending else []),
            float("inf"),
        )
        limit_s = now_s + _AT_ONCE * abs(now_s)
        while ending and ending[0][0] <= limit_s:
            scheduler.release(heapq.heappop(ending)[1], now_s)
        fresh = []
        while at < len(requests) and requests[at][0] + control_s <= limit_s:
            fresh.append(requests[at][1])
            at += 1
        if refused := scheduler.admit(fresh, now_s):
            raise PatchlightError(
                f"flow {refused[0].flow}: {refused[0].reason}"
            )
        for grant in scheduler.grants(now_s):
            told = grant._replace(
                starts_s=grant.starts_s + control_s,
                ends_s=grant.ends_s + control_s,
            )
            heapq.heappush(ending, (told.ends_s + control_s, told.flow))
            yield told
