"""How long jobs take that share a lab's links: iterations, what holds them up, and their ends.

Where a job's specification does not say what an iteration takes, its measured iterations do.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple, Self

from patchlight.controller.prediction.network import UNLIMITED_BPS, LabNetwork
from patchlight.controller.prediction.sharing import Demand, Load, Training, fair_rates, ring_bits
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.units import format_rate

LAST_ITERATIONS = 20
# Two rates this near are one: what differs between them is chance.
_SAME_RATE = 0.05


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
    """Seconds of computing and bits on each edge of an iteration; ``nan`` is what is not known.

    T = C + V/B, solved for what is missing. One measurement, the last, gives C where V is
    known, and V where C is known; the last two at different rates give both. What is known
    already stays as it is.
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


@dataclass(frozen=True, slots=True)
class PredictedJob:
    """A job that runs, or would: ``hosts`` is its ring in order, by name.

    Of ``training``, ``iterations`` are those still to come, infinity where nobody knows; where
    ``gradient_bytes`` is ``nan`` or ``compute_s`` lacks a model, that is not known, and
    ``measured`` (the latest last) may tell. ``dark_s``: it stands still for so long first.
    """

    name: str
    hosts: tuple[str, ...]
    training: Training
    measured: tuple[MeasuredIteration, ...] = ()
    dark_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """What becomes of a job; ``None`` where that is not known.

    ``iteration_s`` = ``compute_s`` + ``communication_s`` as the links are shared at first, an
    edge of its ring at ``rate_bps``; ``completion_s`` counts from now, over all that ends
    meanwhile. ``bottleneck`` says which link holds the job up. Without a way for its ring,
    ``rate_bps`` is 0 and nothing else is known.
    """

    job: str
    iteration_s: float | None
    compute_s: float | None
    communication_s: float | None
    completion_s: float | None
    rate_bps: float
    bottleneck: str

    @property
    def words(self) -> str:
        """For people: ``0.68 s an iteration (0.5 s computing, 0.18 s communicating)``."""
        if self.iteration_s is None:
            return f"not known how long an iteration takes; {self.bottleneck}"
        if self.compute_s is None or self.communication_s is None:
            return f"{self.iteration_s:.3g} s an iteration, as measured; {self.bottleneck}"
        return (
            f"{self.iteration_s:.3g} s an iteration ({self.compute_s:.3g} s computing, "
            f"{self.communication_s:.3g} s communicating); {self.bottleneck}"
        )


def predict(
    lab: Lab, circuits: Mapping[str, PortMap], jobs: Sequence[PredictedJob]
) -> list[Prediction]:
    """What becomes of each of these jobs, all of which run now, under these maps.

    Links are shared max-min fair, and anew whenever a job ends; T = C + V/B for each. Rates and
    bytes are the lab's: its scale divides both. ``BadInput`` for a host that the lab does not
    have, or that has no GPU.
    """
    return predict_on(LabNetwork(lab, trace_links(lab, circuits)), jobs)


def predict_on(network: LabNetwork, jobs: Sequence[PredictedJob]) -> list[Prediction]:
    """The same, over the links of a network."""
    runs = [_run_of(network, job) for job in jobs]
    going = [run for run in runs if run.demand is not None]
    _share(network, going)
    found = [_first_look(network, job, run, going) for job, run in zip(jobs, runs, strict=True)]
    _go_to_the_end(network, going)
    return [
        replace(each, completion_s=run.completion_s) for each, run in zip(found, runs, strict=True)
    ]


class RingWork(NamedTuple):
    """What is still to be done on these GPUs, by number, in the ring's order, after ``dark_s``."""

    ring: Sequence[int]
    load: Load
    dark_s: float = 0.0


def completions_s(network: LabNetwork, works: Sequence[RingWork]) -> list[float]:
    """When each of these ends, all of which run now; infinity where it never does."""
    runs = [_Run(network.demand(work.ring), work.load, work.dark_s) for work in works]
    _go_to_the_end(network, [run for run in runs if run.demand is not None])
    return [math.inf if run.completion_s is None else run.completion_s for run in runs]


def units_s(network: LabNetwork, works: Sequence[RingWork]) -> list[float]:
    """How long a unit of each takes while all run; infinity for one whose ring has no way."""
    runs = [_Run(network.demand(work.ring), work.load, work.dark_s) for work in works]
    _share(network, [run for run in runs if run.demand is not None])
    return [math.inf if run.demand is None else run.unit_s for run in runs]


