"""What a job's training sends over links, and how rings share links, max-min fair.

All edges of a job's ring go at one rate, that of the slowest, as a ring all-reduce moves in step;
a job with several edges on a link takes as many shares of it. Rates of all jobs rise together
until a link is full; its jobs stay there and the others go on (progressive filling, Bertsekas
and Gallager, *Data Networks*, 1992, §6.5.2, with a job's edges as one session).
"""

import math
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from statistics import median
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

from patchlight.testbed.errors import BadInput

UNLIMITED_BPS = 1e15
"""The rate of a link for which the lab file sets no limit."""

LAST_ITERATIONS = 20
# Rates this near are equal: what differs between them is chance.
_SAME_RATE = 0.05

Demand = Mapping[Hashable, int]
"""For each directed link that a ring uses, how many of its edges are on it."""


class Training(NamedTuple):
    """Synchronous data-parallel training, as in the lab's ``JobSpec``.

    ``gradient_bytes`` are those of one gradient, ``compute_s`` the seconds of one iteration by
    GPU model; the slowest GPU of a job sets its pace. Where an iteration's work is ``split`` over
    the workers, n of them compute for an n-th of that each.
    """

    iterations: float
    gradient_bytes: float
    compute_s: Mapping[str, float]
    split: bool = False

    def slowest_s(self, workers: int, models: Collection[str]) -> float:
        """How long so many workers on GPUs of these models compute in an iteration."""
        slowest_s = max(self.compute_s[model] for model in models)
        return slowest_s / workers if self.split else slowest_s


class Load(NamedTuple):
    """A placed job's work: so many units, each of some computing and some bits on each edge."""

    units: float
    compute_s: float
    ring_bits: float

    def unit_s(self, rate_bps: float) -> float:
        """Seconds of a unit where an edge of the ring has this rate: T = C + V/B.

        Computing and communication are one after the other. Infinity at rate 0.
        """
        if not self.ring_bits:
            return self.compute_s
        return self.compute_s + self.ring_bits / rate_bps if rate_bps else math.inf

    def mean_bps(self, rate_bps: float) -> float:
        """The mean rate of an edge over a unit, where it has this rate while it sends."""
        return self.ring_bits / self.unit_s(rate_bps) if self.ring_bits else 0.0


def ring_bits(workers: int, gradient_bytes: float) -> float:
    """Bits over each edge of a ring all-reduce: V = 2(n−1)/n · 8 · bytes.

    Patarasuk and Yuan, JPDC 2009.
    """
    return 2 * (workers - 1) / workers * 8 * gradient_bytes


def training_load(name: str, training: Training, workers: int, models: Collection[str]) -> Load:
    """The work of a training on so many GPUs, of these models; a unit is an iteration.

    ``BadInput`` if the training does not know a model.
    """
    compute_s = training.compute_s
    unknown = sorted({model for model in models if model not in compute_s})
    if unknown:
        raise BadInput(
            f"job {name} does not know how long an iteration takes on "
            f"{', '.join(unknown)}: it knows {', '.join(compute_s)}"
        )
    slowest_s = training.slowest_s(workers, models)
    if not 0 < slowest_s < math.inf:
        raise BadInput(f"job {name}: an iteration cannot take {slowest_s} s to compute")
    return Load(training.iterations, slowest_s, ring_bits(workers, training.gradient_bytes))


class MeasuredIteration(NamedTuple):
    """Iterations took ``iteration_s`` while an edge of the ring had ``rate_bps``."""

    iteration_s: float
    rate_bps: float

    @classmethod
    def of(cls, durations_s: Sequence[float], rate_bps: float) -> Self:
        """The median of the last twenty iterations, all of them at this rate.

        ``BadInput`` for no iteration, or for what is no time.
        """
        last = list(durations_s[-LAST_ITERATIONS:])
        if not last or not all(0 < each < math.inf for each in last):
            raise BadInput(
                f"iterations cannot have taken {last[:5]} s: expected at least one, of more than 0"
            )
        return cls(median(last), rate_bps)

    def is_at(self, rate_bps: float) -> bool:
        """Whether it was measured at this rate, within 5 %."""
        return math.isclose(self.rate_bps, rate_bps, rel_tol=_SAME_RATE)


