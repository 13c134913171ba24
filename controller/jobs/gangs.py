"""Gangs that have hosts: their jobs start together, and each is followed to its own end.

Nothing of a gang ends because the controller does: its workers go on, and the next controller
follows them again.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from patchlight.controller.fleet import Fleet
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.running_job import RunningJob, run_all
from patchlight.controller.jobs.worker_specs import JobFailed
from patchlight.controller.store import Store
from patchlight.testbed.errors import PatchlightError, in_words
from patchlight.testbed.jobs import JobSpec, JobState, JobStatus
from patchlight.testbed.lab import Lab

_START_S = 2.0  # Until a gang was seen to start.

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Gang:
    """Jobs that start together, each by its id.

    ``ends_because`` says why somebody wants it to end, and ``again`` that it is to be queued
    once more then.
    """

    ids: tuple[str, ...]
    topology: str
    task: asyncio.Task[None] | None = None
    ends_because: str = ""
    again: bool = False


class Waits(Protocol):
    """Where jobs wait for hosts."""

    def enqueue(self, status: JobStatus) -> None:
        """Have a job wait for its next attempt."""

    def freed(self, job: RunningJob) -> None:
        """A job has given back its hosts."""

    def settled(self, job: RunningJob) -> None:
        """A job is on its hosts, and none besides are kept for it."""


class CannotGoOn(JobFailed):
    """A job was stopped to go on with other workers, and these could not begin."""


class Gangs:
    """The gangs that have hosts.

    ``rewire`` brings about the circuits of a gang; ``queue`` is where jobs wait. The gang that
    started last took ``last_start_s`` for it.
    """

    def __init__(
        self,
        lab: Lab,
        fleet: Fleet,
        store: Store,
        table: JobTable,
        rewire: Callable[[Gang], Awaitable[None]],
        queue: Waits,
    ) -> None:
        self.active: list[Gang] = []
        self.last_start_s = _START_S
        self._lab, self._fleet, self._store, self._table = lab, fleet, store, table
        self._rewire, self._queue = rewire, queue

    def begin(self, gang: Gang, after: Sequence[asyncio.Task[None]] = ()) -> None:
        """Start the jobs of a gang, together, on the hosts that they have now; follow them.

        ``after`` these are over: the hosts may have to be given back first.
        """
        jobs = [self.job_of(self._table[job_id]) for job_id in gang.ids]
        self._take(gang, jobs, self._start_and_follow(gang, jobs, after))

    async def take_over(self, gang: Gang) -> None:
        """Follow jobs that run already, whoever started them."""
        jobs = [self.job_of(self._table[job_id]) for job_id in gang.ids]
        for job in jobs:
            reports = self._table.ledger.reports_by_rank(job.id, job.attempt)
            job.assign(self._lab, self._fleet, reports)
            # Who paused them may not be there any more to let them go on.
            await job.release()
        self._take(gang, jobs, self._follow(gang, jobs))

    async def undo_start(self, status: JobStatus) -> None:
        """Give back what a job has that was being started, and queue it again."""
        job = self.job_of(status)
        job.assign(self._lab, self._fleet)
        await self._give_back(job)
        why = "the controller ended while it was started"
        self._next_attempt(status, why, status.first_iteration, gang=status.gang)

    def job_of(self, status: JobStatus) -> RunningJob:
        """A job on its hosts."""

        async def on_reports(reports: list[dict[str, Any]]) -> None:
            # In a thread: a disk may take its time, and there are many of these.
            await asyncio.to_thread(self._table.ledger.add_iterations, status.id, reports)
            now = self._table[status.id]
            done = max(now.iterations_done, *(report["index"] + 1 for report in reports))
            if (done, job.restarts) != (now.iterations_done, now.restarts):
                self._table.keep(replace(now, iterations_done=done, restarts=job.restarts))

        hosts = tuple(self._lab.host(name) for name in status.hosts)
        job = RunningJob(
            status.id, status.spec, hosts, on_reports, status.attempt, status.first_iteration
        )
        return job

    def resize(self, job_id: str, hosts: Sequence[str], why: str) -> bool:
        """Have a job that runs go on on these hosts from its next iteration on.

        ``False`` if it has come to its end meanwhile.
        """
        job = self._table.running.get(job_id)
        if job is None or self._table[job_id].state is not JobState.RUNNING:
            return False
        job.go_on_elsewhere(tuple(self._lab.host(name) for name in hosts), why)
        return True

    def _take(
        self, gang: Gang, jobs: Sequence[RunningJob], life: Coroutine[Any, Any, None]
    ) -> None:
        self.active.append(gang)
        self._table.running |= {job.id: job for job in jobs}
        gang.task = asyncio.create_task(self._live(gang, life))

    async def _live(self, gang: Gang, life: Coroutine[Any, Any, None]) -> None:
        try:
            await life
        finally:
            self.active.remove(gang)

    async def end(self, gangs: Iterable[Gang], why: str, *, again: bool = False) -> None:
        """End these: workers stop, GPUs and NICs go back; ``again``: they are queued once more."""
        ending = list(gangs)
        for gang in ending:
            gang.ends_because, gang.again = why, again
        await self._cancel(ending)

    async def close(self) -> None:
        """Let go of all of them; their workers go on."""
        await self._cancel(list(self.active))

    @staticmethod
    async def _cancel(gangs: Sequence[Gang]) -> None:
        # A task that is cancelled before it began would never clear up after its gang.
        await asyncio.sleep(0)
        tasks = [gang.task for gang in gangs if gang.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _start_and_follow(
        self, gang: Gang, jobs: Sequence[RunningJob], after: Sequence[asyncio.Task[None]]
    ) -> None:
        try:
            if after:
                await asyncio.wait(after)
            await self._start(gang, jobs)
        except asyncio.CancelledError:
            if gang.ends_because:
                await self._all_over(gang, jobs)
        except Exception as error:
            for job in jobs:
                self._failed(job, error)
            await self._all_over(gang, jobs)
        else:
            await self._follow(gang, jobs)

    async def _start(self, gang: Gang, jobs: Sequence[RunningJob]) -> None:
        began = time.monotonic()
        await self._rewire(gang)
        for job in jobs:
            if self._table[job.id].state is not JobState.PREPARING:
                self._table.move(job.id, JobState.PREPARING)
            job.assign(self._lab, self._fleet)
        # To the end, also if one fails: no worker may be made after all were given back.
        await run_all(job.prepare() for job in jobs)
        for job in jobs:
            self._table.move(job.id, JobState.RUNNING)
        await run_all(job.start() for job in jobs)
        self.last_start_s = time.monotonic() - began
        for job in jobs:
            self._queue.settled(job)

    async def _follow(self, gang: Gang, jobs: Sequence[RunningJob]) -> None:
        # One job of a gang failing does not end the others: they share only the start.
        await asyncio.gather(*(self._see_through(gang, job) for job in jobs))

    async def _see_through(self, gang: Gang, job: RunningJob) -> None:
        try:
            while not await job.watch():
                await self._go_on_elsewhere(gang, job)
            self._table.move(job.id, JobState.DONE)
        except asyncio.CancelledError:
            if not gang.ends_because:
                return  # the controller ends, and the job does not
        except Exception as error:
            self._failed(job, error)
        await self._over(gang, job)

    async def _go_on_elsewhere(self, gang: Gang, job: RunningJob) -> None:
        """Stop a job where all ranks are at one iteration, and begin there on its next hosts.

        One that cannot be stopped goes on as it is. Should the controller end meanwhile, the job
        is on record as one that is being started, and is queued again.
        """
        if not await job.hold_for_good():
            job.stay()
            await job.release()
            self._queue.settled(job)
            return
        await self._stop(job, job.changes_because)
        status = self._table[job.id].with_hosts(
            tuple(host.name for host in job.next_hosts), time.time()
        )
        self._table.keep(replace(status, attempt=status.attempt + 1))
        job.begin_anew(status.attempt + 1, status.first_iteration)
        self._queue.settled(job)
        try:
            await self._start(gang, [job])
        except Exception as error:
            said = str(error) if isinstance(error, PatchlightError) else in_words(error)
            raise CannotGoOn(
                f"its {len(job.hosts)} workers could not begin: {said}",
                getattr(error, "last_lines", ()),
                getattr(error, "hosts", ()),
            ) from error

    async def _stop(self, job: RunningJob, why: str) -> None:
        """End the workers of a held job. That they end is on record before they do."""
        done = job.iterations_done
        first_iteration = self._first_iteration(job.spec, done)
        self._table.move(
            job.id, JobState.PREPARING, why, first_iteration=first_iteration, iterations_done=done
        )
        await job.end_held()
        await self._give_back(job)

    async def _give_back(self, job: RunningJob) -> None:
        if self._table.outputs is not None:
            await self._table.outputs.keep(job)
        for message in await job.give_back():
            self._store.add_event(time.time(), "worker-left-behind", {"message": message})

    async def _all_over(self, gang: Gang, jobs: Sequence[RunningJob]) -> None:
        await asyncio.gather(*(self._over(gang, job) for job in jobs))

    async def _over(self, gang: Gang, job: RunningJob) -> None:
        """The job has no more to do, or is to have none: all that it had goes back."""
        self._stop_if_wanted(gang, job)
        try:
            runs = self._table[job.id].state in (JobState.RUNNING, JobState.PAUSED)
            if gang.again and runs and await job.hold_for_good():
                await self._stop(job, gang.ends_because)
            else:
                await self._give_back(job)
        finally:
            self._stop_if_wanted(gang, job)  # or somebody wants it only now
            self._table.running.pop(job.id, None)
            status = self._table[job.id]
            if gang.again and not status.state.is_final:
                status = self._next_attempt(status, gang.ends_because, job.iterations_done)
            self._queue.freed(job)
            if status.state is JobState.QUEUED:
                self._queue.enqueue(status)

    def _stop_if_wanted(self, gang: Gang, job: RunningJob) -> None:
        if gang.ends_because and not gang.again:
            self._table.end([job.id], JobState.STOPPED, gang.ends_because)

    def _next_attempt(
        self, status: JobStatus, why: str, first_iteration: int, **changes: Any
    ) -> JobStatus:
        """Queue a job again, by default alone: those that it started with have begun."""
        first_iteration = self._first_iteration(status.spec, first_iteration)
        return self._table.move(
            status.id,
            JobState.QUEUED,
            why,
            hosts=(),
            attempt=status.attempt + 1,
            runs_since=None,
            gpu_s=status.gpu_seconds(time.time()),
            first_iteration=first_iteration,
            iterations_done=first_iteration,
            **{"gang": "", **changes},
        )

    @staticmethod
    def _first_iteration(spec: JobSpec, done: int) -> int:
        """Where a job goes on that has done so many; of a command, its own checkpoint says."""
        return 0 if spec.trainer == "command" else done

    def _failed(self, job: RunningJob, error: Exception) -> None:
        """The job has failed of this; whatever it was, it ends no other."""
        said = str(error) if isinstance(error, PatchlightError) else in_words(error)
        if not isinstance(error, PatchlightError):
            _log.error("job %s", job.id, exc_info=error)
        status = self._table[job.id]
        if status.state.is_final:
            return
        # That it was to have other workers is no failure of its own.
        resized = isinstance(error, CannotGoOn)
        failures = status.failures + (not resized)
        if resized or failures <= job.spec.retries:
            avoid = tuple(dict.fromkeys((*status.avoid, *getattr(error, "hosts", ()))))
            tried = said if resized else f"failure {failures} of {job.spec.retries + 1}: {said}"
            self._next_attempt(status, tried, job.iterations_done, avoid=avoid, failures=failures)
        else:
            self._table.end([job.id], JobState.FAILED, said, getattr(error, "last_lines", ()))


def gangs_of(statuses: Iterable[JobStatus]) -> list[list[JobStatus]]:
    """Jobs that start together, in the order of submission."""
    gangs: dict[str, list[JobStatus]] = {}
    for status in statuses:
        gangs.setdefault(status.gang or status.id, []).append(status)
    return list(gangs.values())
