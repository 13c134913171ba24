"""Schedules jobs: accepts them, starts gangs (jobs that start together) in order, and takes over an
earlier controller's jobs."""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from patchlight.controller.changes.record import Refused
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.hosts.agent_client import AgentCallError
from patchlight.controller.hosts.fleet import Fleet
from patchlight.controller.jobs.claims import ClaimService
from patchlight.controller.jobs.entries import Entries, Gang
from patchlight.controller.jobs.gangs import MOST_WAIT_S, Gangs
from patchlight.controller.jobs.interleaving import Interleaving
from patchlight.controller.jobs.job_table import (
    Forecasts,
    IterationTimes,
    JobTable,
)
from patchlight.controller.jobs.lab_queue import LabQueue
from patchlight.controller.jobs.lives import AT_WORK
from patchlight.controller.jobs.placement import LabReach, Placement
from patchlight.controller.jobs.policy_set import PoliciesInUse, named
from patchlight.controller.jobs.rewiring import (
    DRAINED,
    JobRewiring,
    is_drained,
)
from patchlight.controller.jobs.running_job import RunningJob
from patchlight.controller.jobs.specs import (
    check_policies,
    check_specs,
    worker_id,
)
from patchlight.controller.policies.registry import DEFAULTS
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import (
    LONGEST_STOP_GRACE_S,
    JobSpec,
    JobState,
    JobStatus,
)
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.reach import as_text
from patchlight.testbed.lab.rules import NOTHING_SAID, Discipline, PolicyChoice
from patchlight.testbed.tasks import run_all
from patchlight.testbed.wire.agent_status import AgentStatus
from patchlight.testbed.wire.worker_api import WorkerStatus

_log = logging.getLogger(__name__)

# The queue's rest after a pass, in multiples of the pass's time.
_REST = 3.0
_LONGEST_REST_S = 0.2
DEFAULT_DISCIPLINE = Discipline()


