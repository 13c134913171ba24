"""Gangs that have hosts: their jobs start together, and each is followed to its own end.

Nothing of a gang ends because the controller does: its workers go on, and the next controller
follows them again.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from patchlight.controller.database import JournalError
from patchlight.controller.fleet import Fleet
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.running_job import RunningJob, run_all
from patchlight.controller.store import Store
from patchlight.testbed.errors import PatchlightError, in_words
from patchlight.testbed.jobs import JobState, JobStatus
from patchlight.testbed.lab import Lab

_log = logging.getLogger(__name__)

_JOURNAL_AGAIN_S = 0.5


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


class Gangs:
    """The gangs that have hosts.

    ``rewire`` brings about the circuits of a gang; ``queue`` is where jobs wait.
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
        self._closing = False
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
        await self._tell_left_behind(await job.give_back())
        why = "the controller ended while it was started"
        self._next_attempt(status, why, 0, gang=status.gang)

    def job_of(self, status: JobStatus) -> RunningJob:
        """A job on its hosts."""

        async def on_reports(reports: list[dict[str, Any]]) -> None:
            # In a thread: a disk may take its time, and there are many of these.
            add = partial(asyncio.to_thread, self._table.ledger.add_iterations, status.id, reports)
            await self._on_record(add)
            done = max(report["index"] + 1 for report in reports)
            await self._on_record(partial(self._progress, job, done))

        hosts = tuple(self._lab.host(name) for name in status.hosts)
        job = RunningJob(
            status.id, status.spec, hosts, on_reports, status.attempt, status.first_iteration
        )
        return job

    async def _progress(self, job: RunningJob, done: int) -> None:
        now = self._table[job.id]
        done = max(now.iterations_done, done)
        if (done, job.restarts) != (now.iterations_done, now.restarts):
            self._table.keep(replace(now, iterations_done=done, restarts=job.restarts))

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
        self._closing = True
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
            await self._rewire(gang)
            for job in jobs:
                self._table.move(job.id, JobState.PREPARING)
                job.assign(self._lab, self._fleet)
            # To the end, also if one fails: no worker may be made after all were given back.
            await run_all(job.prepare() for job in jobs)
            for job in jobs:
                self._table.move(job.id, JobState.RUNNING)
            await run_all(job.start() for job in jobs)
        except asyncio.CancelledError:
            if gang.ends_because:
                await self._all_over(gang, jobs)
        except JournalError as error:
            # No fault of theirs: none has begun, and they do when the journal takes it.
            if not gang.ends_because:
                gang.ends_because, gang.again = error.message, True
            await self._all_over(gang, jobs)
        except Exception as error:
            await self._all_over(gang, jobs, error)
        else:
            await self._follow(gang, jobs)

    async def _follow(self, gang: Gang, jobs: Sequence[RunningJob]) -> None:
        # One job of a gang failing does not end the others: they share only the start.
        await asyncio.gather(*(self._see_through(gang, job) for job in jobs))

    async def _see_through(self, gang: Gang, job: RunningJob) -> None:
        async def done() -> None:
            self._table.move(job.id, JobState.DONE)

        outcome = done
        try:
            await job.watch()
        except asyncio.CancelledError:
            if not gang.ends_because:
                return  # the controller ends, and the job does not
            outcome = _nothing
        except Exception as error:
            outcome = partial(self._failed, job, error)
        await self._to_the_end(self._over(gang, job, outcome))

    async def _all_over(
        self, gang: Gang, jobs: Sequence[RunningJob], error: Exception | None = None
    ) -> None:
        outcomes = [partial(self._failed, job, error) if error else _nothing for job in jobs]
        over = (self._over(gang, job, how) for job, how in zip(jobs, outcomes, strict=True))
        await self._to_the_end(asyncio.gather(*over))

    async def _to_the_end(self, work: Awaitable[object]) -> None:
        """Wait for it, whoever wants the gang to end: only the controller's end cuts it short."""
        task = asyncio.ensure_future(work)
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                if self._closing:
                    task.cancel()
                    raise

    async def _on_record(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write to the journal, again and again if it takes nothing: no job is lost by that."""
        while True:
            try:
                return await write()
            except JournalError as error:
                _log.warning("%s", error)
                await asyncio.sleep(_JOURNAL_AGAIN_S)

    async def _over(
        self, gang: Gang, job: RunningJob, outcome: Callable[[], Awaitable[None]]
    ) -> None:
        """The job has no more to do, or is to have none: all that it had goes back."""

        async def stop_if_wanted() -> None:
            if gang.ends_because and not gang.again:
                self._table.end([job.id], JobState.STOPPED, gang.ends_because)

        async def conclude() -> None:
            await stop_if_wanted()  # or somebody wants it only now
            status = self._table[job.id]
            if gang.again and status.hosts and not status.state.is_final:
                self._next_attempt(status, gang.ends_because, job.iterations_done)

        try:
            await self._on_record(outcome)
            await self._on_record(stop_if_wanted)
            if gang.again:
                await job.hold_for_good()
            await self._tell_left_behind(await job.give_back())
        finally:
            await self._on_record(conclude)
            self._table.running.pop(job.id, None)
            self._queue.freed(job)
            if (status := self._table[job.id]).state is JobState.QUEUED:
                self._queue.enqueue(status)

    async def _tell_left_behind(self, messages: Iterable[str]) -> None:
        async def tell() -> None:
            events = [(time.time(), {"message": message}) for message in messages]
            self._store.add_events("worker-left-behind", events)

        await self._on_record(tell)

    def _next_attempt(
        self, status: JobStatus, why: str, first_iteration: int, **changes: Any
    ) -> JobStatus:
        """Queue a job again, by default alone: those that it started with have begun."""
        if status.spec.trainer == "command":
            first_iteration = 0  # where it goes on, its own checkpoint says
        elif first_iteration >= status.spec.iterations:
            first_iteration = status.spec.iterations - 1  # it failed before it was done
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

    async def _failed(self, job: RunningJob, error: Exception) -> None:
        """The job has failed of this; whatever it was, it ends no other."""
        said = str(error) if isinstance(error, PatchlightError) else in_words(error)
        if not isinstance(error, PatchlightError):
            _log.error("job %s", job.id, exc_info=error)
        status = self._table[job.id]
        if status.state.is_final:
            return
        failures = status.failures + 1
        if failures <= job.spec.retries:
            avoid = tuple(dict.fromkeys((*status.avoid, *getattr(error, "hosts", ()))))
            tried = f"failure {failures} of {job.spec.retries + 1}: {said}"
            self._next_attempt(status, tried, job.iterations_done, avoid=avoid, failures=failures)
        else:
            self._table.end([job.id], JobState.FAILED, said, getattr(error, "last_lines", ()))


async def _nothing() -> None:
    return


def gangs_of(statuses: Iterable[JobStatus]) -> list[list[JobStatus]]:
    """Jobs that start together, in the order of submission."""
    gangs: dict[str, list[JobStatus]] = {}
    for status in statuses:
        gangs.setdefault(status.gang or status.id, []).append(status)
    return list(gangs.values())
