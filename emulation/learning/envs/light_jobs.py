"""Jobs that train over an optical network, iteration by iteration, flow by flow."""

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from patchlight.emulation.simulator.network.contract import Round, collective
from patchlight.testbed.errors import BadInput
from patchlight.testbed.paths.scheduling import (
    FlowRequest,
    PathGrant,
    PathNetwork,
    PathScheduler,
)

# Paths that end less than this apart, as a part of the time, end together.
_AT_ONCE = 1e-12


class LightJob(NamedTuple):
    """A job: in each iteration it computes, then its ``nodes`` send ``steps``, one after the other.

    A step is flows that are ready at once. ``least_s`` is what they take where only the rate of the
    nodes limits them.
    """

    name: str
    nodes: tuple[int, ...]
    steps: tuple[tuple[FlowRequest, ...], ...]
    compute_s: float
    least_s: float


@dataclass(frozen=True)
class LightJobs:
    """So many jobs on nodes drawn by chance, each of so many iterations.

    A job has 2, 4 or 8 nodes (as many as there are), one of ``collectives``, and from
    ``least_bytes`` to ``most_bytes`` of gradients (uniform in the logarithm). It computes up to
    ``most_computing`` times as long as its collective takes at least.
    """

    jobs: int = 4
    iterations: int = 6
    collectives: tuple[str, ...] = (
        "ring",
        "all-to-all",
        "halving-doubling",
        "parameter-server",
    )
    least_bytes: float = 20e6
    most_bytes: float = 500e6
    most_computing: float = 1.0

    def __post_init__(self) -> None:
        sizes = 0 < self.least_bytes <= self.most_bytes < float("inf")
        if not (
            self.jobs > 0
            and self.iterations > 0
            and self.collectives
            and sizes
        ):
            raise BadInput(
                f"invalid jobs over optical paths: {self.jobs} jobs of {self.iterations} "
                f"iterations, "
                f"collectives {self.collectives}, {self.least_bytes:g} to {self.most_bytes:g} "
                "bytes: expected 1 or more of each, and sizes from low to high"
            )
        if not 0 <= self.most_computing < float("inf"):
            raise BadInput(
                f"jobs compute {self.most_computing} times as long: expected 0 or more"
            )
        for name in self.collectives:
            collective(name, 2, 1.0)  # Refuses a name that there is not.

    def draw(
        self, rng: np.random.Generator, network: PathNetwork
    ) -> list[LightJob]:
        """The jobs of an episode."""
        sizes = [size for size in (2, 4, 8) if size <= network.nodes]
        found = []
        for number in range(self.jobs):
            size = int(rng.choice(sizes))
            nodes = tuple(rng.permutation(network.nodes)[:size].tolist())
            name = str(rng.choice(self.collectives))
            nbytes = float(
                np.exp(
                    rng.uniform(
                        np.log(self.least_bytes), np.log(self.most_bytes)
                    )
                )
            )
            rounds = collective(name, size, nbytes)
            # The shifts of an all-to-all do not wait for each other; other rounds do.
            steps = (
                [rounds]
                if name == "all-to-all"
                else [[each] for each in rounds]
            )
            flows = tuple(
                tuple(_flows(f"job-{number}", nodes, step)) for step in steps
            )
            ways = min(network.transmitters, network.receivers)
            least_s = sum(_busiest_s(network, step) for step in flows) / ways
            compute_s = float(rng.uniform(0, self.most_computing)) * least_s
            found.append(
                LightJob(
                    f"job-{number}",
                    nodes,
                    flows,
                    compute_s,
                    least_s,
                )
            )
        return found


def _flows(
    name: str,
    nodes: tuple[int, ...],
    step: list[Round],
) -> Iterator[FlowRequest]:
    for number, each in enumerate(step):
        for source, destination in zip(
            each.source, each.destination, strict=True
        ):
            ends = nodes[source], nodes[destination]
            yield FlowRequest(
                0,
                *ends,
                each.bits / 8,
                collective=name,
                round=number,
            )


def _busiest_s(network: PathNetwork, flows: tuple[FlowRequest, ...]) -> float:
    sent = np.zeros(network.nodes)
    received = np.zeros(network.nodes)
    for flow in flows:
        sent[flow.source] += network.sending_s(flow.nbytes)
        received[flow.destination] += network.sending_s(flow.nbytes)
    return float(max(sent.max(), received.max()))


