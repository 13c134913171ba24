"""Runs the cases on a lab that is up, through its controller's API, and brings back what it saw.

Nothing here knows whether the lab is emulated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from patchlight.emulation.experiments.ofc2022.client import ExperimentClient
from patchlight.emulation.experiments.ofc2022.measurements import (
    CaseRun,
    JobRun,
    Reconfiguration,
    Wiring,
)
from patchlight.emulation.experiments.ofc2022.scenario import jobs_of
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.jobs import JobState, JobStatus
from patchlight.testbed.lab import Lab

# Told whenever there is news: which case, which wiring, and how its jobs stand.
Tell = Callable[[str, Wiring, Sequence[JobStatus]], None]

_POLL_S = 0.2
_STALL_S = 120.0
_SAMPLES_S = 10.0


def run_case(
    client: ExperimentClient, lab: Lab, case: str, wiring: Wiring, iterations: int, tell: Tell
) -> CaseRun:
    """One case under one wiring, from the lab's initial cross-connects to the last iteration.

    ``live`` starts static and has the controller regroup when the first job is half way.
    Raises ``PatchlightError`` if a job fails or does not get on.
    """
    client.reconfigure(lab.initial_maps)
    specs = jobs_of(case, lab, iterations)
    since = time.time()
    ids = [job.id for job in client.submit(specs, regroup=wiring == "optical")]
    at_half = specs[0].iterations // 2
    changes: list[Reconfiguration] = []

    def live_change(jobs: Sequence[JobStatus]) -> None:
        first = jobs[0]
        if not changes and first.state is JobState.RUNNING and first.iterations_done >= at_half:
            changes.append(client.regroup(ids))

    statuses = _follow(client, ids, case, wiring, tell, live_change if wiring == "live" else None)
    if wiring == "live" and not changes:
        raise PatchlightError("the first job ended before it could be regrouped half way")
    if wiring == "optical":
        changes += client.reconfigurations(since)
    jobs = tuple(JobRun(status, client.iterations(status.id)) for status in statuses)
    _wait_for_samples(client, max(i.finished_at for job in jobs for i in job.iterations), since)
    return CaseRun(case, wiring, jobs, client.ports(since), client.gpus(since), tuple(changes))


def _follow(
    client: ExperimentClient,
    ids: Sequence[str],
    case: str,
    wiring: Wiring,
    tell: Tell,
    on_news: Callable[[Sequence[JobStatus]], None] | None,
) -> list[JobStatus]:
    """Watch jobs until all are done."""
    before: list[tuple[JobState, int]] = []
    last_news = time.monotonic()
    while True:
        jobs = [client.job(job_id) for job_id in ids]
        for job in jobs:
            if job.state in (JobState.FAILED, JobState.STOPPED):
                said = "".join(f"\n  | {line}" for line in job.last_lines)
                raise PatchlightError(
                    f"case ({case}) {wiring}: job {job.spec.name} {job.state}: {job.message}{said}"
                )
        now = [(job.state, job.iterations_done) for job in jobs]
        if now != before:
            before, last_news = now, time.monotonic()
            tell(case, wiring, jobs)
            if on_news is not None:
                on_news(jobs)
        if all(job.state is JobState.DONE for job in jobs):
            return jobs
        if time.monotonic() - last_news > _STALL_S:
            where = ", ".join(f"{j.spec.name} {j.state}, {j.iterations_done} done" for j in jobs)
            raise PatchlightError(
                f"case ({case}) {wiring}: nothing has happened for {_STALL_S:.0f} s ({where})"
            )
        time.sleep(_POLL_S)


def _wait_for_samples(client: ExperimentClient, end: float, since: float) -> None:
    """Wait for the counters and GPU samples of the last second of training."""
    deadline = time.monotonic() + _SAMPLES_S
    while time.monotonic() < deadline:
        ports, gpus = client.ports(since), client.gpus(since)
        if ports and gpus and min(ports[-1].at, gpus[-1].at) >= end:
            return
        time.sleep(_POLL_S)
    raise PatchlightError(
        f"no port counters or GPU samples of the end of the run came within {_SAMPLES_S:.0f} s",
        hint="'patchlight controller status' says whether switches and agents are connected",
    )
