"""The queue of gangs: each, in its turn, as soon as policies find hosts for it.

A gang is one or more jobs submitted together; all their workers begin at the same moment.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from patchlight.controller.changes.record import Refused
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.hosts.fleet import Fleet
from patchlight.controller.jobs.gangs import Gang, Gangs, Recovery
from patchlight.controller.jobs.iteration_times import Forecasts, IterationTimes
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.lab_queue import LabQueue
from patchlight.controller.jobs.placement import Placement
from patchlight.controller.jobs.policy_set import PoliciesInUse, named
from patchlight.controller.jobs.rewiring import DRAINED, JobRewiring
from patchlight.controller.jobs.specs import check_policies, check_specs
from patchlight.controller.policies.registry import DEFAULTS
from patchlight.controller.storage.database import JournalError, Period
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobSpec, JobState, JobStatus
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.rules import NOTHING_SAID, Discipline, PolicyChoice
from patchlight.testbed.lab.wiring import Links

_log = logging.getLogger(__name__)

# How long the queue rests after a pass, in times of what that took.
_REST, LONGEST_REST_S = 3.0, 0.2
DEFAULT_DISCIPLINE = Discipline()


class Scheduler:
    """Takes jobs in, gives them hosts and circuits, and sees them through.

    Jobs outlive it: what an earlier controller had queued is queued, what it had running is
    followed again. ``last_pass_s`` is what the last pass of the queue took, devices included;
    after it the queue rests for ``longest_rest_s`` at most.
    """

    def __init__(
        self,
        lab: Lab,
        fleet: Fleet,
        store: Store,
        table: JobTable,
        transactions: Transactions,
        choice: PolicyChoice = NOTHING_SAID,
        discipline: Discipline = DEFAULT_DISCIPLINE,
    ) -> None:
        """``BadInput`` if a policy of ``choice`` cannot be had."""
        self._lab, self._fleet, self._store, self._table = lab, fleet, store, table
        self.last_pass_s, self.longest_rest_s = 0.0, LONGEST_REST_S
        self.policies = PoliciesInUse(lab, store, table, choice)
        self._placement = Placement(lab, fleet, table, self.policies, transactions)
        self.forecasts = Forecasts(lab, table, transactions.parts.maps.present_links)
        self.gains = IterationTimes(store, table, self.forecasts)
        self.rewiring = JobRewiring(
            store, table, transactions, self._placement, self.policies, self.gains
        )
        self._gangs = Gangs(lab, fleet, store, table, self.rewiring)
        self._queue = LabQueue(store, table, self._placement, self._gangs, discipline)
        self._recovery = Recovery(fleet, store, table, self._gangs)
        self.policies.on_use += [self._queue.changed.set, self.rewiring.look_soon]

    # -- what users ask ----------------------------------------------------------------

    def submit(
        self,
        specs: Sequence[JobSpec],
        topology: str | None = None,
        by: str = "",
        *,
        together: bool = True,
    ) -> list[JobStatus]:
        """Queue jobs of a user, all or none; ``BadInput`` if one could never run here.

        They start ``together``, or each is a gang of its own. Without ``topology``, theirs or
        else the lab's policy says what becomes of the circuits.
        """
        ids = set[str]()
        each = [specs] if together else zip(specs)
        gangs = [self._new(gang, topology, by, ids) for gang in each]
        for statuses, _ in gangs:
            gang = [status.spec for status in statuses]
            if (why := self._not_admitted(by, gang, len(specs) - len(gang))) is not None:
                raise Refused(why, hint="wait until one of them ends, or ask who runs the lab")
        added = [status for statuses, _ in gangs for status in statuses]
        self._table.add(added)
        for statuses, chosen in gangs:
            self._queue.join(Gang(tuple(status.id for status in statuses), chosen))
        return added

    def _not_admitted(self, by: str, specs: Sequence[JobSpec], beside: int = 0) -> str | None:
        """Why the jobs of a gang may not wait, with so many others ``beside`` them."""
        waiting = self._queue.admit(by, specs, beside)
        return None if waiting is None else waiting.words

    def _new(
        self, specs: Sequence[JobSpec], topology: str | None, by: str, ids: set[str]
    ) -> tuple[list[JobStatus], str]:
        """Jobs as they would be submitted, and the topology policy that they would have.

        Their ids are none of ``ids``, and are added to these.
        """
        specs = check_specs(self._lab, specs, counted=not self.policies.choice.partition)
        check_policies(specs, self.policies.choice)
        specs = [replace(spec, after=self._ids_of(spec)) for spec in specs]
        own = topology or next((spec.topology for spec in specs if spec.topology), None)
        chosen = own or named(self.policies.choice, "topology")
        now, gang = time.time(), uuid.uuid4().hex[:12]
        statuses = [
            JobStatus(
                self._new_id(spec.name, ids),
                spec,
                JobState.QUEUED,
                submitted_at=now,
                by=by,
                gang=gang,
                topology=chosen,
            )
            for spec in specs
        ]
        return statuses, chosen

    def _new_id(self, name: str, ids: set[str]) -> str:
        """One that no job has: of 10,000 jobs of one name, some would draw the same."""
        while True:
            drawn = f"{name}-{uuid.uuid4().hex[:6]}"
            if drawn not in ids and self._table.find(drawn) is None:
                ids.add(drawn)
                return drawn

    def _ids_of(self, spec: JobSpec) -> tuple[str, ...]:
        """The ids of the jobs that one is to wait for; ``BadInput`` for a job that is not there."""
        found = [(name, self._table.meant(name)) for name in spec.after]
        for name, jobs in found:
            if not jobs:
                raise BadInput(
                    f"job {spec.name}: it is to come after {name!r}, and there is no such job"
                )
        return tuple(jobs[0].id for _, jobs in found)

    async def preview(
        self, specs: Sequence[JobSpec], topology: str | None = None, by: str = ""
    ) -> list[dict[str, Any]]:
        """What would become of these jobs now: their hosts and circuits, or what they wait for."""
        statuses, chosen = self._new(specs, topology, by, set())
        ahead = len(self._queue.why)
        closed = "the controller is drained" if self.drained else ""
        waits_for = closed or self._not_admitted(by, [status.spec for status in statuses])
        found = waits_for or await self._queue.would_place(statuses)
        if isinstance(found, str):
            rows = [{"job": s.spec.name, "hosts": [], "waits_for": found} for s in statuses]
        else:
            rows = [
                {"job": s.spec.name, "hosts": list(found[s.id]), "waits_for": ""} for s in statuses
            ]
            placed = [
                replace(status, hosts=found[status.id], state=JobState.RUNNING)
                for status in statuses
            ]
            circuits, links = await self._circuits_for(chosen, found)
            predicted = self.forecasts.running(links, placed)
            rows = [
                {**row, **circuits, **predicted.get(status.id, {})}
                for row, status in zip(rows, statuses, strict=True)
            ]
        return [{"ahead": ahead, "topology": chosen, **row} for row in rows]

    async def _circuits_for(
        self, topology: str, hosts: Mapping[str, Sequence[str]]
    ) -> tuple[dict[str, Any], Links | None]:
        """The cross-connects that would be made, what speaks against that, and the links then."""
        if topology == "keep":
            return {"circuits": [], "objections": []}, None
        running = self._table.hosts_of(self._table.running)
        plan, objections = await self._placement.preview(topology, hosts, {**running, **hosts})
        made = [f"{ocs}: {c}" for ocs, change in plan.changes.items() for c in change.makes]
        return {"circuits": made, "objections": objections}, plan.links_after

    def why_rigid(self, job_id: str) -> str | None:
        """Why the number of workers of a job stays as it is; ``None`` if it may change."""
        if self.policies.choice.elasticity == DEFAULTS["elasticity"]:
            return "the lab's elasticity policy is rigid"
        return self._queue.why_rigid(job_id)

    def job(self, job_id: str) -> JobStatus:
        """One job with its ``message``, by its id; ``BadInput`` if there is none."""
        status = self._table[job_id]
        return replace(status, message=self.message(status))

    def jobs(
        self, last: int = 100, after: str | None = None, period: Period | None = None, **which: str
    ) -> list[JobStatus]:
        """The last so many jobs, oldest first, or the first so many after one; as on record.

        ``which``: as ``JobLedger.page``.
        """
        try:
            return self._table.page(last, after, period, **which)
        except KeyError:
            raise BadInput(f"there is no job {after!r} to go on after") from None

    def message(self, status: JobStatus) -> str:
        """A job's message, or what it waits for now, which changes too often to be written down."""
        waits_for = self._queue.why.get(status.id) if status.state.is_waiting else None
        job = self._table.running.get(status.id)
        if job is not None and job.silent_servers and not status.message:
            waits_for = f"no answer from the agent of {', '.join(job.silent_servers)}"
        return waits_for or status.message

    async def stop(self, job_id: str, by: str = "", *, force: bool = False) -> JobStatus:
        """End the job's gang: its workers stop, GPUs and NICs go back.

        ``Refused`` for a job that somebody else than ``by`` submitted, without ``force``.
        """
        self._check_owner(self._table[job_id], by, "stopped", "stop", force=force)
        if (waiting := self._queue.leave(job_id)) is not None:
            try:
                self._table.end(waiting.ids, JobState.STOPPED, "stopped by the user")
            except JournalError:
                self._queue.join(waiting)  # it waits on
                raise
        gangs = [gang for gang in self._gangs.active if job_id in gang.ids]
        await self._gangs.end(gangs, "stopped by the user")
        return self.job(job_id)

    @staticmethod
    def _check_owner(status: JobStatus, by: str, done: str, command: str, *, force: bool) -> None:
        if status.by and by and status.by != by and not force:
            raise Refused(
                f"job {status.id} is {status.by}'s, and you are {by}: it was not {done}",
                hint=f"if it has to be: patchlight job {command} {status.id} --force",
            )

    async def restart(self, job_id: str, by: str = "", *, force: bool = False) -> JobStatus:
        """Begin a job again: one that has ended as a new job, one that runs as its next attempt.

        ``Refused`` for a job that somebody else than ``by`` submitted, without ``force``.
        """
        status = self._table[job_id]
        if status.state.is_final:
            return self.submit([status.spec], status.topology or None, by)[0]
        self._check_owner(status, by, "begun again", "restart", force=force)
        if status.state.is_waiting:
            raise BadInput(f"job {job_id} is {status.state}: it has not begun yet")
        gangs = [gang for gang in self._gangs.active if job_id in gang.ids]
        others = [each for gang in gangs for each in gang.ids if each != job_id]
        if others:
            raise BadInput(
                f"job {job_id} started together with {', '.join(others)}: it cannot begin alone",
                hint=f"patchlight job stop {job_id}, and submit them again",
            )
        await self._gangs.end(gangs, "begun again by the user", again=True)
        return self.job(job_id)

    async def drain(self, why: str = "") -> list[str]:
        """Start no job any more, and end all that run: their ids. The queue stays as it is."""
        self.hold_queue(why)
        running = list(self._table.running)
        await self._gangs.end(self._gangs.active, "the controller was drained")
        return running

    def hold_queue(self, why: str) -> None:
        """Start no job any more; those that run go on."""
        self._store.set_mark(DRAINED, {"why": why, "at": time.time()})

    def resume(self) -> None:
        """Start jobs again after ``drain`` or ``hold_queue``."""
        self._store.set_mark(DRAINED, None)
        self._queue.changed.set()

    @property
    def drained(self) -> bool:
        """Whether no job is started."""
        return self._store.mark(DRAINED, dict[str, Any], {}) is not None

    # -- the queue -----------------------------------------------------------------------

    async def run(self) -> None:
        """Start gangs as their hosts come free, for ever. What fails of a gang fails it alone."""
        self.policies.note_faults()
        if not self._recovery.done:
            queued = await self._recovery.run()
            for gang in self._gangs.active:
                self._queue.follow(gang)
            for gang in queued:
                self._queue.join(gang)
            self._queue.use_order()  # a queue that knows of who runs already
        self._fleet.on_status = self._recovery.sweep
        while True:
            self._queue.changed.clear()
            began = time.monotonic()
            wait_s: float | None = None
            if self.policies.take_next():
                self._queue.use_order()
            if not self.drained:
                wait_s = await self._queue.decide()
            ended = time.monotonic()
            took_s = self.last_pass_s = ended - began
            self.rewiring.queue_passed()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._queue.changed.wait()
            # Of a long queue, each pass takes a while: who submits many jobs is not kept waiting.
            await asyncio.sleep(
                max(0.0, ended + min(_REST * took_s, self.longest_rest_s) - time.monotonic())
            )

    async def close(self) -> None:
        """Let go of the gangs, whose workers go on, and of the policies."""
        await self._gangs.close()
        self.policies.close()
