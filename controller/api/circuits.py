"""Routes for circuits: read, change, follow, lock, save, stop."""

from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import PlainTextResponse

from patchlight.controller.api.caller import Operator, as_operator
from patchlight.controller.api.openapi import DATA, also, changing, in_one_pass
from patchlight.controller.changes.service import ChangeOrPlan, CircuitService
from patchlight.controller.jobs.claims import ClaimService
from patchlight.testbed.lab.topology import FORMATS, topology_of
from patchlight.testbed.wire.rest import requests
from patchlight.testbed.wire.rest.circuits import (
    Alarms,
    AllSavedMaps,
    Baselines,
    ChangeAnswer,
    Changes,
    CircuitSwitches,
    ClaimAnswer,
    ClaimsAnswer,
    DriftShape,
    LightAnswer,
    Locks,
    Named,
    OcsMap,
    SavedMaps,
    StopButton,
)
from patchlight.testbed.wire.rest.lab import LinksAnswer, TopologyShape

TopologyFormat = Literal["json", "slurm", "slurm-conf", "kueue"]
T = TypeVar("T")


def claim_routes(claims: ClaimService) -> APIRouter:
    """Routes for other schedulers' claims of circuits."""
    routes = APIRouter(
        prefix="/v1/claims",
        tags=["claims"],
    )

    @routes.get("", **DATA)
    async def every() -> ClaimsAnswer:
        return ClaimsAnswer(claims=claims.book.all())

    @routes.put("/{name}", **DATA)
    async def want(
        name: str,
        request: requests.ClaimRequest,
        who: Operator,
    ) -> ClaimAnswer:
        """Request circuits, or renew the claim of that name if it is the same."""
        return await claims.want(name, request, who)

    @routes.get("/{name}", **DATA)
    async def look(name: str, wait: requests.WaitSeconds = 0.0) -> ClaimAnswer:
        """One claim; with ``wait``, a waiting one after its turn or so many seconds."""
        return await claims.look(name, wait)

    @routes.delete("/{name}", **DATA)
    async def release(name: str, who: Operator) -> ClaimsAnswer:
        """End a claim; its circuits stay. Lists the claim, or none if there is none."""
        return ClaimsAnswer(claims=await claims.release(name, who))

    return routes


def circuit_routes(service: CircuitService) -> APIRouter:
    """Routes for the circuits of one lab."""
    routes = APIRouter(
        prefix="/v1",
        tags=["circuits"],
    )
    _look(routes, service)
    _change(routes, service)
    _follow(routes, service)
    _keep(routes, service)
    return routes


def _look(routes: APIRouter, service: CircuitService) -> None:
    parts = service.parts

    @routes.get("/links", **DATA)
    async def links() -> LinksAnswer:
        return await service.links()

    @routes.get("/circuit-switches", **DATA)
    async def circuit_switches() -> CircuitSwitches:
        return await service.switches()

    @routes.get("/circuits/{ocs}/light", **DATA)
    async def light(ocs: str) -> LightAnswer:
        return await service.light(ocs)

    @routes.get("/drift", **DATA)
    async def drift() -> DriftShape:
        return await service.drift()

    @routes.get(
        "/topology",
        response_model=TopologyShape,
        responses=also("text/plain"),
        **DATA,
    )
    async def topology(
        format: TopologyFormat = "json",
    ) -> TopologyShape | Response:
        found = topology_of(
            parts.lab, parts.maps.links(await parts.maps.read())
        )
        if format == "json":
            # LinksAnswer through unread switches are unknown, and omitted.
            return TopologyShape(
                **found.as_json,
                unread=parts.devices.unread,
            )
        return PlainTextResponse(FORMATS[format](found))

    @routes.get("/circuits", **DATA)
    async def circuits(response: Response) -> dict[str, OcsMap]:
        found = await service.circuits()
        # Clients can use it as ``planned_from``: the condition that maps are unchanged.
        if tag := service.tag():
            response.headers["ETag"] = f'"{tag}"'
        return found

    @routes.get("/alarms", **DATA)
    async def alarms(
        ocs: Annotated[list[str] | None, Query()] = None,
    ) -> Alarms:
        return await service.alarms(ocs or [])


