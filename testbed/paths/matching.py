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
        self._waits = np.zeros((network.nodes, network.nodes), bool)  # source × destination
        self._accepts_next = np.zeros(network.nodes, np.int64)  # of each source: a destination
        self._grants_next = np.zeros(network.nodes, np.int64)  # of each destination: a source
        self._channel_next = 0  # a source

    def _enter(self, flow: FlowRequest) -> None:
        self._pairs.setdefault((flow.source, flow.destination), deque()).append(flow)
        self._waits[flow.source, flow.destination] = True

    def _leave(self, flow: FlowRequest) -> None:
        pair = flow.source, flow.destination
        self._pairs[pair].remove(flow)
        if not self._pairs[pair]:
            del self._pairs[pair]
            self._waits[pair] = False

    def _chosen(self) -> Iterator[FlowRequest]:
        occupancy, nodes = self._occupancy, self.network.nodes
        is_first = True
        while occupancy.free_channels:
            can_send = _nodes_with(occupancy.free_transmitters)
            can_send = can_send[self._waits.any(axis=1)[can_send]]
            can_receive = _nodes_with(occupancy.free_receivers)
            can_receive = can_receive[self._waits[can_send].any(axis=0)[can_receive]]
            rows, columns = np.nonzero(self._waits[np.ix_(can_send, can_receive)])
            if not len(rows):
                return
            receiver, sender = _nearest(can_receive[columns], can_send[rows], self._grants_next)
            sender, receiver = _nearest(sender, receiver, self._accepts_next)
            turns = np.argsort((sender - self._channel_next) % nodes)[: occupancy.free_channels]
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


def _nearest(chooser: Ints, other: Ints, pointers: Ints) -> tuple[Ints, Ints]:
    """Of pairs, the one of each chooser whose other is next from the chooser's pointer on."""
    nodes = len(pointers)
    distance = np.full(nodes, nodes)
    np.minimum.at(distance, chooser, (other - pointers[chooser]) % nodes)
    choosers = np.flatnonzero(distance < nodes)
    return choosers, (distance[choosers] + pointers[choosers]) % nodes