def learned_work(
    compute_s: float, bits: float, measured: Sequence[MeasuredIteration]
) -> tuple[float, float]:
    """Seconds of computing and bits on each edge of an iteration; ``nan`` is unknown.

    T = C + V/B, solved for what is missing. The last measurement gives C where V is known, and V
    where C is known; the last two at different rates give both. Known values stay as they are.
    """
    if not measured or not (math.isnan(compute_s) or math.isnan(bits)):
        return compute_s, bits
    last = measured[-1]
    if not math.isnan(bits):
        return max(0.0, last.iteration_s - bits / last.rate_bps), bits
    if not math.isnan(compute_s):
        return compute_s, max(0.0, (last.iteration_s - compute_s) * last.rate_bps)
    other = next((each for each in reversed(measured) if not each.is_at(last.rate_bps)), None)
    if other is None:
        return compute_s, bits
    slope = (last.iteration_s - other.iteration_s) / (1 / last.rate_bps - 1 / other.rate_bps)
    bits = min(max(0.0, slope), last.iteration_s * last.rate_bps)
    return last.iteration_s - bits / last.rate_bps, bits


def fair_rates(
    demands: Sequence[Demand], capacity_bps: Mapping[Hashable, float], most_bps: float = math.inf
) -> list[float]:
    """The rate in bit/s of an edge of each ring, ``most_bps`` where no link limits it."""
    rates = [most_bps] * len(demands)
    settled = [False] * len(demands)
    left = {link: capacity_bps[link] for demand in demands for link in demand}
    weight = dict.fromkeys(left, 0)
    rings_on: dict[Hashable, list[int]] = {link: [] for link in left}
    for ring, demand in enumerate(demands):
        for link, edges in demand.items():
            weight[link] += edges
            rings_on[link].append(ring)
    while weight:
        full = min(weight, key=lambda link: left[link] / weight[link])
        rate = left[full] / weight[full]
        if rate >= most_bps:
            break
        for ring in rings_on[full]:
            if settled[ring]:
                continue
            rates[ring], settled[ring] = rate, True
            for link, edges in demands[ring].items():
                left[link] = max(0.0, left[link] - edges * rate)
                weight[link] -= edges
                if not weight[link]:
                    del weight[link]
    return rates


class Capacities(Protocol):
    """The links that rings share."""

    @property
    def edge_bps(self) -> float:
        """The most that an edge of a ring can have on any links."""

    @property
    def capacity_bps(self) -> Mapping[Hashable, float]:
        """The rate of each directed link that rings share."""


class RingShare(Protocol):
    """A running job: its number, what it has to do, its links, and its seconds for a unit."""

    index: int
    load: Load
    demand: Demand
    unit_s: float


R = TypeVar("R", bound=RingShare)


class RingNetwork(Generic[R]):
    """The running jobs by the links that they share."""

    def __init__(self, network: Capacities) -> None:
        self._network = network
        self._sharing: dict[int, R] = {}
        self._rings_on: dict[Hashable, int] = {}

    def route(self, job: R, demand: Demand | None) -> bool:
        """Put a job's ring on these links; whether it shares them, or those that it had.

        A job that shares links stands still until ``new_paces``, one without a circuit (``None``)
        until its next route.
        """
        shared = self.remove(job)
        job.demand = demand or {}
        if not demand or not job.load.ring_bits:
            dark = demand is None
            job.unit_s = math.inf if dark else job.load.unit_s(self._network.edge_bps)
            return shared
        self._sharing[job.index] = job
        shares, rings_on = False, self._rings_on
        for link in demand:
            before = rings_on.get(link, 0)
            rings_on[link] = before + 1
            shares = shares or before > 0
        if shares or shared:
            job.unit_s = math.inf
            return True
        # What ``fair_rates`` says of a ring that has all its links to itself.
        capacity_bps, rate_bps = self._network.capacity_bps, self._network.edge_bps
        for link, edges in demand.items():
            rate_bps = min(rate_bps, capacity_bps[link] / edges)
        job.unit_s = job.load.unit_s(rate_bps)
        return False

    def remove(self, job: R) -> bool:
        """Take a job's ring off its links; whether it shared any."""
        if self._sharing.pop(job.index, None) is None:
            return False
        shared, rings_on = False, self._rings_on
        for link in job.demand:
            left = rings_on[link] - 1
            if left:
                rings_on[link], shared = left, True
            else:
                del rings_on[link]
        return shared

    def new_paces(self) -> Iterator[tuple[R, float]]:
        """Share the links; the jobs whose pace changes, each with its seconds for a unit."""
        jobs, network = list(self._sharing.values()), self._network
        rates = fair_rates([job.demand for job in jobs], network.capacity_bps, network.edge_bps)
        for job, rate_bps in zip(jobs, rates, strict=True):
            unit_s = job.load.unit_s(rate_bps)
            if unit_s != job.unit_s:
                yield job, unit_s