class ChosenPaths(PathScheduler):
    """A scheduler of paths that gives them to flows that its caller chooses.

    Left alone it gives them as the flows came.
    """

    def fitting(self, most: int) -> list[FlowRequest]:
        """The first so many of the waiting flows for which there is a path now."""
        occupancy = self._occupancy
        found = list[FlowRequest]()
        if occupancy.free_channels:
            senders = occupancy.free_transmitters
            receivers = occupancy.free_receivers
            for flow in self._waiting.values():
                if senders[flow.source] and receivers[flow.destination]:
                    found.append(flow)
                    if len(found) == most:
                        break
        return found

    def tuned_channel(self, flow: FlowRequest) -> int | None:
        """The channel of a free path that needs no tuning, if there is one."""
        tuned = self._occupancy.tuned(flow.source, flow.destination)
        return None if tuned is None else tuned[-1]

    def channels(self) -> list[int]:
        """The channels that are free, the longest free first."""
        return self._occupancy.channels

    def pairs_tuned(self) -> Mapping[int, int]:
        """By channel how many pairs of a transmitter and a receiver are tuned to it."""
        return self._occupancy.pairs_tuned

    def give(
        self,
        flow: FlowRequest,
        now_s: float,
        channel: int | None = None,
    ) -> PathGrant:
        """A path for one of those that fit, over a free channel if one is given."""
        del self._waiting[flow.flow]
        return self._occupancy.take(flow, now_s, channel)

    def _enter(self, flow: FlowRequest) -> None:
        return

    def _leave(self, flow: FlowRequest) -> None:
        return

    def _chosen(self) -> Iterator[FlowRequest]:
        while flows := self.fitting(1):
            yield flows[0]


@dataclass
class _Progress:
    """How far a job is: it computes while ``left`` is 0, or waits for so many flows of a step."""

    iterations: int = 0
    step: int = 0
    left: int = 0
    began_s: float = 0.0


@dataclass
class LightRun:
    """Jobs over one network of light, from the first computation to the last flow.

    Between calls of ``advance`` the waiting flows are given paths by ``give``. ``arrivals`` and
    ``grants`` are all that was admitted and granted, in order; ``collectives_s`` is how long each
    collective took, from its first flow ready to the last one sent.
    """

    network: PathNetwork
    jobs: list[LightJob]
    iterations: int
    now_s: float = 0.0
    arrivals: list[tuple[float, FlowRequest]] = field(default_factory=list)
    grants: list[PathGrant] = field(default_factory=list)
    collectives_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.paths = ChosenPaths(self.network)
        self.bytes_left = [0.0] * len(self.jobs)
        self._progress = [_Progress() for _ in self.jobs]
        self._owner: dict[int, int] = {}
        self._communicating = 0
        # When, and the flow that is sent, or −1 − job for a job that has computed.
        computed = [
            (job.compute_s, -1 - number)
            for number, job in enumerate(self.jobs)
        ]
        self._events = sorted(computed)

    @property
    def goes_on(self) -> bool:
        """Whether anything is sent or computed that will end."""
        return bool(self._events)

    def job_of(self, flow: FlowRequest) -> int:
        """The number of the job that a flow is of."""
        return self._owner[flow.flow]

    def waited_s(self, flow: FlowRequest) -> float:
        """For how long a flow has been ready."""
        return self.now_s - self.arrivals[flow.flow][0]

    def give(self, flow: FlowRequest, channel: int | None = None) -> PathGrant:
        """Give a path to one of the flows that fit, over a free channel if one is given."""
        grant = self.paths.give(flow, self.now_s, channel)
        self.grants.append(grant)
        heapq.heappush(self._events, (grant.ends_s, grant.flow))
        return grant

    def advance(self) -> float:
        """Go on to when something ends; the seconds till then, times jobs that communicate."""
        before_s = self.now_s
        jobs = self._communicating
        self.now_s = self._events[0][0]
        limit_s = self.now_s * (1 + _AT_ONCE)
        ended = []
        while self._events and self._events[0][0] <= limit_s:
            ended.append(heapq.heappop(self._events)[1])
        for flow in ended:
            if flow >= 0:
                self.paths.release(flow, self.now_s)
        for event in ended:
            if event < 0:
                self._begin(-1 - event)
            else:
                self._sent(event)
        return (self.now_s - before_s) * jobs

    def _begin(self, number: int) -> None:
        self._progress[number].began_s = self.now_s
        self._communicating += 1
        self._ready(number)

    def _ready(self, number: int) -> None:
        progress = self._progress[number]
        first = len(self.arrivals)
        step = self.jobs[number].steps[progress.step]
        flows = [
            flow._replace(flow=first + at) for at, flow in enumerate(step)
        ]
        progress.left = len(flows)
        self._owner.update((flow.flow, number) for flow in flows)
        self.bytes_left[number] += sum(flow.nbytes for flow in flows)
        self.arrivals += [(self.now_s, flow) for flow in flows]
        if refused := self.paths.admit(flows, self.now_s):
            raise BadInput(
                f"a job on nodes {self.jobs[number].nodes}: {refused[0].reason}",
                hint="use a network with an optical path from every node to every other",
            )

    def _sent(self, flow: int) -> None:
        number = self._owner[flow]
        job = self.jobs[number]
        progress = self._progress[number]
        progress.left -= 1
        self.bytes_left[number] -= self.arrivals[flow][1].nbytes
        if progress.left:
            return
        progress.step = (progress.step + 1) % len(job.steps)
        if progress.step:
            self._ready(number)
            return
        self._communicating -= 1
        self.collectives_s.append(self.now_s - progress.began_s)
        progress.iterations += 1
        if progress.iterations < self.iterations:
            heapq.heappush(
                self._events, (self.now_s + job.compute_s, -1 - number)
            )
