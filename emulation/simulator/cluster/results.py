"""The results of a simulation: one record per job, time series, and summary figures."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import numpy.typing as npt

from patchlight.emulation.simulator.cluster.simulated_job import (
    SimulatedJob,
    State,
)
from patchlight.emulation.simulator.cluster.simulation import Simulation

Floats = npt.NDArray[np.float64]
# Fields that results take unchanged from the simulation.
_REWIRING = (
    "reconfigurations",
    "cross_connects",
    "regroups_refused",
    "dark_s",
    "dark_gpu_s",
)


class JobRecord(NamedTuple):
    """The record of one job. Times are in seconds; ``nan`` if it did not get that far.

    ``duration_s`` is its running time if it shares no link, ``waited_s`` the sum of its waits,
    ``jct_s`` the time from arrival to end, ``slowdown`` that over its duration. ``servers`` and
    ``racks`` count those of its last start. ``allocated_gpu_s`` counts GPUs held, ``busy_gpu_s``
    GPUs that computed. ``cause`` says why it was blocked.
    """

    name: str
    cluster: str
    user: str
    gpus: int
    arrived_s: float
    duration_s: float
    started_s: float
    ended_s: float
    waited_s: float
    jct_s: float
    slowdown: float
    deadline_s: float
    servers: int
    racks: int
    preemptions: int
    losses: int
    allocated_gpu_s: float
    busy_gpu_s: float
    state: str
    cause: str

    @classmethod
    def of(cls, job: SimulatedJob) -> JobRecord:
        """The record from the simulator's own data."""
        view = job.spec.view
        done = job.state is State.DONE
        jct_s = job.ended_s - view.arrived_s if done else math.nan
        duration_s = job.spec.duration_s
        return cls(
            name=view.name,
            cluster=job.spec.cluster,
            user=view.user,
            gpus=view.workers or job.workers,
            arrived_s=view.arrived_s,
            duration_s=duration_s,
            ended_s=job.ended_s if done else math.nan,
            jct_s=jct_s,
            slowdown=jct_s / duration_s if duration_s > 0 else math.nan,
            deadline_s=view.arrived_s + view.limit_s
            if view.limit_s < math.inf
            else math.nan,
            started_s=job.started_s,
            waited_s=job.waited_s,
            servers=job.servers,
            racks=job.racks,
            preemptions=job.preemptions,
            losses=job.losses,
            allocated_gpu_s=job.attained_gpu_s,
            busy_gpu_s=job.busy_gpu_s,
            state=job.state.value,
            cause="" if job.cause is None else job.cause.value,
        )


class Series(NamedTuple):
    """Values that held until each moment: jobs waiting, GPUs held, fragmentation."""

    until_s: Floats
    queue: Floats
    held: Floats
    fragmentation: Floats


Columns = Mapping[str, Any]
"""The values of all jobs for each field of ``JobRecord``: an array of numbers or a list."""


@dataclass(frozen=True)
class QueueResult:
    """The results of a simulation; ``latencies_s`` are measured times of placement decisions.

    ``jobs`` has the fields of ``JobRecord`` as columns. ``held_up_s`` is the time in which the next
    job waited although enough GPUs were free. ``dark_s`` adds up the switching times,
    ``dark_gpu_s`` those of each dark NIC. ``resizes`` counts changes of running jobs' numbers of
    GPUs.
    """

    gpus: int
    jobs: Columns
    series: Series
    latencies_s: Floats
    held_up_s: float
    reconfigurations: int
    cross_connects: int
    regroups_refused: int
    dark_s: float
    dark_gpu_s: float
    resizes: int = 0

    @classmethod
    def of(
        cls, simulation: Simulation, latencies_s: array[float]
    ) -> QueueResult:
        """The results of a finished simulation."""
        accounts = simulation.accounts
        return cls(
            gpus=len(simulation.cluster.shape.gpus),
            jobs=_columns([JobRecord.of(job) for job in simulation.jobs]),
            series=Series(*(np.array(each) for each in accounts.series)),
            latencies_s=np.array(latencies_s),
            held_up_s=accounts.held_up_s,
            resizes=sum(job.resizes for job in simulation.jobs),
            **{name: getattr(accounts, name) for name in _REWIRING},
        )

    @property
    def records(self) -> list[JobRecord]:
        """A record for each job, in order of arrival."""
        lists = (
            column.tolist() if isinstance(column, np.ndarray) else column
            for column in (self.jobs[name] for name in JobRecord._fields)
        )
        return [JobRecord(*values) for values in zip(*lists, strict=True)]


