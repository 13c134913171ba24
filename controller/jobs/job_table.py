"""Which jobs a lab takes, and what is known of each.

Each change of a job is in the store at once.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, replace

from patchlight.controller.jobs.running_job import RunningJob, scaled_gradient_bytes
from patchlight.controller.store import Store
from patchlight.testbed.errors import BadInput
from patchlight.testbed.files.issues import nearest
from patchlight.testbed.jobs import JobSpec, JobState, JobStatus, checked_specs
from patchlight.testbed.lab import Lab
from patchlight.testbed.worker_api import LARGEST_TASK_GRADIENT_BYTES


def check_specs(lab: Lab, given: Sequence[JobSpec], *, counted: bool) -> list[JobSpec]:
    """The specs, checked; ``BadInput`` for jobs that could never run together in this lab.

    ``counted``: a job without hosts has to say how many workers it wants.
    """
    if not given:
        raise BadInput("no job given")
    specs = checked_specs(list(given))
    named: dict[str, str] = {}
    for spec in specs:
        _check_models(lab, spec)
        _check_memory(lab, spec)
        if not spec.hosts and spec.workers < 1 and counted:
            raise BadInput(
                f"job {spec.name}: expected 'workers' ≥ 1 or a list of 'hosts'",
                hint="the number is left to a policy where the controller runs with "
                "--partition POLICY",
            )
        for name in spec.hosts:
            host = lab.host(name)
            if host.name in named:
                raise BadInput(
                    f"{host.name} is asked for twice: by {named[host.name]} and {spec.name}"
                )
            named[host.name] = spec.name
            if host.gpu is None or host.gpu.model not in spec.compute_s:
                model = host.gpu.model if host.gpu else "a host without a GPU"
                raise BadInput(
                    f"job {spec.name}: no compute time for {model} ({host.name})",
                    hint=f"add it to compute_s, which has {', '.join(spec.compute_s)}",
                )
        able = sum(h.gpu is not None and h.gpu.model in spec.compute_s for h in lab.hosts)
        if not spec.hosts and spec.workers > able:
            raise BadInput(
                f"job {spec.name}: {spec.workers} workers asked for: the lab has {able} GPUs "
                f"of the models in its compute_s, which has {', '.join(spec.compute_s)}"
            )
    usable = [h.name for h in lab.hosts if h.gpu is not None]
    asked = sum(len(spec.hosts) or spec.workers for spec in specs)
    if asked > len(usable):
        raise BadInput(f"{asked} workers asked for: the lab has {len(usable)} GPUs with a NIC")
    return specs


def _check_models(lab: Lab, spec: JobSpec) -> None:
    models = sorted({host.gpu.model for host in lab.hosts if host.gpu is not None})
    for model in spec.compute_s:
        if model not in models:
            raise BadInput(
                f"job {spec.name}: compute_s names {model[:40]!r}: "
                + nearest(model, models, "the lab's GPUs with a NIC are of")
            )


def _check_memory(lab: Lab, spec: JobSpec) -> None:
    scaled = scaled_gradient_bytes(spec, lab)
    if scaled > LARGEST_TASK_GRADIENT_BYTES:
        raise BadInput(
            f"job {spec.name}: a gradient of {spec.gradient_bytes} bytes is {scaled} in each "
            f"worker at the lab's scale of {lab.scale:g}: the limit is "
            f"{LARGEST_TASK_GRADIENT_BYTES}",
            hint="a smaller gradient, or an emulated lab with a larger --scale",
        )


class JobTable:
    """The status of jobs by id, in the order of submission; ``running`` are those with hosts."""

    def __init__(self, store: Store) -> None:
        """Jobs that a controller before left in the middle have failed."""
        self.running: dict[str, RunningJob] = {}
        self._store = store
        self._jobs: dict[str, JobStatus] = {}
        for status in store.jobs(JobStatus.from_dict):
            if not status.state.is_final:
                status = replace(
                    status, state=JobState.FAILED, message="the controller ended while it ran"
                )
            self.keep(status)

    def __getitem__(self, job_id: str) -> JobStatus:
        """One job; ``BadInput`` if there is none of that id."""
        if job_id not in self._jobs:
            raise BadInput(f"no job {job_id!r}: 'patchlight job list' shows those there are")
        return self._jobs[job_id]

    def find(self, job_id: str) -> JobStatus | None:
        """One job, or ``None``."""
        return self._jobs.get(job_id)

    def every(self) -> list[JobStatus]:
        """Every job, in the order of submission."""
        return list(self._jobs.values())

    def keep(self, status: JobStatus) -> None:
        """Remember a job as it is now."""
        self._jobs[status.id] = status
        self._store.save_job(status.id, status.state, asdict(status))

    def move(
        self, job_id: str, state: JobState, message: str = "", last_lines: Sequence[str] = ()
    ) -> None:
        """The job has come to this state now; an event says so."""
        now, status = time.time(), self._jobs[job_id]
        self.keep(
            replace(
                status,
                state=state,
                message=message,
                last_lines=tuple(last_lines),
                started_at=status.started_at or (now if state is JobState.RUNNING else None),
                finished_at=now if state.is_final else None,
            )
        )
        self._store.add_event(now, f"job-{state}", {"job": job_id, "message": message})

    def end(
        self, job_ids: Sequence[str], state: JobState, message: str, last_lines: Sequence[str] = ()
    ) -> None:
        """Those of the jobs that had not come to an end yet have now."""
        for job_id in job_ids:
            if not self._jobs[job_id].state.is_final:
                self.move(job_id, state, message, last_lines)
