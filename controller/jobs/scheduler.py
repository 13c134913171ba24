"""The queue of gangs: each, in its turn, as soon as policies find hosts for it."""

import asyncio
import itertools
import logging
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from patchlight.controller.changes.record import Reconfiguration, Refused
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.fleet import Fleet
from patchlight.controller.jobs.cluster_view import WiredLab
from patchlight.controller.jobs.job_table import JobTable, check_specs
from patchlight.controller.jobs.placement import LabView, Placement
from patchlight.controller.jobs.policy_set import DEFAULT_POLICIES, PolicyChoice, PolicySet
from patchlight.controller.jobs.running_job import JobFailed, RunningJob, run_all
from patchlight.controller.policies.guard import Fault
from patchlight.controller.store import Store
from patchlight.testbed.errors import BadInput, PatchlightError, in_words
from patchlight.testbed.jobs import JobSpec, JobState, JobStatus
from patchlight.testbed.lab import Lab

_log = logging.getLogger(__name__)

Topology = Literal["keep", "regroup"]


@dataclass
class _Gang:
    """Jobs that were submitted together and start together."""

    ids: tuple[str, ...]
    topology: str
    task: asyncio.Task[None] | None = None


class Scheduler:
    """Takes jobs in, gives them hosts and circuits, and sees them through."""

    def __init__(
        self,
        lab: Lab,
        fleet: Fleet,
        store: Store,
        table: JobTable,
        transactions: Transactions,
        choice: PolicyChoice = DEFAULT_POLICIES,
    ) -> None:
        """``BadInput`` if a policy of ``choice`` cannot be had."""
        self._lab, self._fleet, self._store, self._table = lab, fleet, store, table
        self.choice = choice
        shape = WiredLab(lab, lab.initial_maps).shape
        self._policies = PolicySet(choice, self._on_fault, shape, lab)
        self._placement = Placement(lab, self._policies, transactions)
        self.policy_faults: Counter[tuple[str, str]] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: list[_Gang] = []
        self._active: list[_Gang] = []
        self._changed = asyncio.Event()

    # -- what users ask ----------------------------------------------------------------

    def submit(
        self, specs: Sequence[JobSpec], topology: Topology | None = None, by: str = ""
    ) -> list[JobStatus]:
        """Queue jobs of a user that start together; ``BadInput`` if one could never run here.

        Without ``topology``, the lab's topology policy says what becomes of the circuits.
        """
        specs = check_specs(self._lab, specs, counted=self.choice.partition is None)
        ids = tuple(f"{spec.name}-{uuid.uuid4().hex[:6]}" for spec in specs)
        for job_id, spec in zip(ids, specs, strict=True):
            now = time.time()
            self._table.keep(JobStatus(job_id, spec, JobState.QUEUED, submitted_at=now, by=by))
        self._queue.append(_Gang(ids, topology or self.choice.topology))
        self._changed.set()
        return [self._table[job_id] for job_id in ids]

    def job(self, job_id: str) -> JobStatus:
        """One job; ``BadInput`` if there is none of that id."""
        return self._table[job_id]

    def jobs(self) -> list[JobStatus]:
        """Every job, in the order of submission."""
        return self._table.every()

    async def stop(self, job_id: str, by: str = "", *, force: bool = False) -> JobStatus:
        """End the job's gang: its workers stop, GPUs and NICs go back.

        ``Refused`` for a job that somebody else than ``by`` submitted, without ``force``.
        """
        owner = self.job(job_id).by
        if owner and by and owner != by and not force:
            raise Refused(
                f"job {job_id} is {owner}'s, and you are {by}: it was not stopped",
                hint=f"if it has to be: patchlight job stop {job_id} --force",
            )
        for gang in list(self._queue):
            if job_id in gang.ids:
                self._queue.remove(gang)
                for other in gang.ids:
                    self._table.move(other, JobState.STOPPED, "stopped by the user")
        await self._cancel([gang for gang in self._active if job_id in gang.ids])
        return self.job(job_id)

    @staticmethod
    async def _cancel(gangs: Sequence[_Gang]) -> None:
        # A task that is cancelled before it began would never clear up after its gang.
        await asyncio.sleep(0)
        tasks = [gang.task for gang in gangs if gang.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def regroup(self, job_ids: Sequence[str]) -> Reconfiguration:
        """Bring running jobs under one packet switch each, while they run."""
        for job_id in job_ids:
            if job_id not in self._table.running:
                raise BadInput(f"job {job_id} is not running: {self.job(job_id).state}")
        return await self._rewire("regroup", job_ids, job_ids)

    # -- the life of gangs -----------------------------------------------------------------

    async def run(self) -> None:
        """Start gangs as their hosts come free, for ever. What fails of a gang fails it alone."""
        self._loop = asyncio.get_running_loop()
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._queue:
                gang = await self._next_gang()
                try:
                    placed = await self._place(gang)
                except Exception as error:
                    # A device that does not answer just now is this gang's trouble alone, and so
                    # is whatever else its jobs bring about.
                    if gang in self._queue:
                        self._queue.remove(gang)
                    self._fail(gang.ids, error, "no hosts could be chosen: ")
                    continue
                if gang not in self._queue:
                    continue  # stopped by the user meanwhile
                if placed is None:
                    break
                self._queue.remove(gang)
                self._active.append(gang)
                self._table.running |= {job.id: job for job in placed}
                gang.task = asyncio.create_task(self._live(gang))

    async def close(self) -> None:
        """Stop every gang that runs, and let go of the policies."""
        await self._cancel(self._active)
        self._policies.close()

    async def _place(self, gang: _Gang) -> list[RunningJob] | None:
        """Hosts for each job of the gang, or ``None`` while some are busy."""
        busy = {host.name for job in self._table.running.values() for host in job.hosts}
        statuses = [self._table[job_id] for job_id in gang.ids]
        named = [tuple(self._lab.host(h).name for h in status.spec.hosts) for status in statuses]
        taken = [name for names in named for name in names]
        if not busy.isdisjoint(taken):
            return None
        placed: list[tuple[str, JobSpec, tuple[str, ...]]] = []
        lab = None if all(named) else await self._look()
        for status, names in zip(statuses, named, strict=True):
            spec = status.spec
            if not names:
                assert lab is not None
                placement = await self._placement.place(lab, status, taken)
                if placement is None:
                    return None
                spec, names = placement
                taken += names
            placed.append((status.id, spec, names))
        return [self._running_job(*job) for job in placed]

    async def _next_gang(self) -> _Gang:
        """The one whose turn it is; the first of the queue where that cannot be found out."""
        gangs = list(self._queue)
        if self._placement.in_turn or len(gangs) == 1:
            return gangs[0]
        try:
            statuses = [[self._table[job_id] for job_id in gang.ids] for gang in gangs]
            return gangs[await self._placement.next(await self._look(), statuses)]
        except Exception as error:
            _log.warning("which job is next cannot be found out: %s", in_words(error))
            return gangs[0]

    async def _look(self) -> LabView:
        return await self._placement.look(self._hosts_of(self._table.running), self._table.every())

    def _hosts_of(self, job_ids: Iterable[str]) -> dict[str, list[str]]:
        running = self._table.running
        return {job_id: [host.name for host in running[job_id].hosts] for job_id in job_ids}

    def _running_job(self, job_id: str, spec: JobSpec, names: Sequence[str]) -> RunningJob:
        hosts = tuple(self._lab.host(name) for name in names)
        self._table.keep(replace(self._table[job_id], spec=spec, hosts=tuple(names)))

        async def on_reports(reports: list[dict[str, Any]]) -> None:
            # In a thread: a disk may take its time, and there are many of these.
            await asyncio.to_thread(self._store.add_iterations, job_id, reports)
            status = self._table[job_id]
            done = max(status.iterations_done, *(report["index"] + 1 for report in reports))
            if (done, job.restarts) != (status.iterations_done, status.restarts):
                self._table.keep(replace(status, iterations_done=done, restarts=job.restarts))

        job = RunningJob(job_id, spec, hosts, lambda s: self._table.move(job_id, s), on_reports)
        return job

    async def _live(self, gang: _Gang) -> None:
        jobs = [self._table.running[job_id] for job_id in gang.ids]
        try:
            if gang.topology != "keep":
                await self._rewire_first(gang)
            for job in jobs:
                self._table.move(job.id, JobState.PREPARING)
            # To the end, also if one fails: no worker may be made after all were given back.
            await run_all(job.prepare(self._lab, self._fleet) for job in jobs)
            await run_all(job.start() for job in jobs)
            # One job of a gang failing does not end the others: they share only the start.
            await asyncio.gather(*(self._see_through(job) for job in jobs))
        except asyncio.CancelledError:
            self._table.end(gang.ids, JobState.STOPPED, "stopped")
        except Exception as error:
            self._fail(gang.ids, error)
        finally:
            try:
                left = await asyncio.gather(*(job.give_back() for job in jobs))
                for message in itertools.chain(*left):
                    self._store.add_event(time.time(), "worker-left-behind", {"message": message})
            finally:
                self._active.remove(gang)
                for job in jobs:
                    del self._table.running[job.id]
                self._changed.set()

    def _fail(self, job_ids: Sequence[str], error: Exception, what: str = "") -> None:
        """These jobs have failed of this; whatever it was, it ends no other."""
        said = str(error) if isinstance(error, PatchlightError) else in_words(error)
        if not isinstance(error, PatchlightError):
            _log.error("jobs %s", ", ".join(job_ids), exc_info=error)
        last_lines = getattr(error, "last_lines", ())
        self._table.end(job_ids, JobState.FAILED, f"{what}{said}", last_lines)

    async def _rewire_first(self, gang: _Gang) -> None:
        # Jobs of the same topology policy that run already are groups of this change too: what
        # they have is not to be taken from them.
        same = [g for g in self._active if g is not gang and g.topology == gang.topology]
        for job_id in gang.ids:
            self._table.move(job_id, JobState.RECONFIGURING)
        job_ids = [job_id for g in (gang, *same) for job_id in g.ids]
        change = await self._rewire(gang.topology, job_ids, gang.ids)
        if change.state != "committed":
            raise JobFailed(
                f"the circuits could not be switched ({change.state}): {change.message}"
            )

    async def _rewire(
        self, topology: str, job_ids: Sequence[str], because_of: Sequence[str]
    ) -> Reconfiguration:
        """Change the circuits for these jobs, ``because_of`` some of them."""
        what = topology if topology == "regroup" else f"{topology} for"
        groups, running = self._hosts_of(job_ids), self._hosts_of(self._table.running)
        why = f"{what} {', '.join(because_of)}"
        return await self._placement.rewire(topology, groups, running, why, because_of)

    async def _see_through(self, job: RunningJob) -> None:
        try:
            await job.watch()
            self._table.move(job.id, JobState.DONE)
        except Exception as error:
            self._fail([job.id], error)
            await job.give_back()

    # -- bookkeeping ---------------------------------------------------------------------

    def _on_fault(self, fault: Fault) -> None:
        """A policy failed. Called in the thread in which it was asked."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._note_fault, fault)

    def _note_fault(self, fault: Fault) -> None:
        _log.warning("%s", fault)
        self.policy_faults[fault.kind, fault.policy] += 1
        for job_id in fault.jobs:
            if (status := self._table.find(job_id)) is not None:
                self._table.keep(replace(status, policy_faults=status.policy_faults + 1))
        record = {
            "policy": fault.policy,
            "policy_kind": fault.kind,
            "job": ", ".join(fault.jobs),
            "message": str(fault),
        }
        self._store.add_event(time.time(), "policy-fault", record)
