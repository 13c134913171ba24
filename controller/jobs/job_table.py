"""What is known of each job: of those that have not ended in memory, of all on disk.

Each change of a job is on disk, with its time and reason, before it takes effect.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from patchlight.controller.jobs.ledger import JobLedger
from patchlight.controller.jobs.outputs import JobOutputs
from patchlight.controller.jobs.running_job import RunningJob
from patchlight.controller.storage.database import Period
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobState, JobStatus

# As many as policies are shown.
_RECENT = 64


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
