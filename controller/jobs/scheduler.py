"""The queue of gangs: each, in its turn, as soon as policies find hosts for it."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from patchlight.controller.changes.record import Reconfiguration
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.fleet.fleet import Fleet
from patchlight.controller.jobs.admission import check_specs
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.placement import LabView, Placement, either
from patchlight.controller.jobs.policy_set import DEFAULT_POLICIES, PolicyChoice, PolicySet
from patchlight.controller.jobs.running_job import JobFailed, RunningJob, run_all
from patchlight.controller.policies.guard import Fault
from patchlight.controller.policies.regroup import regroup
from patchlight.controller.store import Store
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.jobs import JobSpec, JobState, JobStatus
from patchlight.testbed.lab import Endpoint, Lab

_log = logging.getLogger(__name__)

Topology = Literal["keep", "regroup"]


@dataclass
class _Gang:
    ids: tuple[str, ...]
    topology: str
    running: list[RunningJob] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    @property
    def busy_hosts(self) -> Iterator[str]:
        return (host.name for job in self.running for host in job.hosts)


class Scheduler:
    """Takes jobs in, gives them hosts and circuits, and sees them through.

    It is also the *traffic* that a reconfiguration has to hold: the jobs whose workers ride
    on the ports that move pause between two iterations until the change is over.
    """

    def __init__(
        self, lab: Lab, fleet: Fleet, store: Store, choice: PolicyChoice = DEFAULT_POLICIES
    ) -> None:
        """``BadInput`` if a policy of ``choice`` cannot be had."""
        self._lab, self._fleet, self._store = lab, fleet, store
        self.choice = choice
        self._placer = Placement(lab, PolicySet(self.choice, self._on_fault))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ledger = JobTable(store)
        self._queue: list[_Gang] = []
        self._active: list[_Gang] = []
        self._held: list[RunningJob] = []
        self._changed = asyncio.Event()
        self.reconfigurer: Transactions

    # -- what users ask ----------------------------------------------------------------

    def submit(self, specs: Sequence[JobSpec], topology: Topology | None = None) -> list[JobStatus]:
        """Queue jobs that start together; ``BadInput`` if one could never run in this lab.

        Without ``topology``, the lab's topology policy says what becomes of the circuits.
        """
        check_specs(self._lab, specs, counted=self.choice.partition is None)
        ids = tuple(f"{spec.name}-{uuid.uuid4().hex[:6]}" for spec in specs)
        for job_id, spec in zip(ids, specs, strict=True):
            self._ledger.keep(JobStatus(job_id, spec, JobState.QUEUED, submitted_at=time.time()))
        self._queue.append(_Gang(ids, topology or self.choice.topology))
        self._changed.set()
        return [self._ledger[job_id] for job_id in ids]

    def job(self, job_id: str) -> JobStatus:
        """One job; ``BadInput`` if there is none of that id."""
        return self._ledger[job_id]

    def jobs(self) -> list[JobStatus]:
        """Every job, in the order of submission."""
        return self._ledger.every()

    async def stop(self, job_id: str) -> JobStatus:
        """End the job's gang: its workers stop, GPUs and NICs go back."""
        self.job(job_id)
        for gang in list(self._queue):
            if job_id in gang.ids:
                self._queue.remove(gang)
                for other in gang.ids:
                    self._ledger.move(other, JobState.STOPPED, "stopped by the user")
        for gang in self._active:
            if job_id in gang.ids and gang.task is not None:
                gang.task.cancel()
                await asyncio.wait([gang.task])
        return self.job(job_id)

    async def regroup(self, job_ids: Sequence[str]) -> Reconfiguration:
        """Bring running jobs under one packet switch each, while they run."""
        by_id = {job.id: job for gang in self._active for job in gang.running}
        for job_id in job_ids:
            if job_id not in by_id:
                raise BadInput(f"job {job_id} is not running: {self.job(job_id).state}")
        groups = [[h.name for h in by_id[job_id].hosts] for job_id in job_ids]
        locked, failed = await self.reconfigurer.closed_ports()
        return await self.reconfigurer.change(
            lambda maps: regroup(self._lab, maps, groups, locked=locked, failed=failed),
            f"regroup {', '.join(job_ids)}",
        )

    # -- the traffic that a reconfiguration holds ----------------------------------------

    def jobs_using(self, moved: frozenset[Endpoint]) -> list[str]:
        """The running jobs whose traffic uses these ports, by id."""
        return [job.id for job in self._riding(moved)]

    def _riding(self, moved: frozenset[Endpoint]) -> list[RunningJob]:
        return [
            job
            for gang in self._active
            for job in gang.running
            if self._ledger[job.id].state is JobState.RUNNING
            and any(host.endpoint in moved for host in job.hosts)
        ]

    async def drain(self, moved: frozenset[Endpoint]) -> list[str]:
        """Pause the jobs that ride on these ports; in words, which did not in time."""
        self._held = riding = self._riding(moved)
        held = await asyncio.gather(*(job.hold(self._hold_deadline_s(job)) for job in riding))
        return [
            f"job {job.id} did not pause in time: its packets wait for the light"
            for job, paused in zip(riding, held, strict=True)
            if not paused
        ]

    def _hold_deadline_s(self, job: RunningJob) -> float:
        """Three of the job's iterations as they went so far, at least 10 s."""
        status = self._ledger[job.id]
        if not status.iterations_done or status.started_at is None:
            return 30.0
        return max(10.0, 3 * (time.time() - status.started_at) / status.iterations_done)

    async def undrain(self) -> None:
        """Let what was held go on."""
        held, self._held = self._held, []
        await asyncio.gather(*(job.release() for job in held))

    # -- the life of gangs -----------------------------------------------------------------

    async def run(self) -> None:
        """Start gangs as their hosts come free, for ever."""
        self._loop = asyncio.get_running_loop()
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._queue:
                gang = self._queue[0]
                try:
                    gang = await self._next_gang()
                    placed = await self._place(gang)
                except PatchlightError as error:
                    # A device that does not answer just now is this gang's trouble alone.
                    self._ledger.end(
                        gang.ids, JobState.FAILED, f"no hosts could be chosen: {error}"
                    )
                    if gang in self._queue:
                        self._queue.remove(gang)
                    continue
                if gang not in self._queue:
                    continue  # stopped by the user meanwhile
                if placed is None:
                    break
                self._queue.remove(gang)
                self._active.append(gang)
                gang.running = placed
                gang.task = asyncio.create_task(self._live(gang))

    async def close(self) -> None:
        """Stop every gang that runs."""
        tasks = [gang.task for gang in self._active if gang.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _place(self, gang: _Gang) -> list[RunningJob] | None:
        """Hosts for each job of the gang, or ``None`` while some are busy."""
        busy = {name for other in self._active for name in other.busy_hosts}
        statuses = [self._ledger[job_id] for job_id in gang.ids]
        named = [self._full_names(status.spec) for status in statuses]
        taken = [name for names in named for name in names]
        if not busy.isdisjoint(taken):
            return None
        found: list[tuple[str, JobSpec, tuple[str, ...]]] = []
        situation = None if all(named) else await self._look()
        for status, names in zip(statuses, named, strict=True):
            spec = status.spec
            if not names:
                assert situation is not None
                placed = await self._placer.place(situation, status, taken)
                if placed is None:
                    return None
                spec, names = placed
                taken += names
            found.append((status.id, spec, names))
        return [self._running_job(*each) for each in found]

    async def _next_gang(self) -> _Gang:
        if self._placer.in_turn or len(self._queue) == 1:
            return self._queue[0]
        gangs = list(self._queue)
        statuses = [[self._ledger[job_id] for job_id in gang.ids] for gang in gangs]
        return gangs[await self._placer.next(await self._look(), statuses)]

    async def _look(self) -> LabView:
        every = self._ledger.every()
        return await self._placer.look(self.reconfigurer, self._with_hosts(), every)

    def _with_hosts(self) -> list[tuple[str, list[str]]]:
        return [
            (job.id, [host.name for host in job.hosts])
            for gang in self._active
            for job in gang.running
        ]

    def _full_names(self, spec: JobSpec) -> tuple[str, ...]:
        return tuple(self._lab.host(name).name for name in spec.hosts)

    def _running_job(self, job_id: str, spec: JobSpec, names: Sequence[str]) -> RunningJob:
        hosts = tuple(self._lab.host(name) for name in names)
        self._ledger.keep(replace(self._ledger[job_id], spec=spec, hosts=tuple(names)))

        def on_reports(reports: list[dict[str, Any]]) -> None:
            self._store.add_iterations(job_id, reports)
            done = max(report["index"] for report in reports) + 1
            status = self._ledger[job_id]
            if done > status.iterations_done:
                self._ledger.keep(replace(status, iterations_done=done))

        return RunningJob(job_id, spec, hosts, lambda s: self._ledger.move(job_id, s), on_reports)

    async def _live(self, gang: _Gang) -> None:
        try:
            if gang.topology != "keep":
                await self._rewire_first(gang)
            for job in gang.running:
                self._ledger.move(job.id, JobState.PREPARING)
            # To the end, also if one fails: no worker may be made after all were given back.
            await run_all(job.prepare(self._lab, self._fleet) for job in gang.running)
            await run_all(job.start() for job in gang.running)
            # One job of a gang failing does not end the others: they share only the start.
            await asyncio.gather(*(self._see_through(job) for job in gang.running))
        except asyncio.CancelledError:
            self._ledger.end(gang.ids, JobState.STOPPED, "stopped")
        except PatchlightError as error:
            self._ledger.end(
                gang.ids, JobState.FAILED, str(error), getattr(error, "last_lines", ())
            )
        except Exception as error:
            self._ledger.end(gang.ids, JobState.FAILED, f"{type(error).__name__}: {error}")
            raise
        finally:
            left = await asyncio.gather(*(job.give_back() for job in gang.running))
            for words in (w for job in left for w in job):
                self._store.add_event(time.time(), "worker-left-behind", {"message": words})
            self._active.remove(gang)
            self._changed.set()

    async def _rewire_first(self, gang: _Gang) -> None:
        # Jobs that run regrouped already keep their switch: they are groups of this change too.
        others = [g for g in self._active if g is not gang and g.topology == gang.topology]
        groups = [[h.name for h in job.hosts] for g in (gang, *others) for job in g.running]
        for job in gang.running:
            self._ledger.move(job.id, JobState.RECONFIGURING)
        locked, failed = await self.reconfigurer.closed_ports()
        if gang.topology == "regroup":
            change = await self.reconfigurer.change(
                lambda maps: regroup(self._lab, maps, groups, locked=locked, failed=failed),
                f"regroup {', '.join(gang.ids)}",
            )
        else:
            barred = either(locked, failed)
            change = await self.reconfigurer.change(
                self._placer.rewiring(self.reconfigurer, groups, barred, self._with_hosts()),
                f"{gang.topology} for {', '.join(gang.ids)}",
            )
        if change.state != "committed":
            raise JobFailed(
                f"the circuits could not be switched ({change.state}): {change.message}"
            )

    async def _see_through(self, job: RunningJob) -> None:
        try:
            await job.watch()
            self._ledger.move(job.id, JobState.DONE)
        except PatchlightError as error:
            self._ledger.move(job.id, JobState.FAILED, str(error), getattr(error, "last_lines", ()))
            await job.give_back()

    # -- bookkeeping ---------------------------------------------------------------------

    def _on_fault(self, fault: Fault) -> None:
        """A policy failed. Called in the thread in which it was asked."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._note_fault, fault)

    def _note_fault(self, fault: Fault) -> None:
        _log.warning("%s", fault)
        record = {
            "policy": fault.policy,
            "policy_kind": fault.kind,
            "job": fault.job,
            "message": str(fault),
        }
        self._store.add_event(time.time(), "policy-fault", record)
