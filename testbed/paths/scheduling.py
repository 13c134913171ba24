"""Models optical paths for flows: requests, grants, channels, and the base of schedulers.

A job has an optical network of its own, whose nodes have tunable transceivers. A flow gets a
channel from a time on, is sent, and releases the channel. The same schedulers work in the
controller, which has a clock and clients, and in the simulator, which has neither.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from patchlight.testbed.errors import BadInput

if TYPE_CHECKING:  # slow to import
    import numpy as np
    from numpy.typing import NDArray


NO_CHANNEL = -1
"""In ``PathNetwork.routes``: no path from this node to that one."""


class FlowRequest(NamedTuple):
    """One flow that wants a path: ``nbytes`` from node ``source`` to node ``destination``.

    ``flow`` is unique among those not yet released. The flow is useful until ``deadline_s``, in its
    scheduler's seconds. Flows of one ``collective`` belong to each other, and among them those of
    one ``round`` are sent side by side, rounds in order.
    """

    flow: int
    source: int
    destination: int
    nbytes: float
    deadline_s: float = inf
    collective: str | None = None
    round: int = 0


class PathGrant(NamedTuple):
    """A path from a transmitter of ``source`` over ``channel`` to a receiver of ``destination``.

    All are counted from 0. If tuning starts immediately, both ends are tuned at ``starts_s``, and
    at the network's rate the flow is sent at ``ends_s``. The path is the flow's until released.
    """

    flow: int
    source: int
    destination: int
    channel: int
    starts_s: float
    ends_s: float
    transmitter: int = 0
    receiver: int = 0


class PathRefusal(NamedTuple):
    """A flow that gets no path, and why, as a clause."""

    flow: int
    reason: str


@dataclass(
    frozen=True,
    eq=False,
)
class PathNetwork:
    """A job's optical network: ``nodes`` and ``channels``, both counted from 0.

    Each node has ``transmitters`` and ``receivers`` at ``rate_bps``. Tuning both ends to a new
    channel takes ``tuning_s``.

    Without ``routes`` every channel reaches every node, as in a coupler, so it has one sender at a
    time. With ``routes`` (nodes × nodes; ``NO_CHANNEL`` for none) the channel determines the
    destination, as in an AWG router or a wavelength switch, and several senders may use it at a
    time.
    """

    nodes: int
    channels: int
    rate_bps: float = inf
    tuning_s: float = 0.0
    transmitters: int = 1
    receivers: int = 1
    routes: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        least = min(
            self.nodes - 1,
            self.channels,
            self.transmitters,
            self.receivers,
        )
        if least < 1 or not (self.rate_bps > 0 and 0 <= self.tuning_s < inf):
            raise BadInput(
                f"invalid network of paths: {self.nodes} nodes with {self.transmitters} "
                f"transmitters and {self.receivers} receivers, {self.channels} channels of "
                f"{self.rate_bps:g} b/s, tuned in {self.tuning_s:g} s: expected 2 nodes or more, "
                "1 or more of the others, and a time that is not negative"
            )
        if self.routes is not None and (
            self.routes.shape != (self.nodes, self.nodes)
            or self.routes.max() >= self.channels
        ):
            raise BadInput(
                f"routes of shape {self.routes.shape} with channels up to {self.routes.max()} do "
                f"not fit {self.nodes} nodes and {self.channels} channels"
            )

    def sending_s(self, nbytes: float) -> float:
        """Seconds to send that many bytes on a path."""
        return 8 * nbytes / self.rate_bps

    def check(self, flow: FlowRequest) -> None:
        """``BadInput`` for a flow that is invalid in this network."""
        for node in (flow.source, flow.destination):
            if not 0 <= node < self.nodes:
                raise BadInput(
                    f"flow {flow.flow}: unknown node {node}: expected 0 to {self.nodes - 1}"
                )
        if flow.source == flow.destination:
            raise BadInput(
                f"flow {flow.flow} goes from node {flow.source} to itself: expected another "
                "destination"
            )
        if not 0 < flow.nbytes < inf:
            raise BadInput(
                f"flow {flow.flow} has {flow.nbytes:g} bytes: expected more than 0"
            )


class ControlDelay(NamedTuple):
    """The time from the request for a free path until its grant, and the source of that figure."""

    round_trip_s: float
    source: str

    @property
    def one_way_s(self) -> float:
        """Half of it: the time of a request, a grant or a release."""
        return self.round_trip_s / 2


CONTROL_DELAYS: Mapping[str, ControlDelay] = {
    "central": ControlDelay(
        15.7e-3,
        "POST /v1/paths, one client, median of 100 on loopback (benchmarks.paths), on 2 cores "
        "at a load of 13; 4.3 ms of it was the controller's CPU time",
    ),
    "distributed": ControlDelay(
        0.20e-3,
        "request and grant over UDP on loopback, one sender, median of 300 (benchmarks.paths), "
        "on 2 cores at a load of 13; 0.28 ms of it was both nodes' CPU time",
    ),
}
"""By who is in control: the controller, or the nodes among themselves."""


class PathOccupancy:
    """Every path of a network: in use, or last tuned to.

    ``free_transmitters`` and ``free_receivers`` hold the free ones of each node, and ``granted``
    the paths in use by flow.
    """

    def __init__(self, network: PathNetwork) -> None:
        self.network = network
        self.free_transmitters = [
            list(range(network.transmitters)) for _ in range(network.nodes)
        ]
        self.free_receivers = [
            list(range(network.receivers)) for _ in range(network.nodes)
        ]
        self.granted: dict[int, PathGrant] = {}
        # Longest free first, so that others stay tuned. With routes, channels are never taken.
        self._channels = dict.fromkeys(range(network.channels))
        self._sent: dict[tuple[int, int], tuple[int, int]] = {}
        self._received: dict[tuple[int, int], tuple[int, int]] = {}

    @property
    def free_channels(self) -> int:
        """How many further paths have channels."""
        return (
            len(self._channels)
            if self.network.routes is None
            else self.network.nodes
        )

    def refusal(self, flow: FlowRequest, now_s: float) -> PathRefusal | None:
        """Why a flow can get no path even in an empty network; ``None`` if it can."""
        routes = self.network.routes
        if (
            routes is not None
            and routes[flow.source, flow.destination] == NO_CHANNEL
        ):
            return PathRefusal(
                flow.flow,
                f"there is no path from node {flow.source} to node {flow.destination}",
            )
        takes_s = self.network.sending_s(flow.nbytes)
        if now_s + takes_s > flow.deadline_s:
            return PathRefusal(
                flow.flow,
                f"its deadline is in {flow.deadline_s - now_s:g} s, and sending it takes "
                f"{takes_s:g} s",
            )
        return None

    @property
    def channels(self) -> list[int]:
        """The free channels, longest free first; with routes, all of them."""
        return list(self._channels)

    @property
    def pairs_tuned(self) -> Counter[int]:
        """How many pairs of transmitter and receiver are tuned to each other, by channel."""
        heard = {(own, node) for (node, _), own in self._received.items()}
        return Counter(
            channel
            for (source, _), (channel, there) in self._sent.items()
            if ((channel, source), there) in heard
        )

    def take(
        self,
        flow: FlowRequest,
        now_s: float,
        channel: int | None = None,
    ) -> PathGrant:
        """The earliest path for a flow with free ends, if a channel is free.

        It uses ``channel``, a free one, if given.
        """
        source = flow.source
        destination = flow.destination
        path = self.tuned(source, destination, channel)
        starts_s = now_s
        if path is None:
            starts_s += self.network.tuning_s
            routes = self.network.routes
            if routes is not None:
                channel = int(routes[source, destination])
            elif channel is None:
                channel = next(iter(self._channels))
            path = (
                self.free_transmitters[source][0],
                self.free_receivers[destination][0],
                channel,
            )
        transmitter, receiver, channel = path
        self.free_transmitters[source].remove(transmitter)
        self.free_receivers[destination].remove(receiver)
        if self.network.routes is None:
            del self._channels[channel]
        self._sent[source, transmitter] = channel, destination
        self._received[destination, receiver] = channel, source
        ends_s = starts_s + self.network.sending_s(flow.nbytes)
        grant = PathGrant(
            flow.flow,
            source,
            destination,
            channel,
            starts_s,
            ends_s,
            transmitter,
            receiver,
        )
        self.granted[flow.flow] = grant
        return grant

    def give_back(self, flow: int) -> None:
        """Free a granted flow's transmitter, receiver and channel."""
        grant = self.granted.pop(flow)
        self.free_transmitters[grant.source].append(grant.transmitter)
        self.free_receivers[grant.destination].append(grant.receiver)
        if self.network.routes is None:
            self._channels[grant.channel] = None

    def tuned(
        self,
        source: int,
        destination: int,
        over: int | None = None,
    ) -> tuple[int, int, int] | None:
        """A free path whose ends are still tuned to each other.

        Its transmitter, receiver and channel; only ``over`` this channel, if given.
        """
        for transmitter in self.free_transmitters[source]:
            channel, there = self._sent.get(
                (source, transmitter), (NO_CHANNEL, NO_CHANNEL)
            )
            if (
                there == destination
                and (over is None or channel == over)
                and (
                    self.network.routes is not None
                    or channel in self._channels
                )
            ):
                for receiver in self.free_receivers[destination]:
                    if self._received.get((destination, receiver)) == (
                        channel,
                        source,
                    ):
                        return transmitter, receiver, channel
        return None


