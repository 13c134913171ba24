"""Routes for circuits: read, change, follow, lock, save, stop."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from fastapi.responses import PlainTextResponse

from patchlight.controller.api.caller import Operator, as_operator
from patchlight.controller.api.openapi import JsonAnswer, begins, gives
from patchlight.controller.changes.service import CircuitService
from patchlight.testbed.lab.topology import FORMATS, topology_of
from patchlight.testbed.wire.rest import circuits as shapes
from patchlight.testbed.wire.rest import requests
from patchlight.testbed.wire.rest.lab import Links, TopologyShape

Answer = dict[str, Any]
TopologyFormat = Literal["json", "slurm", "slurm-conf", "kueue"]


def circuit_routes(service: CircuitService) -> APIRouter:
    """Routes for the circuits of one lab."""
    routes = APIRouter(
        prefix="/v1",
        tags=["circuits"],
    )

    def add(
        path: str,
        name: str,
        method: Callable[..., Awaitable[Answer]],
        options: Answer,
        answer: Callable[[Answer], Any] = lambda row: row,
    ) -> None:
        """A route answered by the service; changes need the role operator."""

        async def endpoint(**given: Any) -> Any:
            return answer(await method(**given))

        signature = inspect.signature(method)
        parameters = [
            p.replace(annotation=Operator) if p.name == "who" else p
            for p in signature.parameters.values()
        ]
        vars(endpoint)["__signature__"] = signature.replace(
            parameters=parameters
        )
        verb, _, template = path.partition(" ")
        needs = [] if verb == "GET" else [Depends(as_operator)]
        routes.add_api_route(
            template,
            endpoint,
            methods=[verb],
            name=name,
            dependencies=needs,
            **options,
        )

    add(
        "GET /links",
        "links",
        service.links,
        gives(Links),
    )
    add(
        "GET /circuit-switches",
        "circuit_switches",
        service.switches,
        gives(shapes.CircuitSwitches),
    )
    add(
        "GET /circuits/{ocs}/light",
        "light",
        service.light,
        gives(shapes.LightAnswer),
    )
    add(
        "GET /drift",
        "drift",
        service.drift,
        gives(shapes.DriftShape),
    )
    add(
        "POST /baselines",
        "accept",
        service.accept_power,
        gives(shapes.Baselines),
    )
    add(
        "GET /maps",
        "maps",
        service.saved_maps,
        gives(shapes.AllSavedMaps),
    )
    add(
        "PUT /maps/{name}",
        "save",
        service.save,
        gives(shapes.SavedMaps),
    )
    add(
        "DELETE /maps/{name}",
        "forget",
        service.forget,
        gives(shapes.Named),
    )
    add(
        "GET /locks",
        "locks",
        service.locks,
        gives(shapes.Locks),
    )
    add(
        "POST /locks",
        "lock",
        service.lock,
        gives(shapes.Locks),
    )
    add(
        "POST /locks/release",
        "unlock",
        service.unlock,
        gives(shapes.Locks),
    )
    add(
        "GET /stop",
        "stopped",
        service.stop_button,
        gives(shapes.StopButton),
    )
    add(
        "POST /stop",
        "press",
        service.press_stop,
        gives(shapes.StopButton),
    )
    add(
        "POST /stop/clear",
        "clear",
        service.clear_stop,
        gives(shapes.StopButton),
    )
    change = begins(shapes.ChangeAnswer, shapes.PlanAnswer)
    add(
        "POST /reconfigurations",
        "reconfigure",
        service.reconfigure,
        change,
        _change_answer,
    )
    add(
        "POST /reconfigurations/{number}/rollback",
        "roll_back",
        service.roll_back,
        change,
        _change_answer,
    )
    add(
        "POST /together",
        "together",
        service.together,
        change,
        _change_answer,
    )
    add(
        "POST /light-paths",
        "light_paths",
        service.light_paths,
        change,
        _change_answer,
    )
    add(
        "POST /maps/{name}/restore",
        "restore",
        service.restore,
        change,
        _change_answer,
    )
    add(
        "POST /drift/repair",
        "repair",
        service.repair,
        change,
        _change_answer,
    )
    add(
        "POST /drift/adopt",
        "adopt",
        service.adopt,
        change,
        _change_answer,
    )
    _add_described(routes, service)
    return routes


def _change_answer(row: Answer) -> Any:
    """A plan with its tag, a change in progress with its location, or a finished one."""
    if row["state"] == "planned":
        return JsonAnswer(row, headers={"ETag": f'"{row["planned_from"]}"'})
    return begun(row) if row["state"] == "intent" else row


def begun(row: Answer, within: str = "") -> JsonAnswer:
    """The response to a caller who does not wait for a change, which may be ``within`` a field."""
    at = {
        "Location": f"/v1/reconfigurations/{row['id']}",
        "Preference-Applied": "respond-async",
    }
    return JsonAnswer({within: row} if within else row, 202, headers=at)


def _add_described(routes: APIRouter, service: CircuitService) -> None:
    parts = service.parts

    @routes.get("/topology", **gives(TopologyShape, also="text/plain"))
    async def topology(format: TopologyFormat = "json") -> Any:
        found = topology_of(
            parts.lab, parts.maps.links(await parts.maps.read())
        )
        if format == "json":
            # Links through unread switches are unknown, and omitted.
            return {**found.as_json, "unread": parts.devices.unread}
        return PlainTextResponse(FORMATS[format](found))

    @routes.get("/circuits", **gives(dict[str, shapes.OcsMap]))
    async def circuits() -> Any:
        found = await service.circuits()
        tag = service.tag()
        # Clients can use it as ``planned_from``: the condition that maps are unchanged.
        return JsonAnswer(found, headers={"ETag": f'"{tag}"'} if tag else None)

    @routes.get("/alarms", **gives(shapes.Alarms))
    async def alarms(
        ocs: Annotated[list[str] | None, Query()] = None,
    ) -> Answer:
        return await service.alarms(ocs or [])

    @routes.get("/reconfigurations", **gives(shapes.Changes))
    async def reconfigurations(
        last: requests.PageLength = requests.PAGE,
        after: requests.Number | None = None,
        since: requests.Moment | None = None,
        until: requests.Moment = requests.LATEST,
        before: requests.Number = requests.NO_NUMBER,
    ) -> Answer:
        """The last changes, or the first ones after a number.

        With ``since``: the last of those that began between then and ``until``, before a number.
        """
        return await service.changes(
            last,
            after,
            since,
            until,
            before,
        )

    @routes.get("/reconfigurations/{number}", **gives(shapes.ChangeAnswer))
    async def reconfiguration(
        number: requests.Number,
        step: requests.Number = 0,
        wait_s: requests.WaitSeconds = 0.0,
    ) -> Answer:
        """One change; with its ``progress`` while it runs, once that is beyond ``step``, or after
        ``wait_s``."""
        return await service.change(number, step, wait_s)

    @routes.post(
        "/reconfigurations/{number}/cancel", **gives(shapes.ChangeAnswer)
    )
    async def cancel(
        number: requests.Number,
        request: requests.StopRequest,
        caller: Operator,
    ) -> Answer:
        """Stop a change before its next step, and undo what it did; this takes a moment.

        409 for a change that is committed, or about to be. A failed one stays unchanged.
        """
        return await service.cancel(number, request, caller)
