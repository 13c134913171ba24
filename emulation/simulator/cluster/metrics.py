"""Figures of a simulated queue: what users wait for, and what the cluster's owner gets.

Definitions: the *slowdown* of a job is its completion time over the time it takes on links of
its own; the *bounded* one takes jobs of less than 10 s for such of 10 s and is at least 1
(Feitelson and Rudolph, JSSPP 1998). *Fragmentation* is the part of the free GPUs that lie on
servers of which other GPUs are held or broken, averaged over the time in which GPUs are free.
*Allocated* is the part of all GPUs' time in which jobs held them, *busy* the part in which they
computed: what is between are gradients on their way, dark circuits and restarts.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from patchlight.emulation.simulator.cluster.results import Floats, QueueResult

BOUND_S = 10.0


def summary_of(result: QueueResult) -> dict[str, Any]:
    """All figures, ready for JSON: units in the names, ``None`` where there is nothing to say.

    ``decisions`` is the only part that differs from run to run: it measures.
    """
    jobs, series = result.jobs, result.series
    done = np.array([state == "done" for state in jobs["state"]], dtype=bool)
    causes = Counter(cause for cause in jobs["cause"] if cause)
    first_s = float(jobs["arrived_s"].min()) if len(done) else 0.0
    last_s = float(jobs["ended_s"][done].max()) if done.any() else first_s
    span_s = last_s - first_s
    gpu_s = result.gpus * span_s
    lengths_s, whole = np.diff(series.until_s, prepend=0.0), series.held < result.gpus
    jct_s, duration_s = jobs["jct_s"][done], jobs["duration_s"][done]
    bounded = np.maximum(1.0, jct_s / np.maximum(duration_s, BOUND_S))
    slowdown = (jct_s / duration_s)[duration_s > 0] if len(jct_s) else jct_s
    deadlines = jobs["deadline_s"][~np.isnan(jobs["deadline_s"])]
    late = (~np.isnan(jobs["deadline_s"])) & ~(jobs["ended_s"] <= jobs["deadline_s"])
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
        "deadlines": len(deadlines),
        "deadlines_missed": int(late.sum()),
        "makespan_s": span_s,
        "throughput_jobs_per_h": _ratio(3600.0 * float(done.sum()), span_s),
        "throughput_gpu_s_per_s": _ratio(float((duration_s * jobs["gpus"][done]).sum()), span_s),
        "allocated": _ratio(float(jobs["allocated_gpu_s"].sum()), gpu_s),
        "busy": _ratio(float(jobs["busy_gpu_s"].sum()), gpu_s),
        "fragmentation": _ratio(
            float((series.fragmentation * lengths_s)[whole].sum()), float(lengths_s[whole].sum())
        ),
        "held_up_s": result.held_up_s,
        "queue_mean": _ratio(float((series.queue * lengths_s).sum()), float(lengths_s.sum())),
        "queue_max": int(series.queue.max()) if len(series.queue) else 0,
        "servers_mean": _of_several(result, "servers"),
        "racks_mean": _of_several(result, "racks"),
        "preemptions": int(jobs["preemptions"].sum()),
        "losses": int(jobs["losses"].sum()),
        "reconfigurations": result.reconfigurations,
        "cross_connects": result.cross_connects,
        "regroups_refused": result.regroups_refused,
        "dark_s": result.dark_s,
        "dark_gpu_s": result.dark_gpu_s,
        "decisions": {
            "placements": len(result.latencies_s),
            "latency_p50_s": _percentile(result.latencies_s, 50),
            "latency_p99_s": _percentile(result.latencies_s, 99),
        },
    }


def _of_several(result: QueueResult, what: str) -> float | None:
    """The mean number of servers or racks over which jobs of more than one GPU ran."""
    chosen = result.jobs[what][(result.jobs["gpus"] > 1) & (result.jobs[what] > 0)]
    return float(chosen.mean()) if len(chosen) else None


def _spread(values: Floats) -> dict[str, float | None]:
    mean = float(values.mean()) if len(values) else None
    return {"mean": mean, "p50": _percentile(values, 50), "p99": _percentile(values, 99)}


def _percentile(values: Floats, percent: float) -> float | None:
    return float(np.percentile(values, percent)) if len(values) else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 and math.isfinite(whole) else None
