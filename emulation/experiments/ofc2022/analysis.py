"""Measurements of one case, and their figures: pure, at the rates of the unscaled lab."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from patchlight.emulation.fabric.roce import RoceShare
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.jobs import JobStatus, Trainer

Wiring = Literal["static", "optical", "live"]


@dataclass(
    frozen=True,
    slots=True,
)
class Iteration:
    """One iteration as its worker reported it: ``finished_at`` is Unix time, bytes are payload;
    over RDMA, the queue pairs made and the retries since its start."""

    rank: int
    index: int
    finished_at: float
    compute_s: float
    communication_s: float
    sent_bytes: int
    queue_pairs_made: int | None = None
    rdma_retries: int | None = None


@dataclass(
    frozen=True,
    slots=True,
)
class PortRate:
    """The counts of the switch port of ``host`` in the second before ``at`` (Unix time)."""

    at: float
    host: str
    rx_bps: float
    tx_bps: float


@dataclass(
    frozen=True,
    slots=True,
)
class GpuUse:
    """The share of the second before ``at`` in which ``gpu`` computed, 0…1."""

    at: float
    gpu: str
    utilization: float


@dataclass(
    frozen=True,
    slots=True,
)
class MeasuredChange:
    """One change of the optical switches' maps; ``stages_s`` is in the order they ran."""

    id: str
    state: str
    message: str
    stages_s: Mapping[str, float]
    started_at: float
    finished_at: float
    cross_connects_changed: int = 0

    @property
    def switching_s(self) -> float:
        """How long it took once the traffic was held: all that came after the drain."""
        names = list(self.stages_s)
        until = names.index("drain") + 1 if "drain" in names else 0
        held = sum(self.stages_s[name] for name in names[:until])
        return self.finished_at - self.started_at - held


@dataclass(
    frozen=True,
    slots=True,
)
class JobRun:
    """A job that has ended: what its workers reported, and how long each rank was to compute."""

    status: JobStatus
    iterations: tuple[Iteration, ...]
    given_compute_s: tuple[float, ...]


@dataclass(
    frozen=True,
    slots=True,
)
class CaseRun:
    """One case under one wiring: the jobs, of one trainer, the one that is looked at first."""

    case: str
    wiring: Wiring
    jobs: tuple[JobRun, ...]
    ports: tuple[PortRate, ...]
    gpus: tuple[GpuUse, ...]
    reconfigurations: tuple[MeasuredChange, ...] = field(default=())
    trainer: Trainer = "synthetic"
    roce: RoceShare | None = None


SAMPLE_S = 1.0  # counters and GPUs are read once a second
_STEP_S = 2.0
Floats = NDArray[np.float64]


@dataclass(
    frozen=True,
    slots=True,
)
class CaseFigures:
    """The figures of the first job of a case.

    ``completion_s`` runs from the first worker's start of its first iteration to the last
    worker's end of its last; ``gpu_utilization`` (0…1) and ``throughput_bps`` (received by a
    worker, from its switch port's counter) are means over the job's workers and that time;
    ``throughput_peak_bps`` is the highest second of any of its workers.
    """

    iterations: int
    completion_s: float
    iteration_s: float
    compute_s: float
    communication_s: float
    gpu_utilization: float
    throughput_bps: float
    throughput_peak_bps: float


@dataclass(
    frozen=True,
    slots=True,
)
class LiveFigures:
    """The effect of a change of the network on a running job.

    ``longest_gap_s`` is the longest time between two iterations of the first job ending;
    ``iteration_before_s`` and ``iteration_after_s`` are means over the iterations that lie
    wholly before and after the change. ``restarts`` counts how often a worker of any of its jobs
    was started again; there are no figures of a run in which one was.
    """

    longest_gap_s: float
    iteration_before_s: float
    iteration_after_s: float
    iterations_before: int
    iterations_after: int
    completion_s: float
    restarts: int


def training_window(job: JobRun) -> tuple[float, float]:
    """Unix times between which the job trained."""
    first = [i for i in job.iterations if i.index == 0]
    if not first:
        raise PatchlightError(
            f"job {job.status.spec.name} reported no iteration"
        )
    start = min(i.finished_at - i.compute_s - i.communication_s for i in first)
    return start, max(i.finished_at for i in job.iterations)


def iteration_ends(job: JobRun) -> list[float]:
    """When each iteration ended for the last worker; ``PatchlightError`` if reports are missing."""
    spec = job.status.spec
    if job.status.restarts:
        raise PatchlightError(
            f"job {spec.name}: its workers were restarted {job.status.restarts} times: these "
            f"figures are not those of one run"
        )
    reported = sorted((i.rank, i.index) for i in job.iterations)
    expected = [
        (rank, k)
        for rank in range(len(spec.hosts))
        for k in range(spec.iterations)
    ]
    if reported != expected:
        lost = sorted(set(expected) - set(reported))
        raise PatchlightError(
            f"job {spec.name}: {len(reported)} reports of iterations instead of {len(expected)}; "
            f"missing (rank, iteration): {lost[:5]}"
        )
    ends = [0.0] * spec.iterations
    for iteration in job.iterations:
        ends[iteration.index] = max(
            ends[iteration.index], iteration.finished_at
        )
    return ends


def _mean_over(
    samples: Iterable[tuple[float, float]],
    window: tuple[float, float],
    what: str,
) -> float:
    """Mean of values sampled once a second; those at the edges count as far as they are inside."""
    start, end = window
    weighted = [
        (max(0.0, min(at, end) - max(at - SAMPLE_S, start)), value)
        for at, value in samples
    ]
    total = sum(weight for weight, _ in weighted)
    if total <= 0:
        raise PatchlightError(
            f"no sample of {what} from the {end - start:.1f} s that the job trained",
            hint="train longer: --iterations 12 makes the shortest run about 8 s long",
        )
    return sum(weight * value for weight, value in weighted) / total


