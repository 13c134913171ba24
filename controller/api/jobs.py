"""Routes for jobs, and for the policies that decide about them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le
from fastapi import APIRouter, Response
from pydantic import field_validator
from pydantic_core import to_json

from patchlight.controller.api.caller import (
    UNKNOWN,
    Caller,
    NotAllowed,
    Operator,
    Submitter,
    User,
)
from patchlight.controller.api.circuits import begun
from patchlight.controller.api.openapi import JsonAnswer, begins, gives
from patchlight.controller.hosts.agent_client import NotOnServer
from patchlight.controller.jobs.rewiring import record_of
from patchlight.controller.policies.registry import is_built_in
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.jobs import JobSpec, JobStatus, checked_specs
from patchlight.testbed.lab.rules import KINDS, PolicyChoice, Role
from patchlight.testbed.wire.rest import jobs as shapes
from patchlight.testbed.wire.rest import requests
from patchlight.testbed.wire.rest.circuits import ChangeAnswer

if TYPE_CHECKING:
    from patchlight.controller.jobs.job_table import JobTable
    from patchlight.controller.jobs.running_job import RunningJob
    from patchlight.controller.jobs.scheduler import Scheduler
    from patchlight.controller.parts import Controller


Answer = dict[str, Any]

_MOST_REPORTS = 5000
# A UTF-8 character has at most four bytes; agents return at most a MiB.
LogBytes = Annotated[int, Ge(4), Le(1 << 20)]


class JobsRequest(requests.Strict):
    """Jobs that start ``together``, or each alone, and whether they are regrouped first.

    Without ``topology`` the jobs' or the lab's policy decides. ``plan``: also report where and when
    they would start now; ``dry_run``: report only that, and queue nothing.
    """

    jobs: list[JobSpec]
    topology: Literal["keep", "regroup"] | None = None
    together: bool = True
    plan: bool = False
    dry_run: bool = False

    @field_validator("jobs", mode="before")
    @classmethod
    def _checked(cls, jobs: object) -> list[JobSpec]:
        # Raises a Patchlight error instead of pydantic's.
        return checked_specs(jobs)


class RegroupRequest(requests.Strict):
    """Running jobs, by id, each to be connected to one packet switch.

    ``dry_run``: report what would change, and change nothing.
    """

    jobs: requests.Names
    dry_run: bool = False


class PoliciesRequest(requests.Strict):
    """Policies to use from now on, by kind; ``defragment`` and ``interleave`` as in lab files.

    What is not named is unchanged.
    """

    placement: requests.Text = ""
    order: requests.Text = ""
    topology: requests.Text = ""
    partition: requests.Text | None = None
    elasticity: requests.Text = ""
    defragment: bool = False
    interleave: bool = False


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

    @routes.get("/jobs", **gives(shapes.Jobs))
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

    @routes.get("/jobs/{job_id}", **gives(shapes.JobAnswer))
    async def job(job_id: str) -> Answer:
        status = scheduler.job(job_id)
        predicted = scheduler.forecasts.shown([status]).get(job_id, {})
        holds_by = _holds_by(table.running.get(job_id))
        gains = scheduler.gains.shown(status)
        kept, made = table.ledger.report_counts(job_id)
        answer = {
            **status.as_record,
            **predicted,
            **gains,
            "holds_by": holds_by,
        }
        answer |= {"reports_kept": kept, "reports_made": made}
        if status.spec.is_split and status.hosts and not status.state.is_final:
            answer["rigid_because"] = scheduler.why_rigid(job_id)
        return answer

    @routes.get("/jobs/{job_id}/iterations", **gives(shapes.Iterations))
    async def iterations(
        job_id: str,
        after: requests.Number = 0,
        latest: requests.PageLength | None = None,
    ) -> Answer:
        if latest is not None:
            found = table.ledger.latest_iterations(table[job_id].id, latest)
            return {"iterations": found, "next": table.ledger.reported(job_id)}
        reports, last = table.ledger.iterations(
            table[job_id].id, after, _MOST_REPORTS
        )
        return {"iterations": reports, "next": last}

    @routes.get("/jobs/{job_id}/history", **gives(shapes.JobHistory))
    async def history(job_id: str) -> Answer:
        return {"states": table.ledger.history(table[job_id].id)}

    @routes.get("/jobs/{job_id}/decisions", **gives(shapes.Decisions))
    async def decisions(job_id: str) -> Answer:
        return {"decisions": table.ledger.decisions(table[job_id].id)}

    @routes.get("/jobs/{job_id}/log", **gives(shapes.LogPartShape))
    async def log(
        job_id: str,
        worker: requests.Number = 0,
        after: requests.Number = 0,
        limit: LogBytes = 1 << 16,
    ) -> Answer:
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
                return {"text": part.text, "next": part.next, "ended": False}
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
            return {"text": kept.text, "next": kept.next, "ended": True}
        # At least the last lines, if the job's output could not be stored.
        text = (
            ""
            if after or worker
            else "".join(f"{line}\n" for line in status.last_lines)
        )
        return {"text": text, "next": len(text.encode()), "ended": ended}


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


def _holds_by(running: RunningJob | None) -> list[str | None]:
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
            f"{caller.by or UNKNOWN} is not an operator, and may stop and restart only own jobs",
            hint="omit --force, or ask an operator",
        )


def _change(routes: APIRouter, controller: Controller) -> None:
    scheduler = controller.scheduler
    light = controller.scheduler.rewiring

    submits = gives(shapes.Submitted, 201)
    submits["responses"] |= gives(shapes.Previews)["responses"]

    @routes.post("/jobs", **submits)
    async def submit(request: JobsRequest, caller: Submitter) -> Any:
        """Queue jobs (201), or with ``dry_run`` only plan them (200), which a viewer may."""
        jobs = request.jobs
        topology = request.topology
        by = caller.by
        together = request.together
        plans: list[Answer] = []
        # A plan that cannot be made is no reason not to queue them.
        tolerated = () if request.dry_run else (PatchlightError,)
        with contextlib.suppress(*tolerated):
            for gang in [jobs] if together else [[job] for job in jobs]:
                if request.dry_run or request.plan:
                    plans += await scheduler.preview(gang, topology, by)
        if request.dry_run:
            return JsonAnswer({"jobs": plans})
        rows = [
            s.as_record
            for s in scheduler.submit(
                jobs,
                topology,
                by,
                together=together,
            )
        ]
        for row, plan in zip(rows, plans, strict=False):
            row["plan"] = plan
        return {"jobs": rows}

    @routes.delete("/jobs/{job_id}", **gives(shapes.JobInList))
    async def stop(
        job_id: str,
        caller: User,
        force: bool = False,
    ) -> Answer:
        _may_force(caller, force)
        return (await scheduler.stop(job_id, caller.by, force=force)).as_record

    @routes.post("/jobs/{job_id}/restart", **gives(shapes.JobInList))
    async def restart(
        job_id: str,
        caller: User,
        force: bool = False,
    ) -> Answer:
        _may_force(caller, force)
        return (
            await scheduler.restart(job_id, caller.by, force=force)
        ).as_record

    @routes.post("/regroup", **begins(ChangeAnswer, shapes.RegroupPlan))
    async def regroup(request: RegroupRequest, caller: Operator) -> Any:
        if not request.dry_run:
            record = await light.regroup(
                request.jobs, caller, detach=caller.detaches
            )
            return (
                begun(record.as_intent) if caller.detaches else record.as_row
            )
        plan, objections = await light.preview_regroup(request.jobs)
        makes = {
            ocs: [str(c) for c in change.makes]
            for ocs, change in plan.changes.items()
        }
        return {"jobs": request.jobs, "makes": makes, "objections": objections}

    @routes.get("/defragmentation", **gives(shapes.Defragmentation))
    async def proposal() -> Answer:
        found = await light.proposal()
        return {"proposal": None if found is None else record_of(found)}

    @routes.post("/defragmentation", **begins(shapes.Defragmented))
    async def defragment(caller: Operator) -> Any:
        change = await light.defragment(caller, detach=caller.detaches)
        if change is not None and caller.detaches:
            return begun(change.as_intent, within="change")
        return {"change": None if change is None else change.as_row}

    @routes.get("/policies", **gives(shapes.Policies))
    async def policies() -> Answer:
        return {"policies": scheduler.policies.words}

    @routes.put("/policies", **gives(shapes.Policies))
    async def use(request: PoliciesRequest, caller: Operator) -> Answer:
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
        return {"policies": scheduler.policies.words}

    @routes.post("/drain", **gives(shapes.Drained))
    async def drain(request: requests.StopRequest, caller: Operator) -> Answer:
        return {"ended": await scheduler.drain(request.why)}

    @routes.delete("/drain", **gives(shapes.Resumed))
    async def resume(caller: Operator) -> Answer:
        scheduler.resume()
        return {"drained": False}
