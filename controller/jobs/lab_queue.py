"""Runs the lab's queue: passes in a thread, because policies are slow, then their decisions."""

import asyncio
import itertools
import logging
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any
from weakref import WeakValueDictionary

from pydantic import Field, TypeAdapter

from patchlight.controller.jobs.discipline import contract
from patchlight.controller.jobs.discipline.queue import JobQueue, resize_jobs
from patchlight.controller.jobs.gangs import Gangs
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.lab_site import (
    Hosts,
    LabSite,
    Resized,
    Started,
)
from patchlight.controller.jobs.placement import Gang, GangEntry, Placement
from patchlight.controller.jobs.running_job import RunningJob
from patchlight.controller.jobs.specs import error_text
from patchlight.controller.storage.database import JournalError
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.jobs import JobSpec, JobState, JobStatus
from patchlight.testbed.lab.rules import Discipline, Waiting, WaitReason

_log = logging.getLogger(__name__)

_USAGE = "usage"
_Amount = Annotated[
    float,
    Field(
        ge=0,
        allow_inf_nan=False,
    ),
]
_USAGES = TypeAdapter(dict[str, tuple[_Amount, _Amount, _Amount]])
_MOST_JOBS = 1_000_000
_CLOCKS_APART_S = 86_400.0


def _usage(row: dict[str, Any]) -> dict[str, contract.UserUsage]:
    usage = {
        user: contract.UserUsage(*each)
        for user, each in _USAGES.validate_python(row).items()
    }
    if any(
        each.at_s > time.time() + _CLOCKS_APART_S for each in usage.values()
    ):
        raise ValueError("usage until a time in the future would never end")
    return usage


# A device or agent that jobs wait for may return without an event.
_LOOK_AGAIN_S = 5.0


