"""The controller's REST API from Python: what the command line and the experiments use."""

# mypy: disable-error-code=no-any-return
# What a call returns is the API's JSON as it is, described by ``testbed.wire.rest``.

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx

from patchlight.client.circuit_calls import CircuitCalls
from patchlight.client.connection import PAGE, Answer, ControllerError, NoAnswer, OtherLab
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobfile.reader import JobBatch, JobGiven, jobs_meant

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.circuits import Change, OcsMap, PathShape, PathsShape
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
    from patchlight.testbed.wire.rest.lab import (
        AttemptRow,
        GpuSample,
        Link,
        NewToken,
        PoliciesInUse,
        PortSample,
        Samples,
        Search,
        SearchPlan,
        Status,
        TokenShape,
        TopologyShape,
        WhoAmI,
    )


__all__ = ["ControllerClient", "ControllerError", "NoAnswer", "OtherLab"]

# So many of the latest jobs are answered at once.
_AT_ONCE = 1000
_PAUSE_S = 0.5  # before a connection that broke is made again
_PATIENCE_S = 30.0


class ControllerClient(CircuitCalls):
    """A running controller, by the address of its API: ``host:port`` or ``unix:/path``.

    A context manager. One on another machine needs a ``login``; ``BadInput`` without. With a
    ``lab`` it talks only to a controller of that lab: the first request, and each that changes
    something, finds out before (``OtherLab``). ``transport`` replaces the network.

    Methods return the API's JSON as it is. ``BadInput`` where the controller calls the request
    wrong, ``ControllerError`` where it could not do it or does not answer, and ``OutcomeUnknown``
    where it was asked for a change and did not say what came of it.
    """

    # -- the lab -------------------------------------------------------------------------------

    def lab_file(self) -> str:
        """The controller's lab, as the text of a lab file."""
        return self._answer("GET", "/lab.yaml").text

    def status(self) -> Status:
        """The controller's ``lab``, ``version``, ``engine`` and ``policies``, and who is there.

        ``switches`` say whether they are ``connected``, ``circuit_switches`` and ``agents``
        whether they are ``reachable``; circuit switches that are not, ``since`` when and why.
        """
        return self._call("GET", "/status")

    def metrics(self) -> str:
        """The controller's metrics, as Prometheus reads them."""
        if not self._known:
            self._find_out(any_file=True)
        return self._answer("GET", f"{self._root}/metrics").text

    def links(self) -> list[Link]:
        """The links that the present cross-connects make: ``a``, ``b``, ``rate_bps``, ``via``."""
        return self._call("GET", "/links")["links"]

    def circuits(self) -> dict[str, OcsMap]:
        """The map of each OCS, as ``{"ocs1": {"map": ["1>7", …]}}``."""
        return self._call("GET", "/circuits")

    def topology(self) -> TopologyShape:
        """Nodes, packet switches and trunks as they are lit: see ``testbed.topology``."""
        return self._call("GET", "/topology")

    def topology_file(self, format: str) -> str:
        """The same as a file for another scheduler: ``slurm``, ``slurm-conf`` or ``kueue``."""
        return self._answer("GET", "/topology", format=format).text

    def shut_down(self) -> dict[str, int]:
        """End the controller; how many jobs there are in each state that is not an end.

        They go on, and the next controller follows them.
        """
        return self._call("POST", "/shutdown")["jobs"]

    # -- jobs ------------------------------------------------------------------------------

    def submit(
        self, jobs: Sequence[JobGiven] | JobBatch, topology: str | None = None
    ) -> list[JobInList]:
        """Queue jobs, all or none; their statuses.

        Each is a ``JobSpec``, a mapping with the keys of a job file, or a job file's path. They
        start together; those of a file with a sweep or an array each alone. ``topology`` is
        ``keep`` or ``regroup``; ``None`` leaves it to them, or else to the lab's policy.
        """
        return self._submit(jobs, topology, dry_run=False)

    def preview(
        self, jobs: Sequence[JobGiven] | JobBatch, topology: str | None = None
    ) -> list[Preview]:
        """What would come of such jobs now, and nothing is queued.

        Of each ``job`` the ``hosts`` that it would get or what it ``waits_for``, and how many jobs
        are ``ahead``; which ``circuits`` would be made, and what speaks against that
        (``objections``); ``predicted_iteration_s`` where that is known.
        """
        return self._submit(jobs, topology, dry_run=True)

    def _submit(
        self, given: Sequence[JobGiven] | JobBatch, topology: str | None, *, dry_run: bool
    ) -> list[Any]:
        jobs = given if isinstance(given, JobBatch) else jobs_meant(given)
        body = {"jobs": [asdict(spec) for spec in jobs.specs], "topology": topology}
        how = {"together": jobs.together, "dry_run": dry_run}
        return self._call("POST", "/jobs", body | how)["jobs"]

    def jobs(self, /, last: int | None = None, **which: str | float) -> list[JobInList]:
        """Every job's status, or that of the ``last`` few, oldest first.

        ``which``: only those of a ``state``, ``user`` or ``name``, and those that waited or ran
        between ``since`` and ``until`` (Unix times).
        """
        wanted: dict[str, Any] = {key: value for key, value in which.items() if value}
        if last is not None and last <= _AT_ONCE:
            return self._call("GET", "/jobs", last=last, **wanted)["jobs"]

        def page_after(job: JobInList | None) -> list[JobInList]:
            after = job["id"] if job else ""
            answer = self._call("GET", "/jobs", last=PAGE, after=after, **wanted)
            return list(answer["jobs"])

        rows = self._pages(page_after)
        return rows[-(last or 0) :]

    def jobs_meant(self, text: str) -> list[JobInList]:
        """The job of that id, else those of that name, else those whose id begins so.

        The latest of them, the latest first.
        """
        return self._call("GET", "/jobs", meant=text)["jobs"]

    def job(self, job_id: str) -> Job:
        """One job's status."""
        return self._call("GET", _job_path(job_id))

    def stop(self, job_id: str, *, force: bool = False) -> JobInList:
        """End a job's gang; with ``force`` also one that another user submitted."""
        return self._call("DELETE", _job_path(job_id), force=force)

    def restart(self, job_id: str, *, force: bool = False) -> JobInList:
        """Begin a job again: one that has ended as a new job, one that runs as its next attempt."""
        path = f"{_job_path(job_id)}/restart"
        return self._call("POST", path, force=force)

    def history(self, job_id: str) -> list[StateOfJob]:
        """The states that a job came to: ``at``, ``state``, and why in its ``message``."""
        return self._call("GET", f"{_job_path(job_id)}/history")["states"]

    def decisions(self, job_id: str) -> list[DecisionShape]:
        """What policies decided of a job, oldest first."""
        return self._call("GET", f"{_job_path(job_id)}/decisions")["decisions"]

    def log(self, job_id: str, worker: int = 0, after: int = 0) -> LogPartShape:
        """What a worker printed from byte ``after`` on: ``text``, and the ``next`` byte.

        Once the job has ``ended``, the last MiB of each worker is what is kept.
        """
        return self._call("GET", f"{_job_path(job_id)}/log", worker=worker, after=after)

    def latest_iterations(self, job_id: str, most: int) -> list[IterationReport]:
        """The latest reports of the job's workers, oldest first."""
        return self._call("GET", f"{_job_path(job_id)}/iterations", latest=most)["iterations"]

    def recent_iterations(self, job_id: str, most: int) -> tuple[list[IterationReport], int]:
        """The same, and the ``after`` with which ``iterations`` goes on."""
        answer = self._call("GET", f"{_job_path(job_id)}/iterations", latest=most)
        return list(answer["iterations"]), int(answer["next"])

    def iterations(self, job_id: str, after: int = 0) -> tuple[list[IterationReport], int]:
        """What the job's workers reported after number ``after``, and the next ``after``."""
        reports: list[IterationReport] = []
        while True:
            answer = self._call("GET", f"{_job_path(job_id)}/iterations", after=after)
            reports += answer["iterations"]
            if answer["next"] == after:
                return reports, after
            after = int(answer["next"])

    def regroup(self, job_ids: Sequence[str], *, detach: bool = False) -> Change:
        """Bring running jobs under one packet switch each; the record of the change.

        With ``detach`` as it has begun: ``reconfiguration`` follows it.
        """
        body, prefer = {"jobs": list(job_ids)}, "respond-async" if detach else ""
        return self._call("POST", "/regroup", body, prefer)

    def preview_regroup(self, job_ids: Sequence[str]) -> RegroupPlan:
        """What ``regroup`` would make (cross-connects by OCS), and what speaks against it."""
        body = {"jobs": list(job_ids), "dry_run": True}
        return self._call("POST", "/regroup", body)

    def defragmentation(self) -> ProposalShape | None:
        """The change of light under running jobs that gains most; ``None`` where none pays."""
        return self._call("GET", "/defragmentation")["proposal"]

    def defragment(self, *, detach: bool = False) -> Change | None:
        """Carry that change out; its record, as of ``regroup``, or ``None`` where none pays."""
        prefer = "respond-async" if detach else ""
        answer = self._call("POST", "/defragmentation", prefer=prefer)
        return answer["change"]

    def policies(self) -> PoliciesInUse:
        """The policies that decide now, by kind; ``defragment``: whether light follows jobs."""
        return self._call("GET", "/policies")["policies"]

    def use_policies(self, chosen: Mapping[str, str | bool | None]) -> PoliciesInUse:
        """Have these decide from now on, as of ``policies``; the others stay. All of them then."""
        return self._call("PUT", "/policies", dict(chosen))["policies"]

    def drain(self, why: str = "") -> list[str]:
        """Start no job any more, and end those that run: their ids."""
        return self._call("POST", "/drain", {"why": why})["ended"]

    def resume(self) -> None:
        """Start jobs again after ``drain``."""
        self._call("DELETE", "/drain")

    # -- access ----------------------------------------------------------------------------

    def whoami(self) -> WhoAmI:
        """The ``user`` that one is to the controller, the ``role``, and the ``origin``."""
        return self._call("GET", "/whoami")

    def create_token(
        self, user: str, role: str = "viewer", lifetime_s: float | None = None, why: str = ""
    ) -> NewToken:
        """Make a token: what is known of it, and the ``token``, which is told only now."""
        body = {"user": user, "role": role, "why": why}
        lasts = {} if lifetime_s is None else {"lifetime_s": lifetime_s}
        return self._call("POST", "/tokens", body | lasts)

    def tokens(self) -> list[TokenShape]:
        """What is known of each token that was made."""
        return self._call("GET", "/tokens")["tokens"]

    def revoke_token(self, token_id: str) -> TokenShape:
        """Let nobody in with the token of that id any more."""
        path = f"/tokens/{quote(token_id, safe='')}"
        return self._call("DELETE", path)

    def audit(self, last: int = 100, *, user: str = "", outcome: str = "") -> list[AttemptRow]:
        """The last attempts to change something, the oldest first."""
        which = {"user": user, "outcome": outcome}
        wanted = {key: value for key, value in which.items() if value}
        return self._call("GET", "/audit", last=last, **wanted)["attempts"]

    # -- the search for the wiring ---------------------------------------------------------

    def discover(
        self,
        ports: Mapping[str, Sequence[int]] | None = None,
        *,
        listen_s: float = 2.0,
        every_port: bool = False,
    ) -> Search:
        """Begin to look what hangs on these ports by OCS, or on all; how far it is, as below.

        ``listen_s``: each round. ``every_port``: also once all ends of the lab are found.
        """
        return self._discover(ports, listen_s, every_port, dry_run=False)

    def preview_discovery(
        self,
        ports: Mapping[str, Sequence[int]] | None = None,
        *,
        listen_s: float = 2.0,
        every_port: bool = False,
    ) -> SearchPlan:
        """What that would look at (``ports``), which ``circuits`` go dark meanwhile, ``takes_s``
        in how many ``rounds``, and what speaks against it (``objections``)."""
        return self._discover(ports, listen_s, every_port, dry_run=True)

    def _discover(
        self,
        ports: Mapping[str, Sequence[int]] | None,
        listen_s: float,
        every_port: bool,
        *,
        dry_run: bool,
    ) -> Any:
        named = {ocs: list(numbers) for ocs, numbers in (ports or {}).items()}
        body = {"ports": named, "listen_s": listen_s, "every_port": every_port}
        return self._call("POST", "/discovery", body | {"dry_run": dry_run})

    def discovery(self, step: int = 0, wait_s: float = 0.0) -> Search:
        """How far the search is: its ``state``, ``rounds_done``, ``rounds_left``, ``left_s``; the
        ``wiring`` once it is ``done``, else a ``message``.

        With ``wait_s`` (30 at most), one under way is waited for until it is beyond this ``step``.
        """
        return self._call("GET", "/discovery", step=step, wait_s=wait_s)

    def stop_discovery(self) -> Search:
        """Break the search off; all circuits are as before then, also those that a search left
        away from their places which was cut short."""
        return self._call("DELETE", "/discovery")

    # -- optical paths ---------------------------------------------------------------------

    def paths(self) -> PathsShape:
        """The ``networks`` of paths, the ``scheduler``, and the ``paths`` used or waited for."""
        return self._call("GET", "/paths")

    def want_path(
        self, /, source: str, destination: str, nbytes: float, **options: Any
    ) -> PathShape:
        """Ask for a path between two hosts for a flow of so many bytes.

        ``deadline_s`` (from now), ``collective``, ``round`` and ``lease_s`` as in the API. Its
        ``state`` is ``granted`` or ``waiting``.
        """
        body = {"source": source, "destination": destination, "bytes": nbytes}
        return self._call("POST", "/paths", body | options)

    def path(self, number: int, wait_s: float = 0.0) -> PathShape:
        """One path; one that waits, once it waits no more, or after ``wait_s`` (30 at most)."""
        return self._call("GET", f"/paths/{number}", wait_s=wait_s)

    def release_path(self, number: int) -> PathShape:
        """Give a path back, or leave off waiting."""
        return self._call("DELETE", f"/paths/{number}")

    # -- samples ---------------------------------------------------------------------------

    def ports(self, since: float = 0.0) -> list[PortSample]:
        """Samples of each host's rates after Unix time ``since``, in bits per second."""
        return self._call("GET", "/ports", since=since)["ports"]

    def samples(
        self,
        since: float = 0.0,
        until: float | None = None,
        points: int = 300,
        jobs: Sequence[str] | None = None,
    ) -> Samples:
        """What was sampled in any period that the lab keeps, by job and of the whole ``lab``.

        It is thinned to some ``points`` windows; with ``jobs``, of these alone, which may be none.
        """
        asked: dict[str, Any] = {"points": points, "since": since, "until": until}
        asked["job"] = None if jobs is None else list(jobs) or [""]
        given = {name: value for name, value in asked.items() if value is not None}
        return self._call("GET", "/samples", **given)

    def gpus(self, since: float = 0.0) -> list[GpuSample]:
        """Samples of each GPU's utilisation after Unix time ``since``."""
        return self._call("GET", "/gpus", since=since)["gpus"]

    # -- events ----------------------------------------------------------------------------

    def events(self, after: int = 0) -> list[Answer]:
        """What happened, after event number ``after``."""
        return self._call("GET", "/events", after=after)["events"]

    def past_events(
        self,
        since: float,
        until: float,
        *,
        last: int = PAGE,
        before: int | None = None,
        kinds: Sequence[str] = (),
    ) -> list[Answer]:
        """The ``last`` events between these times, oldest first: of these ``kinds``, if any.

        With ``before``, of those with lower numbers.
        """
        wanted: dict[str, Any] = {"kind": list(kinds)} if kinds else {}
        wanted |= {} if before is None else {"before": before}
        asked = self._call("GET", "/events", last=last, since=since, until=until, **wanted)
        return list((asked)["events"])

    def last_event(self) -> int:
        """The number of the latest event."""
        return int((self._call("GET", "/events", after=(1 << 63) - 1))["last"])

    def follow_events(self, after: int | None = None) -> Iterator[Answer]:
        """What happens, without an end: after event number ``after``, or from now on.

        A connection that breaks is made again, and goes on where the other ended; one of kind
        ``skipped`` says which are not kept any more (``first`` to ``last``). ``ControllerError``
        if no controller answers for half a minute.
        """
        seen = self.last_event() if after is None else after
        answered_at = time.monotonic()
        while True:
            try:
                with self._stream("/events", after=seen) as lines:
                    for line in lines:
                        answered_at = time.monotonic()
                        if line.startswith("data: "):
                            event: Answer = json.loads(line.removeprefix("data: "))
                            seen = event.get("number", seen)
                            yield event
            except httpx.HTTPError:
                if time.monotonic() - answered_at > _PATIENCE_S:
                    self.last_event()  # says what is wrong
            time.sleep(_PAUSE_S)


def _job_path(job_id: str) -> str:
    if not job_id.isprintable() or job_id in ("", ".", ".."):
        raise BadInput(f"{job_id!r} is no job's id: 'patchlight job list' shows them")
    return f"/jobs/{quote(job_id, safe='')}"
