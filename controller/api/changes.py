"""The routes on changes of circuits: planning, making, following, halting and undoing them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter

from patchlight.controller.api import models
from patchlight.controller.api.answers import Answered
from patchlight.controller.api.caller import Caller, Operator
from patchlight.controller.api.describing import begins, gives
from patchlight.controller.changes.colocate import bringing_together
from patchlight.controller.changes.device_maps import Decide
from patchlight.controller.changes.operations import CircuitOperations
from patchlight.controller.changes.optical_paths import lighting
from patchlight.controller.changes.planning import Plan, wanted_maps
from patchlight.controller.changes.record import (
    Reconfiguration,
    change_as_texts,
    fingerprint,
    to_row,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.labmaps import parse_map
from patchlight.testbed.lab.portmap import AnyMap
from patchlight.testbed.wire.rest import changes as shapes

Answer = dict[str, Any]

_begins = begins(shapes.Change, shapes.Plan)


def change_routes(operations: CircuitOperations) -> APIRouter:
    """The routes on changes of the circuits of one lab."""
    routes = APIRouter(prefix="/v1", tags=["circuits"])
    parts, transactions = operations.parts, operations.transactions

    @routes.post("/reconfigurations", **_begins)
    async def reconfigure(request: models.ReconfigurationRequest, caller: Operator) -> Any:
        lab = parts.lab
        asked = {n: parse_map(lab.optical_switch(n), texts) for n, texts in request.maps.items()}
        dropped = {n: operations.places(n, given) for n, given in request.disconnect.items()}

        def decide(maps: Mapping[str, AnyMap]) -> dict[str, AnyMap]:
            return wanted_maps(lab, maps, asked, dropped, only=request.only)

        return await _run(operations, decide, request, caller, asked)

    @routes.get("/reconfigurations", **gives(shapes.Changes))
    async def reconfigurations(
        last: models.PageLength = models.PAGE,
        after: models.Number | None = None,
        since: models.Moment | None = None,
        until: models.Moment = models.LATEST,
        before: models.Number = models.NO_NUMBER,
    ) -> Answer:
        """The last changes, or the first so many after a number.

        With ``since``: the last of those that began between then and ``until``, before a number.
        """
        if since is None:
            rows = parts.store.reconfigurations(last, after)
        else:
            rows = parts.store.past_reconfigurations((since, until), last, before)
        return {"reconfigurations": _as_known(rows)}

    def _as_known(rows: list[Answer]) -> list[Answer]:
        """With the progress of those under way, and which change undid the others."""
        undone = parts.store.undone_by(min((row["id"] for row in rows), default=0))
        known = []
        for row in rows:
            record = transactions.under_way(row["id"]) if row["state"] == "intent" else None
            by = {"undone_by": undone[row["id"]]} if row["id"] in undone else {}
            known.append({**row, **by} if record is None else _as_it_is(record))
        return known

    def _change(number: int) -> Answer:
        record = parts.store.reconfiguration(number)
        if record is None:
            raise BadInput(f"there is no change {number}: 'patchlight ocs history' shows them")
        return _as_known([record])[0]

    @routes.get("/reconfigurations/{number}", **gives(shapes.Change))
    async def reconfiguration(
        number: models.Number, step: models.Number = 0, wait_s: models.WaitSeconds = 0.0
    ) -> Answer:
        """One change; one under way with its ``progress``, once that is beyond ``step``, or
        after ``wait_s``."""
        record = transactions.under_way(number)
        if record is not None and wait_s:
            await record.progress.news.after(step, wait_s)
        return _change(number)

    @routes.post("/reconfigurations/{number}/cancel", **gives(shapes.Change))
    async def cancel(
        number: models.Number, request: models.StopRequest, caller: Operator
    ) -> Answer:
        """Halt a change before its next step, and undo what it did; it ends a moment later.

        409 for one that is committed, or about to be. One that came to nothing is as it is.
        """
        found = _change(number)
        if found["state"] in ("intent", "committed"):
            transactions.cancel(number, caller.by, request.why)
        return _change(number)

    @routes.post("/reconfigurations/{number}/rollback", **_begins)
    async def roll_back(
        number: models.Number, request: models.ChangeRequest, caller: Operator
    ) -> Any:
        decide, adopts = operations.undoing(number)
        why = f"undoes change {number}"
        return await _run(operations, decide, request, caller, adopts, why=why, reverts=number)

    @routes.post("/together", **_begins)
    async def together(request: models.TogetherRequest, caller: Operator) -> Any:
        decide = await bringing_together(parts, request.nodes, request.force)
        spared = request.model_copy(update={"spare_jobs": request.spare_jobs or not request.force})
        why = f"brings together {', '.join(request.nodes)}"
        return await _run(operations, decide, spared, caller, {}, why=why)

    @routes.post("/light-paths", **_begins)
    async def light_paths(request: models.LightRequest, caller: Operator) -> Any:
        pairs = [(one, other) for one, other in request.pairs]
        decide = await lighting(parts, pairs)
        why = f"lights {', '.join(f'{one}:{other}' for one, other in pairs)}"
        return await _run(operations, decide, request, caller, {}, why=why)

    @routes.post("/maps/{name}/restore", **_begins)
    async def restore(name: str, request: models.ChangeRequest, caller: Operator) -> Any:
        saved = operations.saved(name)
        return await _run(
            operations, lambda _: saved, request, caller, saved, why=f"restores {name}"
        )

    @routes.post("/drift/repair", **_begins)
    async def repair(request: models.RepairRequest, caller: Operator) -> Any:
        committed = operations.repairing(request.ocs)
        return await _run(
            operations, lambda _: committed, request, caller, committed, why="repairs drift"
        )

    @routes.post("/drift/adopt", **_begins)
    async def adopt(request: models.PresentMapsRequest, caller: Operator) -> Any:
        maps = await parts.maps.read()
        adopts = {name: maps[name] for name in operations.named(request.ocs)}
        asked = models.ChangeRequest(why=request.why)
        return await _run(operations, lambda _: {}, asked, caller, adopts, why="adopts drift")

    return routes


async def _run(
    operations: CircuitOperations,
    decide: Decide,
    request: models.ChangeRequest,
    caller: Caller,
    adopts: Mapping[str, AnyMap],
    *,
    why: str = "",
    reverts: int | None = None,
) -> Any:
    shown, spare_jobs = request.planned_from or caller.planned_from, request.spare_jobs
    options = replace(
        caller, spare_jobs=spare_jobs, planned_from=shown, adopts=adopts, reverts=reverts
    )
    if request.dry_run:
        plan, objections = await operations.transactions.preview(decide, options)
        parts = operations.parts
        jobs, committed = parts.traffic.jobs_using(plan.moved), parts.committed.maps
        planned = _plan_as_json(plan, objections, jobs, committed)
        return Answered(planned, headers={"ETag": f'"{planned["planned_from"]}"'})
    why = ": ".join(filter(None, (why, request.why))) or "asked by the user"
    if not caller.detaches:
        return to_row(await operations.transactions.change(decide, why, options))
    record = await operations.transactions.begin(decide, why, options)
    return begun(record)


def begun(record: Reconfiguration, within: str = "") -> Answered:
    """The answer to who does not wait for a change, which may stand ``within`` a field of it."""
    at = {"Location": f"/v1/reconfigurations/{record.id}", "Preference-Applied": "respond-async"}
    row = _as_it_is(record)
    return Answered({within: row} if within else row, 202, headers=at)


def _as_it_is(record: Reconfiguration) -> Answer:
    """A change under way: it is an intent until its end is in the journal."""
    return {**to_row(record), "state": "intent", "progress": record.progress.as_json}


def _plan_as_json(
    plan: Plan, objections: list[str], jobs: list[str], committed: Mapping[str, AnyMap]
) -> Answer:
    before, after = set(plan.links_before.pairs()), set(plan.links_after.pairs())
    return {
        "state": "planned",
        "changes": {name: change_as_texts(change) for name, change in plan.changes.items()},
        "links_down": [f"{a}:{b}" for a, b in sorted(before - after)],
        "links_up": [f"{a}:{b}" for a, b in sorted(after - before)],
        "jobs": jobs,
        # Cross-connects that would break and that no change of ours made: somebody else's.
        "strangers": {
            name: theirs
            for name, change in plan.changes.items()
            if (theirs := [str(c) for c in change.breaks if c not in committed.get(name, (c,))])
        },
        # Cross-connects that go without another in their place.
        "lost": {
            name: len(change.breaks) - len(change.makes)
            for name, change in plan.changes.items()
            if len(change.breaks) > len(change.makes)
        },
        "cleared": [n for n in plan.changes if plan.before[n] and not len(plan.wanted[n])],
        "objections": objections,
        "planned_from": fingerprint(plan.before),
    }
