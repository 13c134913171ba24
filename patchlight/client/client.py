"""The controller's REST API from Python: what the command line and the experiments use."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import httpx

from patchlight.client.circuit_calls import CircuitCalls
from patchlight.client.connection import (
    PAGE,
    ControllerError,
    NoAnswer,
    OtherLab,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobfile.reader import JobBatch, JobGiven, jobs_meant
from patchlight.testbed.wire.rest.circuits import (
    ChangeAnswer,
    OcsMap,
    PathShape,
    PathsShape,
)
from patchlight.testbed.wire.rest.jobs import (
    Decisions,
    DecisionShape,
    Defragmentation,
    Defragmented,
    Drained,
    IterationReport,
    Iterations,
    JobAnswer,
    JobHistory,
    JobInList,
    Jobs,
    LogPartShape,
    PoliciesAnswer,
    Preview,
    Previews,
    ProposalShape,
    RegroupPlan,
    Resumed,
    StateOfJob,
    Submitted,
    SubmittedJob,
)
from patchlight.testbed.wire.rest.lab import (
    AttemptRow,
    AuditShape,
    EventList,
    GpuSample,
    GpuSamples,
    Link,
    LinksAnswer,
    NewToken,
    PoliciesInUse,
    PortSample,
    PortSamples,
    Samples,
    Search,
    SearchPlan,
    Shutdown,
    Status,
    TokenShape,
    TokensShape,
    TopologyShape,
    WhoAmI,
)
from patchlight.testbed.wire.worker_api import WorkdirAnswer, WorkdirPart

if TYPE_CHECKING:
    from patchlight.client.workdir import Workdir

__all__ = ["ControllerClient", "ControllerError", "NoAnswer", "OtherLab"]

# So many of the latest jobs are answered at once.
_AT_ONCE = 1000
_PAUSE_S = 0.5  # before a connection that broke is made again
_PATIENCE_S = 30.0

T = TypeVar("T")

Event = dict[str, Any]
"""An event; its fields besides ``number``, ``at`` and ``kind`` depend on its kind."""


class ControllerClient(CircuitCalls):
    """A running controller, by the address of its API: ``host:port`` or ``unix:/path``.

    A context manager. One on another machine needs a ``login``. With a ``lab``, the first request
    and each change check that the controller has that lab (``OtherLab``).

    Methods raise ``BadInput`` for a request that the controller calls wrong, ``ControllerError`` if
    it failed or does not answer, and ``OutcomeUnknown`` if the result of a change is not known.
    """

    # -- the lab -------------------------------------------------------------------------------

    def lab_file(self) -> str:
        """The controller's lab, as the text of a lab file."""
        return self._answer("GET", "/lab.yaml").text

    def status(self) -> Status:
        """The state of the controller, and which switches and agents are reachable."""
        return self._get(Status, "/status")

    def metrics(self) -> str:
        """The controller's metrics, as Prometheus reads them."""
        if not self._known:
            self._find_out(any_file=True)
        return self._answer("GET", f"{self._root}/metrics").text

    def links(self) -> list[Link]:
        """The links that the present cross-connects make: ``a``, ``b``, ``rate_bps``, ``via``."""
        return self._get(LinksAnswer, "/links").links

    def circuits(self) -> dict[str, OcsMap]:
        """The map of each OCS, as ``{"ocs1": {"map": ["1>7", …]}}``."""
        return self._get(dict[str, OcsMap], "/circuits")

    def topology(self) -> TopologyShape:
        """The present nodes, packet switches and trunks: see ``testbed.lab.topology``."""
        return self._get(TopologyShape, "/topology")

    def topology_file(self, format: str) -> str:
        """The same as a file for another scheduler: ``slurm``, ``slurm-conf`` or ``kueue``."""
        return self._answer("GET", "/topology", format=format).text

    def shut_down(self, *, release: bool = False) -> dict[str, int]:
        """End the controller; returns the counts of live jobs by state, which go on. ``release``:
        first remove Patchlight's entries from the packet switches."""
        return self._call(Shutdown, "POST", "/shutdown", release=release).jobs

    # -- jobs ------------------------------------------------------------------------------

    def submit(
        self,
        jobs: Sequence[JobGiven] | JobBatch,
        topology: str | None = None,
        *,
        plan: bool = False,
    ) -> list[SubmittedJob]:
        """Queue jobs, all or none, and return their statuses.

        Each is a ``JobSpec``, a mapping with the keys of a job file, or a job file's path. They
        start together, those of a sweep or an array each alone. ``topology`` is ``keep`` or
        ``regroup``; by default that of the jobs, or of the lab's policy. With ``plan``, each status
        has a ``plan`` as ``preview`` returns it, if one can be made.
        """
        submitted = self._submit(
            Submitted,
            jobs,
            topology,
            plan=plan,
        )
        return submitted.jobs

    def ship(self, workdir: Workdir) -> None:
        """Upload a packed folder for jobs of this user: ``JobSpec.workdir`` is its digest."""
        offset = 0
        while offset < len(workdir.archive):
            part = WorkdirPart.of(workdir.archive, offset)
            path = f"/workdirs/{workdir.digest}"
            body = part.model_dump()
            offset = self._call(WorkdirAnswer, "PUT", path, body).next

    def preview(
        self, jobs: Sequence[JobGiven] | JobBatch, topology: str | None = None
    ) -> list[Preview]:
        """What such jobs would get now, or wait for; nothing is queued."""
        previews = self._submit(
            Previews,
            jobs,
            topology,
            dry_run=True,
        )
        return previews.jobs

    def _submit(
        self,
        kind: type[T],
        given: Sequence[JobGiven] | JobBatch,
        topology: str | None,
        **how: bool,
    ) -> T:
        jobs = given if isinstance(given, JobBatch) else jobs_meant(given)
        body = {
            "jobs": [asdict(spec) for spec in jobs.specs],
            "topology": topology,
            "together": jobs.together,
            **how,
        }
        return self._call(kind, "POST", "/jobs", body)

    def jobs(
        self, /, last: int | None = None, **which: str | float
    ) -> list[JobInList]:
        """Every job's status, or that of the ``last`` few, oldest first.

        ``which``: only those of a ``state``, ``user`` or ``name``, and those that waited or ran
        between ``since`` and ``until`` (Unix times).
        """
        wanted: dict[str, Any] = {
            key: value for key, value in which.items() if value
        }
        if last is not None and last <= _AT_ONCE:
            return self._get(
                Jobs,
                "/jobs",
                last=last,
                **wanted,
            ).jobs

        def page_after(
            job: JobInList | None,
        ) -> list[JobInList]:
            after = job.id if job else ""
            return self._get(
                Jobs,
                "/jobs",
                last=PAGE,
                after=after,
                **wanted,
            ).jobs

        return self._pages(page_after)[-(last or 0) :]

    def jobs_meant(self, text: str) -> list[JobInList]:
        """The jobs of that id, else of that name, else whose id begins so; the latest first."""
        return self._get(Jobs, "/jobs", meant=text).jobs

    def job(self, job_id: str) -> JobAnswer:
        """One job's status."""
        return self._get(JobAnswer, _job_path(job_id))

    def stop(self, job_id: str, *, force: bool = False) -> JobInList:
        """End a job's gang; with ``force`` also one that another user submitted."""
        return self._call(JobInList, "DELETE", _job_path(job_id), force=force)

    def restart(self, job_id: str, *, force: bool = False) -> JobInList:
        """Begin a job again: one that has ended as a new job, one that runs as its next attempt."""
        return self._call(
            JobInList,
            "POST",
            f"{_job_path(job_id)}/restart",
            force=force,
        )

    def history(self, job_id: str) -> list[StateOfJob]:
        """The states of a job, with the time and the reason of each."""
        return self._get(JobHistory, f"{_job_path(job_id)}/history").states

    def decisions(self, job_id: str) -> list[DecisionShape]:
        """What policies decided of a job, oldest first."""
        return self._get(Decisions, f"{_job_path(job_id)}/decisions").decisions

    def log(
        self,
        job_id: str,
        worker: int = 0,
        after: int = 0,
    ) -> LogPartShape:
        """What a worker printed from byte ``after`` on; the last MiB is kept of ended jobs."""
        return self._get(
            LogPartShape,
            f"{_job_path(job_id)}/log",
            worker=worker,
            after=after,
        )

    def recent_iterations(
        self, job_id: str, most: int
    ) -> tuple[list[IterationReport], int]:
        """The latest reports of its workers, oldest first; the ``after`` to go on with."""
        answer = self._get(
            Iterations,
            f"{_job_path(job_id)}/iterations",
            latest=most,
        )
        return answer.iterations, answer.next

    def iterations(
        self, job_id: str, after: int = 0
    ) -> tuple[list[IterationReport], int]:
        """What the job's workers reported after number ``after``, and the next ``after``."""
        reports: list[IterationReport] = []
        while True:
            answer = self._get(
                Iterations,
                f"{_job_path(job_id)}/iterations",
                after=after,
            )
            reports += answer.iterations
            if answer.next == after:
                return reports, after
            after = answer.next

    def regroup(
        self, job_ids: Sequence[str], *, detach: bool = False
    ) -> ChangeAnswer:
        """Bring running jobs under one packet switch each; with ``detach``, do not wait for it."""
        prefer = "respond-async" if detach else ""
        return self._call(
            ChangeAnswer,
            "POST",
            "/regroup",
            {"jobs": list(job_ids)},
            prefer,
        )

    def preview_regroup(self, job_ids: Sequence[str]) -> RegroupPlan:
        """What ``regroup`` would make (cross-connects by OCS), and what speaks against it."""
        return self._call(
            RegroupPlan,
            "POST",
            "/regroup",
            {"jobs": list(job_ids), "dry_run": True},
        )

    def defragmentation(self) -> ProposalShape | None:
        """The rewiring under running jobs that gains most; ``None`` if none pays."""
        return self._get(Defragmentation, "/defragmentation").proposal

    def defragment(self, *, detach: bool = False) -> ChangeAnswer | None:
        """Carry that change out; returns its record as ``regroup`` does, or ``None``."""
        prefer = "respond-async" if detach else ""
        return self._call(
            Defragmented, "POST", "/defragmentation", prefer=prefer
        ).change

    def policies(self) -> PoliciesInUse:
        """The policies that decide now, by kind, and whether the lab defragments, interleaves."""
        return self._get(PoliciesAnswer, "/policies").policies

    def use_policies(
        self, chosen: Mapping[str, str | bool | None]
    ) -> PoliciesInUse:
        """Set policies as in ``policies``, the others stay; returns all of them."""
        return self._call(
            PoliciesAnswer, "PUT", "/policies", dict(chosen)
        ).policies

    def drain(self, why: str = "") -> list[str]:
        """Start no more jobs, and end those that run; returns their ids."""
        return self._call(Drained, "POST", "/drain", {"why": why}).ended

    def resume(self) -> None:
        """Start jobs again after ``drain``."""
        self._call(Resumed, "DELETE", "/drain")

    # -- access ----------------------------------------------------------------------------

    def whoami(self) -> WhoAmI:
        """The user, role and origin of this client's requests."""
        return self._get(WhoAmI, "/whoami")

    def create_token(
        self,
        user: str,
        role: str = "viewer",
        lifetime_s: float | None = None,
        why: str = "",
    ) -> NewToken:
        """Make a token; its text, ``token``, is answered only now."""
        body = {"user": user, "role": role, "why": why}
        lasts = {} if lifetime_s is None else {"lifetime_s": lifetime_s}
        return self._call(NewToken, "POST", "/tokens", body | lasts)

    def tokens(self) -> list[TokenShape]:
        """Every token that was made, without its text."""
        return self._get(TokensShape, "/tokens").tokens

    def revoke_token(self, token_id: str) -> TokenShape:
        """Revoke the token of that id."""
        return self._call(
            TokenShape,
            "DELETE",
            f"/tokens/{quote(token_id, safe='')}",
        )

    def audit(
        self,
        last: int = 100,
        *,
        user: str = "",
        outcome: str = "",
    ) -> list[AttemptRow]:
        """The last attempts to change something, the oldest first."""
        which = {"user": user, "outcome": outcome}
        wanted = {key: value for key, value in which.items() if value}
        return self._get(
            AuditShape,
            "/audit",
            last=last,
            **wanted,
        ).attempts

    # -- the search for the wiring ---------------------------------------------------------

    def discover(
        self,
        ports: Mapping[str, Sequence[int]] | None = None,
        *,
        listen_s: float = 2.0,
        every_port: bool = False,
    ) -> Search:
        """Begin to search the wiring of ports by OCS, or of all; ``listen_s`` is for each round."""
        return self._discover(
            Search,
            ports,
            listen_s,
            every_port,
            dry_run=False,
        )

    def preview_discovery(
        self,
        ports: Mapping[str, Sequence[int]] | None = None,
        *,
        listen_s: float = 2.0,
        every_port: bool = False,
    ) -> SearchPlan:
        """What that would look at, which circuits go dark meanwhile, and for how long."""
        return self._discover(
            SearchPlan,
            ports,
            listen_s,
            every_port,
            dry_run=True,
        )

    def _discover(
        self,
        kind: type[T],
        ports: Mapping[str, Sequence[int]] | None,
        listen_s: float,
        every_port: bool,
        *,
        dry_run: bool,
    ) -> T:
        named = {ocs: list(numbers) for ocs, numbers in (ports or {}).items()}
        body: dict[str, Any] = {
            "ports": named,
            "listen_s": listen_s,
            "every_port": every_port,
        }
        body |= {"dry_run": dry_run}
        return self._call(kind, "POST", "/discovery", body)

    def discovery(self, step: int = 0, wait_s: float = 0.0) -> Search:
        """How far the search is, and once it is ``done`` the ``wiring``.

        With ``wait_s`` (30 at most), one under way is waited for until it is beyond this ``step``.
        """
        return self._get(
            Search,
            "/discovery",
            step=step,
            wait_s=wait_s,
        )

    def stop_discovery(self) -> Search:
        """Break the search off, and put all circuits back."""
        return self._call(Search, "DELETE", "/discovery")

    # -- optical paths ---------------------------------------------------------------------

    def paths(self) -> PathsShape:
        """The networks, the scheduler, and the paths that are used or wait."""
        return self._get(PathsShape, "/paths")

    def want_path(
        self,
        /,
        source: str,
        destination: str,
        nbytes: float,
        **options: Any,
    ) -> PathShape:
        """Request a path for a flow of so many bytes, with the options of the API."""
        body = {"source": source, "destination": destination, "bytes": nbytes}
        return self._call(PathShape, "POST", "/paths", body | options)

    def path(self, number: int, wait_s: float = 0.0) -> PathShape:
        """One path; a waiting one once it is granted, or after ``wait_s`` (30 at most)."""
        return self._get(PathShape, f"/paths/{number}", wait_s=wait_s)

    def release_path(self, number: int) -> PathShape:
        """Release a path, or stop waiting for it."""
        return self._call(PathShape, "DELETE", f"/paths/{number}")

    # -- samples ---------------------------------------------------------------------------

    def ports(self, since: float = 0.0) -> list[PortSample]:
        """Samples of each host's rates after Unix time ``since``, in bits per second."""
        return self._get(PortSamples, "/ports", since=since).ports

    def samples(
        self,
        since: float = 0.0,
        until: float | None = None,
        points: int = 300,
        jobs: Sequence[str] | None = None,
    ) -> Samples:
        """Samples of a period, in some ``points`` windows, of the lab and of all or these jobs."""
        wanted: dict[str, Any] = {} if until is None else {"until": until}
        if jobs is not None:
            wanted["job"] = list(jobs) or [""]
        return self._get(
            Samples,
            "/samples",
            points=points,
            since=since,
            **wanted,
        )

    def gpus(self, since: float = 0.0) -> list[GpuSample]:
        """Samples of each GPU's utilisation after Unix time ``since``."""
        return self._get(GpuSamples, "/gpus", since=since).gpus

    # -- events ----------------------------------------------------------------------------

    def events(self, after: int = 0) -> list[Event]:
        """The events after number ``after``."""
        found = self._get(EventList, "/events", after=after)
        return [event.model_dump() for event in found.events]

    def past_events(
        self,
        since: float,
        until: float,
        *,
        last: int = PAGE,
        before: int | None = None,
        kinds: Sequence[str] = (),
    ) -> list[Event]:
        """The ``last`` events of a period, oldest first; with ``before``, of lower numbers."""
        wanted: dict[str, Any] = {"kind": list(kinds)} if kinds else {}
        wanted |= {} if before is None else {"before": before}
        found = self._get(
            EventList,
            "/events",
            last=last,
            since=since,
            until=until,
            **wanted,
        )
        return [event.model_dump() for event in found.events]

    def last_event(self) -> int:
        """The number of the latest event."""
        none = (1 << 63) - 1
        return self._get(
            EventList,
            "/events",
            after=none,
        ).last

    def follow_events(self, after: int | None = None) -> Iterator[Event]:
        """Events after number ``after``, or from now on, without an end; reconnects by itself.

        One of kind ``skipped`` says which are not kept any more (``first`` to ``last``).
        ``ControllerError`` if no controller answers for half a minute.
        """
        seen = self.last_event() if after is None else after
        answered_at = time.monotonic()
        while True:
            try:
                with self._stream("/events", after=seen) as lines:
                    for line in lines:
                        answered_at = time.monotonic()
                        if line.startswith("data: "):
                            event: Event = json.loads(
                                line.removeprefix("data: ")
                            )
                            seen = event.get("number", seen)
                            yield event
            except httpx.HTTPError:
                if time.monotonic() - answered_at > _PATIENCE_S:
                    self.last_event()  # says what is wrong
            time.sleep(_PAUSE_S)


def _job_path(job_id: str) -> str:
    if not job_id.isprintable() or job_id in ("", ".", ".."):
        raise BadInput(
            f"{job_id!r} is not a job's id: 'patchlight job list' shows them"
        )
    return f"/jobs/{quote(job_id, safe='')}"
