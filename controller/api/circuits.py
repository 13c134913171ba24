"""The routes on circuits: looking, changing, following, locking, saving maps, stopping."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse

from patchlight.controller.api.caller import Operator
from patchlight.controller.api.openapi import JsonAnswer, begins, gives
from patchlight.controller.changes import requests
from patchlight.controller.changes.operations import CircuitOperations
from patchlight.controller.changes.service import CircuitService
from patchlight.testbed.lab.topology import FORMATS, topology_of
from patchlight.testbed.wire.rest import circuits as change_shapes
from patchlight.testbed.wire.rest import circuits as shapes
from patchlight.testbed.wire.rest.lab import Links, TopologyShape

Answer = dict[str, Any]

_begins = begins(change_shapes.Change, change_shapes.Plan)

TopologyFormat = Literal["json", "slurm", "slurm-conf", "kueue"]


def circuit_routes(operations: CircuitOperations) -> APIRouter:
    """The routes on the circuits of one lab."""
    routes = APIRouter(prefix="/v1", tags=["circuits"])
    service = CircuitService(operations)
    _look(routes, service, operations)
    _operate(routes, service)
    _change(routes, service)
    return routes


def begun(row: Answer, within: str = "") -> JsonAnswer:
    """The answer to who does not wait for a change, which may stand ``within`` a field of it."""
    at = {"Location": f"/v1/reconfigurations/{row['id']}", "Preference-Applied": "respond-async"}
    return JsonAnswer({within: row} if within else row, 202, headers=at)


def _told(row: Answer) -> Any:
    """A plan with its tag, a change under way with its place, or one that is over."""
    if row["state"] == "planned":
        return JsonAnswer(row, headers={"ETag": f'"{row["planned_from"]}"'})
    return begun(row) if row["state"] == "intent" else row


def _look(routes: APIRouter, service: CircuitService, operations: CircuitOperations) -> None:
    parts = operations.parts

    @routes.get("/links", **gives(Links))
    async def links() -> Answer:
        return await service.links()

    @routes.get("/topology", **gives(TopologyShape, also="text/plain"))
    async def topology(format: TopologyFormat = "json") -> Any:
        found = topology_of(parts.lab, parts.maps.links(await parts.maps.read()))
        if format == "json":
            # Links through these are not known; they are left out.
            return {**found.as_json, "unread": parts.devices.unread}
        return PlainTextResponse(FORMATS[format](found))

    @routes.get("/circuits", **gives(dict[str, shapes.OcsMap]))
    async def circuits() -> Any:
        found, tag = await service.circuits(), service.tag()
        # As a plan's ``planned_from``: who plans by these maps can have them be the condition.
        return JsonAnswer(found, headers={"ETag": f'"{tag}"'} if tag else None)

    @routes.get("/circuit-switches", **gives(shapes.CircuitSwitches))
    async def circuit_switches() -> Answer:
        return await service.switches()

    @routes.get("/circuits/{ocs}/light", **gives(shapes.Light))
    async def light(ocs: str) -> Answer:
        return await service.light(ocs)

    @routes.get("/alarms", **gives(shapes.Alarms))
    async def alarms(ocs: Annotated[list[str] | None, Query()] = None) -> Answer:
        return await service.alarms(ocs or [])

    @routes.get("/drift", **gives(shapes.DriftShape))
    async def drift() -> Answer:
        return await service.drift()


def _operate(routes: APIRouter, service: CircuitService) -> None:
    @routes.post("/baselines", **gives(shapes.Baselines))
    async def accept(request: requests.BaselinesRequest, caller: Operator) -> Answer:
        return await service.accept_power(request, caller)

    @routes.get("/maps", **gives(shapes.AllSavedMaps))
    async def maps() -> Answer:
        return await service.saved_maps()

    @routes.put("/maps/{name}", **gives(shapes.SavedMaps))
    async def save(name: str, request: requests.PresentMapsRequest, caller: Operator) -> Answer:
        return await service.save(name, request, caller)

    @routes.delete("/maps/{name}", **gives(shapes.Named))
    async def forget(name: str, caller: Operator) -> Answer:
        return await service.forget(name)

    @routes.get("/locks", **gives(shapes.Locks))
    async def locks() -> Answer:
        return await service.locks()

    @routes.post("/locks", **gives(shapes.Locks))
    async def lock(request: requests.LockRequest, caller: Operator) -> Answer:
        return await service.lock(request, caller)

    @routes.post("/locks/release", **gives(shapes.Locks))
    async def unlock(request: requests.UnlockRequest, caller: Operator) -> Answer:
        return await service.unlock(request, caller)

    @routes.get("/stop", **gives(shapes.StopButton))
    async def stopped() -> Answer:
        return await service.stop_button()

    @routes.post("/stop", **gives(shapes.StopButton))
    async def press(request: requests.StopRequest, caller: Operator) -> Answer:
        return await service.press_stop(request, caller)

    @routes.post("/stop/clear", **gives(shapes.StopButton))
    async def clear(request: requests.StopRequest, caller: Operator) -> Answer:
        return await service.clear_stop(request, caller)


def _change(routes: APIRouter, service: CircuitService) -> None:
    @routes.post("/reconfigurations", **_begins)
    async def reconfigure(request: requests.ReconfigurationRequest, caller: Operator) -> Any:
        return _told(await service.reconfigure(request, caller))

    @routes.get("/reconfigurations", **gives(change_shapes.Changes))
    async def reconfigurations(
        last: requests.PageLength = requests.PAGE,
        after: requests.Number | None = None,
        since: requests.Moment | None = None,
        until: requests.Moment = requests.LATEST,
        before: requests.Number = requests.NO_NUMBER,
    ) -> Answer:
        """The last changes, or the first so many after a number.

        With ``since``: the last of those that began between then and ``until``, before a number.
        """
        return await service.changes(last, after, since, until, before)

    @routes.get("/reconfigurations/{number}", **gives(change_shapes.Change))
    async def reconfiguration(
        number: requests.Number, step: requests.Number = 0, wait_s: requests.WaitSeconds = 0.0
    ) -> Answer:
        """One change; one under way with its ``progress``, once that is beyond ``step``, or
        after ``wait_s``."""
        return await service.change(number, step, wait_s)

    @routes.post("/reconfigurations/{number}/cancel", **gives(change_shapes.Change))
    async def cancel(
        number: requests.Number, request: requests.StopRequest, caller: Operator
    ) -> Answer:
        """Halt a change before its next step, and undo what it did; it ends a moment later.

        409 for one that is committed, or about to be. One that came to nothing is as it is.
        """
        return await service.cancel(number, request, caller)

    @routes.post("/reconfigurations/{number}/rollback", **_begins)
    async def roll_back(
        number: requests.Number, request: requests.ChangeRequest, caller: Operator
    ) -> Any:
        return _told(await service.roll_back(number, request, caller))

    @routes.post("/together", **_begins)
    async def together(request: requests.TogetherRequest, caller: Operator) -> Any:
        return _told(await service.together(request, caller))

    @routes.post("/light-paths", **_begins)
    async def light_paths(request: requests.LightRequest, caller: Operator) -> Any:
        return _told(await service.light_paths(request, caller))

    @routes.post("/maps/{name}/restore", **_begins)
    async def restore(name: str, request: requests.ChangeRequest, caller: Operator) -> Any:
        return _told(await service.restore(name, request, caller))

    @routes.post("/drift/repair", **_begins)
    async def repair(request: requests.RepairRequest, caller: Operator) -> Any:
        return _told(await service.repair(request, caller))

    @routes.post("/drift/adopt", **_begins)
    async def adopt(request: requests.PresentMapsRequest, caller: Operator) -> Any:
        return _told(await service.adopt(request, caller))
