"""Jobs of the simulated queue: from a trace, from a job file, or drawn at random."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from patchlight.controller.jobs.cluster_view import (
    alone_s,
    training_of,
    view_of,
)
from patchlight.controller.jobs.specs import check_specs
from patchlight.controller.policies.contract import Frozen, JobView
from patchlight.controller.prediction.network import (
    Load,
    Training,
    ring_bits,
    slowest_nic_bps,
    training_load,
)
from patchlight.emulation.simulator.traces.model import TraceJob
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobSpec, JobState, JobStatus
from patchlight.testbed.lab.model import Lab


class QueueJob(NamedTuple):
    """A job of the queue.

    ``duration_s`` is its running time on GPUs that share no link with other jobs, and
    ``communication`` the part of that in which it only moves gradients. If ``training`` describes
    an iteration, both are ignored. Jobs of higher ``priority`` start first. A job waits until the
    jobs named in ``after`` are done. While it runs, ``degrees`` are its possible numbers of GPUs;
    it starts with the number that it wants. If its view leaves that number open (0), the view's
    ``degrees`` are its choices, and ``duration_s`` applies to ``asked`` GPUs, or to the smallest
    choice.

    On a network of flows an iteration sends ``collectives`` (name and bytes) one after the other
    instead of a ring all-reduce of the gradient. They start when ``overlap`` of the computing time
    is left.
    """

    view: JobView
    duration_s: float
    communication: float = 0.0
    training: Training | None = None
    cluster: str = ""
    priority: int = 0
    after: tuple[str, ...] = ()
    preemptible: bool = True
    degrees: tuple[int, ...] = ()
    collectives: tuple[tuple[str, float], ...] = ()
    overlap: float = 0.0
    asked: int = 0


def load_of(
    job: QueueJob,
    workers: int,
    models: Collection[str],
    nic_bps: float,
) -> Load:
    """The work of a job on GPUs of these models, behind NICs of this rate.

    A training's unit is an iteration. A trace's job is counted in seconds of its own duration, of
    which the communication share c moves V = c · nic_bps bits. On n GPUs instead of the wanted m it
    computes m/n as long, and its ring moves the same gradient. ``BadInput`` if the training does
    not know a model.
    """
    if job.training is None:
        share = job.communication if workers > 1 else 0.0
        wanted = job.asked or job.view.workers
        if workers == wanted or workers not in job.degrees:
            return Load(job.duration_s, 1.0 - share, share * nic_bps)
        compute_s = (
            (1.0 - (job.communication if wanted > 1 else 0.0))
            * wanted
            / workers
        )
        bits = (
            share * nic_bps * ring_bits(workers, 1.0) / ring_bits(wanted, 1.0)
            if share
            else 0.0
        )
        return Load(job.duration_s, compute_s, bits)
    return training_load(
        job.view.name,
        job.training,
        workers,
        models,
    )


def queue_jobs(
    traced: Iterable[TraceJob],
    communication: float = 0.0,
    speed: float = 1.0,
) -> list[QueueJob]:
    """A trace's jobs in order of arrival; the first arrives at 0 s.

    ``communication`` is the part of a job's time that moves gradients, for jobs of several GPUs:
    traces do not record it. Arrivals are ``speed`` times as fast as in the trace. ``BadInput``
    for a job without GPUs or with a negative time. With an elasticity policy, a job of several
    GPUs may have half or twice as many while it runs: traces do not record that either.
    """
    if not (math.isfinite(speed) and speed > 0):
        raise BadInput(
            f"jobs cannot arrive {speed} times as fast: expected more than 0"
        )
    if not 0 <= communication < 1:
        raise BadInput(
            f"jobs cannot communicate for {communication} of their time: expected "
            "0 or more, and less than 1"
        )
    in_order = sorted(traced, key=lambda job: job.submitted_s)
    first_s = in_order[0].submitted_s if in_order else 0.0
    return [
        _queue_job(job, (job.submitted_s - first_s) / speed, communication)
        for job in in_order
    ]


def _queue_job(
    job: TraceJob,
    arrived_s: float,
    communication: float,
) -> QueueJob:
    if job.gpus < 1 or not (
        math.isfinite(job.duration_s) and job.duration_s >= 0
    ):
        raise BadInput(
            f"job {job.name} of the trace needs {job.gpus} GPUs for {job.duration_s} s: "
            "expected at least 1 GPU, and 0 s or more"
        )
    limit_s = (
        math.inf
        if math.isnan(job.deadline_s)
        else job.deadline_s - job.submitted_s
    )
    sequential_s = job.duration_s * job.gpus
    share = communication if job.gpus > 1 else 0.0
    degrees = _half_and_twice(job.gpus)
    view = JobView(
        name=job.name,
        workers=job.gpus,
        arrived_s=arrived_s,
        sequential_s=sequential_s,
        requirement=limit_s / sequential_s
        if sequential_s and limit_s < math.inf
        else math.inf,
        limit_s=limit_s,
        user=job.user or job.cluster,
        communication=share,
    )
    return QueueJob(
        view,
        job.duration_s,
        share,
        None,
        job.cluster,
        degrees=degrees,
    )


def elastic(job: QueueJob) -> QueueJob:
    """The training job, now allowed half or twice as many GPUs while it runs.

    With its wanted number it is unchanged. Its computing work is split over the GPUs that it has.
    ``BadInput`` if the work of an iteration is unknown.
    """
    degrees = _half_and_twice(job.view.workers)
    return (_split(job) if degrees else job)._replace(degrees=degrees)


def opened(job: QueueJob, most: int) -> QueueJob:
    """The training job, now with an open number of GPUs: a power of two up to ``most``.

    Its computing work stays the same. ``BadInput`` if the work of an iteration is unknown.
    """
    view = _split(job).view
    degrees = tuple(2**power for power in range(most.bit_length()))
    view = view._replace(
        workers=0,
        degrees=degrees,
        expected_s=Frozen(),
    )
    return job._replace(
        view=view,
        training=view.training,
        duration_s=view.sequential_s,
        degrees=degrees,
    )


def left_open(job: QueueJob) -> QueueJob:
    """The job with its choice of ``degrees`` left open; one without degrees stays as it is."""
    view = job.view
    if not (view.workers and job.degrees):
        return job
    view = view._replace(
        workers=0,
        degrees=job.degrees,
        expected_s=Frozen(),
    )
    return job._replace(
        view=view,
        asked=job.view.workers,
    )


def _split(job: QueueJob) -> QueueJob:
    """The job with an iteration's work split over its workers; unchanged on the wanted number."""
    view = job.view
    training = job.training
    if training is None:
        raise BadInput(
            f"job {view.name} has no compute time for other numbers of GPUs"
        )
    workers = view.workers
    if training.split:
        return job
    compute_s = {
        model: workers * each_s for model, each_s in training.compute_s.items()
    }
    split = training._replace(
        compute_s=compute_s,
        split=True,
    )
    view = view._replace(
        training=split,
        sequential_s=workers * view.sequential_s,
        requirement=view.requirement / workers,
    )
    return job._replace(
        view=view,
        training=split,
    )


