"""Runs gangs that have hosts: starts their jobs together and follows each to its end."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from patchlight.controller.hosts.fleet import Fleet
from patchlight.controller.jobs.entries import Entries, Gang
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.lives import AT_WORK
from patchlight.controller.jobs.pacing import Paces
from patchlight.controller.jobs.rewiring import JobRewiring
from patchlight.controller.jobs.running_job import RunningJob, most_iterations
from patchlight.controller.jobs.specs import (
    CannotGoOn,
    JobFailed,
    error_text,
    goes_on_at,
)
from patchlight.controller.storage.database import JournalError
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.jobs import JobSpec, JobState, JobStatus
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.reach import Reach, as_text
from patchlight.testbed.tasks import EndRequested, run_all, run_unless

_JOURNAL_AGAIN_S = 0.5
MOST_WAIT_S = 90.0  # less than clients of the API wait for an answer
_START_S = 2.0  # The assumed start time until a gang has started.

_log = logging.getLogger(__name__)


class Gangs:
    """The gangs that have hosts; the latest start took ``last_start_s``."""

    def __init__(
        self,
        lab: Lab,
        fleet: Fleet,
        store: Store,
        table: JobTable,
        entries: Entries,
        rewiring: JobRewiring,
        reach: Callable[[], Reach],
        paces: Paces,
    ) -> None:
        self.active: list[Gang] = []
        self.last_start_s = _START_S
        self._gang_of: dict[str, Gang] = {}
        self._lab = lab
        self._fleet = fleet
        self._table = table
        self._entries = entries
        self._outcomes = Outcomes(store, table, paces, lab.scale)
        self._rewiring = rewiring
        self._reach = reach

    def begin(self, gang: Gang, after: Sequence[Gang] = ()) -> None:
        """Start the jobs of a gang on their hosts, once those ``after`` have ended; follow them."""
        jobs = self._jobs_of(gang)
        self._take(
            gang,
            jobs,
            partial(
                self._start,
                gang,
                jobs,
                after,
            ),
        )

    def take_over(self, gang: Gang) -> list[RunningJob]:
        """Follow jobs that an earlier controller started, which may have paused them."""
        jobs = self._jobs_of(gang)
        for job in jobs:
            reports = self._table.ledger.reports_by_rank(job.id, job.attempt)
            job.assign(self._lab, self._fleet, reports)
        self._entries.follow(gang)
        self._take(gang, jobs)
        return jobs

    def undo_start(self, gang: Gang) -> None:
        """Delete the workers of jobs that an earlier controller was starting, and queue the jobs
        again, together."""
        jobs = self._jobs_of(gang)
        for job in jobs:
            if job.hosts:
                job.assign(self._lab, self._fleet)
        gang.end("the controller ended during its start", again=True)
        self._entries.follow(gang)
        self._take(gang, jobs, partial(self._start, gang, jobs))

    def of(self, job_id: str) -> Gang | None:
        """The gang in which a job has its hosts now."""
        return self._gang_of.get(job_id)

    def _jobs_of(self, gang: Gang) -> list[RunningJob]:
        statuses = [self._table[job_id] for job_id in gang.ids]
        return [
            RunningJob(
                status.id,
                status.spec,
                tuple(self._lab.host(name) for name in status.hosts),
                self._reported,
                status.attempt,
                status.first_iteration,
                status.by,
                self._lab.controller_poll_s,
            )
            for status in statuses
        ]

    async def _reported(
        self, job: RunningJob, reports: list[dict[str, Any]]
    ) -> None:
        gang = self._gang_of.get(job.id)
        stopping = gang.stopping if gang else None
        await self._outcomes.reported(job, reports, unless=stopping)

    def resize(
        self,
        job_id: str,
        hosts: Sequence[str],
        why: str,
    ) -> bool:
        """Continue a running job on these hosts after an iteration; ``False`` if it ends."""
        job = self._table.running.get(job_id)
        gang = self.of(job_id)
        if job is None or self._table[job_id].state is not JobState.RUNNING:
            return False
        if gang is None or gang.ending.is_set():
            return False
        job.go_on_elsewhere(tuple(self._lab.host(name) for name in hosts), why)
        self._entries.note_hosts(job)
        return True

    def _take(
        self,
        gang: Gang,
        jobs: Sequence[RunningJob],
        start: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self.active.append(gang)
        self._gang_of |= dict.fromkeys(gang.ids, gang)
        self._table.running |= {job.id: job for job in jobs}
        gang.task = asyncio.create_task(self._live(gang, jobs, start))
        gang.task.add_done_callback(partial(self._is_over, gang))

    def _is_over(self, gang: Gang, task: asyncio.Task[None]) -> None:
        self.active.remove(gang)
        if not task.cancelled() and (fault := task.exception()) is not None:
            _log.error("jobs %s", ", ".join(gang.ids), exc_info=fault)

    async def end(
        self,
        gangs: Iterable[Gang],
        why: str,
        *,
        again: bool = False,
    ) -> None:
        """End these jobs: stop workers, free GPUs and NICs; ``again``: queue them again. Returns
        earlier if workers may take long to end: that is recorded, and they keep their hosts."""
        if tasks := self.request_end(gangs, why, again=again):
            await asyncio.wait(tasks, timeout=MOST_WAIT_S)

    def request_end(
        self,
        gangs: Iterable[Gang],
        why: str,
        *,
        again: bool = False,
    ) -> list[asyncio.Task[None]]:
        """The same without waiting; returns the tasks to wait for."""
        ending = [gang for gang in gangs if gang in self.active]
        for gang in ending:
            gang.end(why, again=again)
        return [gang.task for gang in ending if gang.task is not None]

    async def close(self) -> None:
        """Stop following all jobs; their workers continue."""
        tasks = [gang.task for gang in self.active if gang.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # The end of a gang is an order that its own task, ``_live``, looks at; nobody cancels that task
    # but ``close``, which cleans nothing up. Only work in ``unless`` is cancelled, by the caller
    # that cleans up after it: a task that is cancelled before its first step runs no ``finally``.

    async def _live(
        self,
        gang: Gang,
        jobs: Sequence[RunningJob],
        start: Callable[[], Coroutine[Any, Any, None]] | None,
    ) -> None:
        if start is None or await self._begun(gang, jobs, start):
            # A failed job does not end the others of its gang: they share only the start.
            await run_all(self._see_through(gang, job) for job in jobs)

    async def _begun(
        self,
        gang: Gang,
        jobs: Sequence[RunningJob],
        start: Callable[[], Coroutine[Any, Any, None]],
    ) -> bool:
        failure: Exception | None = None
        try:
            await run_unless(gang.ending, start)
        except EndRequested:
            pass
        except JournalError as error:
            # Not their fault: none has begun, and they start when the journal is writable.
            gang.end(error.message, again=True)
        except Exception as error:
            reach = self._reach()
            cut = {
                host: why
                for job in jobs
                for host, why in reach.apart(job.hosts).items()
            }
            if cut and gang.topology == "keep":
                # Not their fault either: they wait until their hosts reach each other again.
                gang.end(as_text(cut), again=True)
            else:
                lines = getattr(error, "last_lines", ())
                hosts = getattr(error, "hosts", ())
                why = f"{as_text(cut)}: {error_text(error)}"
                failure = JobFailed(why, lines, hosts) if cut else error
        else:
            return True
        outcome = (
            partial(self._outcomes.failed, error=failure) if failure else None
        )
        await run_all(self._end(gang, job, outcome) for job in jobs)
        await self._let_go(gang, jobs)
        return False

    async def _start(
        self,
        gang: Gang,
        jobs: Sequence[RunningJob],
        after: Sequence[Gang] = (),
    ) -> None:
        if before := [each.task for each in after if each.task is not None]:
            await asyncio.wait(before)
        began = time.monotonic()
        if gang.topology != "keep":
            # Running jobs of the same topology policy join this change to keep their circuits.
            same = [
                g
                for g in self.active
                if g is not gang and g.topology == gang.topology
            ]
            for job_id in gang.ids:
                self._table.move(job_id, JobState.RECONFIGURING)
            job_ids = [
                job_id
                for g in (gang, *same)
                for job_id in g.ids
                if self.of(job_id) is g
            ]
            change = await self._rewiring.rewire(
                gang.topology, job_ids, gang.ids
            )
            if (
                change.state == "unknown"
            ):  # a switch that died in it may be back soon
                for job_id in gang.ids:
                    self._table.move(
                        job_id, JobState.RECONFIGURING, change.message
                    )
                change = await self._rewiring.when_settled(change)
            if change.state != "committed":
                raise JobFailed(
                    f"the circuits could not be changed ({change.state}): {change.message}"
                )
        await self._fleet.know_macs(host for job in jobs for host in job.hosts)
        for job in jobs:
            if self._table[job.id].state is not JobState.PREPARING:
                self._table.move(job.id, JobState.PREPARING)
            job.assign(self._lab, self._fleet)
        # Wait for all, even if one fails: no worker may be created after the cleanup.
        await run_all(job.prepare() for job in jobs)
        for job in jobs:
            if self._table.workdirs is not None and job.spec.workdir:
                read = self._table.workdirs.read
                await job.ship(
                    await asyncio.to_thread(read, job.user, job.spec.workdir)
                )
        for job in jobs:
            self._table.move(job.id, JobState.RUNNING)
        await run_all(job.start() for job in jobs)
        self.last_start_s = time.monotonic() - began
        for job in jobs:
            self._entries.settled(job)

    async def _see_through(self, gang: Gang, job: RunningJob) -> None:
        outcome: Callable[[RunningJob], object] | None = self._outcomes.done
        try:
            while not await run_unless(gang.ending, job.watch):
                await self._go_on_elsewhere(gang, job)
        except EndRequested:
            outcome = None
        except Exception as error:
            outcome = partial(self._outcomes.failed, error=error)
        await self._end(gang, job, outcome)
        await self._let_go(gang, [job])

    async def _go_on_elsewhere(self, gang: Gang, job: RunningJob) -> None:
        """Stop a job where all ranks are at one iteration, and start it on its next hosts; if it
        cannot be stopped, it continues unchanged."""
        stops = await run_unless(gang.ending, job.hold_for_good)
        try:
            if stops:  # recorded before its workers end
                self._outcomes.held(job, job.changes_because)
        except JournalError:
            stops = False
        if not stops:
            job.stay()
            await run_unless(gang.ending, job.release)
            self._entries.settled(job)
            return
        await run_unless(gang.ending, job.end_held)
        await self._outcomes.give_back(job)
        status = self._table[job.id].with_hosts(
            tuple(host.name for host in job.next_hosts), time.time()
        )
        moved = replace(status, attempt=status.attempt + 1)
        await self._outcomes.on_record(lambda: self._table.keep(moved))
        job.begin_anew(status.attempt + 1, status.first_iteration)
        self._entries.settled(job)
        try:
            await run_unless(gang.ending, partial(self._start, gang, [job]))
        except EndRequested:
            raise
        except Exception as error:
            raise CannotGoOn(
                f"its {len(job.hosts)} workers could not start: {error_text(error)}",
                getattr(error, "last_lines", ()),
                getattr(error, "hosts", ()),
            ) from error

    async def _end(
        self,
        gang: Gang,
        job: RunningJob,
        outcome: Callable[[RunningJob], object] | None,
    ) -> None:
        """Record how a job ends, then end its workers."""
        on_record = self._outcomes.on_record
        stopping = gang.stopping
        try:
            recorded = outcome is None or await on_record(
                partial(outcome, job), unless=stopping
            )
            held = False
            state = self._table[job.id].state
            if gang.again and state in AT_WORK:
                with contextlib.suppress(EndRequested):
                    held = await run_unless(gang.stopping, job.hold_for_good)
            # Before its workers end: a later controller resumes it here. A stop does not wait.
            if recorded:
                await on_record(
                    partial(self._conclude, gang, job), unless=stopping
                )
            if held:
                await job.end_held()
            await self._outcomes.give_back(job)
            if outcome is not None and not recorded:
                await on_record(partial(outcome, job))
        except Exception:  # whatever it is, its hosts are free afterwards
            _log.exception("the end of job %s", job.id)

    def _conclude(self, gang: Gang, *jobs: RunningJob) -> None:
        for job in jobs:
            status = self._table[job.id]
            if gang.ending.is_set() and not gang.again:
                self._table.end([job.id], JobState.STOPPED, gang.ends_because)
            elif gang.again and status.hosts and not status.state.is_final:
                begun = status.state in AT_WORK
                together = {} if begun else {"gang": status.gang}
                self._outcomes.next_attempt(
                    status,
                    gang.ends_because,
                    job.iterations_done,
                    **together,
                )

    async def _let_go(self, gang: Gang, jobs: Sequence[RunningJob]) -> None:
        """Free the hosts of jobs that have ended, and queue those that begin again."""
        await self._outcomes.on_record(partial(self._conclude, gang, *jobs))
        # No await from here on: each job is always in a gang, in the queue, or over.
        waiting: dict[str, list[str]] = {}
        for job in jobs:
            self._table.running.pop(job.id, None)
            self._gang_of.pop(job.id, None)
            self._entries.freed(job)
            self._rewiring.ended(job.id)
            status = self._table[job.id]
            if status.state.is_waiting:
                waiting.setdefault(status.gang or status.id, []).append(
                    status.id
                )
        for ids in waiting.values():
            self._entries.join(Gang(tuple(ids), gang.topology))


class Outcomes:
    """Writes the progress and outcomes of jobs."""

    def __init__(
        self,
        store: Store,
        table: JobTable,
        paces: Paces,
        scale: float,
    ) -> None:
        self._store = store
        self._table = table
        self._paces = paces
        self._scale = scale

    async def on_record(
        self,
        write: Callable[[], object],
        *,
        in_thread: bool = False,
        unless: asyncio.Event | None = None,
    ) -> bool:
        """Repeat a journal write until it succeeds, or has failed once ``unless`` is set; returns
        whether it succeeded."""
        given_up = unless or asyncio.Event()
        while True:
            try:
                await asyncio.to_thread(write) if in_thread else write()
            except JournalError as error:
                _log.warning("%s", error)
                if given_up.is_set():
                    return False
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_JOURNAL_AGAIN_S):
                        await given_up.wait()
            else:
                return True

    async def reported(
        self,
        job: RunningJob,
        reports: list[dict[str, Any]],
        unless: asyncio.Event | None = None,
    ) -> None:
        """A job's workers have reported iterations. Reports that cannot be written are lost once
        ``unless`` is set."""
        # In a thread: disk writes are slow, and there are many of these.
        add = partial(self._table.ledger.add_iterations, job.id, reports)
        if not await self.on_record(
            add,
            in_thread=True,
            unless=unless,
        ):
            return
        for hear in self._table.on_reports:
            hear(job, reports)
        latest = max(report["index"] + 1 for report in reports)
        done = min(latest, most_iterations(job.spec))
        status = self._table[job.id]
        paces = self._paces.with_reports(job.counter, status, reports)

        def progress() -> None:
            now = self._table[job.id]
            spec = _measured(job, now.spec, reports, self._scale)
            most = max(now.iterations_done, done)
            known = replace(
                now,
                iterations_done=most,
                restarts=job.restarts,
                spec=spec,
                paces=paces,
            )
            if known != now:
                self._table.keep(known)

        await self.on_record(progress, unless=unless)

    async def give_back(self, job: RunningJob) -> None:
        """Delete all workers of a job; their output is kept."""
        if self._table.outputs is not None:
            await job.end()  # a worker may print at its end
            await self._table.outputs.keep(job)
        events = [
            (time.time(), {"message": message})
            for message in await job.give_back()
        ]
        await self.on_record(
            lambda: self._store.add_events("worker-left-behind", events)
        )
        if used := job.energy_j():

            def add_energy() -> None:
                status = self._table[job.id]
                before = status.energy_j  # of earlier attempts
                total = {
                    gpu: before.get(gpu, 0.0) + joules
                    for gpu, joules in used.items()
                }
                self._table.keep(replace(status, energy_j={**before, **total}))

            await self.on_record(add_energy)

    def held(self, job: RunningJob, why: str) -> None:
        """Raised when a job is held at one iteration of all ranks, so its workers can end there."""
        done = job.iterations_done
        self._table.move(
            job.id,
            JobState.PREPARING,
            why,
            first_iteration=goes_on_at(job.spec, done),
            iterations_done=done,
        )

    def next_attempt(
        self,
        status: JobStatus,
        why: str,
        first_iteration: int,
        **changes: Any,
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

    def done(self, job: RunningJob) -> None:
        """All workers of a job are done."""
        self._table.move(job.id, JobState.DONE)

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
            avoid = tuple(
                dict.fromkeys((*status.avoid, *getattr(error, "hosts", ())))
            )
            tried = (
                said
                if resized
                else f"failure {failures} of {job.spec.retries + 1}: {said}"
            )
            self.next_attempt(
                status,
                tried,
                job.iterations_done,
                avoid=avoid,
                failures=failures,
            )
        else:
            self._table.end(
                [job.id],
                JobState.FAILED,
                said,
                getattr(error, "last_lines", ()),
            )


def _measured(
    job: RunningJob,
    spec: JobSpec,
    reports: list[dict[str, Any]],
    scale: float,
) -> JobSpec:
    """The spec with measured compute times for GPU models without one, and the gradient of a
    program whose optimizer was observed. The first iterations do not count: they also load the
    model and warm up."""
    if spec.trainer == "synthetic":
        return spec
    found = dict(spec.compute_s)
    gradient = spec.gradient_bytes
    workers = len(job.hosts)
    for report in reports:
        is_own = spec.trainer == "command"
        if report["index"] <= is_own or (is_own and not report["origin"]):
            continue
        gpu = job.hosts[report["rank"]].gpu
        if gpu is not None and report["compute_s"] > 0:
            on_one = workers if spec.is_split else 1
            found.setdefault(gpu.model, report["compute_s"] * on_one)
        if is_own and workers > 1 and not gradient:
            # A ring all-reduce sends 2 (n - 1) / n gradients, and real bytes are not scaled.
            sent = report["sent_bytes"] * scale
            gradient = round(sent * workers / (2 * (workers - 1)))
    return replace(
        spec,
        compute_s=found,
        gradient_bytes=gradient,
    )
