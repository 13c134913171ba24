"""Routes for jobs, and for the policies that decide about them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Le
from fastapi import APIRouter, Path, Response
from pydantic_core import to_json

from patchlight.controller.api.caller import (
    UNKNOWN,
    Caller,
    NotAllowed,
    Operator,
    Submitter,
    User,
)
from patchlight.controller.api.circuits import started
from patchlight.controller.api.openapi import DATA, JsonAnswer, changing
from patchlight.controller.changes.service import begun, ended
from patchlight.controller.hosts.agent_client import NotOnServer
from patchlight.controller.jobs.rewiring import record_of
from patchlight.controller.policies.registry import is_built_in
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.jobs import JobStatus
from patchlight.testbed.lab.rules import KINDS, PolicyChoice, Role
from patchlight.testbed.wire.rest import jobs as rest
from patchlight.testbed.wire.rest import requests
from patchlight.testbed.wire.rest.circuits import ChangeAnswer
from patchlight.testbed.wire.worker_api import WorkdirAnswer, WorkdirPart

if TYPE_CHECKING:
    from patchlight.controller.jobs.job_table import JobTable
    from patchlight.controller.jobs.running_job import RunningJob
    from patchlight.controller.jobs.scheduler import Scheduler
    from patchlight.controller.parts import Controller


_MOST_REPORTS = 5000
# A UTF-8 character has at most four bytes; agents return at most a MiB.
LogBytes = Annotated[int, Ge(4), Le(1 << 20)]


def job_routes(controller: Controller) -> APIRouter:
    """Routes for the jobs of one lab."""
    routes = APIRouter(
        prefix="/v1",
        tags=["jobs"],
    )
    _look(routes, controller)
    _change(routes, controller)
    return routes


def _look(routes: APIRouter, controller: Controller) -> None:
    scheduler = controller.scheduler
    table = controller.jobs

    @routes.get("/jobs", response_model=rest.Jobs, **DATA)
    async def jobs(
        last: requests.PageLength = requests.PAGE,
        after: str | None = None,
        state: requests.Text = "",
        user: requests.Text = "",
        name: requests.Text = "",
        meant: requests.Text | None = None,
        since: requests.Moment | None = None,
        until: requests.Moment = requests.LATEST,
    ) -> Response:
        """The last jobs, or the first ones after a job: of a ``state``, ``user`` or ``name``.

        With ``since``: of those that waited or ran between then and ``until``. With ``meant``:
        those that the text may mean, latest first.
        """
        if meant is not None:
            found = table.meant(meant)
        else:
            period = None if since is None else (since, until)
            found = table.page(
                last,
                after,
                period,
                state=state,
                owner=user,
                name=name,
            )
        return _listed(found, scheduler, table)

    @routes.get("/jobs/{job_id}", **DATA)
    async def job(job_id: str) -> rest.JobAnswer:
        status = scheduler.job(job_id)
        predicted = scheduler.forecasts.shown([status]).get(job_id, {})
        kept, made = table.ledger.report_counts(job_id)
        answer = rest.JobAnswer(
            **status.as_record,
            **predicted,
            **scheduler.gains.shown(status),
            holds_by=_holds_by(table.running.get(job_id)),
            workers_run_as=_kinds_of_workers(controller, status),
            reports_kept=kept,
            reports_made=made,
        )
        if status.spec.is_split and status.hosts and not status.state.is_final:
            answer.rigid_because = scheduler.why_rigid(job_id)
        return answer

    @routes.get(
        "/jobs/{job_id}/iterations",
        response_model=rest.Iterations,
        **DATA,
    )
    async def iterations(
        job_id: str,
        after: requests.Number = 0,
        latest: requests.PageLength | None = None,
    ) -> Response:
        if latest is not None:
            found = table.ledger.latest_iterations(table[job_id].id, latest)
            last = table.ledger.reported(job_id)
        else:
            found, last = table.ledger.iterations(
                table[job_id].id, after, _MOST_REPORTS
            )
        # As stored, also by older versions; thousands of models would take five times as long.
        return JsonAnswer({"iterations": found, "next": last})

    @routes.get("/jobs/{job_id}/history", **DATA)
    async def history(job_id: str) -> rest.JobHistory:
        states = table.ledger.history(table[job_id].id)
        return rest.JobHistory(states=[rest.StateOfJob(**s) for s in states])

    @routes.get("/jobs/{job_id}/decisions", **DATA)
    async def decisions(job_id: str) -> rest.Decisions:
        found = table.ledger.decisions(table[job_id].id)
        made = rest.DecisionShape.model_construct
        return rest.Decisions(decisions=[made(**row) for row in found])

    @routes.get("/jobs/{job_id}/log", **DATA)
    async def log(
        job_id: str,
        worker: requests.Number = 0,
        after: requests.Number = 0,
        limit: LogBytes = 1 << 16,
    ) -> rest.LogPartShape:
        status = table[job_id]
        running = table.running.get(job_id)
        count = len(running.workers) if running else len(status.hosts)
        if count and worker >= count:
            raise BadInput(
                f"job {job_id} has no worker {worker}: expected 0 to {count - 1}"
            )
        if running is not None and running.workers:
            asked = running.workers[worker]
            # A worker that does not exist now has only stored output, if any.
            with contextlib.suppress(NotOnServer):
                part = await asked.agent.log(asked.spec.id, after, limit)
                return rest.LogPartShape(
                    text=part.text,
                    next=part.next,
                    ended=False,
                )
        ended = status.state.is_final
        if (
            ended
            and table.outputs
            and (
                kept := table.outputs.read(
                    job_id,
                    worker,
                    after,
                    limit,
                )
            )
        ):
            return rest.LogPartShape(
                text=kept.text,
                next=kept.next,
                ended=True,
            )
        # At least the last lines, if the job's output could not be stored.
        text = (
            ""
            if after or worker
            else "".join(f"{line}\n" for line in status.last_lines)
        )
        return rest.LogPartShape(
            text=text,
            next=len(text.encode()),
            ended=ended,
        )


def _listed(
    statuses: Sequence[JobStatus],
    scheduler: Scheduler,
    table: JobTable,
) -> Response:
    predicted = scheduler.forecasts.shown(statuses)
    more = {
        s.id: {"message": scheduler.message(s), **predicted.get(s.id, {})}
        for s in statuses
    }
    try:  # text is returned directly: a thousand jobs as records take several times as long
        rows = [
            b"%b,%b" % (table.text(s)[:-1], to_json(more[s.id])[1:])
            for s in statuses
        ]
        return Response(
            b'{"jobs":[%b]}' % b",".join(rows), media_type="application/json"
        )
    except ValueError:  # lone surrogates
        return JsonAnswer(
            {"jobs": [{**s.as_record, **more[s.id]} for s in statuses]}
        )


def _kinds_of_workers(controller: Controller, status: JobStatus) -> list[str]:
    lab = controller.lab
    known = {host.name: host.server.name for host in lab.hosts}
    servers = {known[name] for name in status.hosts if name in known}
    kinds = map(controller.fleet.kind_of_workers, servers)
    return sorted(set(filter(None, kinds)))


def _holds_by(running: RunningJob | None) -> list[rest.HeldBy | None]:
    if running is None:
        return []
    own = running.spec.trainer != "command"
    return [
        "iteration" if own else worker.status.holds_by
        for worker in running.workers
    ]


def _may_force(caller: Caller, force: bool) -> None:
    if force and caller.role < Role.OPERATOR:
        raise NotAllowed(
            f"{caller.by or UNKNOWN} is not an operator, and may stop and restart only their own "
            f"jobs",
            hint="omit --force, or ask an operator",
        )


def _change(routes: APIRouter, controller: Controller) -> None:
    scheduler = controller.scheduler
    light = controller.scheduler.rewiring

    @routes.post(
        "/jobs",
        status_code=201,
        response_model=rest.Submitted,
        responses={
            200: {
                "model": rest.Previews,
                "description": "The requested data.",
            }
        },
        **DATA,
    )
    async def submit(
        request: requests.JobsRequest, caller: Submitter
    ) -> rest.Submitted | Response:
        """Queue jobs (201), or with ``dry_run`` only plan them (200), which a viewer may."""
        jobs = request.jobs
        topology = request.topology
        by = caller.by
        together = request.together
        plans: list[rest.Preview] = []
        # A plan that cannot be made is no reason not to queue them.
        tolerated = () if request.dry_run else (PatchlightError,)
        with contextlib.suppress(*tolerated):
            for gang in [jobs] if together else [[job] for job in jobs]:
                if request.dry_run or request.plan:
                    found = await scheduler.preview(gang, topology, by)
                    plans += [rest.Preview(**each) for each in found]
        if request.dry_run:
            return JsonAnswer(rest.Previews(jobs=plans).as_json)
        rows = [
            rest.SubmittedJob(**s.as_record)
            for s in scheduler.submit(
                jobs,
                topology,
                by,
                together=together,
            )
        ]
        for row, plan in zip(rows, plans, strict=False):
            row.plan = plan
        return rest.Submitted(jobs=rows)

    @routes.put("/workdirs/{digest}", **DATA)
    async def ship(
        digest: Annotated[str, Path(pattern="^[0-9a-f]{64}$")],
        part: WorkdirPart,
        caller: Submitter,
    ) -> WorkdirAnswer:
        """Store a part of the files that the caller's jobs will need."""
        add = controller.jobs.add_to_workdir
        return WorkdirAnswer(
            next=await asyncio.to_thread(add, caller.by, digest, part)
        )

    @routes.delete("/jobs/{job_id}", **DATA)
    async def stop(
        job_id: str,
        caller: User,
        force: bool = False,
    ) -> rest.JobInList:
        _may_force(caller, force)
        status = await scheduler.stop(job_id, caller.by, force=force)
        return rest.JobInList(**status.as_record)

    @routes.post("/jobs/{job_id}/restart", **DATA)
    async def restart(
        job_id: str,
        caller: User,
        force: bool = False,
    ) -> rest.JobInList:
        _may_force(caller, force)
        status = await scheduler.restart(job_id, caller.by, force=force)
        return rest.JobInList(**status.as_record)

    @routes.post("/regroup", **changing(ChangeAnswer))
    async def regroup(
        request: requests.RegroupRequest,
        caller: Operator,
        response: Response,
    ) -> ChangeAnswer | rest.RegroupPlan:
        if not request.dry_run:
            record = await light.regroup(
                request.jobs, caller, detach=caller.detaches
            )
            if not caller.detaches:
                return ended(record)
            started(record.id, response)
            return begun(record)
        plan, objections = await light.preview_regroup(request.jobs)
        makes = {
            ocs: [str(c) for c in change.makes]
            for ocs, change in plan.changes.items()
        }
        return rest.RegroupPlan(
            jobs=request.jobs,
            makes=makes,
            objections=objections,
            iterations_s=scheduler.gains.expected(plan.links_after),
        )

    @routes.get("/defragmentation", **DATA)
    async def proposal() -> rest.Defragmentation:
        found = await light.proposal()
        if found is None:
            return rest.Defragmentation(proposal=None)
        plan, _ = await light.preview_regroup(found.jobs)
        shape = rest.ProposalShape(
            **record_of(found),
            iterations_s=scheduler.gains.expected(plan.links_after),
        )
        return rest.Defragmentation(proposal=shape)

    @routes.post("/defragmentation", **changing(rest.Defragmented))
    async def defragment(
        caller: Operator, response: Response
    ) -> rest.Defragmented:
        change = await light.defragment(caller, detach=caller.detaches)
        if change is None:
            return rest.Defragmented(change=None)
        if not caller.detaches:
            return rest.Defragmented(change=ended(change))
        started(change.id, response)
        return rest.Defragmented(change=begun(change))

    @routes.get("/policies", **DATA)
    async def policies() -> rest.PoliciesAnswer:
        return rest.PoliciesAnswer(policies=scheduler.policies.words)

    @routes.put("/policies", **DATA)
    async def use(
        request: requests.PoliciesRequest, caller: Operator
    ) -> rest.PoliciesAnswer:
        said = request.model_dump(exclude_unset=True)
        files = [
            name
            for kind in KINDS
            if (name := said.get(kind)) and not is_built_in(name, kind)
        ]
        if files and caller.role < Role.ADMIN:
            raise NotAllowed(
                f"{files[0]!r} is a program that would run next to the controller, and you are "
                f"{caller.by or UNKNOWN}",
                hint="an admin can select it: sudo patchlight policy use …",
            )
        # A null in place of a policy explicitly selects none.
        said |= {
            kind: "" for kind in KINDS if kind in said and said[kind] is None
        }
        await scheduler.policies.use(PolicyChoice(**said))
        return rest.PoliciesAnswer(policies=scheduler.policies.words)

    @routes.post("/drain", **DATA)
    async def drain(
        request: requests.StopRequest, caller: Operator
    ) -> rest.Drained:
        return rest.Drained(ended=await scheduler.drain(request.why))

    @routes.delete("/drain", **DATA)
    async def resume(caller: Operator) -> rest.Resumed:
        scheduler.resume()
        return rest.Resumed(drained=False)
