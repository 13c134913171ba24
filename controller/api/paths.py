"""The routes on paths of light: asking for one, looking, giving it back."""

from typing import Annotated, Any

from annotated_types import Ge, Gt, Le
from fastapi import APIRouter

from patchlight.controller.api.caller import Caller, NotAllowed, User, Viewer
from patchlight.controller.api.openapi import gives
from patchlight.controller.changes import requests
from patchlight.controller.paths.bounds import BoundsService
from patchlight.controller.paths.service import (
    LONGEST_LEASE_S,
    SHORTEST_LEASE_S,
    PathService,
    WantedPath,
)
from patchlight.testbed.lab.rules import Role
from patchlight.testbed.wire.rest import paths as shapes

Answer = dict[str, Any]


class PathRequest(requests.Strict):
    """A flow that wants a path. ``deadline_s`` is from now; ``lease_s``: see ``docs/oddl.md``."""

    source: requests.Text
    destination: requests.Text
    bytes: Annotated[float, Gt(0), Le(2.0**63)]
    deadline_s: Annotated[float, Gt(0), Le(1e9)] | None = None
    collective: requests.Text | None = None
    round: requests.Number = 0
    lease_s: Annotated[float, Ge(SHORTEST_LEASE_S), Le(LONGEST_LEASE_S)] = 10.0


def path_routes(paths: PathService, bounds: BoundsService) -> APIRouter:
    """The routes on the paths of one lab."""
    routes = APIRouter(prefix="/v1", tags=["paths"])

    @routes.get("/paths", **gives(shapes.PathsShape))
    async def look_at_all() -> Answer:
        await paths.follow_light()
        return {
            "scheduler": paths.book.scheduler,
            "networks": [
                {
                    "hosts": list(network.hosts),
                    "channels": [str(channel) for channel in network.channels],
                    "routed": network.paths.routes is not None,
                    "tuning_s": network.paths.tuning_s,
                }
                for network in paths.book.networks
            ],
            "paths": [path.as_json() for path in paths.book.live],
            "nodes": bounds.nodes(),
        }

    @routes.post("/paths", **gives(shapes.PathShape, 201))
    async def want(request: PathRequest, caller: User) -> Answer:
        wanted = WantedPath(
            *(request.source, request.destination, request.bytes, request.deadline_s),
            *(request.collective, request.round, request.lease_s),
        )
        return (await paths.want(wanted, caller.by)).as_json()

    @routes.get("/paths/{number}", **gives(shapes.PathShape))
    async def look(
        number: requests.Number, caller: Viewer, wait_s: requests.WaitSeconds = 0.0
    ) -> Answer:
        return (await paths.look(number, caller.by, wait_s)).as_json()

    @routes.delete("/paths/{number}", **gives(shapes.PathShape))
    async def release(number: requests.Number, caller: User) -> Answer:
        _check_may_end(caller, (await paths.look(number, "")).by)
        return paths.release(number).as_json()

    return routes


def _check_may_end(caller: Caller, by: str) -> None:
    if caller.by != by and caller.role < Role.OPERATOR:
        raise NotAllowed(f"this path is of {by}: only they and operators may end it")