def case_figures(run: CaseRun) -> CaseFigures:
    """The figures of the first job of ``run``."""
    job = run.jobs[0]
    hosts = job.status.spec.hosts
    window = training_window(job)
    iteration_ends(job)  # nothing lost
    received = {
        h: [(p.at, p.rx_bps) for p in run.ports if p.host == h] for h in hosts
    }
    busy = {
        h: [(g.at, g.utilization) for g in run.gpus if g.gpu == h]
        for h in hosts
    }
    completion_s = window[1] - window[0]
    inside = [
        rate
        for s in received.values()
        for at, rate in s
        if window[0] < at < window[1] + SAMPLE_S
    ]
    return CaseFigures(
        iterations=job.status.spec.iterations,
        completion_s=completion_s,
        iteration_s=completion_s / job.status.spec.iterations,
        compute_s=fmean(i.compute_s for i in job.iterations),
        communication_s=fmean(i.communication_s for i in job.iterations),
        gpu_utilization=fmean(
            _mean_over(s, window, f"GPU utilisation of {h}")
            for h, s in busy.items()
        ),
        throughput_bps=fmean(
            _mean_over(s, window, f"throughput of {h}")
            for h, s in received.items()
        ),
        throughput_peak_bps=max(inside),
    )


def whole_iterations(job: JobRun) -> Floats:
    """Unix times that cut a job's training into whole iterations of 2 s together, or more.

    A mean over such a step does not depend on where in an iteration it begins.
    """
    start, end = training_window(job)
    cuts = [start]
    for at in iteration_ends(job):
        if at - cuts[-1] >= _STEP_S and end - at >= _STEP_S / 2:
            cuts.append(at)
    cuts.append(end)
    return np.array(cuts)


def busy_shares(job: JobRun, cuts: Floats) -> Floats:
    """The share of each step in which each rank computed, 0…1: ranks × steps."""
    found = []
    for rank in range(len(job.status.spec.hosts)):
        ended = [
            i.finished_at - i.communication_s
            for i in job.iterations
            if i.rank == rank
        ]
        lasted = [i.compute_s for i in job.iterations if i.rank == rank]
        at = np.ravel(
            [(end - s, end) for end, s in zip(ended, lasted, strict=True)]
        )
        done = np.repeat(np.cumsum([0.0, *lasted]), 2)[1:-1]
        found.append(np.diff(np.interp(cuts, at, done)) / np.diff(cuts))
    return np.array(found)


def received_bps(
    run: CaseRun,
    job: JobRun,
    cuts: Floats,
) -> Floats:
    """The bytes that each worker received in each step, by its port's counter: ranks × steps."""
    found = []
    for host in job.status.spec.hosts:
        samples = [
            (port.at, port.rx_bps * SAMPLE_S)
            for port in run.ports
            if port.host == host
        ]
        at, bits = np.array(samples).T
        found.append(
            np.diff(np.interp(cuts, at, np.cumsum(bits))) / np.diff(cuts)
        )
    return np.array(found)


def live_figures(run: CaseRun) -> LiveFigures:
    """The effect of the one reconfiguration during ``run`` on its first job."""
    change = the_change(run)
    ends, *_ = (iteration_ends(job) for job in run.jobs)
    gaps = list(pairwise(ends))
    before = [b - a for a, b in gaps if b <= change.started_at]
    after = [b - a for a, b in gaps if a >= change.finished_at]
    if not before or not after:
        raise PatchlightError(
            f"the reconfiguration left {len(before)} whole iterations before and {len(after)} "
            "after it: too few to compare",
            hint="train longer: --iterations 12",
        )
    start, end = training_window(run.jobs[0])
    return LiveFigures(
        longest_gap_s=max(b - a for a, b in gaps),
        iteration_before_s=fmean(before),
        iteration_after_s=fmean(after),
        iterations_before=len(before),
        iterations_after=len(after),
        completion_s=end - start,
        restarts=sum(job.status.restarts for job in run.jobs),
    )


def rdma_figures(run: CaseRun) -> dict[str, float]:
    """RoCE v2's share of a run's packets, and what its queue pairs went through; empty over TCP.

    A connection that is made again is counted by both its ends.
    """
    if run.roce is None:
        return {}
    last = {
        (n, i.rank): i
        for n, job in enumerate(run.jobs)
        for i in job.iterations
    }
    made = [
        i.queue_pairs_made
        for i in last.values()
        if i.queue_pairs_made is not None
    ]
    return {
        "packets_share": run.roce.of_packets,
        "bytes_share": run.roce.of_bytes,
        "frames_missed": run.roce.missed,
        "connections": len(made),
        "made_again": sum(number - 2 for number in made) / 2,
        "retries": sum(i.rdma_retries or 0 for i in last.values()),
    }


def the_change(run: CaseRun) -> MeasuredChange:
    """The reconfiguration of a live run; ``PatchlightError`` if there was not just one."""
    if len(run.reconfigurations) != 1:
        raise PatchlightError(
            f"the live run of case {run.case} had {len(run.reconfigurations)} reconfigurations "
            "instead of one"
        )
    return run.reconfigurations[0]


def reduction(static: CaseFigures, optical: CaseFigures) -> float:
    """By what share the completion time is lower with the rewired network, 0…1."""
    return 1 - optical.completion_s / static.completion_s


def utilization_ratio(static: CaseFigures, optical: CaseFigures) -> float:
    """How many times as busy the GPUs are with the rewired network."""
    return optical.gpu_utilization / static.gpu_utilization
