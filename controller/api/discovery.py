"""The routes on looking for the wiring: begin, look how far it is, break it off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter

from patchlight.controller.api import models
from patchlight.controller.api.answers import Answered
from patchlight.controller.api.caller import Operator
from patchlight.controller.api.describing import gives, under_way
from patchlight.controller.discovery.discovery import WantedSearch
from patchlight.testbed.wire.rest.discovery import Search, SearchPlan

if TYPE_CHECKING:
    from patchlight.controller.discovery.discovery import Discovery

Answer = dict[str, Any]


def discovery_routes(discovery: Discovery) -> APIRouter:
    """The routes on the wiring of one lab."""
    routes = APIRouter(prefix="/v1", tags=["discovery"])

    begins = gives(SearchPlan)
    begins["responses"][202] = under_way(Search, "The search has begun.")

    @routes.post("/discovery", **begins)
    async def begin(request: models.DiscoveryRequest, caller: Operator) -> Any:
        wanted = WantedSearch(request.ports, request.listen_s, request.every_port)
        if request.dry_run:
            return await discovery.preview(wanted)
        await discovery.start(wanted, caller)
        return Answered(discovery.status, 202, headers={"Location": "/v1/discovery"})

    @routes.get("/discovery", **gives(Search))
    async def status(step: models.Number = 0, wait_s: models.WaitSeconds = 0.0) -> Answer:
        """How far it is; of one under way once that is beyond ``step``, or after ``wait_s``."""
        if discovery.under_way and wait_s:
            await discovery.news.after(step, wait_s)
        return discovery.status

    @routes.delete("/discovery", **gives(Search))
    async def stop(caller: Operator) -> Answer:
        await discovery.stop()
        return discovery.status

    return routes