class PathScheduler(ABC):
    """Decides which waiting flows get a path, and on which channel.

    Deterministic: its answers depend only on its calls and their order. Times are in seconds and
    never decrease. Two flows never share a transmitter or receiver at a time, nor a channel if
    their signals would collide; and no flow waits while all three are free. A subclass orders flows
    and chooses.
    """

    def __init__(self, network: PathNetwork) -> None:
        self.network = network
        self._occupancy = PathOccupancy(network)
        self._waiting: dict[int, FlowRequest] = {}

    @property
    def waiting(self) -> list[FlowRequest]:
        """The flows without a path, in order of arrival."""
        return list(self._waiting.values())

    @property
    def granted(self) -> list[PathGrant]:
        """The paths in use, in order of their grants."""
        return list(self._occupancy.granted.values())

    def has(self, flow: int) -> bool:
        """Whether a flow waits or has a path."""
        return flow in self._waiting or flow in self._occupancy.granted

    def admit(
        self, flows: Sequence[FlowRequest], now_s: float
    ) -> list[PathRefusal]:
        """Queue flows, except those that are refused: too late, or without a route.

        ``BadInput`` for an invalid flow or a number in use; then none is queued.
        """
        fresh = set[int]()
        for flow in flows:
            self.network.check(flow)
            if flow.flow in fresh or self.has(flow.flow):
                raise BadInput(
                    f"flow {flow.flow} already exists: expected another number"
                )
            fresh.add(flow.flow)
        refused = []
        for flow in flows:
            if refusal := self._occupancy.refusal(flow, now_s):
                refused.append(refusal)
            else:
                self._waiting[flow.flow] = flow
                self._enter(flow)
        return refused

    def grants(self, now_s: float) -> list[PathGrant]:
        """The paths granted at this time or later."""
        given = []
        for flow in self._chosen():
            del self._waiting[flow.flow]
            given.append(self._occupancy.take(flow, now_s))
        return given

    def release(self, flow: int, now_s: float) -> None:
        """Release a flow's path, or its place in the queue. ``BadInput`` for an unknown flow."""
        if flow in self._occupancy.granted:
            grant = self._occupancy.granted[flow]
            self._occupancy.give_back(flow)
            self._freed(grant)
        elif flow in self._waiting:
            self._leave(self._waiting.pop(flow))
        else:
            raise BadInput(
                f"unknown flow {flow}: it was released or never admitted"
            )

    def _freed(self, grant: PathGrant) -> None:
        return

    @abstractmethod
    def _enter(self, flow: FlowRequest) -> None:
        """Add a flow to the queue."""

    @abstractmethod
    def _leave(self, flow: FlowRequest) -> None:
        """Remove a waiting flow."""

    @abstractmethod
    def _chosen(self) -> Iterator[FlowRequest]:
        """Yield flows that fit, removed from the queue; the caller takes each path first."""