class _Run:
    """A job on its way to its end."""

    def __init__(
        self,
        demand: Demand | None,
        load: Load,
        dark_s: float,
        measured: Sequence[MeasuredIteration] = (),
    ) -> None:
        self.demand, self.load, self._dark_s, self._measured = demand, load, dark_s, measured
        # Of what is not known to send nothing, we take it that it sends.
        self.shares: Demand = demand or {} if load.ring_bits else {}
        self._left = float(load.units)
        self.rate_bps = 0.0
        self.unit_s = math.nan
        self.completion_s: float | None = None

    def share(self, rate_bps: float) -> None:
        """From now on an edge of its ring has this rate."""
        self.rate_bps = rate_bps
        self.unit_s = self.load.unit_s(rate_bps)
        if math.isnan(self.unit_s):
            at = [each.iteration_s for each in self._measured if each.is_at(rate_bps)]
            self.unit_s = at[-1] if at else math.nan

    def ends_s(self, now_s: float) -> float:
        """When it ends at its present pace; infinity if nobody knows."""
        ends_s = max(now_s, self._dark_s) + (self._left * self.unit_s if self._left else 0.0)
        return math.inf if math.isnan(ends_s) else ends_s

    def go_on(self, now_s: float, until_s: float) -> None:
        """Work at the present pace; at its end, note when that was."""
        if self.ends_s(now_s) <= until_s:
            self._left, self.completion_s = 0.0, until_s
            return
        at_work_s = until_s - max(now_s, self._dark_s)
        if at_work_s > 0 and self.unit_s > 0:
            self._left = max(0.0, self._left - at_work_s / self.unit_s)


def _share(network: LabNetwork, runs: Sequence[_Run]) -> None:
    rates = fair_rates([run.shares for run in runs], network.capacity_bps)
    for run, rate_bps in zip(runs, rates, strict=True):
        run.share(min(rate_bps, UNLIMITED_BPS))


def _go_to_the_end(network: LabNetwork, runs: Sequence[_Run]) -> None:
    """Progressive over the ends of jobs: at each, the links are shared out anew."""
    now_s, going = 0.0, list(runs)
    while going:
        _share(network, going)
        end_s = min(run.ends_s(now_s) for run in going)
        if end_s == math.inf:
            return
        for run in going:
            run.go_on(now_s, end_s)
        going = [run for run in going if run.completion_s is None]
        now_s = end_s


def _run_of(network: LabNetwork, job: PredictedJob) -> _Run:
    ring = [network.number(name) for name in job.hosts]
    training, workers = job.training, len(ring)
    models = {gpu.model for number in ring if (gpu := network.hosts[number].gpu) is not None}
    known = models <= training.compute_s.keys()
    compute_s = training.slowest_s(workers, models) if known else math.nan
    bits = ring_bits(workers, training.gradient_bytes) if workers > 1 else 0.0
    load = Load(training.iterations, *learned_work(compute_s, bits, job.measured))
    return _Run(network.demand(ring), load, job.dark_s, job.measured)


def _first_look(
    network: LabNetwork, job: PredictedJob, run: _Run, going: Sequence[_Run]
) -> Prediction:
    """How a job stands at first."""
    if run.demand is None:
        hosts = [network.number(name) for name in job.hosts]
        dark = [network.hosts[n].name for n in hosts if network.switches[n] is None]
        words = f"{', '.join(dark)} dark" if dark else "no way between its packet switches"
        return Prediction(job.name, None, None, None, None, 0.0, f"no light: {words}")
    known = not math.isnan(run.load.compute_s + run.load.ring_bits)
    return Prediction(
        job.name,
        None if math.isnan(run.unit_s) else run.unit_s,
        run.load.compute_s if known else None,
        run.unit_s - run.load.compute_s if known else None,
        None,
        run.rate_bps,
        _bottleneck(network, run, going),
    )


def _bottleneck(network: LabNetwork, run: _Run, going: Sequence[_Run]) -> str:
    """The fullest link of a job, in words."""
    if not run.shares:
        return "it shares no link"

    def part_used(link: Hashable) -> float:
        used_bps = sum(each.shares.get(link, 0) * each.rate_bps for each in going)
        return used_bps / network.capacity_bps[link]

    link = max(run.shares, key=part_used)
    if network.capacity_bps[link] >= UNLIMITED_BPS:
        return "no link has a limit"
    edges = [each.shares[link] for each in going if link in each.shares]
    rate = format_rate(round(network.capacity_bps[link]))
    if sum(edges) == 1:
        return f"held up by {network.words(link)}, {rate}, which it has to itself"
    jobs = "its own" if len(edges) == 1 else f"{len(edges)} jobs"
    return f"held up by {network.words(link)}, {rate}, with {sum(edges)} edges of {jobs} on it"
