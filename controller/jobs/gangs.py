"""Gangs that have hosts: their jobs start together, and each is followed to its own end.

Nothing of a gang ends because the controller does: its workers go on, and the next controller
follows them again. Workers that are of no job that runs are ended.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from patchlight.controller.hosts.agent_client import AgentCallError, AgentClient
from patchlight.controller.hosts.fleet import Fleet
from patchlight.controller.jobs.job_table import CannotGoOn, JobTable, Outcomes
from patchlight.controller.jobs.rewiring import JobRewiring
from patchlight.controller.jobs.running_job import RunningJob, run_all
from patchlight.controller.jobs.specs import JobFailed, worker_id
from patchlight.controller.storage.database import JournalError
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import PatchlightError, in_words
from patchlight.testbed.jobs import JobState, JobStatus
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.wire.agent_status import AgentStatus
from patchlight.testbed.wire.worker_api import WorkerStatus

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


class Queue(Protocol):
    """Where jobs wait for hosts."""

    def join(self, gang: Gang) -> None:
        """A gang waits from now on; again is harmless."""

    def freed(self, job: RunningJob) -> None:
        """A job has given back its hosts."""

    def settled(self, job: RunningJob) -> None:
        """A job is on its hosts, and none besides are kept for it."""


class Gangs:
    """The gangs that have hosts.

    ``queue`` is where jobs wait: whoever keeps it puts it there. The gang that started last took
    ``last_start_s`` for it.
    """

    def __init__(
        self, lab: Lab, fleet: Fleet, store: Store, table: JobTable, rewiring: JobRewiring
    ) -> None:
        self.queue: Queue
        self.active: list[Gang] = []
        self.last_start_s = _START_S
        self._closing = False
        self._lab, self._fleet, self._table = lab, fleet, table
        self._outcomes = Outcomes(store, table)
        self._rewiring = rewiring

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
        await self._outcomes.give_back(job)
        why = "the controller ended while it was started"
        self._outcomes.next_attempt(status, why, status.first_iteration, gang=status.gang)

    def job_of(self, status: JobStatus) -> RunningJob:
        """A job on its hosts."""

        async def on_reports(reports: list[dict[str, Any]]) -> None:
            await self._outcomes.reported(job, reports)

        hosts = tuple(self._lab.host(name) for name in status.hosts)
        job = RunningJob(
            *(status.id, status.spec, hosts, on_reports),
            *(status.attempt, status.first_iteration, status.by),
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
            await self._start(gang, jobs)
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

    async def _start(self, gang: Gang, jobs: Sequence[RunningJob]) -> None:
        began = time.monotonic()
        await self._rewire(gang)
        await self._fleet.know_macs(host for job in jobs for host in job.hosts)
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
            self.queue.settled(job)

    async def _rewire(self, gang: Gang) -> None:
        if gang.topology == "keep":
            return
        # Jobs of the same topology policy that run already are groups of this change too: what
        # they have is not to be taken from them.
        same = [g for g in self.active if g is not gang and g.topology == gang.topology]
        for job_id in gang.ids:
            self._table.move(job_id, JobState.RECONFIGURING)
        running = self._table.running
        job_ids = [job_id for g in (gang, *same) for job_id in g.ids if job_id in running]
        change = await self._rewiring.rewire(gang.topology, job_ids, gang.ids)
        if change.state != "committed":
            raise JobFailed(
                f"the circuits could not be switched ({change.state}): {change.message}"
            )

    async def _follow(self, gang: Gang, jobs: Sequence[RunningJob]) -> None:
        # One job of a gang failing does not end the others: they share only the start.
        await asyncio.gather(*(self._see_through(gang, job) for job in jobs))

    async def _see_through(self, gang: Gang, job: RunningJob) -> None:
        outcome: Callable[[], object] = partial(self._table.move, job.id, JobState.DONE)
        try:
            while not await job.watch():
                await self._go_on_elsewhere(gang, job)
        except asyncio.CancelledError:
            if not gang.ends_because:
                return  # the controller ends, and the job does not
            outcome = _nothing
        except Exception as error:
            outcome = partial(self._outcomes.failed, job, error)
        await self._to_the_end(self._over(gang, job, outcome))

    async def _go_on_elsewhere(self, gang: Gang, job: RunningJob) -> None:
        """Stop a job where all ranks are at one iteration, and begin there on its next hosts.

        One that cannot be stopped goes on as it is. Should the controller end meanwhile, the job
        is on record as one that is being started, and is queued again.
        """
        if not await job.hold_for_good() or not await self._stop(job, job.changes_because):
            job.stay()
            await job.release()
            self.queue.settled(job)
            return
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
            said = str(error) if isinstance(error, PatchlightError) else in_words(error)
            raise CannotGoOn(
                f"its {len(job.hosts)} workers could not begin: {said}",
                getattr(error, "last_lines", ()),
                getattr(error, "hosts", ()),
            ) from error

    async def _stop(self, job: RunningJob, why: str) -> bool:
        """End the workers of a held job, if that can be put on record before they do."""
        try:
            self._outcomes.held(job, why)
        except JournalError:
            return False
        await job.end_held()
        await self._outcomes.give_back(job)
        return True

    async def _all_over(
        self, gang: Gang, jobs: Sequence[RunningJob], error: Exception | None = None
    ) -> None:
        outcomes = [
            partial(self._outcomes.failed, job, error) if error else _nothing for job in jobs
        ]
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

    async def _over(self, gang: Gang, job: RunningJob, outcome: Callable[[], object]) -> None:
        """The job has no more to do, or is to have none: all that it had goes back."""
        on_record = self._outcomes.on_record

        def stop_if_wanted() -> None:
            if gang.ends_because and not gang.again:
                self._table.end([job.id], JobState.STOPPED, gang.ends_because)

        def conclude() -> None:
            stop_if_wanted()  # or somebody wants it only now
            status = self._table[job.id]
            if gang.again and status.hosts and not status.state.is_final:
                self._outcomes.next_attempt(status, gang.ends_because, job.iterations_done)

        try:
            await on_record(outcome)
            await on_record(stop_if_wanted)
            runs = self._table[job.id].state in (JobState.RUNNING, JobState.PAUSED)
            if gang.again and runs and await job.hold_for_good():
                await on_record(conclude)  # before they end: another controller begins it there
                await job.end_held()
            await self._outcomes.give_back(job)
        finally:
            await on_record(conclude)
            self._table.running.pop(job.id, None)
            self.queue.freed(job)
            self._rewiring.ended(job.id)
            if (status := self._table[job.id]).state is JobState.QUEUED:
                self.queue.join(Gang((status.id,), status.topology))


def _nothing() -> None:
    return


def gangs_of(statuses: Iterable[JobStatus]) -> list[list[JobStatus]]:
    """Jobs that start together, in the order of submission."""
    gangs: dict[str, list[JobStatus]] = {}
    for status in statuses:
        gangs.setdefault(status.gang or status.id, []).append(status)
    return list(gangs.values())


class Recovery:
    """Makes a new controller's jobs true to the servers, and the servers true to its jobs."""

    def __init__(self, fleet: Fleet, store: Store, table: JobTable, gangs: Gangs) -> None:
        self._fleet, self._store, self._table, self._gangs = fleet, store, table, gangs
        self.done = False

    async def run(self) -> list[Gang]:
        """Follow the jobs that ran; the gangs that are queued.

        Jobs that were just being started are queued again: none of their workers had begun.
        """
        queued: list[Gang] = []
        for gang in gangs_of(self._table.live()):
            begun = [s for s in gang if s.state in (JobState.RUNNING, JobState.PAUSED)]
            for status in begun:
                if status.id not in self._table.running:
                    await self._gangs.take_over(Gang((status.id,), status.topology))
            rest = [status for status in gang if status not in begun]
            for status in rest:
                if not status.state.is_waiting:
                    await self._gangs.undo_start(status)
            if rest:
                queued.append(Gang(tuple(status.id for status in rest), rest[0].topology))
        self.done = True
        return queued

    async def sweep(self, agent: AgentStatus) -> None:
        """End the workers of an agent that are of no attempt which runs."""
        ours = {w.spec.id for job in self._table.running.values() for w in job.workers}
        for worker in agent.workers:
            if worker.id in ours:
                continue
            client = self._fleet.agent_of(agent.server)
            try:
                with contextlib.suppress(AgentCallError, OSError):
                    await self._keep_output(client, worker)
                await client.delete(worker.id)
            except AgentCallError as error:
                _log.warning("worker %s, which is nobody's: %s", worker.id, error)
            else:
                about = f"{worker.id} on {agent.server} was of no job that runs, and was ended"
                self._store.add_event(time.time(), "worker-swept", {"message": about})

    async def _keep_output(self, agent: AgentClient, worker: WorkerStatus) -> None:
        """End a worker and keep what it printed, if it is of the last attempt of a job."""
        job, outputs = self._table.find(worker.job), self._table.outputs
        if outputs and job and worker.id == worker_id(job.id, job.attempt, worker.rank):
            await agent.end(worker.id)
            await outputs.fetch(agent, worker.id, job.id, worker.rank)
