"""What is known of every job, kept in the store: each change of it is there at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace

from patchlight.controller.jobs.running_job import RunningJob
from patchlight.controller.store import Store
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobState, JobStatus


class JobTable:
    """The status of jobs by id, in the order of submission; ``running`` are those with hosts."""

    def __init__(self, store: Store) -> None:
        """Jobs that a controller before left in the middle have failed."""
        self.running: dict[str, RunningJob] = {}
        self._store = store
        self._jobs: dict[str, JobStatus] = {}
        for record in store.jobs():
            status = JobStatus.from_dict(record)
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
                started_at=now if state is JobState.RUNNING else status.started_at,
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
