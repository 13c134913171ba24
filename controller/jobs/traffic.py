"""The traffic of the running jobs, which a change of circuits has to pause."""

from __future__ import annotations

import asyncio
import time

from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.running_job import RunningJob
from patchlight.testbed.jobs import JobState
from patchlight.testbed.lab import Endpoint


class JobTraffic:
    """Pauses the jobs whose workers use the ports that move, between two iterations.

    Each gets the time of three of its iterations to pause, but at least ``patience_s``.
    """

    def __init__(self, table: JobTable, patience_s: float = 10.0) -> None:
        self._table, self._patience_s = table, patience_s
        self._drained: list[RunningJob] = []

    def jobs_using(self, moved: frozenset[Endpoint]) -> list[str]:
        """The running jobs whose traffic uses these ports, by id."""
        return [job.id for job in self._using(moved)]

    def _using(self, moved: frozenset[Endpoint]) -> list[RunningJob]:
        return [
            job
            for job in self._table.running.values()
            if self._table[job.id].state is JobState.RUNNING
            and any(host.endpoint in moved for host in job.hosts)
        ]

    async def drain(self, moved: frozenset[Endpoint]) -> list[str]:
        """Pause the jobs that use these ports; in words, which did not in time."""
        self._drained = jobs = self._using(moved)
        paused = await asyncio.gather(*(job.hold(self._deadline_s(job)) for job in jobs))
        return [
            f"job {job.id} did not pause in time: its packets wait for the light"
            for job, in_time in zip(jobs, paused, strict=True)
            if not in_time
        ]

    def _deadline_s(self, job: RunningJob) -> float:
        status = self._table[job.id]
        if not status.iterations_done or status.started_at is None:
            return 3 * self._patience_s  # nobody knows yet how long an iteration takes
        return max(self._patience_s, 3 * (time.time() - status.started_at) / status.iterations_done)

    async def undrain(self) -> None:
        """Let the paused jobs go on."""
        jobs, self._drained = self._drained, []
        await asyncio.gather(*(job.release() for job in jobs))
