"""The traffic of running jobs: who pauses while circuits change, and while there is no light."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.running_job import RunningJob
from patchlight.testbed.errors import in_words
from patchlight.testbed.jobs import JobState
from patchlight.testbed.lab.model import Endpoint, Host
from patchlight.testbed.lab.wiring import Links

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5
# For a job that lost its light unannounced. What is in the middle of an all-reduce waits there.
_HOLD_IN_THE_DARK_S = 2.0


class JobTraffic:
    """Pauses jobs between two iterations, and lets them go on.

    Those whose workers use ports that move pause while circuits change; each gets the time of
    three of its iterations for that, but at least ``patience_s``. Those with a NIC that no
    circuit joins to anything pause until the light is back, or fail at their ``dark_limit_s``.
    ``links`` gives the links as last known, ``None`` while they are not; ``no_carrier`` the hosts
    whose NIC cannot send, whatever the circuits, and why.
    """

    def __init__(
        self,
        table: JobTable,
        links: Callable[[], Links | None],
        no_carrier: Callable[[], Mapping[str, str]] = dict,
        patience_s: float = 10.0,
    ) -> None:
        self._table, self._links, self._patience_s = table, links, patience_s
        self._no_carrier = no_carrier
        self._drained: list[RunningJob] = []

    def jobs_using(self, moved: frozenset[Endpoint]) -> list[str]:
        """The running jobs whose traffic uses these ports, by id."""
        return [job.id for job in self._using(moved)]

    def _using(self, moved: frozenset[Endpoint]) -> list[RunningJob]:
        return [
            job
            for job in self._table.running.values()
            if self._state(job) in (JobState.RUNNING, JobState.PAUSED)
            and any(host.endpoint in moved for host in job.hosts)
        ]

    def _state(self, job: RunningJob) -> JobState:
        return self._table[job.id].state

    async def drain(self, moved: frozenset[Endpoint]) -> list[str]:
        """Pause the jobs that use these ports; in words, which did not in time."""
        self._drained = self._using(moved)
        jobs = [job for job in self._drained if self._state(job) is JobState.RUNNING]
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
        """Let the paused jobs go on; those that have no light now stay as they are."""
        jobs, self._drained = self._drained, []
        await asyncio.gather(*(self._settle(job) for job in jobs))

    async def watch(self) -> None:
        """Pause whoever has no light, and have those go on that have it again, for ever."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            jobs = [job for job in self._table.running.values() if job not in self._drained]
            answers = await asyncio.gather(
                *(self._settle(job, hold=True) for job in jobs), return_exceptions=True
            )
            for job, answer in zip(jobs, answers, strict=True):
                if isinstance(answer, Exception):
                    _log.warning("job %s and its light: %s", job.id, in_words(answer))

    async def _settle(self, job: RunningJob, *, hold: bool = False) -> None:
        """Paused while dark, running while not. ``hold``: its workers were not told to pause."""
        state, links = self._state(job), self._links()
        if state not in (JobState.RUNNING, JobState.PAUSED) or job.next_hosts:
            return  # who goes on elsewhere is held for that
        dark, words = without_light(job, links, self._no_carrier())
        if dark and state is JobState.RUNNING:
            job.dark_since = time.monotonic()
            self._table.move(job.id, JobState.PAUSED, words)
            if hold:
                await job.hold(_HOLD_IN_THE_DARK_S)
                if self._state(job) is not JobState.PAUSED:
                    await job.release()  # a change brought the light back meanwhile
        elif dark:
            limit_s = job.spec.dark_limit_s
            if time.monotonic() - job.dark_since > limit_s:
                why = f"job {job.spec.name}: {words} for more than {limit_s:g} s, the job's limit"
                job.give_up(why, dark)
        elif state is JobState.RUNNING:
            if not hold:
                await job.release()
        elif links is not None:
            await job.release()
            # It may have come to its end while its workers were told.
            if self._state(job) is JobState.PAUSED:
                self._table.move(job.id, JobState.RUNNING)


def without_light(
    job: RunningJob, links: Links | None, no_carrier: Mapping[str, str]
) -> tuple[list[str], str]:
    """The hosts of a job that have no light, and that in words. A worker alone needs none."""
    if len(job.hosts) == 1 or links is None:
        return [], ""
    dark = [host for host in job.hosts if not links.peers(host.endpoint)]
    cut = [host for host in job.hosts if host.name in no_carrier and host not in dark]
    without = [host for host in cut if no_carrier[host.name].endswith("has no carrier")]
    said = [_said(dark, "is dark", "are dark"), _said(without, "has no carrier", "have no carrier")]
    said += [no_carrier[host.name] for host in cut if host not in without]  # of its RDMA device
    return [host.name for host in (*dark, *cut)], ", ".join(filter(None, said))


def _said(hosts: Sequence[Host], of_one: str, of_several: str) -> str:
    names = ", ".join(f"{host.nic.name} of {host.server.name}" for host in hosts)
    return f"{names} {of_one if len(hosts) == 1 else of_several}" if hosts else ""
