"""A job of the queue: what it asks for, how much there is to do, and what it moves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from patchlight.controller.policies.contract import JobView
from patchlight.emulation.simulator.traces import TraceJob
from patchlight.testbed.errors import BadInput


class Training(NamedTuple):
    """Synchronous data-parallel training, as in the lab's ``JobSpec``.

    ``gradient_bytes`` are those of one gradient, ``compute_s`` the seconds of one iteration by
    GPU model; the slowest GPU of a job sets its pace.
    """

    iterations: int
    gradient_bytes: float
    compute_s: Mapping[str, float]


class QueueJob(NamedTuple):
    """A job as it comes.

    ``duration_s`` is how long it runs on GPUs whose links it shares with nobody, and
    ``communication`` the part of that in which it only moves gradients. Both are set aside
    where ``training`` says what an iteration is.
    """

    view: JobView
    duration_s: float
    communication: float = 0.0
    training: Training | None = None
    cluster: str = ""


class Load(NamedTuple):
    """A placed job's work: so many units, each of some computing and some bits on each edge."""

    units: float
    compute_s: float
    ring_bits: float

    def unit_s(self, rate_bps: float) -> float:
        """How long a unit takes where an edge of the ring has this rate.

        T = C + V/B, computing and communication one after the other. Infinity at rate 0.
        """
        if not self.ring_bits:
            return self.compute_s
        return self.compute_s + self.ring_bits / rate_bps if rate_bps else math.inf


def load_of(job: QueueJob, workers: int, models: Iterable[str], nic_bps: float) -> Load:
    """The work of a job on GPUs of these models, behind NICs of this rate.

    A training's unit is an iteration; its ring all-reduce sends V = 2(n−1)/n · 8 · bytes over
    each edge (Patarasuk and Yuan, JPDC 2009). A trace's job is counted in seconds of its own
    time, of which the communication share c moves V = c · nic_bps bits. ``BadInput`` if the
    training does not know a model.
    """
    if job.training is None:
        share = job.communication if workers > 1 else 0.0
        return Load(job.duration_s, 1.0 - share, share * nic_bps)
    iterations, gradient_bytes, compute_s = job.training
    unknown = sorted({model for model in models if model not in compute_s})
    if unknown:
        raise BadInput(
            f"job {job.view.name} does not know how long an iteration takes on "
            f"{', '.join(unknown)}: it knows {', '.join(compute_s)}"
        )
    slowest_s = max(compute_s[model] for model in models)
    if not 0 < slowest_s < math.inf:
        raise BadInput(f"job {job.view.name}: an iteration cannot take {slowest_s} s to compute")
    return Load(iterations, slowest_s, 2 * (workers - 1) / workers * 8 * gradient_bytes)


def queue_jobs(
    traced: Iterable[TraceJob], communication: float = 0.0, speed: float = 1.0
) -> list[QueueJob]:
    """A trace's jobs in the order in which they come; the first comes at 0 s.

    ``communication`` is the part of a job's time that moves gradients, for those of several
    GPUs: traces do not tell. They come ``speed`` times as fast as in the trace. ``BadInput``
    for a job of no GPU or of no time.
    """
    if not (math.isfinite(speed) and speed > 0):
        raise BadInput(f"jobs cannot come {speed} times as fast: expected more than 0")
    if not 0 <= communication < 1:
        raise BadInput(
            f"jobs cannot communicate for {communication} of their time: expected "
            "0 or more, and less than 1"
        )
    in_order = sorted(traced, key=lambda job: job.submitted_s)
    first_s = in_order[0].submitted_s if in_order else 0.0
    return [_queue_job(job, (job.submitted_s - first_s) / speed, communication) for job in in_order]


def _queue_job(job: TraceJob, arrived_s: float, communication: float) -> QueueJob:
    if job.gpus < 1 or not (math.isfinite(job.duration_s) and job.duration_s >= 0):
        raise BadInput(
            f"job {job.name} of the trace wants {job.gpus} GPUs for {job.duration_s} s: "
            "expected at least 1 GPU, and 0 s or more"
        )
    limit_s = math.inf if math.isnan(job.deadline_s) else job.deadline_s - job.submitted_s
    sequential_s = job.duration_s * job.gpus
    view = JobView(
        name=job.name,
        workers=job.gpus,
        arrived_s=arrived_s,
        sequential_s=sequential_s,
        requirement=limit_s / sequential_s if sequential_s and limit_s < math.inf else math.inf,
        limit_s=limit_s,
    )
    share = communication if job.gpus > 1 else 0.0
    return QueueJob(view, job.duration_s, share, None, job.cluster)