class Scheduler:
    """Accepts jobs, and gives them hosts and circuits until they end. Jobs outlive it. After a pass
    of ``last_pass_s`` the queue rests for at most 0.2 s."""

    def __init__(
        self,
        lab: Lab,
        fleet: Fleet,
        store: Store,
        table: JobTable,
        transactions: Transactions,
        reach: LabReach,
        choice: PolicyChoice = NOTHING_SAID,
        discipline: Discipline = DEFAULT_DISCIPLINE,
    ) -> None:
        """``BadInput`` if a policy of ``choice`` is not available."""
        self._lab = lab
        self._fleet = fleet
        self._store = store
        self._table = table
        self.last_pass_s = 0.0
        self.policies = PoliciesInUse(
            lab,
            store,
            table,
            choice,
        )
        self._placement = Placement(
            lab,
            fleet,
            table,
            self.policies,
            transactions,
            reach,
        )
        links = transactions.parts.maps.present_links
        self.forecasts = Forecasts(
            lab,
            table,
            links,
            lambda: bool(self.policies.choice.interleave),
        )
        self.interleaving = Interleaving(
            lab,
            store,
            table,
            links,
            self.policies,
        )
        self.gains = IterationTimes(store, table, self.forecasts)
        self.rewiring = JobRewiring(
            store,
            table,
            transactions,
            self._placement,
            self.policies,
            self.gains,
        )
        self.reach = self._placement.reach
        self._entries = Entries(lab, table, discipline)
        self._gangs = Gangs(
            lab,
            fleet,
            store,
            table,
            self._entries,
            self.rewiring,
            self.reach,
        )
        self._queue = LabQueue(
            store,
            table,
            self._placement,
            self._entries,
            self._gangs,
            discipline,
        )
        self.claims = ClaimService(
            lab,
            fleet,
            table,
            transactions,
            self._placement,
            self._queue.passing,
            lambda: self._recovered,
        )
        self._recovered = False
        self._followed: list[RunningJob] = []
        self._sweeping: dict[str, asyncio.Task[None]] = {}
        self.policies.on_use += [
            self._entries.changed.set,
            self.rewiring.look_soon,
        ]

    def submit(
        self,
        specs: Sequence[JobSpec],
        topology: str | None = None,
        by: str = "",
        *,
        together: bool = True,
    ) -> list[JobStatus]:
        """Queue jobs of a user, as one gang if ``together``, all or none; ``BadInput`` if one could
        never run. The topology policy is ``topology``, else the job's, else the lab's."""
        ids = set[str]()
        each = [specs] if together else zip(specs)
        gangs = [
            self._new(
                gang,
                topology,
                by,
                ids,
            )
            for gang in each
        ]
        for statuses, _ in gangs:
            gang = [status.spec for status in statuses]
            if (
                why := self._entries.not_admitted(
                    by, gang, len(specs) - len(gang)
                )
            ) is not None:
                raise Refused(
                    why,
                    hint="wait until one of them ends, or ask the lab's admin",
                )
        added = [status for statuses, _ in gangs for status in statuses]
        self._table.add(added)
        for statuses, chosen in gangs:
            self._entries.join(
                Gang(tuple(status.id for status in statuses), chosen)
            )
        return added

    def _new(
        self,
        specs: Sequence[JobSpec],
        topology: str | None,
        by: str,
        ids: set[str],
    ) -> tuple[list[JobStatus], str]:
        """Jobs as they would be submitted, and their topology policy. Adds their ids to ``ids``."""
        specs = check_specs(
            self._lab, specs, counted=not self.policies.choice.partition
        )
        check_policies(specs, self.policies.choice)
        for number, spec in enumerate(specs):
            found = {name: self._table.meant(name) for name in spec.after}
            for name, jobs in found.items():
                if not jobs:
                    raise BadInput(
                        f"job {spec.name}: it depends on unknown job {name!r}"
                    )
            specs[number] = replace(
                spec, after=tuple(found[name][0].id for name in spec.after)
            )
        own = topology or next(
            (spec.topology for spec in specs if spec.topology), None
        )
        chosen = own or named(self.policies.choice, "topology")
        about: dict[str, Any] = {
            "by": by,
            "gang": uuid.uuid4().hex[:12],
            "topology": chosen,
        }
        now = time.time()
        queued = JobState.QUEUED
        statuses = [
            JobStatus(
                self._new_id(spec.name, ids),
                spec,
                queued,
                submitted_at=now,
                **about,
            )
            for spec in specs
        ]
        return statuses, chosen

    def _new_id(self, name: str, ids: set[str]) -> str:
        """An unused id: of 10,000 jobs with one name, some would collide."""
        while True:
            drawn = f"{name}-{uuid.uuid4().hex[:6]}"
            if drawn not in ids and self._table.find(drawn) is None:
                ids.add(drawn)
                return drawn

    async def preview(
        self,
        specs: Sequence[JobSpec],
        topology: str | None = None,
        by: str = "",
    ) -> list[dict[str, Any]]:
        """The hosts and circuits that these jobs would get now, or what they would wait for."""
        statuses, chosen = self._new(
            specs,
            topology,
            by,
            set(),
        )
        closed = "the controller is drained" if self.drained else ""
        waits_for = closed or self._entries.not_admitted(
            by, [status.spec for status in statuses]
        )
        found = waits_for or await self._queue.would_place(statuses)
        about: dict[str, Any] = {
            "ahead": sum(len(e.gang.ids) for e in self._entries.waiting),
            "topology": chosen,
            "waits_for": "",
        }
        if isinstance(found, str):
            about["waits_for"] = found
            return [
                {**about, "job": status.spec.name, "hosts": []}
                for status in statuses
            ]
        placed = [
            replace(
                each,
                hosts=found[each.id],
                state=JobState.RUNNING,
            )
            for each in statuses
        ]
        about |= {"circuits": [], "objections": []}
        links = None
        if chosen != "keep":
            others = self._table.hosts
            plan, against = await self._placement.preview(
                chosen, found, {**others, **found}
            )
            made = [
                f"{ocs}: {c}"
                for ocs, each in plan.changes.items()
                for c in each.makes
            ]
            about |= {"circuits": made, "objections": against}
            links = plan.links_after
        predicted = self.forecasts.running(
            links, placed, self._gangs.last_start_s
        )
        return [
            {
                **about,
                "job": s.spec.name,
                "hosts": list(s.hosts),
                **predicted.get(s.id, {}),
            }
            for s in placed
        ]

    def why_rigid(self, job_id: str) -> str | None:
        """Why a job's number of workers is fixed; ``None`` if it may change."""
        if self.policies.choice.elasticity == DEFAULTS["elasticity"]:
            return "the lab's elasticity policy is rigid"
        return self._queue.why_rigid(job_id)

    def job(self, job_id: str) -> JobStatus:
        """One job with its ``message``, by its id; ``BadInput`` if unknown."""
        status = self._table[job_id]
        return replace(status, message=self.message(status))

    def message(self, status: JobStatus) -> str:
        """A job's message, or what it waits for now, which changes too often to be stored."""
        waiting = self._entries.waiting_with(status.id)
        waits_for = None if waiting is None else waiting.why
        job = self._table.running.get(status.id)
        if job is not None and job.silent_servers and not status.message:
            waits_for = (
                f"no answer from the agent of {', '.join(job.silent_servers)}"
            )
        elif job is not None and status.state is JobState.PREPARING:
            waits_for = as_text(self.reach().apart(job.hosts))
        return waits_for or status.message

    async def stop(
        self,
        job_id: str,
        by: str = "",
        *,
        force: bool = False,
    ) -> JobStatus:
        """End the job's gang. ``Refused`` for another user's job, without ``force``."""
        self._take_over()
        self._check_owner(
            self._table[job_id],
            by,
            "stopped",
            "stop",
            force=force,
        )
        if (waiting := self._entries.waiting_with(job_id)) is not None:
            self._table.end(
                waiting.gang.ids, JobState.STOPPED, "stopped by the user"
            )
            self._entries.leave(waiting)
        if (
            job_id in self._table.unreadable
        ):  # its workers are swept from now on
            self._table.move(job_id, JobState.STOPPED, "stopped by the user")
            # Its hosts are free when its workers have gone.
            self._placement.swept.add(job_id)
        if (gang := self._gangs.of(job_id)) is not None:
            await self._gangs.end([gang], "stopped by the user")
        return self.job(job_id)

    @staticmethod
    def _check_owner(
        status: JobStatus,
        by: str,
        done: str,
        command: str,
        *,
        force: bool,
    ) -> None:
        if status.by and by and status.by != by and not force:
            raise Refused(
                f"job {status.id} belongs to {status.by}, and you are {by}: it was not {done}",
                hint=f"to do it anyway: patchlight job {command} {status.id} --force",
            )

    async def restart(
        self,
        job_id: str,
        by: str = "",
        *,
        force: bool = False,
    ) -> JobStatus:
        """Restart a job: an ended one as a new job, a running one as its next attempt."""
        self._take_over()
        status = self._table[job_id]
        self._check_owner(
            status,
            by,
            "restarted",
            "restart",
            force=force,
        )
        if status.state.is_final:
            return self.submit([status.spec], status.topology or None, by)[0]
        if status.state.is_waiting:
            raise BadInput(
                f"job {job_id} is {status.state}: it has not started yet"
            )
        gang = self._gangs.of(job_id)
        ids = () if gang is None else gang.ids
        if others := [
            each
            for each in ids
            if each != job_id and self._gangs.of(each) is gang
        ]:
            raise BadInput(
                f"job {job_id} started together with {', '.join(others)}: it cannot restart alone",
                hint=f"use 'patchlight job stop {job_id}', and submit them again",
            )
        if gang is not None:
            await self._gangs.end([gang], "restarted by the user", again=True)
        return self.job(job_id)

    async def drain(self, why: str = "") -> list[str]:
        """Stop starting jobs, and end the running ones; returns their ids."""
        self._take_over()
        running = list(self._table.running)
        self._store.set_mark(DRAINED, {"why": why, "at": time.time()})
        said = "the controller was drained"
        ending = self._gangs.request_end(self._gangs.active, said)
        await self.hold_queue(why)
        # What a pass has started meanwhile waits again.
        ending += self._gangs.request_end(self._gangs.active, said, again=True)
        if ending:
            await asyncio.wait(ending, timeout=MOST_WAIT_S)
        return running

    async def hold_queue(self, why: str) -> None:
        """Stop starting jobs; running ones continue."""
        self._store.set_mark(DRAINED, {"why": why, "at": time.time()})
        async with self._queue.passing:  # a pass in progress may start some
            return

    def resume(self) -> None:
        """Start jobs again after ``drain`` or ``hold_queue``."""
        self._store.set_mark(DRAINED, None)
        self._entries.changed.set()

    @property
    def drained(self) -> bool:
        """Whether no jobs are started."""
        return is_drained(self._store)

    async def run(self) -> None:
        """Start gangs when their hosts become free. A failure affects only its gang."""
        self.policies.note_faults()
        self._take_over()
        self._queue.use_order()  # an earlier pass may have failed halfway
        # The controller that paused them may be dead.
        await run_all(job.release() for job in self._followed)
        self._followed.clear()
        self._fleet.on_status = self._sweep
        while True:
            self._entries.changed.clear()
            began = time.monotonic()
            if self.policies.take_next():
                self._queue.use_order()
            wait_s = None if self.drained else await self._queue.decide()
            ended = time.monotonic()
            took_s = self.last_pass_s = ended - began
            self.rewiring.queue_passed()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._entries.changed.wait()
            # After a long pass the API gets its turn.
            await asyncio.sleep(
                max(
                    0.0,
                    ended
                    + min(_REST * took_s, _LONGEST_REST_S)
                    - time.monotonic(),
                )
            )

    async def close(self) -> None:
        """Close the gangs, whose workers continue, and the policies."""
        for task in self._sweeping.values():
            task.cancel()
        await self._gangs.close()
        self.policies.close()

    def _take_over(self) -> None:
        """Follow jobs that ran under an earlier controller, and queue the others: those that were
        being started had not begun. Without waiting, so that each can be stopped from now on."""
        if self._recovered:
            return
        queued: list[Gang] = []
        gangs: dict[str, list[JobStatus]] = {}
        known = {host.name for host in self._lab.hosts}
        for status in self._table.live():
            if self._gangs.of(status.id) is not None:
                continue
            if gone := [name for name in status.hosts if name not in known]:
                why = f"the lab file has no {', '.join(gone)}, where it ran"
                self._table.end([status.id], JobState.FAILED, why)
                continue
            gangs.setdefault(status.gang or status.id, []).append(status)
        for gang in gangs.values():
            rest = []
            for status in gang:
                if status.state in AT_WORK:
                    self._followed += self._gangs.take_over(
                        Gang((status.id,), status.topology)
                    )
                else:
                    rest.append(status)
            if rest:
                together = Gang(
                    tuple(status.id for status in rest), rest[0].topology
                )
                if all(status.state.is_waiting for status in rest):
                    queued.append(together)
                else:
                    self._gangs.undo_start(together)
        for each in queued:
            self._entries.join(each)
        self._queue.use_order()  # a queue that knows the running gangs
        self._recovered = True

    async def _sweep(self, agent: AgentStatus) -> None:
        """End an agent's workers that belong to no running attempt of a job. That may take as long
        as a job lets its workers end: meanwhile their hosts are not used."""
        ours = {
            w.spec.id
            for job in self._table.running.values()
            for w in job.workers
        }
        for worker in agent.workers:
            if worker.id in ours or worker.id in self._sweeping:
                continue
            if (
                worker.job in self._table.unreadable
                and not worker.state.is_final
            ):
                continue
            task = asyncio.create_task(self._end_stray(agent.server, worker))
            self._sweeping[worker.id] = task
            task.add_done_callback(partial(self._has_swept, worker.id))
            self._placement.ending[worker.id] = [
                host.name
                for host in self._lab.hosts
                if host.server.name == agent.server
                and host.nic.name == worker.nic
            ]

    def _has_swept(self, worker: str, _: asyncio.Task[None]) -> None:
        del self._sweeping[worker]
        del self._placement.ending[worker]
        self._entries.changed.set()

    async def _end_stray(self, server: str, worker: WorkerStatus) -> None:
        client = self._fleet.agent_of(server)
        job = self._table.find(worker.job)
        outputs = self._table.outputs
        grace_s = (
            LONGEST_STOP_GRACE_S if job is None else job.spec.stop_grace_s
        )
        try:
            with contextlib.suppress(AgentCallError, OSError):
                # Keep the output of a job's last attempt.
                if (
                    outputs
                    and job
                    and worker.id
                    == worker_id(job.id, job.attempt, worker.rank)
                ):
                    await client.end(worker.id, grace_s)
                    await outputs.fetch(
                        client,
                        worker.id,
                        job.id,
                        worker.rank,
                    )
            await client.delete(worker.id, grace_s)
        except AgentCallError as error:
            _log.warning("worker %s, which has no job: %s", worker.id, error)
        else:
            about = (
                f"{worker.id} on {server} had no running job, and was ended"
            )
            self._store.add_event(
                time.time(), "worker-swept", {"message": about}
            )
