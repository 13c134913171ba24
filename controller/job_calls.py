"""The part of the controller's client that is about jobs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobfile.reader import JobGiven, Jobs, jobs_meant

Answer = dict[str, Any]

PAGE = 200


class JobCalls(ABC):
    """What can be asked and told of jobs; ``ControllerClient`` makes the calls."""

    @abstractmethod
    def _call(self, method: str, path: str, body: Any = None, **query: Any) -> Answer: ...

    def submit(self, jobs: Sequence[JobGiven] | Jobs, topology: str | None = None) -> list[Answer]:
        """Queue jobs, all or none; their statuses.

        Each is a ``JobSpec``, a mapping with the keys of a job file, or a job file's path. They
        start together; those of a file with a sweep or an array each alone. ``topology`` is
        ``keep`` or ``regroup``; ``None`` leaves it to them, or else to the lab's policy.
        """
        return self._submit(jobs, topology, dry_run=False)

    def preview(self, jobs: Sequence[JobGiven] | Jobs, topology: str | None = None) -> list[Answer]:
        """What would come of such jobs now, and nothing is queued.

        Of each ``job`` the ``hosts`` that it would get or what it ``waits_for``, and how many jobs
        are ``ahead``; which ``circuits`` would be made, and what speaks against that
        (``objections``); ``predicted_iteration_s`` where that is known.
        """
        return self._submit(jobs, topology, dry_run=True)

    def _submit(
        self, given: Sequence[JobGiven] | Jobs, topology: str | None, *, dry_run: bool
    ) -> list[Answer]:
        jobs = given if isinstance(given, Jobs) else jobs_meant(given)
        body = {"jobs": [asdict(spec) for spec in jobs.specs], "topology": topology}
        how = {"together": jobs.together, "dry_run": dry_run}
        return list(self._call("POST", "/jobs", body | how)["jobs"])

    def jobs(self, last: int | None = None, **which: str) -> list[Answer]:
        """Every job's status, or that of the ``last`` few, oldest first.

        ``which``: only those of a ``state``, ``user`` or ``name``.
        """
        wanted = {key: value for key, value in which.items() if value}
        if last is not None and last <= PAGE:
            return list(self._call("GET", "/jobs", last=last, **wanted)["jobs"])
        rows = pages(
            lambda job: self._call(
                "GET", "/jobs", last=PAGE, after=job["id"] if job else "", **wanted
            )["jobs"]
        )
        return list(rows)[-(last or 0) :]

    def jobs_meant(self, text: str) -> list[Answer]:
        """The job of that id, else those of that name, else those whose id begins so.

        The latest of them, the latest first.
        """
        return list(self._call("GET", "/jobs", meant=text)["jobs"])

    def job(self, job_id: str) -> Answer:
        """One job's status."""
        return self._call("GET", _job_path(job_id))

    def stop(self, job_id: str, *, force: bool = False) -> Answer:
        """End a job's gang; with ``force`` also one that another user submitted."""
        return self._call("DELETE", _job_path(job_id), force=force)

    def restart(self, job_id: str, *, force: bool = False) -> Answer:
        """Begin a job again: one that has ended as a new job, one that runs as its next attempt."""
        return self._call("POST", f"{_job_path(job_id)}/restart", force=force)

    def history(self, job_id: str) -> list[Answer]:
        """The states that a job came to: ``at``, ``state``, and why in its ``message``."""
        return list(self._call("GET", f"{_job_path(job_id)}/history")["states"])

    def decisions(self, job_id: str) -> list[Answer]:
        """What policies decided of a job, oldest first."""
        return list(self._call("GET", f"{_job_path(job_id)}/decisions")["decisions"])

    def log(self, job_id: str, worker: int = 0, after: int = 0) -> Answer:
        """What a worker printed from byte ``after`` on: ``text``, and the ``next`` byte.

        Once the job has ``ended``, the last MiB of each worker is what is kept.
        """
        return self._call("GET", f"{_job_path(job_id)}/log", worker=worker, after=after)

    def latest_iterations(self, job_id: str, most: int) -> list[Answer]:
        """The latest reports of the job's workers, oldest first."""
        return self.recent_iterations(job_id, most)[0]

    def recent_iterations(self, job_id: str, most: int) -> tuple[list[Answer], int]:
        """The same, and the ``after`` with which ``iterations`` goes on."""
        answer = self._call("GET", f"{_job_path(job_id)}/iterations", latest=most)
        return list(answer["iterations"]), int(answer["next"])

    def iterations(self, job_id: str, after: int = 0) -> tuple[list[Answer], int]:
        """What the job's workers reported after number ``after``, and the next ``after``."""
        reports: list[Answer] = []
        while True:
            answer = self._call("GET", f"{_job_path(job_id)}/iterations", after=after)
            reports += answer["iterations"]
            if answer["next"] == after:
                return reports, after
            after = int(answer["next"])

    def regroup(self, job_ids: Sequence[str]) -> Answer:
        """Bring running jobs under one packet switch each; the record of the change."""
        return self._call("POST", "/regroup", {"jobs": list(job_ids)})

    def preview_regroup(self, job_ids: Sequence[str]) -> Answer:
        """What ``regroup`` would make (cross-connects by OCS), and what speaks against it."""
        return self._call("POST", "/regroup", {"jobs": list(job_ids), "dry_run": True})

    def defragmentation(self) -> Answer | None:
        """The change of light under running jobs that gains most; ``None`` where none pays."""
        found: Answer | None = self._call("GET", "/defragmentation")["proposal"]
        return found

    def defragment(self) -> Answer | None:
        """Carry that change out; its record, or ``None`` where none pays."""
        found: Answer | None = self._call("POST", "/defragmentation")["change"]
        return found

    def policies(self) -> Answer:
        """The policies that decide now, by kind; ``defragment``: whether light follows jobs."""
        return dict(self._call("GET", "/policies")["policies"])

    def use_policies(self, chosen: Mapping[str, str | bool | None]) -> Answer:
        """Have these decide from now on, as of ``policies``; the others stay. All of them then."""
        return dict(self._call("PUT", "/policies", dict(chosen))["policies"])

    def drain(self, why: str = "") -> list[str]:
        """Start no job any more, and end those that run: their ids."""
        return list(self._call("POST", "/drain", {"why": why})["ended"])

    def resume(self) -> None:
        """Start jobs again after ``drain``."""
        self._call("DELETE", "/drain")


def _job_path(job_id: str) -> str:
    if not job_id.isprintable() or job_id in ("", ".", ".."):
        raise BadInput(f"{job_id!r} is no job's id: 'patchlight job list' shows them")
    return f"/jobs/{quote(job_id, safe='')}"


def pages(page_after: Callable[[Answer | None], list[Answer]]) -> Iterator[Answer]:
    """Every row of a list that comes in pages, each asked for by the row before it."""
    page = page_after(None)
    while page:
        yield from page
        page = page_after(page[-1])
