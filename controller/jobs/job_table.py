"""What is known of each job, and what is put on record of its progress, failures and next attempt.

Jobs that have not ended are in memory, all are on disk. Each change of a job is on disk, with its
time and reason, before it takes effect. A journal that takes nothing for a while, as its disk is
full, loses no job: it is asked again.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from patchlight.controller.jobs.ledger import JobLedger, JobOutputs
from patchlight.controller.jobs.running_job import RunningJob
from patchlight.controller.jobs.specs import JobFailed
from patchlight.controller.storage.database import JournalError, Period
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import BadInput, PatchlightError, in_words
from patchlight.testbed.jobs import JobSpec, JobState, JobStatus

# As many as policies are shown.
_RECENT = 64

_log = logging.getLogger(__name__)

_JOURNAL_AGAIN_S = 0.5


class JobTable:
    """The status of jobs by id; ``running`` are those that have hosts.

    ``outputs`` is where what their workers printed is kept, if it is; ``on_reports`` hear of the
    iterations that their workers tell of, and ``on_state`` of new jobs and of each state that one
    comes to, once these are on disk.
    """

    def __init__(self, ledger: JobLedger, outputs: JobOutputs | None = None) -> None:
        self.running: dict[str, RunningJob] = {}
        self.on_reports: list[Callable[[RunningJob, Sequence[dict[str, Any]]], None]] = []
        self.on_state: list[Callable[[JobStatus], None]] = []
        self.ledger, self.outputs = ledger, outputs
        self._live = {status.id: status for status in ledger.unfinished()}
        self._texts: dict[str, tuple[JobStatus, bytes]] = {}
        self._recent = OrderedDict((each.id, each) for each in ledger.page(_RECENT))

    def __getitem__(self, job_id: str) -> JobStatus:
        """One job; ``BadInput`` if there is none of that id."""
        if (status := self.find(job_id)) is not None:
            return status
        raise BadInput(f"no job {job_id!r}: 'patchlight job list' shows those there are")

    def find(self, job_id: str) -> JobStatus | None:
        """One job, or ``None``."""
        return self._live.get(job_id) or self.ledger.find(job_id)

    def meant(self, text: str) -> list[JobStatus]:
        """The jobs that somebody may mean by an id, the start of one, or a name."""
        exact = self.find(text)
        return [exact] if exact else self.ledger.meant(text)

    def hosts_of(self, job_ids: Iterable[str]) -> dict[str, list[str]]:
        """The hosts of running jobs, those that they are to have next included."""
        return {job_id: [h.name for h in self.running[job_id].all_hosts] for job_id in job_ids}

    def page(
        self, last: int, after: str | None = None, period: Period | None = None, **which: str
    ) -> list[JobStatus]:
        """As of the ledger."""
        return self.ledger.page(last, after, period, **which, known=self._live)

    def text(self, status: JobStatus) -> bytes:
        """``status.as_text``. That of a job that has not ended is kept: it is asked for often."""
        known, text = self._texts.get(status.id, (None, b""))
        if known is not status:
            text = status.as_text
            if self._live.get(status.id) is status:
                self._texts[status.id] = status, text
        return text

    def several(self, job_ids: Iterable[str]) -> dict[str, JobStatus]:
        """The jobs of these ids that there are."""
        found = {job_id: self.find(job_id) for job_id in job_ids}
        return {job_id: status for job_id, status in found.items() if status is not None}

    def live(self) -> list[JobStatus]:
        """Every job that has not ended, in the order of submission."""
        return list(self._live.values())

    def recent(self) -> list[JobStatus]:
        """The jobs that came last, ended or not, the latest last; 64 at most."""
        return list(self._recent.values())

    def add(self, statuses: Sequence[JobStatus]) -> None:
        """Take in new jobs, all or none."""
        events = [(s.submitted_at, f"job-{s.state}", _event(s)) for s in statuses]
        self.ledger.save(statuses, events)
        for status in statuses:
            self._remember(status)
            self._tell(status)

    def keep(self, status: JobStatus) -> None:
        """Remember what is known of a job now; its state is the same."""
        self.ledger.save([status])
        self._remember(status)

    def move(
        self,
        job_id: str,
        state: JobState,
        message: str = "",
        last_lines: Sequence[str] = (),
        **changes: Any,
    ) -> JobStatus:
        """The job comes to this state now; an event says so. ``changes`` are other fields."""
        now, status = time.time(), self[job_id]
        begins = state is JobState.RUNNING and status.started_at is None
        moved = replace(
            status,
            state=state,
            message=message,
            last_lines=tuple(last_lines),
            started_at=now if begins else status.started_at,
            finished_at=now if state.is_final else None,
            **changes,
        )
        self.ledger.save([moved], [(now, f"job-{state}", _event(moved))])
        self._remember(moved)
        self._tell(moved)
        return moved

    def end(
        self, job_ids: Sequence[str], state: JobState, message: str, last_lines: Sequence[str] = ()
    ) -> None:
        """Those of the jobs that had not come to an end yet have now."""
        for job_id in job_ids:
            if job_id in self._live:
                self.move(job_id, state, message, last_lines)

    def _tell(self, status: JobStatus) -> None:
        for hear in self.on_state:
            hear(status)

    def _remember(self, status: JobStatus) -> None:
        if status.state.is_final:
            self._live.pop(status.id, None)
            self._texts.pop(status.id, None)
        else:
            self._live[status.id] = status
        self._recent[status.id] = status
        while len(self._recent) > _RECENT:
            self._recent.popitem(last=False)


def _event(status: JobStatus) -> dict[str, Any]:
    return {"job": status.id, "message": status.message}


class CannotGoOn(JobFailed):
    """A job was stopped to go on with other workers, and these could not begin."""


class Outcomes:
    """Writes down what becomes of jobs."""

    def __init__(self, store: Store, table: JobTable) -> None:
        self._store, self._table = store, table

    async def on_record(self, write: Callable[[], object], *, in_thread: bool = False) -> None:
        """Call what writes to the journal, again and again while that takes nothing."""
        while True:
            try:
                await asyncio.to_thread(write) if in_thread else write()
            except JournalError as error:
                _log.warning("%s", error)
                await asyncio.sleep(_JOURNAL_AGAIN_S)
            else:
                return

    async def reported(self, job: RunningJob, reports: list[dict[str, Any]]) -> None:
        """A job's workers have told of their iterations."""
        # In a thread: a disk may take its time, and there are many of these.
        add = partial(self._table.ledger.add_iterations, job.id, reports)
        await self.on_record(add, in_thread=True)
        for hear in self._table.on_reports:
            hear(job, reports)
        done = max(report["index"] + 1 for report in reports)
        await self.on_record(lambda: self._progress(job, done, reports))

    def _progress(self, job: RunningJob, done: int, reports: list[dict[str, Any]]) -> None:
        now = self._table[job.id]
        done = max(now.iterations_done, done)
        spec = _measured(job, now.spec, reports)
        if (done, job.restarts, spec) != (now.iterations_done, now.restarts, now.spec):
            known = replace(now, iterations_done=done, restarts=job.restarts, spec=spec)
            self._table.keep(known)

    async def give_back(self, job: RunningJob) -> None:
        """Take from a job all that it has; what its workers printed is kept."""
        if self._table.outputs is not None:
            await job.end()  # what a worker prints as it is told to end is output, too
            await self._table.outputs.keep(job)
        messages = await job.give_back()
        await self.on_record(lambda: self._left_behind(messages))
        if used := job.energy_j():
            await self.on_record(lambda: self._used(job, used))

    def _used(self, job: RunningJob, used: Mapping[str, float]) -> None:
        """Add what the GPUs of this attempt have used to what those before it have."""
        status = self._table[job.id]
        energy_j = dict(status.energy_j)
        for gpu, joules in used.items():
            energy_j[gpu] = energy_j.get(gpu, 0.0) + joules
        self._table.keep(replace(status, energy_j=energy_j))

    def _left_behind(self, messages: Iterable[str]) -> None:
        events = [(time.time(), {"message": message}) for message in messages]
        self._store.add_events("worker-left-behind", events)

    def held(self, job: RunningJob, why: str) -> None:
        """A job is held where all ranks are at one iteration, and its workers are to end there."""
        done = job.iterations_done
        self._table.move(
            job.id,
            JobState.PREPARING,
            why,
            first_iteration=_goes_on_at(job.spec, done),
            iterations_done=done,
        )

    def next_attempt(
        self, status: JobStatus, why: str, first_iteration: int, **changes: Any
    ) -> JobStatus:
        """Queue a job again, by default alone: those that it started with have begun."""
        first_iteration = _goes_on_at(status.spec, first_iteration)
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
        """The job has failed of this; whatever it was, it ends no other."""
        said = str(error) if isinstance(error, PatchlightError) else in_words(error)
        if not isinstance(error, PatchlightError):
            _log.error("job %s", job.id, exc_info=error)
        status = self._table[job.id]
        if status.state.is_final:
            return
        # That it was to have other workers is no failure of its own.
        resized = isinstance(error, CannotGoOn)
        failures = status.failures + (not resized)
        if resized or failures <= job.spec.retries:
            avoid = tuple(dict.fromkeys((*status.avoid, *getattr(error, "hosts", ()))))
            tried = said if resized else f"failure {failures} of {job.spec.retries + 1}: {said}"
            self.next_attempt(status, tried, job.iterations_done, avoid=avoid, failures=failures)
        else:
            self._table.end([job.id], JobState.FAILED, said, getattr(error, "last_lines", ()))


def _measured(job: RunningJob, spec: JobSpec, reports: list[dict[str, Any]]) -> JobSpec:
    """The spec, with how long a model computes on GPUs that nothing was said of.

    The very first iteration is not looked at: it also loads and warms up what the others use.
    """
    if spec.trainer != "torch":
        return spec
    found = dict(spec.compute_s)
    for report in reports:
        gpu = job.hosts[report["rank"]].gpu
        if gpu is not None and report["index"] > 0 and report["compute_s"] > 0:
            on_one = len(job.hosts) if spec.is_split else 1
            found.setdefault(gpu.model, report["compute_s"] * on_one)
    return spec if found == spec.compute_s else replace(spec, compute_s=found)


def _goes_on_at(spec: JobSpec, done: int) -> int:
    """Where a job goes on that has done so many; of others than ours, a checkpoint says."""
    if spec.trainer != "synthetic":
        return 0
    return max(0, min(done, spec.iterations - 1))  # it may have failed before it was done
