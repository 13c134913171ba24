"""Paths of light for flows: what is wanted, what is granted, and what a scheduler of them does.

A job has a network of light to itself. Its nodes have tunable transceivers; a flow gets a channel
from a time on, is sent, and gives the channel back. The same scheduler works in the controller,
which has a clock and clients, and in the simulator, which has neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, NamedTuple, Protocol

from patchlight.testbed.errors import BadInput

if TYPE_CHECKING:  # slow to import
    import numpy as np
    from numpy.typing import NDArray


NO_CHANNEL = -1
"""In ``PathNetwork.routes``: no light goes from this node to that one."""


class FlowRequest(NamedTuple):
    """One flow that wants a path: ``nbytes`` from node ``source`` to node ``destination``.

    ``flow`` tells it apart from all others that are not yet released. It is of use until
    ``deadline_s``, in the seconds of its scheduler. Flows of one ``collective`` belong to each
    other, and among them those of one ``round`` are sent side by side, rounds in order.
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

    All are counted from 0. Both ends are tuned at ``starts_s``, if they begin with it when they
    are told, and at the network's rate the flow is sent at ``ends_s``. The path is the flow's until
    it is released.
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
    """A flow that gets no path, and why, in a plain sentence without its end."""

    flow: int
    reason: str


@dataclass(frozen=True, eq=False)
class PathNetwork:
    """The light that a job has to itself: ``nodes`` and ``channels``, both counted from 0.

    A node has so many ``transmitters`` and ``receivers``, each at ``rate_bps``. Tuning both ends to
    what they were not used for last takes ``tuning_s``.

    Without ``routes`` every channel goes from everybody to everybody, as in a coupler, so there is
    one sender on it at a time. With ``routes`` (nodes × nodes; ``NO_CHANNEL`` where no light goes)
    the channel says where light goes, as in an AWG router or a wavelength switch, and
    several senders may use one at a time.
    """

    nodes: int
    channels: int
    rate_bps: float = inf
    tuning_s: float = 0.0
    transmitters: int = 1
    receivers: int = 1
    routes: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        least = min(self.nodes - 1, self.channels, self.transmitters, self.receivers)
        if least < 1 or not (self.rate_bps > 0 and 0 <= self.tuning_s < inf):
            raise BadInput(
                f"no network of paths: {self.nodes} nodes with {self.transmitters} transmitters "
                f"and {self.receivers} receivers, {self.channels} channels of {self.rate_bps:g} "
                f"b/s, tuned in {self.tuning_s:g} s: expected 2 nodes or more, 1 or more of the "
                "others, and a time that is not negative"
            )
        if self.routes is not None and (
            self.routes.shape != (self.nodes, self.nodes) or self.routes.max() >= self.channels
        ):
            raise BadInput(
                f"routes of shape {self.routes.shape} with channels up to {self.routes.max()} do "
                f"not fit {self.nodes} nodes and {self.channels} channels"
            )

    def sending_s(self, nbytes: float) -> float:
        """How long so many bytes take on a path."""
        return 8 * nbytes / self.rate_bps

    def check(self, flow: FlowRequest) -> None:
        """``BadInput`` for a flow that makes no sense in any network of this size."""
        for node in (flow.source, flow.destination):
            if not 0 <= node < self.nodes:
                raise BadInput(
                    f"flow {flow.flow}: there is no node {node}: expected 0 to {self.nodes - 1}"
                )
        if flow.source == flow.destination:
            raise BadInput(
                f"flow {flow.flow} goes from node {flow.source} to itself: expected another "
                "destination"
            )
        if not 0 < flow.nbytes < inf:
            raise BadInput(f"flow {flow.flow} has {flow.nbytes:g} bytes: expected more than 0")


class PathScheduler(Protocol):
    """Decides which of the waiting flows get a path, on which channel.

    Deterministic: what it says follows from what it was told, in that order. Times are in seconds
    and never go back. Never two flows on one transmitter or receiver at a time, nor on one channel
    where that meets; and no flow waits for which all three are free.
    """

    network: PathNetwork

    def admit(self, flows: Sequence[FlowRequest], now_s: float) -> list[PathRefusal]:
        """Take flows in to wait, but those that are refused: too late, or no light goes there.

        ``BadInput`` for a flow that makes no sense or whose number is in use; then none is taken.
        """

    def grants(self, now_s: float) -> list[PathGrant]:
        """The paths that are given from now on, none of them before."""

    def release(self, flow: int, now_s: float) -> None:
        """Give a flow's path back, or its place if it waits. ``BadInput`` if there is none."""


class ControlDelay(NamedTuple):
    """From asking for a path to having it, where nobody else has it, and where that is from."""

    round_trip_s: float
    source: str

    @property
    def one_way_s(self) -> float:
        """Half of it: what a request, a grant or a release takes."""
        return self.round_trip_s / 2


CONTROL_DELAYS: Mapping[str, ControlDelay] = {
    "central": ControlDelay(
        15.7e-3,
        "POST /v1/paths, one client, median of 100 on loopback (benchmarks.paths), on 2 cores that "
        "had other work at a load of 13; the controller's processor had 4.3 ms of it",
    ),
    "distributed": ControlDelay(
        0.20e-3,
        "ask and give over UDP on loopback, one sender, median of 300 (benchmarks.paths), on 2 "
        "cores that had other work at a load of 13; both nodes' processors had 0.28 ms of it",
    ),
}
"""By who is in control: the controller, or the nodes among themselves."""
