"""Runs gangs that have hosts: starts their jobs together and follows each to its end."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from patchlight.controller.hosts.fleet import Fleet
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.placement import Gang
from patchlight.controller.jobs.rewiring import JobRewiring
from patchlight.controller.jobs.running_job import RunningJob, most_iterations, run_all
from patchlight.controller.jobs.specs import CannotGoOn, JobFailed, error_text, goes_on_at
from patchlight.controller.storage.database import JournalError
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.jobs import JobSpec, JobState, JobStatus
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.reach import Reach, as_text

_JOURNAL_AGAIN_S = 0.5
_START_S = 2.0  # The assumed start time until a gang has started.

_log = logging.getLogger(__name__)


class Queue(Protocol):
    """The queue of jobs that wait for hosts."""

    def join(self, gang: Gang) -> None:
        """A gang waits from now on. Idempotent."""

    def freed(self, job: RunningJob) -> None:
        """A job has given back its hosts."""

    def settled(self, job: RunningJob) -> None:
        """A job is on its hosts, and none are reserved for it."""


class Gangs:
    """The gangs that have hosts; the latest start took ``last_start_s``."""

    def __init__(
        self,
        lab: Lab,
        fleet: Fleet,
        store: Store,
        table: JobTable,
        rewiring: JobRewiring,
        reach: Callable[[], Reach],
    ) -> None:
        self.queue: Queue
        self.active: list[Gang] = []
        self.last_start_s = _START_S
        self._closing = False
        self._lab, self._fleet, self._table = lab, fleet, table
        self._outcomes = Outcomes(store, table)
        self._rewiring, self._reach = rewiring, reach

    def begin(self, gang: Gang, after: Sequence[asyncio.Task[None]] = ()) -> None:
        """Start the jobs of a gang on their hosts, once ``after`` is over; follow them."""
        jobs = [self.job_of(self._table[job_id]) for job_id in gang.ids]
        self._take(gang, jobs, self._start_and_follow(gang, jobs, after))

    async def take_over(self, gang: Gang) -> None:
        """Follow jobs that an earlier controller started."""
        jobs = [self.job_of(self._table[job_id]) for job_id in gang.ids]
        for job in jobs:
            reports = self._table.ledger.reports_by_rank(job.id, job.attempt)
            job.assign(self._lab, self._fleet, reports)
            # The controller that paused them may be dead.
            await job.release()
        self._take(gang, jobs, self._follow(gang, jobs))

    async def undo_start(self, status: JobStatus) -> None:
        """Delete the workers of a job that was being started, and queue it again."""
        job = self.job_of(status)
        job.assign(self._lab, self._fleet)
        await self._outcomes.give_back(job)
        why = "the controller ended during its start"
        self._outcomes.next_attempt(status, why, status.first_iteration, gang=status.gang)

    def job_of(self, status: JobStatus) -> RunningJob:
        """A job on its hosts."""
        hosts = tuple(self._lab.host(name) for name in status.hosts)
        which = (status.attempt, status.first_iteration, status.by)
        return RunningJob(status.id, status.spec, hosts, self._outcomes.reported, *which)

    def resize(self, job_id: str, hosts: Sequence[str], why: str) -> bool:
        """Continue a running job on these hosts after an iteration; ``False`` if it has ended."""
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
        """End these jobs: stop workers, free GPUs and NICs; ``again``: queue them again."""
        ending = list(gangs)
        for gang in ending:
            gang.ends_because, gang.again = why, again
        await self._cancel(ending)

    async def close(self) -> None:
        """Stop following all jobs; their workers continue."""
        self._closing = True
        await self._cancel(list(self.active))

    @staticmethod
    async def _cancel(gangs: Sequence[Gang]) -> None:
        # A task cancelled before it began would not clean up after its gang.
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
        except JournalError as error:
            # Not their fault: none has begun, and they start when the journal is writable.
            if not gang.ends_because:
                gang.ends_because, gang.again = error.message, True
            await self._all_over(gang, jobs)
        except Exception as error:
            reach = self._reach()
            cut = {host: why for job in jobs for host, why in reach.apart(job.hosts).items()}
            if cut and gang.topology == "keep" and not gang.ends_because:
                # Not their fault either: they wait until their hosts reach each other again.
                gang.ends_because, gang.again = as_text(cut), True
                await self._all_over(gang, jobs)
                return
            why = f"{as_text(cut)}: {error_text(error)}"
            lines, hosts = getattr(error, "last_lines", ()), getattr(error, "hosts", ())
            await self._all_over(gang, jobs, JobFailed(why, lines, hosts) if cut else error)
        else:
            await self._follow(gang, jobs)

    async def _start(self, gang: Gang, jobs: Sequence[RunningJob]) -> None:
        began = time.monotonic()
        if gang.topology != "keep":
            # Running jobs of the same topology policy join this change to keep their circuits.
            same = [g for g in self.active if g is not gang and g.topology == gang.topology]
            for job_id in gang.ids:
                self._table.move(job_id, JobState.RECONFIGURING)
            running = self._table.running
            job_ids = [job_id for g in (gang, *same) for job_id in g.ids if job_id in running]
            change = await self._rewiring.rewire(gang.topology, job_ids, gang.ids)
            if change.state == "unknown":  # a switch that died in it may be back soon
                for job_id in gang.ids:
                    self._table.move(job_id, JobState.RECONFIGURING, change.message)
                change = await self._rewiring.when_settled(change)
            if change.state != "committed":
                raise JobFailed(
                    f"the circuits could not be switched ({change.state}): {change.message}"
                )
        await self._fleet.know_macs(host for job in jobs for host in job.hosts)
        for job in jobs:
            if self._table[job.id].state is not JobState.PREPARING:
                self._table.move(job.id, JobState.PREPARING)
            job.assign(self._lab, self._fleet)
        # Wait for all, even if one fails: no worker may be created after the cleanup.
        await run_all(job.prepare() for job in jobs)
        for job in jobs:
            self._table.move(job.id, JobState.RUNNING)
        await run_all(job.start() for job in jobs)
        self.last_start_s = time.monotonic() - began
        for job in jobs:
            self.queue.settled(job)

    async def _follow(self, gang: Gang, jobs: Sequence[RunningJob]) -> None:
        # A failed job does not end the others of its gang: they share only the start.
        await asyncio.gather(*(self._see_through(gang, job) for job in jobs))

    async def _see_through(self, gang: Gang, job: RunningJob) -> None:
        outcome: Callable[[], object] | None = partial(self._table.move, job.id, JobState.DONE)
        try:
            while not await job.watch():
                await self._go_on_elsewhere(gang, job)
        except asyncio.CancelledError:
            if not gang.ends_because:
                return  # the controller ends, the job continues
            outcome = None
        except Exception as error:
            outcome = partial(self._outcomes.failed, job, error)
        await self._to_the_end(self._over(gang, job, outcome))

    async def _go_on_elsewhere(self, gang: Gang, job: RunningJob) -> None:
        """Stop a job where all ranks are at one iteration, and start it on its next hosts; if it
        cannot be stopped, it continues unchanged."""
        stops = await job.hold_for_good()
        try:
            if stops:  # recorded before its workers end
                self._outcomes.held(job, job.changes_because)
        except JournalError:
            stops = False
        if not stops:
            job.stay()
            await job.release()
            self.queue.settled(job)
            return
        await job.end_held()
        await self._outcomes.give_back(job)
        status = self._table[job.id].with_hosts(
            tuple(host.name for host in job.next_hosts), time.time()
        )
        moved = replace(status, attempt=status.attempt + 1)
        await self._outcomes.on_record(lambda: self._table.keep(moved))
        job.begin_anew(status.attempt + 1, status.first_iteration)
        self.queue.settled(job)
        try:
            await self._start(gang, [job])
        except Exception as error:
            raise CannotGoOn(
                f"its {len(job.hosts)} workers could not begin: {error_text(error)}",
                getattr(error, "last_lines", ()),
                getattr(error, "hosts", ()),
            ) from error

    async def _all_over(
        self, gang: Gang, jobs: Sequence[RunningJob], error: Exception | None = None
    ) -> None:
        over = []
        for job in jobs:
            outcome = partial(self._outcomes.failed, job, error) if error else None
            over.append(self._over(gang, job, outcome))
        await self._to_the_end(asyncio.gather(*over))

    async def _to_the_end(self, work: Awaitable[object]) -> None:
        """Wait for it, even if the gang is to end: only the controller's end interrupts it."""
        task = asyncio.ensure_future(work)
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                if self._closing:
                    task.cancel()
                    raise

    async def _over(
        self, gang: Gang, job: RunningJob, outcome: Callable[[], object] | None
    ) -> None:
        on_record = self._outcomes.on_record

        def stop_if_wanted() -> None:
            if gang.ends_because and not gang.again:
                self._table.end([job.id], JobState.STOPPED, gang.ends_because)

        def conclude() -> None:
            stop_if_wanted()  # by now
            status = self._table[job.id]
            if gang.again and status.hosts and not status.state.is_final:
                self._outcomes.next_attempt(status, gang.ends_because, job.iterations_done)

        try:
            if outcome is not None:
                await on_record(outcome)
            await on_record(stop_if_wanted)
            runs = self._table[job.id].state in (JobState.RUNNING, JobState.PAUSED)
            if gang.again and runs and await job.hold_for_good():
                await on_record(conclude)  # before they end: a later controller resumes it there
                await job.end_held()
            await self._outcomes.give_back(job)
        finally:
            await on_record(conclude)
            self._table.running.pop(job.id, None)
            self.queue.freed(job)
            self._rewiring.ended(job.id)
            if (status := self._table[job.id]).state is JobState.QUEUED:
                self.queue.join(Gang((status.id,), status.topology))


