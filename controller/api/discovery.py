"""The routes on looking for the wiring: begin, look how far it is, break it off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Le
from fastapi import APIRouter
from pydantic import Field

from patchlight.controller.api.answers import Answered
from patchlight.controller.api.caller import Operator
from patchlight.controller.api.describing import gives, under_way
from patchlight.controller.changes import requests
from patchlight.controller.discovery.discovery import Wanted
from patchlight.testbed.wire.rest.discovery import Search, SearchPlan

if TYPE_CHECKING:
    from patchlight.controller.discovery.discovery import Discovery

Answer = dict[str, Any]


class DiscoveryRequest(requests.Strict):
    """Ports by OCS whose fibres are looked at; all, if none are named.

    ``listen_s``: how long each round. ``every_port``: also once all ends of the lab are found.
    ``dry_run``: answer what would be done, and do nothing.
    """

    ports: dict[requests.Text, requests.Ports] = Field(default={}, max_length=1000)
    listen_s: Annotated[float, Ge(0.1), Le(300), Field(allow_inf_nan=False)] = 2.0
    every_port: bool = False
    dry_run: bool = False


def discovery_routes(discovery: Discovery) -> APIRouter:
    """The routes on the wiring of one lab."""
    routes = APIRouter(prefix="/v1", tags=["discovery"])

    begins = gives(SearchPlan)
    begins["responses"][202] = under_way(Search, "The search has begun.")

    @routes.post("/discovery", **begins)
    async def begin(request: DiscoveryRequest, caller: Operator) -> Any:
        wanted = Wanted(request.ports, request.listen_s, request.every_port)
        if request.dry_run:
            return await discovery.preview(wanted)
        await discovery.start(wanted, caller)
        return Answered(discovery.status, 202, headers={"Location": "/v1/discovery"})

    @routes.get("/discovery", **gives(Search))
    async def status(step: requests.Number = 0, wait_s: requests.WaitSeconds = 0.0) -> Answer:
        """How far it is; of one under way once that is beyond ``step``, or after ``wait_s``."""
        if discovery.under_way and wait_s:
            await discovery.news.after(step, wait_s)
        return discovery.status

    @routes.delete("/discovery", **gives(Search))
    async def stop(caller: Operator) -> Answer:
        await discovery.stop()
        return discovery.status

    return routes