class LabQueue:
    """Jobs that wait by the rules of a discipline, and ``why`` as of the last pass; ``changed`` is
    set when another pass may start more. ``passing`` is locked during a pass."""

    def __init__(
        self,
        store: Store,
        table: JobTable,
        placement: Placement,
        gangs: Gangs,
        discipline: Discipline,
    ) -> None:
        self.why: dict[str, str] = {}
        self.changed = asyncio.Event()
        self.passing = asyncio.Lock()
        gangs.queue = self
        self._store = store
        self._table = table
        self._gangs = gangs
        self._settings = discipline
        self._placement = placement
        usage = store.mark(_USAGE, _usage, unreadable=self._usage_by_jobs)
        accounts = contract.UserAccounts(discipline, usage or {})
        self._site = LabSite(
            table,
            placement,
            accounts,
            lambda: gangs.last_start_s,
        )
        self._numbers = itertools.count()
        self._waiting: dict[str, GangEntry] = {}
        # With the GPUs of each job.
        self._placed: dict[str, tuple[GangEntry, int]] = {}
        # A job that waits again keeps its entry and number: in a tie the older one is first.
        self._entries: WeakValueDictionary[tuple[str, ...], GangEntry] = (
            WeakValueDictionary()
        )
        # Events since the last pass: gangs that left the queue, GPUs that became free, preempted
        # gangs that have freed all hosts, new gangs.
        self._left: list[GangEntry] = []
        self._back: list[tuple[GangEntry, int]] = []
        self._returned: list[GangEntry] = []
        self._came: list[GangEntry] = []
        self.use_order()

    def _usage_by_jobs(self) -> dict[str, list[float]]:
        """The usage of each user by the jobs of the present window, counted from their begin."""
        now_s = time.time()
        begins_s = now_s - now_s % self._settings.quota_window_s
        used_s = defaultdict[str, float](float)
        for status in self._table.page(_MOST_JOBS, period=(begins_s, now_s)):
            used_s[status.by] += status.gpu_seconds(
                status.finished_at or now_s
            )
        return {user: [gpu_s, now_s, gpu_s] for user, gpu_s in used_s.items()}

    def use_order(self) -> None:
        """Use the present order policy; all waiting gangs join the line again."""
        traits = contract.OrderTraits.of(self._placement.policies.now.order)
        self._queue: JobQueue[GangEntry, Hosts] = JobQueue(
            self._site, self._settings, traits
        )
        self._site.joined.clear()
        returning = (
            entry for entry, _ in self._placed.values() if entry.returning
        )
        self._came = list(dict.fromkeys((*returning, *self._waiting.values())))
        self._left.clear()
        self._returned.clear()

    def not_admitted(
        self,
        user: str,
        specs: Sequence[JobSpec],
        beside: int = 0,
    ) -> str | None:
        """Why the jobs of a gang may not even wait, with ``beside`` other jobs of the user."""
        jobs = len(specs) - 1 + beside
        if self._settings.allowance(user).jobs is not None:
            placed = (entry for entry, _ in self._placed.values())
            own = {
                e.gang
                for e in (*self._waiting.values(), *placed)
                if e.user == user
            }
            jobs += sum(len(gang.ids) for gang in own)
        gpus = sum(spec.least_workers for spec in specs)
        waiting = contract.admission(
            self._settings,
            user,
            gpus,
            jobs,
        )
        return None if waiting is None else waiting.words

    def join(self, gang: Gang) -> None:
        """A gang waits from now on. Idempotent."""
        if gang.ids[0] in self._waiting:
            return
        entry = self._entry(gang)
        self._waiting |= dict.fromkeys(gang.ids, entry)
        self._came.append(entry)
        self.changed.set()

    def follow(self, gang: Gang) -> None:
        """A gang already has its hosts. Idempotent."""
        if gang.ids[0] in self._placed:
            return
        entry = self._entry(gang)
        for status in entry.statuses:
            gpus = self._placement.gpus_of(status.hosts)
            self._placed[status.id] = entry, gpus
            entry.gpus |= gpus
        entry.began_s = min(
            s.runs_since or s.submitted_at for s in entry.statuses
        )
        self._site.running[entry.index] = entry
        accounts = self._site.accounts
        charged_s = (
            accounts.usage(0.0)
            .get(entry.user, contract.UserUsage(0.0, entry.began_s))
            .at_s
        )
        accounts.took(entry.user, entry.gpus.bit_count(), charged_s)

    def _entry(self, gang: Gang) -> GangEntry:
        statuses = [self._table[job_id] for job_id in gang.ids]
        entry = self._entries.get(gang.ids)
        if entry is None:
            entry = GangEntry(
                next(self._numbers),
                gang,
                statuses,
                self._placement.nic_bps,
            )
            self._entries[gang.ids] = entry
        entry.gang = gang
        entry.statuses = statuses
        return entry

    def leave(self, job_id: str) -> Gang | None:
        """Remove a waiting job's gang from the queue; ``None`` if the job does not wait."""
        entry = self._waiting.get(job_id)
        if entry is None:
            return None
        self._forget(entry)
        if entry in self._came:  # no pass has seen it yet
            self._came.remove(entry)
        else:
            self._left.append(entry)
        return entry.gang

    def _forget(self, entry: GangEntry) -> None:
        for job_id in entry.gang.ids:
            self._waiting.pop(job_id, None)
            self.why.pop(job_id, None)

    def freed(self, job: RunningJob) -> None:
        """A job has given back its hosts."""
        self.changed.set()
        if (placed := self._placed.pop(job.id, None)) is None:
            return
        self._back.append(placed)
        self._returns(placed[0])

    def _returns(self, entry: GangEntry) -> None:
        """A preempted gang waits like others once all its hosts are free."""
        if entry.returning and not self._placed.keys() & {*entry.gang.ids}:
            entry.returning = False
            if entry in self._came:
                self._came.remove(entry)
            else:
                self._returned.append(entry)

    def settled(self, job: RunningJob) -> None:
        """A job is on its hosts, and none are reserved for it."""
        entry, gpus = self._placed.get(job.id, (None, 0))
        now = self._placement.gpus_of([host.name for host in job.hosts])
        if entry is not None and gpus != now:
            self._placed[job.id] = entry, now
            self._back.append((entry, gpus & ~now))
        if job.spec.is_split:  # the elasticity policy may decide again
            self.changed.set()

    def why_rigid(self, job_id: str) -> str | None:
        """Why the number of workers of a running job is fixed; ``None`` if it may change."""
        placed = self._placed.get(job_id)
        return (
            "it does not run"
            if placed is None
            else self._site.why_rigid(placed[0])
        )

    async def would_place(
        self, statuses: Sequence[JobStatus]
    ) -> dict[str, tuple[str, ...]] | str:
        """The hosts that jobs would get if it were their turn now, or why they would wait."""
        gang = Gang(tuple(status.id for status in statuses), "")
        entry = GangEntry(
            -1,
            gang,
            statuses,
            self._placement.nic_bps,
        )
        site = LabSite(
            self._table, self._placement, contract.UserAccounts(self._settings)
        )
        site.look((await self._placement.look())(), time.time())
        for name in entry.after:
            if site.fate(name) is not contract.JobFate.DONE:
                return f"it depends on {name}, which is not done"
        found = await asyncio.to_thread(site.place, entry)
        if isinstance(found, Waiting):
            free = await asyncio.to_thread(site.free_for, entry)
            short = (
                free < entry.workers
                and found.reason is not WaitReason.OUT_OF_REACH
            )
            return (
                f"it wants {entry.wants}, and {free} of them are free"
                if short
                else found.words
            )
        return {
            job_id: placed.hosts for job_id, placed in found.by_job.items()
        }

    async def decide(self) -> float | None:
        """Start all that can start now; returns the seconds until the next pass."""
        async with self.passing:
            return await self._decide()

    async def _decide(self) -> float | None:
        self._take_in_changes()
        if not self._waiting and not self._site.has_elastic:
            return None
        try:
            see = await self._placement.look_for_waiting()
        except Exception as error:
            said = error_text(error)
            _log.warning("jobs cannot be placed: %s", said)
            self.why = dict.fromkeys(
                self._waiting, f"the circuits cannot be read: {said}"
            )
            return _LOOK_AGAIN_S
        self._take_in_changes()  # changes that happened while the devices were read
        placed = (entry for entry, _ in self._placed.values())
        for entry in {*self._waiting.values(), *placed}:
            entry.statuses = [self._table[job_id] for job_id in entry.gang.ids]
        # Hosts that were freed meanwhile count as free.
        self._site.look(see(), time.time())
        self._carry_out(await asyncio.to_thread(self._pass))
        wait_s = max(0.0, self._site.wake_s - time.time())
        if self._waiting:
            return min(wait_s, _LOOK_AGAIN_S)
        return wait_s if wait_s < math.inf else None

    def _take_in_changes(self) -> None:
        site = self._site
        now_s = time.time()
        for entry in self._left:
            if entry in self._came:
                self._came.remove(entry)
            else:
                self._queue.remove(entry)
        for entry, gpus in self._back:
            site.gone(entry, now_s, gpus)
        for entry in self._returned:  # its jobs wait individually now
            self._queue.remove(entry)
            site.released += 1
        site.joined.extend(self._came)
        freed = bool(self._back)
        self._left.clear()
        self._back.clear()
        self._returned.clear()
        self._came.clear()
        if freed:
            self._keep_usage(now_s)

    def _pass(self) -> list[tuple[GangEntry, Waiting]]:
        self._queue.decide()
        reasons = list(self._queue.reasons())
        if self._site.has_elastic and not self._site.preempted:
            resize_jobs(self._site, reasons)
        return reasons

    def _carry_out(self, reasons: Sequence[tuple[GangEntry, Waiting]]) -> None:
        site = self._site
        for entry in site.preempted:
            names = ", ".join(
                s.entry.name for s in site.started if entry in s.preempted
            )
            self._gangs.request_end(
                [entry.gang], f"preempted by {names}", again=True
            )
            self._returns(entry)  # if it ended by itself during the pass
        for started in site.started:
            try:
                self._begin(started, [each.gang for each in started.preempted])
            except JournalError as full:
                _log.warning("%s waits again: %s", started.entry.name, full)
                site.gone(started.entry, site.now_s, started.entry.gpus)
                self._came.append(started.entry)
        for entry, error in site.refused.items():
            if not isinstance(error, PatchlightError):
                _log.error("jobs %s", entry.name, exc_info=error)
            why = f"no hosts could be chosen: {error_text(error)}"
            try:
                self._table.end(entry.gang.ids, JobState.FAILED, why)
            except JournalError as full:
                _log.warning("%s waits again: %s", entry.name, full)
                self._came.append(entry)
                site.released += 1  # it is tried again
            else:
                self._forget(entry)
        for resized in site.resized:
            self._resize(resized)
        if site.started or site.preempted or site.resized:
            self._keep_usage(site.now_s)
        self.why = {}
        for entry, found in reasons:
            waiting = found
            if found.reason is WaitReason.NO_GPUS:
                waiting = site.out_of_reach(entry) or found
            for job_id in entry.gang.ids:
                if job_id in self._waiting:
                    self.why[job_id] = waiting.words
                    # The state says whether time alone may help.
                    state = (
                        JobState.BLOCKED
                        if waiting.is_blocked
                        else JobState.QUEUED
                    )
                    if self._table[job_id].state is not state:
                        words = waiting.words if waiting.is_blocked else ""
                        with suppress(
                            JournalError
                        ):  # the next pass says it again
                            self._table.move(job_id, state, words)

    def _begin(self, started: Started, after: Sequence[Gang]) -> None:
        entry = started.entry
        now_s = time.time()
        if (
            entry.gang.ids[0] not in self._waiting
        ):  # the user stopped it meanwhile
            self._site.gone(entry, now_s, entry.gpus)
            self._left[:] = [each for each in self._left if each is not entry]
            return
        for job_id, placed in started.hosts.by_job.items():
            for decision in placed.decisions:
                self._table.ledger.add_decision(job_id, now_s, decision.record)
            self._table.keep(
                self._table[job_id].with_hosts(placed.hosts, now_s)
            )
        self._forget(entry)
        for job_id, placed in started.hosts.by_job.items():
            self._placed[job_id] = entry, self._placement.gpus_of(placed.hosts)
        entry.statuses = [self._table[job_id] for job_id in entry.gang.ids]
        self._gangs.begin(entry.gang, after)

    def _resize(self, resized: Resized) -> None:
        entry, hosts, why, decisions = resized
        (job_id,) = entry.gang.ids
        if not self._gangs.resize(job_id, hosts, why):
            # It ended meanwhile, or lost its circuits: the reserved GPUs are free again.
            self._back.append(
                (entry, entry.gpus & ~self._placed.get(job_id, (entry, 0))[1])
            )
            return
        self._placed[job_id] = entry, entry.gpus
        with suppress(JournalError):  # only why is lost
            for decision in decisions:
                self._table.ledger.add_decision(
                    job_id, time.time(), decision.record
                )

    def _keep_usage(self, now_s: float) -> None:
        usage = self._site.accounts.usage(now_s)
        with suppress(JournalError):  # the next one replaces it
            self._store.set_mark(
                _USAGE, {user: list(each) for user, each in usage.items()}
            )
