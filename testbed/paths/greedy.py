"""Paths in an order: whoever is first in it among those that fit gets the next one."""

from __future__ import annotations

import heapq
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from patchlight.testbed.paths.contract import FlowRequest, PathGrant, PathNetwork
from patchlight.testbed.paths.scheduling import Scheduling

Order = tuple[float, ...]
Turn = Callable[[PathNetwork, FlowRequest], Order]
"""Where in the order a flow comes; flows that are equal in it come as they came."""
_Place = tuple[Order, int, FlowRequest]  # its turn, its number among all that came, itself


def first_come(network: PathNetwork, flow: FlowRequest) -> Order:
    """As they came."""
    return ()


def shortest_first(network: PathNetwork, flow: FlowRequest) -> Order:
    """Those with the fewest bytes; a large one waits for as long as smaller ones come."""
    return (flow.nbytes,)


def deadline_first(network: PathNetwork, flow: FlowRequest) -> Order:
    """Those whose deadline is soonest, and those without one last."""
    return (flow.deadline_s,)


def rounds_first(network: PathNetwork, flow: FlowRequest) -> Order:
    """Round by round, and a round in which nodes have several flows in shifts.

    In an all-to-all everybody sends to the next node first, then to the one after: n nodes that do
    so in step are done after n − 1 flows each, the least there is.
    """
    return (flow.round, (flow.destination - flow.source) % network.nodes)


class Greedy(Scheduling):
    """A ``PathScheduler`` that gives paths in an order.

    ``by_collective``: all flows of a collective come before those of the next one, which only get
    what is left. A collective keeps its place for as long as a flow of it waits.
    """

    def __init__(self, network: PathNetwork, turn: Turn, *, by_collective: bool = False) -> None:
        super().__init__(network)
        self._turn = turn
        self._by_collective = by_collective
        self._collectives: dict[str, int] = {}  # the number of its first flow
        self._members = Counter[str]()  # how many of its flows wait
        self._came = 0
        self._lines: defaultdict[int, list[_Place]] = defaultdict(list)  # of each source, in order
        self._places: dict[int, _Place] = {}
        # Nothing fitted when it was last looked, unless channels ran out: so only sources that
        # something has changed for are to be looked at.
        self._senders_to: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self._to_look_at: set[int] | None = set()

    def _enter(self, flow: FlowRequest) -> None:
        self._came += 1
        turn = self._turn(self.network, flow)
        if self._by_collective:
            turn = (self._first_of_collective(flow), *turn)
        place = self._places[flow.flow] = turn, self._came, flow
        insort(self._lines[flow.source], place)
        self._senders_to[flow.destination][flow.source] += 1
        if self._to_look_at is not None:
            self._to_look_at.add(flow.source)

    def _freed(self, grant: PathGrant) -> None:
        if self._to_look_at is not None:
            self._to_look_at.add(grant.source)
            self._to_look_at.update(self._senders_to.get(grant.destination, ()))

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
        # The first of each source that fits; as others are chosen it may no longer do so.
        looked_at = self._lines if self._to_look_at is None else self._to_look_at
        heads = [place for source in looked_at if (place := self._first(source))]
        heapq.heapify(heads)
        while heads and occupancy.free_channels:
            flow = heapq.heappop(heads)[-1]
            if occupancy.free_receivers[flow.destination]:
                self._leave(flow)
                yield flow
            if following := self._first(flow.source):
                heapq.heappush(heads, following)
        self._to_look_at = None if heads else set()

    def _first_of_collective(self, flow: FlowRequest) -> int:
        if flow.collective is None:
            return self._came
        self._members[flow.collective] += 1
        return self._collectives.setdefault(flow.collective, self._came)

    def _first(self, source: int) -> _Place | None:
        occupancy = self._occupancy
        if occupancy.free_transmitters[source]:
            for place in self._lines.get(source, ()):
                if occupancy.free_receivers[place[-1].destination]:
                    return place
        return None
