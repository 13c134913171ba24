"""The routes on looking for the wiring: begin, look how far it is, break it off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter

from patchlight.controller.api import models
from patchlight.controller.api.caller import Operator
from patchlight.controller.api.describing import gives
from patchlight.controller.discovery.discovery import Wanted
from patchlight.controller.shapes.discovery import Search, SearchPlan

if TYPE_CHECKING:
    from patchlight.controller.discovery.discovery import Discovery

Answer = dict[str, Any]


def discovery_routes(discovery: Discovery) -> APIRouter:
    """The routes on the wiring of one lab."""
    routes = APIRouter(prefix="/v1", tags=["discovery"])

    @routes.post("/discovery", **gives(Search | SearchPlan))
    async def begin(request: models.DiscoveryRequest, caller: Operator) -> Answer:
        wanted = Wanted(request.ports, request.listen_s, request.every_port)
        if request.dry_run:
            return await discovery.preview(wanted)
        await discovery.start(wanted, caller)
        return discovery.status

    @routes.get("/discovery", **gives(Search))
    async def status() -> Answer:
        return discovery.status

    @routes.delete("/discovery", **gives(Search))
    async def stop(caller: Operator) -> Answer:
        await discovery.stop()
        return discovery.status

    return routes