class Outcomes:
    """Writes the progress and outcomes of jobs."""

    def __init__(self, store: Store, table: JobTable) -> None:
        self._store, self._table = store, table

    async def on_record(self, write: Callable[[], object], *, in_thread: bool = False) -> None:
        """Repeat a journal write until it succeeds."""
        while True:
            try:
                await asyncio.to_thread(write) if in_thread else write()
            except JournalError as error:
                _log.warning("%s", error)
                await asyncio.sleep(_JOURNAL_AGAIN_S)
            else:
                return

    async def reported(self, job: RunningJob, reports: list[dict[str, Any]]) -> None:
        """A job's workers have reported iterations."""
        # In a thread: disk writes are slow, and there are many of these.
        add = partial(self._table.ledger.add_iterations, job.id, reports)
        await self.on_record(add, in_thread=True)
        for hear in self._table.on_reports:
            hear(job, reports)
        latest = max(report["index"] + 1 for report in reports)
        done = min(latest, most_iterations(job.spec))

        def progress() -> None:
            now = self._table[job.id]
            spec, most = _measured(job, now.spec, reports), max(now.iterations_done, done)
            known = replace(now, iterations_done=most, restarts=job.restarts, spec=spec)
            if known != now:
                self._table.keep(known)

        await self.on_record(progress)

    async def give_back(self, job: RunningJob) -> None:
        """Delete all workers of a job; their output is kept."""
        if self._table.outputs is not None:
            await job.end()  # a worker may print at its end
            await self._table.outputs.keep(job)
        events = [(time.time(), {"message": message}) for message in await job.give_back()]
        await self.on_record(lambda: self._store.add_events("worker-left-behind", events))
        if used := job.energy_j():

            def add_energy() -> None:
                status = self._table[job.id]
                before = status.energy_j  # of earlier attempts
                total = {gpu: before.get(gpu, 0.0) + joules for gpu, joules in used.items()}
                self._table.keep(replace(status, energy_j={**before, **total}))

            await self.on_record(add_energy)

    def held(self, job: RunningJob, why: str) -> None:
        """Raised when a job is held at one iteration of all ranks, so its workers can end there."""
        done = job.iterations_done
        at = {"first_iteration": goes_on_at(job.spec, done), "iterations_done": done}
        self._table.move(job.id, JobState.PREPARING, why, (), **at)

    def next_attempt(
        self, status: JobStatus, why: str, first_iteration: int, **changes: Any
    ) -> JobStatus:
        """Queue a job again, by default alone: the other jobs of its gang have begun."""
        first_iteration = goes_on_at(status.spec, first_iteration)
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

    def failed(self, job: RunningJob, error: Exception) -> None:
        """Handle a failed job: another attempt, or its end."""
        said = error_text(error)
        if not isinstance(error, PatchlightError):
            _log.error("job %s", job.id, exc_info=error)
        status = self._table[job.id]
        if status.state.is_final:
            return
        # A failed resize is not a failure of its own.
        resized = isinstance(error, CannotGoOn)
        failures = status.failures + (not resized)
        if resized or failures <= job.spec.retries:
            avoid = tuple(dict.fromkeys((*status.avoid, *getattr(error, "hosts", ()))))
            tried = said if resized else f"failure {failures} of {job.spec.retries + 1}: {said}"
            self.next_attempt(status, tried, job.iterations_done, avoid=avoid, failures=failures)
        else:
            self._table.end([job.id], JobState.FAILED, said, getattr(error, "last_lines", ()))


def _measured(job: RunningJob, spec: JobSpec, reports: list[dict[str, Any]]) -> JobSpec:
    """The spec with measured compute times for GPU models without one. The first iteration does not
    count: it also loads the model and warms up."""
    if spec.trainer != "torch":
        return spec
    found = dict(spec.compute_s)
    for report in reports:
        gpu = job.hosts[report["rank"]].gpu
        if gpu is not None and report["index"] > 0 and report["compute_s"] > 0:
            on_one = len(job.hosts) if spec.is_split else 1
            found.setdefault(gpu.model, report["compute_s"] * on_one)
    return spec if found == spec.compute_s else replace(spec, compute_s=found)
