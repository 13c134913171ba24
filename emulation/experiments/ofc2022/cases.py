"""Runs the cases on a lab that is up, through its controller's API, and brings back what it saw.

Nothing here knows whether the lab is emulated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from patchlight.client.client import ControllerClient
from patchlight.controller.hosts.fleet import SAMPLES_KEPT_S
from patchlight.emulation.experiments.ofc2022.measurements import (
    CaseRun,
    GpuSample,
    JobRun,
    PortRate,
    Reconfiguration,
    Wiring,
)
from patchlight.emulation.experiments.ofc2022.scenario import given_compute_s, jobs_of
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.jobs import Iteration, JobSpec, JobState, JobStatus, Trainer
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.lab import Status

_STATUS_POLL_S = 0.1


class ExperimentClient:
    """What the experiment asks of a controller. Answers that cannot be used are errors."""

    def __init__(self, controller: ControllerClient) -> None:
        self._controller = controller

    def wait_until_complete(self, deadline_s: float) -> Status:
        """The controller's status once every packet switch and agent is there."""
        deadline = time.monotonic() + deadline_s
        while True:
            status = self._controller.status()
            lacking = [s["name"] for s in status["switches"] if not s["connected"]]
            lacking += [a["server"] for a in status["agents"] if not a["reachable"]]
            if not lacking:
                return status
            if time.monotonic() > deadline:
                raise PatchlightError(
                    f"after {deadline_s:.0f} s the controller still does not reach "
                    f"{', '.join(lacking)}"
                )
            time.sleep(_STATUS_POLL_S)

    def reconfigure(self, maps: Mapping[str, PortMap]) -> Reconfiguration:
        """Give each of these circuit switches just this map."""
        asked = {name: [str(c) for c in port_map] for name, port_map in maps.items()}
        return _committed(
            self._controller.reconfigure(asked, only=True, why="the wiring a case starts with")
        )

    def regroup(self, job_ids: Sequence[str]) -> Reconfiguration:
        """Bring each of these running jobs under a packet switch of its own."""
        return _committed(self._controller.regroup(job_ids))

    def reconfigurations(self, since: float) -> tuple[Reconfiguration, ...]:
        """Those that began after the Unix time ``since`` and changed something."""
        rows = self._controller.reconfigurations()
        return tuple(_committed(r) for r in rows if r["started_at"] > since and r["changes"])

    def submit(self, jobs: Sequence[JobSpec], *, regroup: bool) -> list[JobStatus]:
        """Start jobs together, on rewired circuits if ``regroup``."""
        rows = self._controller.submit(jobs, "regroup" if regroup else "keep")
        return [JobStatus.from_dict(row) for row in rows]

    def job(self, job_id: str) -> JobStatus:
        """What is known of one job now."""
        return JobStatus.from_dict(self._controller.job(job_id))

    def iterations(self, job_id: str) -> tuple[Iteration, ...]:
        """Every iteration that the job's workers reported; an unchecked sum is an error."""
        rows, _ = self._controller.iterations(job_id)
        for row in rows:
            if row["check"] != "ok":
                raise PatchlightError(
                    f"job {job_id}: rank {row['rank']} says of iteration {row['index']}: "
                    f"check {row['check']}"
                )
        names = Iteration.__dataclass_fields__
        known = ({key: value for key, value in row.items() if key in names} for row in rows)
        return tuple(Iteration(**each) for each in known)  # type: ignore[arg-type]

    def ports(self, since: float) -> tuple[PortRate, ...]:
        """Port rates of every second that ended after the Unix time ``since``."""
        rows = self._controller.ports(since)
        return tuple(PortRate(r["at"], r["host"], r["rx_bps"], r["tx_bps"]) for r in rows)

    def gpus(self, since: float) -> tuple[GpuSample, ...]:
        """GPU samples of every second that ended after the Unix time ``since``."""
        rows = self._controller.gpus(since)
        return tuple(GpuSample(r["at"], r["gpu"], r["utilization"]) for r in rows)


def _committed(row: Mapping[str, Any]) -> Reconfiguration:
    if row["state"] != "committed":
        raise PatchlightError(f"reconfiguration {row['id']} is {row['state']}: {row['message']}")
    changes = row["changes"].values()
    return Reconfiguration(
        id=str(row["id"]),
        stages_s=dict(row["stages_s"]),
        cross_connects_changed=sum(len(each["breaks"]) + len(each["makes"]) for each in changes),
        **{name: row[name] for name in ("state", "message", "started_at", "finished_at")},
    )


# Told whenever there is news: which case, which wiring, and how its jobs stand.
Tell = Callable[[str, Wiring, Sequence[JobStatus]], None]

_POLL_S = 0.2
_STALL_S = 120.0
_SAMPLES_S = 10.0


def run_case(
    client: ExperimentClient,
    lab: Lab,
    case: str,
    wiring: Wiring,
    iterations: int,
    tell: Tell,
    mismatch_percent: float = 0.0,
    trainer: Trainer = "synthetic",
) -> CaseRun:
    """One case under one wiring, from the lab's initial cross-connects to the last iteration.

    ``live`` starts static and has the controller regroup when the first job is half way.
    Raises ``PatchlightError`` if a job fails or does not get on.
    """
    client.reconfigure(lab.initial_maps)
    specs = jobs_of(case, lab, iterations, mismatch_percent, trainer)
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
    jobs = tuple(
        JobRun(status, client.iterations(status.id), given_compute_s(status.spec, lab))
        for status in statuses
    )
    _wait_for_samples(client, max(i.finished_at for job in jobs for i in job.iterations), since)
    if time.time() - since > SAMPLES_KEPT_S:
        raise PatchlightError(
            f"case ({case}) {wiring} took longer than the {SAMPLES_KEPT_S} s of samples that the "
            "controller keeps in memory",
            hint="train shorter: fewer --iterations",
        )
    seen = client.ports(since), client.gpus(since)
    return CaseRun(case, wiring, jobs, *seen, tuple(changes), trainer)


def _follow(
    client: ExperimentClient,
    ids: Sequence[str],
    case: str,
    wiring: Wiring,
    tell: Tell,
    on_news: Callable[[Sequence[JobStatus]], None] | None,
) -> list[JobStatus]:
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
