"""Maximal matching of senders and receivers by round-robin pointers.

McKeown, *The iSLIP scheduling algorithm for input-queued switches* (IEEE/ACM Transactions on
Networking 7(2), 1999): each free receiver grants the sender that is next after its pointer,
each sender accepts the receiver that is next after its own; again until nobody is left. Pointers
move past those that accepted in the first turn, so no pair is passed over for ever while paths end
together. Where there are fewer channels than pairs, senders take turns with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from patchlight.testbed.paths.contract import FlowRequest, PathNetwork
from patchlight.testbed.paths.scheduling import Scheduling

Ints = NDArray[np.int64]


class Matching(Scheduling):
    """A ``PathScheduler`` that matches senders and receivers; flows of a pair go as they came."""

    def __init__(self, network: PathNetwork) -> None:
        super().__init__(network)
        self._pairs: dict[tuple[int, int], deque[FlowRequest]] = {}
        self._accepts_next = np.zeros(network.nodes, np.int64)  # of each source: a destination
        self._grants_next = np.zeros(network.nodes, np.int64)  # of each destination: a source
        self._channel_next = 0  # a source

    def _enter(self, flow: FlowRequest) -> None:
        self._pairs.setdefault((flow.source, flow.destination), deque()).append(flow)

    def _leave(self, flow: FlowRequest) -> None:
        pair = flow.source, flow.destination
        self._pairs[pair].remove(flow)
        if not self._pairs[pair]:
            del self._pairs[pair]

    def _chosen(self) -> Iterator[FlowRequest]:
        occupancy, nodes = self._occupancy, self.network.nodes
        sources, destinations = np.array(list(self._pairs), np.int64).reshape(-1, 2).T
        left = np.ones(len(sources), bool)
        is_first = True
        while occupancy.free_channels:
            can_send = np.array([bool(free) for free in occupancy.free_transmitters])
            can_receive = np.array([bool(free) for free in occupancy.free_receivers])
            pairs = np.flatnonzero(left & can_send[sources] & can_receive[destinations])
            if not len(pairs):
                return
            distance = (sources[pairs] - self._grants_next[destinations[pairs]]) % nodes
            pairs = pairs[_nearest(distance, destinations[pairs])]
            distance = (destinations[pairs] - self._accepts_next[sources[pairs]]) % nodes
            pairs = pairs[_nearest(distance, sources[pairs])]
            turns = np.argsort((sources[pairs] - self._channel_next) % nodes)
            for pair in pairs[turns][: occupancy.free_channels].tolist():
                source, destination = int(sources[pair]), int(destinations[pair])
                if is_first:
                    self._accepts_next[source] = (destination + 1) % nodes
                    self._grants_next[destination] = (source + 1) % nodes
                self._channel_next = (source + 1) % nodes
                flow = self._pairs[source, destination][0]
                self._leave(flow)
                left[pair] = (source, destination) in self._pairs
                yield flow
            is_first = False


def _nearest(distance: Ints, node: Ints) -> Ints:
    """The index of the least distance among those of each node."""
    order = np.lexsort((distance, node))
    first = np.ones(len(order), bool)
    first[1:] = node[order][1:] != node[order][:-1]
    return order[first]