def _columns(records: Sequence[JobRecord]) -> Columns:
    kinds = {int: np.int64, float: np.float64}
    found: dict[str, Any] = {}
    hints = get_type_hints(JobRecord)
    columns = zip(*records, strict=True) if records else ((),) * len(hints)
    for (name, kind), values in zip(hints.items(), columns, strict=True):
        found[name] = (
            np.array(values, kinds[kind]) if kind in kinds else list(values)
        )
    return found


BOUND_S = 10.0


def summary_of(result: QueueResult) -> dict[str, Any]:
    """All figures for JSON: units in the names, ``None`` if undefined.

    The *slowdown* of a job is its completion time over its running time without shared links; the
    *bounded* one counts at least 10 s for each and is at least 1 (Feitelson and Rudolph, JSSPP
    1998). *Fragmentation* is the share of the free GPUs on servers with held or broken GPUs,
    averaged over the time in which GPUs are free. *Allocated* is the share of all GPUs' time in
    which jobs held them, *busy* the share in which they computed: the rest is communication, dark
    circuits and restarts. Only ``decisions`` differs from run to run: it is measured.
    """
    jobs = result.jobs
    series = result.series
    done = np.array([state == "done" for state in jobs["state"]], dtype=bool)
    causes = Counter(cause for cause in jobs["cause"] if cause)
    first_s = float(jobs["arrived_s"].min()) if len(done) else 0.0
    last_s = float(jobs["ended_s"][done].max()) if done.any() else first_s
    span_s = last_s - first_s
    gpu_s = result.gpus * span_s
    lengths_s = np.diff(series.until_s, prepend=0.0)
    whole = series.held < result.gpus
    jct_s = jobs["jct_s"][done]
    duration_s = jobs["duration_s"][done]
    bounded = np.maximum(1.0, jct_s / np.maximum(duration_s, BOUND_S))
    slowdown = (jct_s / duration_s)[duration_s > 0] if len(jct_s) else jct_s
    has_deadline = ~np.isnan(jobs["deadline_s"])
    late = has_deadline & ~(jobs["ended_s"] <= jobs["deadline_s"])
    return {
        "gpus": result.gpus,
        "jobs": len(done),
        "done": int(done.sum()),
        "blocked": dict(sorted(causes.items())),
        "blocking_rate": _ratio(sum(causes.values()), len(done)),
        "jct_s": _spread(jct_s),
        "waited_s": _spread(jobs["waited_s"][done]),
        "slowdown": _spread(slowdown),
        "bounded_slowdown": _spread(bounded),
        "deadlines": int(has_deadline.sum()),
        "deadlines_missed": int(late.sum()),
        "makespan_s": span_s,
        "throughput_jobs_per_h": _ratio(3600.0 * float(done.sum()), span_s),
        "throughput_gpu_s_per_s": _ratio(
            float((duration_s * jobs["gpus"][done]).sum()), span_s
        ),
        "allocated": _ratio(float(jobs["allocated_gpu_s"].sum()), gpu_s),
        "busy": _ratio(float(jobs["busy_gpu_s"].sum()), gpu_s),
        "fragmentation": _ratio(
            float((series.fragmentation * lengths_s)[whole].sum()),
            float(lengths_s[whole].sum()),
        ),
        "held_up_s": result.held_up_s,
        "queue_mean": _ratio(
            float((series.queue * lengths_s).sum()), float(lengths_s.sum())
        ),
        "queue_max": int(series.queue.max()) if len(series.queue) else 0,
        "servers_mean": _of_several(result, "servers"),
        "racks_mean": _of_several(result, "racks"),
        "preemptions": int(jobs["preemptions"].sum()),
        "losses": int(jobs["losses"].sum()),
        "resizes": result.resizes,
        **{name: getattr(result, name) for name in _REWIRING},
        "decisions": {
            "placements": len(result.latencies_s),
            "latency_p50_s": _percentile(result.latencies_s, 50),
            "latency_p99_s": _percentile(result.latencies_s, 99),
        },
    }


def _of_several(result: QueueResult, what: str) -> float | None:
    """The mean number of servers or racks over which jobs of more than one GPU ran."""
    chosen = result.jobs[what][
        (result.jobs["gpus"] > 1) & (result.jobs[what] > 0)
    ]
    return float(chosen.mean()) if len(chosen) else None


def _spread(values: Floats) -> dict[str, float | None]:
    mean = float(values.mean()) if len(values) else None
    return {
        "mean": mean,
        "p50": _percentile(values, 50),
        "p99": _percentile(values, 99),
    }


def _percentile(values: Floats, percent: float) -> float | None:
    return float(np.percentile(values, percent)) if len(values) else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 and math.isfinite(whole) else None
