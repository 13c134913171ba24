"""The part of the controller's client that is about jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from patchlight.client.calls import PAGE, Call, Calls, call
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobfile.reader import JobBatch, JobGiven, jobs_meant

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.changes import Change
    from patchlight.testbed.wire.rest.jobs import (
        DecisionShape,
        IterationReport,
        Job,
        JobInList,
        LogPartShape,
        Preview,
        ProposalShape,
        RegroupPlan,
        StateOfJob,
    )
    from patchlight.testbed.wire.rest.lab import PoliciesInUse

# So many of the latest jobs are answered at once.
_AT_ONCE = 1000


class JobCalls(Calls):
    """What can be asked and told of jobs; ``ControllerClient`` makes the calls."""

    @call
    def submit(
        self, jobs: Sequence[JobGiven] | JobBatch, topology: str | None = None
    ) -> Call[list[JobInList]]:
        """Queue jobs, all or none; their statuses.

        Each is a ``JobSpec``, a mapping with the keys of a job file, or a job file's path. They
        start together; those of a file with a sweep or an array each alone. ``topology`` is
        ``keep`` or ``regroup``; ``None`` leaves it to them, or else to the lab's policy.
        """
        return (yield from self._submit(jobs, topology, dry_run=False))

    @call
    def preview(
        self, jobs: Sequence[JobGiven] | JobBatch, topology: str | None = None
    ) -> Call[list[Preview]]:
        """What would come of such jobs now, and nothing is queued.

        Of each ``job`` the ``hosts`` that it would get or what it ``waits_for``, and how many jobs
        are ``ahead``; which ``circuits`` would be made, and what speaks against that
        (``objections``); ``predicted_iteration_s`` where that is known.
        """
        return (yield from self._submit(jobs, topology, dry_run=True))

    def _submit(
        self, given: Sequence[JobGiven] | JobBatch, topology: str | None, *, dry_run: bool
    ) -> Call[list[Any]]:
        jobs = given if isinstance(given, JobBatch) else jobs_meant(given)
        body = {"jobs": [asdict(spec) for spec in jobs.specs], "topology": topology}
        how = {"together": jobs.together, "dry_run": dry_run}
        return list((yield from self._call("POST", "/jobs", body | how))["jobs"])

    @call
    def jobs(self, /, last: int | None = None, **which: str | float) -> Call[list[JobInList]]:
        """Every job's status, or that of the ``last`` few, oldest first.

        ``which``: only those of a ``state``, ``user`` or ``name``, and those that waited or ran
        between ``since`` and ``until`` (Unix times).
        """
        wanted: dict[str, Any] = {key: value for key, value in which.items() if value}
        if last is not None and last <= _AT_ONCE:
            return list((yield from self._call("GET", "/jobs", last=last, **wanted))["jobs"])

        def page_after(job: JobInList | None) -> Call[list[JobInList]]:
            after = job["id"] if job else ""
            answer = yield from self._call("GET", "/jobs", last=PAGE, after=after, **wanted)
            return list(answer["jobs"])

        rows = yield from self._pages(page_after)
        return rows[-(last or 0) :]

    @call
    def jobs_meant(self, text: str) -> Call[list[JobInList]]:
        """The job of that id, else those of that name, else those whose id begins so.

        The latest of them, the latest first.
        """
        return list((yield from self._call("GET", "/jobs", meant=text))["jobs"])

    @call
    def job(self, job_id: str) -> Call[Job]:
        """One job's status."""
        return cast("Job", (yield from self._call("GET", _job_path(job_id))))

    @call
    def stop(self, job_id: str, *, force: bool = False) -> Call[JobInList]:
        """End a job's gang; with ``force`` also one that another user submitted."""
        ended = yield from self._call("DELETE", _job_path(job_id), force=force)
        return cast("JobInList", ended)

    @call
    def restart(self, job_id: str, *, force: bool = False) -> Call[JobInList]:
        """Begin a job again: one that has ended as a new job, one that runs as its next attempt."""
        path = f"{_job_path(job_id)}/restart"
        return cast("JobInList", (yield from self._call("POST", path, force=force)))

    @call
    def history(self, job_id: str) -> Call[list[StateOfJob]]:
        """The states that a job came to: ``at``, ``state``, and why in its ``message``."""
        return list((yield from self._call("GET", f"{_job_path(job_id)}/history"))["states"])

    @call
    def decisions(self, job_id: str) -> Call[list[DecisionShape]]:
        """What policies decided of a job, oldest first."""
        return list((yield from self._call("GET", f"{_job_path(job_id)}/decisions"))["decisions"])

    @call
    def log(self, job_id: str, worker: int = 0, after: int = 0) -> Call[LogPartShape]:
        """What a worker printed from byte ``after`` on: ``text``, and the ``next`` byte.

        Once the job has ``ended``, the last MiB of each worker is what is kept.
        """
        return cast(
            "LogPartShape",
            (yield from self._call("GET", f"{_job_path(job_id)}/log", worker=worker, after=after)),
        )

    @call
    def latest_iterations(self, job_id: str, most: int) -> Call[list[IterationReport]]:
        """The latest reports of the job's workers, oldest first."""
        return list(
            (yield from self._call("GET", f"{_job_path(job_id)}/iterations", latest=most))[
                "iterations"
            ]
        )

    @call
    def recent_iterations(self, job_id: str, most: int) -> Call[tuple[list[IterationReport], int]]:
        """The same, and the ``after`` with which ``iterations`` goes on."""
        answer = yield from self._call("GET", f"{_job_path(job_id)}/iterations", latest=most)
        return list(answer["iterations"]), int(answer["next"])

    @call
    def iterations(self, job_id: str, after: int = 0) -> Call[tuple[list[IterationReport], int]]:
        """What the job's workers reported after number ``after``, and the next ``after``."""
        reports: list[IterationReport] = []
        while True:
            answer = yield from self._call("GET", f"{_job_path(job_id)}/iterations", after=after)
            reports += answer["iterations"]
            if answer["next"] == after:
                return reports, after
            after = int(answer["next"])

    @call
    def regroup(self, job_ids: Sequence[str], *, detach: bool = False) -> Call[Change]:
        """Bring running jobs under one packet switch each; the record of the change.

        With ``detach`` as it has begun: ``reconfiguration`` follows it.
        """
        body, prefer = {"jobs": list(job_ids)}, "respond-async" if detach else ""
        return cast("Change", (yield from self._call("POST", "/regroup", body, prefer)))

    @call
    def preview_regroup(self, job_ids: Sequence[str]) -> Call[RegroupPlan]:
        """What ``regroup`` would make (cross-connects by OCS), and what speaks against it."""
        body = {"jobs": list(job_ids), "dry_run": True}
        return cast("RegroupPlan", (yield from self._call("POST", "/regroup", body)))

    @call
    def defragmentation(self) -> Call[ProposalShape | None]:
        """The change of light under running jobs that gains most; ``None`` where none pays."""
        found: ProposalShape | None = (yield from self._call("GET", "/defragmentation"))["proposal"]
        return found

    @call
    def defragment(self, *, detach: bool = False) -> Call[Change | None]:
        """Carry that change out; its record, as of ``regroup``, or ``None`` where none pays."""
        prefer = "respond-async" if detach else ""
        answer = yield from self._call("POST", "/defragmentation", prefer=prefer)
        found: Change | None = answer["change"]
        return found

    @call
    def policies(self) -> Call[PoliciesInUse]:
        """The policies that decide now, by kind; ``defragment``: whether light follows jobs."""
        return dict((yield from self._call("GET", "/policies"))["policies"])

    @call
    def use_policies(self, chosen: Mapping[str, str | bool | None]) -> Call[PoliciesInUse]:
        """Have these decide from now on, as of ``policies``; the others stay. All of them then."""
        return dict((yield from self._call("PUT", "/policies", dict(chosen)))["policies"])

    @call
    def drain(self, why: str = "") -> Call[list[str]]:
        """Start no job any more, and end those that run: their ids."""
        return list((yield from self._call("POST", "/drain", {"why": why}))["ended"])

    @call
    def resume(self) -> Call[None]:
        """Start jobs again after ``drain``."""
        (yield from self._call("DELETE", "/drain"))


def _job_path(job_id: str) -> str:
    if not job_id.isprintable() or job_id in ("", ".", ".."):
        raise BadInput(f"{job_id!r} is no job's id: 'patchlight job list' shows them")
    return f"/jobs/{quote(job_id, safe='')}"