def _change(routes: APIRouter, service: CircuitService) -> None:
    options = changing(ChangeAnswer)

    @routes.post("/reconfigurations", **options)
    async def reconfigure(
        request: requests.ReconfigurationRequest,
        who: Operator,
        response: Response,
    ) -> ChangeOrPlan:
        return _found(await service.reconfigure(request, who), response)

    @routes.post("/reconfigurations/{number}/rollback", **options)
    async def roll_back(
        number: requests.Number,
        request: requests.ChangeRequest,
        who: Operator,
        response: Response,
    ) -> ChangeOrPlan:
        return _found(await service.roll_back(number, request, who), response)

    @routes.post("/together", **options)
    async def together(
        request: requests.TogetherRequest,
        who: Operator,
        response: Response,
    ) -> ChangeOrPlan:
        return _found(await service.together(request, who), response)

    @routes.post("/light-paths", **options)
    async def light_paths(
        request: requests.LightRequest,
        who: Operator,
        response: Response,
    ) -> ChangeOrPlan:
        return _found(await service.light_paths(request, who), response)

    @routes.post("/maps/{name}/restore", **options)
    async def restore(
        name: str,
        request: requests.ChangeRequest,
        who: Operator,
        response: Response,
    ) -> ChangeOrPlan:
        return _found(await service.restore(name, request, who), response)

    @routes.post("/drift/repair", **options)
    async def repair(
        request: requests.RepairRequest,
        who: Operator,
        response: Response,
    ) -> ChangeOrPlan:
        return _found(await service.repair(request, who), response)

    @routes.post("/drift/adopt", **options)
    async def adopt(
        request: requests.PresentMapsRequest,
        who: Operator,
        response: Response,
    ) -> ChangeOrPlan:
        return _found(await service.adopt(request, who), response)


def _found(answer: ChangeOrPlan, response: Response) -> ChangeOrPlan:
    """A plan with its tag, a change in progress with its location, or a finished one."""
    if answer.state == "planned":
        response.headers["ETag"] = f'"{answer.planned_from}"'
    elif answer.state == "intent":
        started(answer.id, response)
    return answer


def started(change: int, response: Response) -> None:
    """Say where a caller who does not wait for a change finds its progress."""
    response.status_code = 202
    response.headers["Location"] = f"/v1/reconfigurations/{change}"
    response.headers["Preference-Applied"] = "respond-async"


def _follow(routes: APIRouter, service: CircuitService) -> None:
    @routes.get("/reconfigurations", response_model=Changes, **DATA)
    async def reconfigurations(
        last: requests.PageLength = requests.PAGE,
        after: requests.Number | None = None,
        since: requests.Moment | None = None,
        until: requests.Moment = requests.LATEST,
        before: requests.Number = requests.NO_NUMBER,
    ) -> Response:
        """The last changes, or the first ones after a number.

        With ``since``: the last of those that began between then and ``until``, before a number.
        """
        found = await service.changes(
            last,
            after,
            since,
            until,
            before,
        )
        return in_one_pass(found)

    @routes.get("/reconfigurations/{number}", **DATA)
    async def reconfiguration(
        number: requests.Number,
        step: requests.Number = 0,
        wait_s: requests.WaitSeconds = 0.0,
    ) -> ChangeAnswer:
        """One change; with its ``progress`` while it runs, once that is beyond ``step``, or after
        ``wait_s``."""
        return await service.change(number, step, wait_s)

    @routes.post("/reconfigurations/{number}/cancel", **DATA)
    async def cancel(
        number: requests.Number,
        request: requests.StopRequest,
        caller: Operator,
    ) -> ChangeAnswer:
        """Stop a change before its next step, and undo what it did; this takes a moment.

        409 for a change that is committed, or about to be. A failed one stays unchanged.
        """
        return await service.cancel(number, request, caller)


def _keep(routes: APIRouter, service: CircuitService) -> None:
    @routes.post("/baselines", **DATA)
    async def accept(
        request: requests.BaselinesRequest, who: Operator
    ) -> Baselines:
        return await service.accept_power(request, who)

    @routes.get("/maps", **DATA)
    async def maps() -> AllSavedMaps:
        return await service.saved_maps()

    @routes.put("/maps/{name}", **DATA)
    async def save(
        name: str,
        request: requests.PresentMapsRequest,
        who: Operator,
    ) -> SavedMaps:
        return await service.save(name, request, who)

    @routes.delete("/maps/{name}", dependencies=[Depends(as_operator)], **DATA)
    async def forget(name: str) -> Named:
        return await service.forget(name)

    @routes.get("/locks", **DATA)
    async def locks() -> Locks:
        return await service.locks()

    @routes.post("/locks", **DATA)
    async def lock(request: requests.LockRequest, who: Operator) -> Locks:
        return await service.lock(request, who)

    @routes.post("/locks/release", **DATA)
    async def unlock(request: requests.UnlockRequest, who: Operator) -> Locks:
        return await service.unlock(request, who)

    @routes.get("/stop", **DATA)
    async def stopped() -> StopButton:
        return await service.stop_button()

    @routes.post("/stop", **DATA)
    async def press(
        request: requests.StopRequest, who: Operator
    ) -> StopButton:
        return await service.press_stop(request, who)

    @routes.post("/stop/clear", **DATA)
    async def clear(
        request: requests.StopRequest, who: Operator
    ) -> StopButton:
        return await service.clear_stop(request, who)
