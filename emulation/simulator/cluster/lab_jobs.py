"""Jobs as a lab takes them, from job files, as those of a simulated cluster."""

import math
from collections.abc import Sequence

from patchlight.controller.jobs.cluster_view import alone_s, training_of, view_of
from patchlight.controller.jobs.specs import check_specs
from patchlight.controller.prediction.network import slowest_nic_bps
from patchlight.emulation.simulator.cluster.jobs import QueueJob
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobSpec, JobState, JobStatus
from patchlight.testbed.lab.model import Lab


def jobs_of_specs(
    lab: Lab,
    specs: Sequence[JobSpec],
    user: str = "",
    arrived_s: float = 0.0,
    partitioned: bool = False,
) -> list[QueueJob]:
    """Jobs that a user submits to a lab at one moment, each of which starts by itself.

    Where they are ``partitioned``, a policy says how many workers those get that leave it open.

    ``BadInput`` for one that the lab would not take, and for one that a simulation knows too
    little of: on hosts of its own choice, or without gradient or computing time.
    """
    counted = not partitioned
    checked = [each for spec in specs for each in check_specs(lab, [spec], counted=counted)]
    return [
        _queue_job(
            lab, JobStatus(spec.name, spec, JobState.QUEUED, submitted_at=arrived_s, by=user)
        )
        for spec in checked
    ]


def _queue_job(lab: Lab, status: JobStatus) -> QueueJob:
    spec, training = status.spec, training_of(status)
    if spec.hosts:
        raise BadInput(
            f"job {spec.name} names its hosts: in a simulation the placement policy chooses them",
            hint=f"'workers: {spec.size}' in place of 'hosts'",
        )
    lasts_s = alone_s(status, slowest_nic_bps(lab))
    if training is None or math.isnan(lasts_s):
        raise BadInput(
            f"job {spec.name}: nobody knows how long it takes",
            hint="say 'iterations', 'gradient' and 'compute', also of a command",
        )
    view = view_of(status)
    if not view.workers and not view.degrees:
        able = sum(host.gpu is not None and spec.runs_on(host.gpu.model) for host in lab.hosts)
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
