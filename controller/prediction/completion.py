"""How long jobs take that share a lab's links: iterations, what holds them up, and their ends."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from patchlight.controller.prediction.load import Training, ring_bits
from patchlight.controller.prediction.measured import Measured, learned_work
from patchlight.controller.prediction.network import UNLIMITED_BPS, LabNetwork
from patchlight.controller.prediction.sharing import Demand, fair_rates
from patchlight.testbed.lab import Lab
from patchlight.testbed.portmap import PortMap
from patchlight.testbed.units import format_rate
from patchlight.testbed.wiring import trace_links


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """A job that runs, or would: ``hosts`` is its ring in order, by name.

    Of ``training``, ``iterations`` are those still to come, infinity where nobody knows; where
    ``gradient_bytes`` is ``nan`` or ``compute_s`` lacks a model, that is not known, and
    ``measured`` (the latest last) may tell. ``dark_s``: it stands still for so long first.
    """

    name: str
    hosts: tuple[str, ...]
    training: Training
    measured: tuple[Measured, ...] = ()
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
    lab: Lab, circuits: Mapping[str, PortMap], jobs: Sequence[PlacedJob]
) -> list[Prediction]:
    """What becomes of each of these jobs, all of which run now, under these maps.

    Links are shared max-min fair, and anew whenever a job ends; T = C + V/B for each. Rates and
    bytes are the lab's: its scale divides both. ``BadInput`` for a host that the lab does not
    have, or that has no GPU.
    """
    return predict_on(LabNetwork(lab, trace_links(lab, circuits)), jobs)


def predict_on(network: LabNetwork, jobs: Sequence[PlacedJob]) -> list[Prediction]:
    """The same, over the links of a network."""
    runs = [_Run(network, job) for job in jobs]
    now_s, going = 0.0, [run for run in runs if run.demand is not None]
    first = True
    while going:
        rates = fair_rates([run.shares for run in going], network.capacity_bps)
        for run, rate_bps in zip(going, rates, strict=True):
            run.share(min(rate_bps, UNLIMITED_BPS))
        if first:
            load = _load_of(going)
            for run in going:
                run.look(network, load, going)
            first = False
        end_s = min(run.ends_s(now_s) for run in going)
        if end_s == math.inf:
            break
        for run in going:
            run.go_on(now_s, end_s)
        going = [run for run in going if run.completion_s is None]
        now_s = end_s
    return [run.prediction for run in runs]


def _load_of(runs: Sequence["_Run"]) -> dict[Hashable, float]:
    """The bit/s on each link."""
    load: dict[Hashable, float] = {}
    for run in runs:
        for link, edges in run.shares.items():
            load[link] = load.get(link, 0.0) + edges * run.rate_bps
    return load


class _Run:
    """A job on its way to its end."""

    def __init__(self, network: LabNetwork, job: PlacedJob) -> None:
        self._job = job
        ring = [network.number(name) for name in job.hosts]
        models = [gpu.model for n in ring if (gpu := network.hosts[n].gpu) is not None]
        known_s, workers = job.training.compute_s, len(ring)
        compute_s = max(known_s.get(model, math.nan) for model in models)
        if any(model not in known_s for model in models):
            compute_s = math.nan
        bits = ring_bits(workers, job.training.gradient_bytes) if workers > 1 else 0.0
        self._compute_s, self._bits = learned_work(compute_s, bits, job.measured)
        self.demand = network.demand(ring)
        # Of what is not known to send nothing, we take it that it sends.
        self.shares: Demand = self.demand or {} if self._bits else {}
        self._left = float(job.training.iterations)
        self.rate_bps = 0.0
        self._unit_s = math.nan
        self.completion_s: float | None = None
        dark = [network.hosts[n].name for n in ring if network.switches[n] is None]
        words = f"{', '.join(dark)} dark" if dark else "no way between its packet switches"
        self.prediction = Prediction(job.name, None, None, None, None, 0.0, f"no light: {words}")

    def share(self, rate_bps: float) -> None:
        """From now on an edge of its ring has this rate."""
        self.rate_bps = rate_bps
        self._unit_s = self._compute_s + self._bits / rate_bps if self._bits else self._compute_s
        if math.isnan(self._unit_s):
            at = [each.iteration_s for each in self._job.measured if each.is_at(rate_bps)]
            self._unit_s = at[-1] if at else math.nan

    def look(
        self, network: LabNetwork, load: Mapping[Hashable, float], going: Sequence["_Run"]
    ) -> None:
        """Write down how it stands at first."""
        known = not math.isnan(self._compute_s + self._bits)
        self.prediction = Prediction(
            self._job.name,
            None if math.isnan(self._unit_s) else self._unit_s,
            self._compute_s if known else None,
            self._unit_s - self._compute_s if known else None,
            None,
            self.rate_bps,
            self._bottleneck(network, load, going),
        )

    def _bottleneck(
        self, network: LabNetwork, load: Mapping[Hashable, float], going: Sequence["_Run"]
    ) -> str:
        if not self.shares:
            return "it shares no link"
        link = max(self.shares, key=lambda each: load[each] / network.capacity_bps[each])
        if network.capacity_bps[link] >= UNLIMITED_BPS:
            return "no link has a limit"
        edges = [run.shares[link] for run in going if link in run.shares]
        rate = format_rate(round(network.capacity_bps[link]))
        if sum(edges) == 1:
            return f"held up by {network.words(link)}, {rate}, which it has to itself"
        jobs = "its own" if len(edges) == 1 else f"{len(edges)} jobs"
        return f"held up by {network.words(link)}, {rate}, with {sum(edges)} edges of {jobs} on it"

    def ends_s(self, now_s: float) -> float:
        """When it ends at its present pace; infinity if nobody knows."""
        ends_s = max(now_s, self._job.dark_s) + (self._left * self._unit_s if self._left else 0.0)
        return math.inf if math.isnan(ends_s) else ends_s

    def go_on(self, now_s: float, until_s: float) -> None:
        """Work at the present pace; at its end, say when that was."""
        if self.ends_s(now_s) <= until_s:
            self._left, self.completion_s = 0.0, until_s
            self.prediction = replace(self.prediction, completion_s=until_s)
            return
        at_work_s = until_s - max(now_s, self._job.dark_s)
        if at_work_s > 0 and self._unit_s > 0:
            self._left = max(0.0, self._left - at_work_s / self._unit_s)