def _half_and_twice(gpus: int) -> tuple[int, ...]:
    """The default choice of numbers of GPUs that a job may have while it runs."""
    # The communication of a job of one GPU on several GPUs is unknown.
    halved = (gpus // 2,) if gpus % 2 == 0 else ()
    return (*halved, gpus, 2 * gpus) if gpus > 1 else ()


def jobs_of_specs(
    lab: Lab,
    specs: Sequence[JobSpec],
    user: str = "",
    arrived_s: float = 0.0,
    partitioned: bool = False,
) -> list[QueueJob]:
    """Jobs that a user submits to a lab at one moment, each of which starts by itself.

    If ``partitioned``, a policy chooses the number of workers of jobs that leave it open.

    ``BadInput`` for jobs that the lab would refuse, and for those that cannot be simulated: jobs
    that name their hosts, or lack a gradient or computing time.
    """
    counted = not partitioned
    checked = [
        each
        for spec in specs
        for each in check_specs(lab, [spec], counted=counted)
    ]
    return [
        _specified(
            lab,
            JobStatus(
                spec.name,
                spec,
                JobState.QUEUED,
                submitted_at=arrived_s,
                by=user,
            ),
        )
        for spec in checked
    ]


def _specified(lab: Lab, status: JobStatus) -> QueueJob:
    spec = status.spec
    training = training_of(status)
    if spec.hosts:
        raise BadInput(
            f"job {spec.name} has 'hosts': in a simulation the placement policy chooses them",
            hint=f"replace 'hosts' by 'workers: {spec.size}'",
        )
    lasts_s = alone_s(status, slowest_nic_bps(lab))
    if training is None or math.isnan(lasts_s):
        raise BadInput(
            f"job {spec.name}: its duration is unknown",
            hint="give 'iterations', 'gradient' and 'compute', also for a command",
        )
    view = view_of(status)
    if not view.workers and not view.degrees:
        able = sum(
            host.gpu is not None and spec.runs_on(host.gpu.model)
            for host in lab.hosts
        )
        view = view._replace(degrees=tuple(range(1, able + 1)))
    return QueueJob(
        view,
        lasts_s,
        training=training,
        degrees=view.degrees,
        priority=spec.priority,
        after=spec.after,
        preemptible=spec.preemptible,
    )


# More large jobs than in the Philly trace, where 93 % want one GPU: places matter more here.
_SIZES = MappingProxyType(
    {
        1: 0.5,
        2: 0.15,
        4: 0.15,
        8: 0.15,
        16: 0.05,
    }
)
_LONGEST_S = 10 * 86400.0


@dataclass(frozen=True)
class SyntheticJobs:
    """Poisson arrivals, log-normal durations, random sizes, all independent.

    ``load`` is the mean share of the cluster's GPUs that would be held if no job waited
    or was slowed down. Median and mean duration are the Philly trace's; the longest is ten days.
    ``sizes`` gives the odds of each number of GPUs; sizes that the cluster does not have are left
    out. ``elastic`` jobs may have half or twice as many GPUs while they run.
    """

    count: int = 200
    load: float = 0.8
    median_s: float = 1144.0
    mean_s: float = 13136.0
    communication: float = 0.25
    sizes: Mapping[int, float] = field(default_factory=lambda: _SIZES)
    elastic: bool = False

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 < self.load < math.inf:
            raise BadInput(
                f"cannot draw {self.count} jobs at load {self.load}: expected at least "
                "1, and more than 0"
            )
        if not 0 < self.median_s <= self.mean_s < math.inf:
            raise BadInput(
                f"durations cannot have the median {self.median_s} s and the mean {self.mean_s} "
                "s: expected more than 0, and a mean that is not below the median"
            )
        if not 0 <= self.communication < 1:
            raise BadInput(
                f"jobs cannot communicate for {self.communication} of their time"
            )

    def draw(self, rng: np.random.Generator, gpus: int) -> list[QueueJob]:
        """The jobs for a cluster of so many GPUs; the first arrives at 0 s."""
        sizes = [size for size in self.sizes if 1 <= size <= gpus]
        if not sizes:
            raise BadInput(
                f"none of the sizes {', '.join(map(str, self.sizes))} fits on {gpus} GPUs"
            )
        odds = np.array([float(self.sizes[size]) for size in sizes])
        odds /= odds.sum()
        gap_s = (
            float(odds @ np.array(sizes)) * self.mean_s / (self.load * gpus)
        )
        arrivals = np.concatenate(
            ([0.0], np.cumsum(rng.exponential(gap_s, self.count - 1)))
        )
        spread = math.sqrt(2 * math.log(self.mean_s / self.median_s))
        lasting = rng.lognormal(math.log(self.median_s), spread, self.count)
        durations = np.minimum(lasting, _LONGEST_S).tolist()
        workers = rng.choice(sizes, self.count, p=odds).tolist()
        jobs: list[QueueJob] = []
        for at_s, lasts_s, size in zip(
            arrivals.tolist(),
            durations,
            workers,
            strict=True,
        ):
            sequential_s = lasts_s * size
            share = self.communication if size > 1 else 0.0
            view = JobView(
                str(len(jobs)),
                size,
                arrived_s=at_s,
                sequential_s=sequential_s,
                communication=share,
            )
            degrees = _half_and_twice(size) if self.elastic else ()
            jobs.append(
                QueueJob(
                    view,
                    lasts_s,
                    share,
                    degrees=degrees,
                )
            )
        return jobs
