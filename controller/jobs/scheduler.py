"""The queue of gangs: each, in its turn, as soon as policies find hosts for it.

A gang is one or more jobs submitted together; all their workers begin at the same moment.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from patchlight.controller.changes.record import Refused
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.hosts.fleet import Fleet
from patchlight.controller.hosts.health import unfit_hosts
from patchlight.controller.jobs.gangs import Gang, Gangs, Recovery
from patchlight.controller.jobs.iteration_times import Forecasts, IterationTimes
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.lab_queue import LabQueue
from patchlight.controller.jobs.placement import LabView, Placement
from patchlight.controller.jobs.policy_set import PoliciesInUse, named
from patchlight.controller.jobs.rewiring import AutomaticRewiring, Rewiring
from patchlight.controller.jobs.running_job import RunningJob
from patchlight.controller.jobs.specs import JobFailed
from patchlight.controller.jobs.submission import Submission
from patchlight.controller.policies.registry import DEFAULTS
from patchlight.controller.storage.database import JournalError, Period
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobSpec, JobState, JobStatus
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.policies import NOTHING_SAID, PolicyChoice
from patchlight.testbed.lab.queueing import Discipline

_log = logging.getLogger(__name__)

_DRAINED = "drained"
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
        self._changed = asyncio.Event()
        self.last_pass_s, self.longest_rest_s = 0.0, LONGEST_REST_S
        self.policies = PoliciesInUse(lab, store, table, choice, self._on_policies)
        self._placement = Placement(lab, self.policies, transactions, table.several)
        self._gangs = Gangs(lab, fleet, store, table, self._rewire_first, self)
        self._line_up = LabQueue(store, table, self._placement, self._gangs, discipline)
        self._takeover = Recovery(fleet, store, table, self._gangs)
        self._links = transactions.parts.maps.present_links
        self.forecasts = Forecasts(lab, table, self._links)
        self._intake = Submission(
            lab, table, self.policies, self._line_up, self._placement, self.forecasts
        )
        self.gains = IterationTimes(store, table, self.forecasts)
        self.light = Rewiring(
            *(store, table, transactions, self._placement), self.gains, self._look, self.policies
        )
        self.follower = AutomaticRewiring(
            self.light, self.gains, self.policies, table, transactions, lambda: self.drained
        )

    # -- what users ask ----------------------------------------------------------------

    def submit(
        self,
        specs: Sequence[JobSpec],
        topology: str | None = None,
        by: str = "",
        *,
        together: bool = True,
    ) -> list[JobStatus]:
        """Queue jobs of a user, as ``Submission.submit``."""
        added = self._intake.submit(specs, topology, by, together=together)
        self._changed.set()
        return added

    async def preview(
        self, specs: Sequence[JobSpec], topology: str | None = None, by: str = ""
    ) -> list[dict[str, Any]]:
        """What would become of these jobs now, as ``Submission.preview``."""
        closed = "the controller is drained" if self.drained else ""
        return await self._intake.preview(specs, topology, by, self._look, closed)

    def enqueue(self, status: JobStatus) -> None:
        """Have a job wait for its next attempt."""
        self._line_up.join(Gang((status.id,), status.topology))
        self._changed.set()

    def freed(self, job: RunningJob) -> None:
        """A job has given back its hosts."""
        self._line_up.freed(job.id)
        self.follower.ended(job.id)
        self._changed.set()

    def settled(self, job: RunningJob) -> None:
        """A job is on its hosts, and none besides are kept for it."""
        self._line_up.settled(job.id, [host.name for host in job.hosts])
        if job.spec.is_split:  # the elasticity policy may want to hear of it
            self._changed.set()

    def why_rigid(self, job_id: str) -> str | None:
        """Why the number of workers of a job stays as it is; ``None`` if it may change."""
        if self.policies.choice.elasticity == DEFAULTS["elasticity"]:
            return "the lab's elasticity policy is rigid"
        return self._line_up.why_rigid(job_id)

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
        waits_for = self._line_up.why.get(status.id) if status.state.is_waiting else None
        job = self._table.running.get(status.id)
        if job is not None and job.silent_servers and not status.message:
            waits_for = f"no answer from the agent of {', '.join(job.silent_servers)}"
        return waits_for or status.message

    async def stop(self, job_id: str, by: str = "", *, force: bool = False) -> JobStatus:
        """End the job's gang: its workers stop, GPUs and NICs go back.

        ``Refused`` for a job that somebody else than ``by`` submitted, without ``force``.
        """
        self._check_owner(self._table[job_id], by, "stopped", "stop", force=force)
        if (waiting := self._line_up.leave(job_id)) is not None:
            try:
                self._table.end(waiting.ids, JobState.STOPPED, "stopped by the user")
            except JournalError:
                self._line_up.join(waiting)  # it waits on
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
        self._store.set_mark(_DRAINED, {"why": why, "at": time.time()})

    def resume(self) -> None:
        """Start jobs again after ``drain`` or ``hold_queue``."""
        self._store.set_mark(_DRAINED, None)
        self._changed.set()

    @property
    def drained(self) -> bool:
        """Whether no job is started."""
        return self._store.mark(_DRAINED, dict[str, Any], {}) is not None

    # -- the queue -----------------------------------------------------------------------

    async def run(self) -> None:
        """Start gangs as their hosts come free, for ever. What fails of a gang fails it alone."""
        self.policies.note_faults()
        if not self._takeover.done:
            queued = await self._takeover.run()
            for gang in self._gangs.active:
                self._line_up.follow(gang)
            for gang in queued:
                self._line_up.join(gang)
            self._line_up.use_order()  # a queue that knows of who runs already
        self._fleet.on_status = self._takeover.sweep
        while True:
            self._changed.clear()
            began = time.monotonic()
            wait_s: float | None = None
            if self.policies.take_next():
                self._line_up.use_order()
            if not self.drained:
                wait_s = await self._line_up.decide(self._look_for_waiting)
            ended = time.monotonic()
            took_s = self.last_pass_s = ended - began
            self.follower.queue_passed()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            # Of a long queue, each pass takes a while: who submits many jobs is not kept waiting.
            await asyncio.sleep(
                max(0.0, ended + min(_REST * took_s, self.longest_rest_s) - time.monotonic())
            )

    async def close(self) -> None:
        """Let go of the gangs, whose workers go on, and of the policies."""
        await self._gangs.close()
        self.policies.close()

    async def _look_for_waiting(self) -> Callable[[], LabView]:
        """As ``_look``; states of ports, which cost reading, only for who places by circuits."""
        live = self._table.live()
        own = any(s.spec.placement for s in live if s.state.is_waiting or s.spec.is_split)
        lab_wide = named(self.policies.choice, "placement") != DEFAULTS["placement"]
        return await self._look(ports=own or lab_wide)

    async def _look(self, *, ports: bool = True) -> Callable[[], LabView]:
        links = self._links()
        unfit = unfit_hosts(self._lab, self._fleet.silent(), self._fleet.faults(), links)
        see = await self._placement.look(self._table.recent(), unfit, ports=ports)
        return lambda: see(self._table.hosts_of(self._table.running))

    def _on_policies(self) -> None:
        self._changed.set()
        self.follower.look_soon()

    # -- circuits --------------------------------------------------------------------------

    async def _rewire_first(self, gang: Gang) -> None:
        if gang.topology == "keep":
            return
        # Jobs of the same topology policy that run already are groups of this change too: what
        # they have is not to be taken from them.
        same = [g for g in self._gangs.active if g is not gang and g.topology == gang.topology]
        for job_id in gang.ids:
            self._table.move(job_id, JobState.RECONFIGURING)
        running = self._table.running
        job_ids = [job_id for g in (gang, *same) for job_id in g.ids if job_id in running]
        change = await self.light.rewire(gang.topology, job_ids, gang.ids)
        if change.state != "committed":
            raise JobFailed(
                f"the circuits could not be switched ({change.state}): {change.message}"
            )
