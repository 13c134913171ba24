"""Runs the lab's queue: passes in a thread, because policies are slow, then their decisions."""

import asyncio
import logging
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from patchlight.controller.jobs.discipline import contract
from patchlight.controller.jobs.discipline.queue import JobQueue, resize_jobs
from patchlight.controller.jobs.entries import Entries, GangEntry
from patchlight.controller.jobs.gangs import Gangs
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.lab_site import (
    Hosts,
    LabSite,
    Resized,
    Started,
)
from patchlight.controller.jobs.lives import GangState
from patchlight.controller.jobs.placement import Placement
from patchlight.controller.jobs.specs import error_text
from patchlight.controller.storage.database import JournalError
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.jobs import JobState, JobStatus
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
        raise ValueError("expected a time in the past")
    return usage


# A device or agent that jobs wait for may return without an event.
_LOOK_AGAIN_S = 5.0

# A gang that was preempted by a pass is in line now. It may have ended during the pass, and may
# then have been queued again.
_IF_PREEMPTED = {
    GangState.PLACED: GangState.PREEMPTED,
    GangState.OUT: GangState.LEAVING,
    GangState.ARRIVING: GangState.REJOINING,
}


class LabQueue:
    """Decides on the gangs in ``entries`` by the rules of a discipline. ``passing`` is locked
    during a pass."""

    def __init__(
        self,
        store: Store,
        table: JobTable,
        placement: Placement,
        entries: Entries,
        gangs: Gangs,
        discipline: Discipline,
    ) -> None:
        self.passing = asyncio.Lock()
        self._store = store
        self._table = table
        self._entries = entries
        self._gangs = gangs
        self._settings = discipline
        self._placement = placement
        usage = store.mark(_USAGE, _usage, unreadable=self._usage_by_jobs)
        accounts = contract.UserAccounts(discipline, usage or {})
        self._site = LabSite(table, placement, accounts)
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
        """Use the present order policy in a new line, which all gangs of the old one join."""
        site = self._site
        for entry in self._entries:
            if (
                entry.state is GangState.PLACED
                and entry.index not in site.running
            ):
                self._count(entry)
        traits = contract.OrderTraits.of(self._placement.policies.now.order)
        self._queue: JobQueue[GangEntry, Hosts] = JobQueue(
            site, self._settings, traits
        )
        site.joined = [
            entry
            for entry in self._entries
            if entry.state in (GangState.IN_LINE, GangState.PREEMPTED)
        ]

    def _count(self, entry: GangEntry) -> None:
        """Count the GPUs of a gang that ran under an earlier controller."""
        accounts = self._site.accounts
        entry.gpus = entry.gpus_now
        self._site.running[entry.index] = entry
        charged_s = (
            accounts.usage(0.0)
            .get(entry.user, contract.UserUsage(0.0, entry.began_s))
            .at_s
        )
        accounts.took(entry.user, entry.gpus.bit_count(), charged_s)

    def why_rigid(self, job_id: str) -> str | None:
        """Why the number of workers of a running job is fixed; ``None`` if it may change."""
        entry = self._entries.of(job_id)
        if entry is None or job_id not in entry.gpus_of:
            return "it does not run"
        return self._site.why_rigid(entry)

    async def would_place(
        self, statuses: Sequence[JobStatus]
    ) -> dict[str, tuple[str, ...]] | str:
        """The hosts that jobs would get if it were their turn now, or why they would wait."""
        entry = self._entries.provisional(statuses)
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
                f"it needs {entry.wants}, and {free} of them are free"
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
        site = self._site
        self._take_in_changes()
        if not self._entries.waiting and not site.has_elastic:
            return None
        try:
            see = await self._placement.look_for_waiting()
        except Exception as error:
            said = error_text(error)
            _log.warning("jobs cannot be placed: %s", said)
            for entry in self._entries.waiting:
                entry.why = f"the circuits cannot be read: {said}"
            return _LOOK_AGAIN_S
        self._take_in_changes()  # changes that happened while the devices were read
        self._entries.refresh()
        # Hosts that were freed meanwhile count as free.
        site.look(
            see(),
            time.time(),
            self._gangs.last_start_s,
            {
                each
                for each in self._entries
                if each.state is GangState.PREEMPTED
            },
        )
        reasons = await asyncio.to_thread(self._pass)
        self._carry_out()
        self._explain(reasons)
        wait_s = max(0.0, site.wake_s - time.time())
        if self._entries.waiting:
            return min(wait_s, _LOOK_AGAIN_S)
        return wait_s if wait_s < math.inf else None

    def _take_in_changes(self) -> None:
        """Tell the site and its line what has changed since the last pass."""
        site = self._site
        now_s = time.time()
        freed = [
            (entry, gpus)
            for entry in site.running.values()
            if (gpus := entry.gpus & ~entry.gpus_now)
        ]
        for entry, gpus in freed:
            site.gone(entry, now_s, gpus)
        if freed:
            self._keep_usage(now_s)
        for entry in self._entries:
            if entry.state in (GangState.LEAVING, GangState.REJOINING):
                self._queue.remove(entry)
                site.released += 1
            if entry.state in (GangState.ARRIVING, GangState.REJOINING):
                entry.move(GangState.IN_LINE)
                site.joined.append(entry)
            elif entry.state is GangState.LEAVING:
                entry.move(GangState.OUT)

    def _pass(self) -> list[tuple[GangEntry, Waiting]]:
        self._queue.decide()
        reasons = list(self._queue.reasons())
        if self._site.has_elastic and not self._site.preempted:
            resize_jobs(self._site, reasons)
        return reasons

    def _carry_out(self) -> None:
        """Carry out what the pass decided. Gangs may have changed their state meanwhile."""
        site = self._site
        for entry in site.preempted:
            self._preempt(entry)
        for started in site.started:
            if started.entry.state.is_waiting:
                self._begin(started)
        for entry, error in site.refused.items():
            if entry.state.is_waiting:
                self._refuse(entry, error)
        for resized in site.resized:
            self._resize(resized)
        if site.started or site.preempted or site.resized:
            self._keep_usage(site.now_s)

    def _preempt(self, entry: GangEntry) -> None:
        names = ", ".join(
            s.entry.name for s in self._site.started if entry in s.preempted
        )
        self._gangs.request_end(
            [entry.gang], f"preempted by {names}", again=True
        )
        entry.move(_IF_PREEMPTED[entry.state])

    def _begin(self, started: Started) -> None:
        entry = started.entry
        now_s = time.time()
        hosts = {}
        try:
            for job_id, placed in started.hosts.by_job.items():
                for decision in placed.decisions:
                    self._table.ledger.add_decision(
                        job_id, now_s, decision.record
                    )
                self._table.keep(
                    self._table[job_id].with_hosts(placed.hosts, now_s)
                )
                hosts[job_id] = placed.hosts
        except JournalError as full:
            _log.warning("%s waits again: %s", entry.name, full)
            entry.move(GangState.ARRIVING)
            return
        self._entries.place(entry, hosts)
        self._gangs.begin(
            entry.gang, [each.gang for each in started.preempted]
        )

    def _refuse(self, entry: GangEntry, error: Exception) -> None:
        if not isinstance(error, PatchlightError):
            _log.error("jobs %s", entry.name, exc_info=error)
        why = f"no hosts could be chosen: {error_text(error)}"
        try:
            self._table.end(entry.gang.ids, JobState.FAILED, why)
        except JournalError as full:
            _log.warning("%s waits again: %s", entry.name, full)
            entry.move(GangState.ARRIVING)
            self._site.released += 1  # it is tried again
        else:
            self._entries.leave(entry)

    def _resize(self, resized: Resized) -> None:
        entry, hosts, why, decisions = resized
        (job_id,) = entry.gang.ids
        # Otherwise it ended meanwhile, or lost its circuits: nothing is reserved.
        if self._gangs.resize(job_id, hosts, why):
            with suppress(JournalError):  # only why is lost
                for decision in decisions:
                    self._table.ledger.add_decision(
                        job_id, time.time(), decision.record
                    )

    def _explain(self, reasons: Sequence[tuple[GangEntry, Waiting]]) -> None:
        """Tell users what each gang waits for."""
        for entry, found in reasons:
            if not entry.state.is_waiting:
                continue
            waiting = found
            if found.reason is WaitReason.NO_GPUS:
                waiting = self._site.out_of_reach(entry) or found
            entry.why = waiting.words
            # The state says whether time alone may help.
            state = JobState.BLOCKED if waiting.is_blocked else JobState.QUEUED
            words = waiting.words if waiting.is_blocked else ""
            for job_id in entry.gang.ids:
                if self._table[job_id].state is not state:
                    # The next pass says it again.
                    with suppress(JournalError):
                        self._table.move(job_id, state, words)

    def _keep_usage(self, now_s: float) -> None:
        usage = self._site.accounts.usage(now_s)
        with suppress(JournalError):  # the next one replaces it
            self._store.set_mark(
                _USAGE, {user: list(each) for user, each in usage.items()}
            )
