"""Defines the REST API: every route is a thin call into the controller's parts."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Le
from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from pydantic import Field

from patchlight.controller.access import tokens as access
from patchlight.controller.api.admission import Admission, KeptAnswers
from patchlight.controller.api.caller import (
    Admin,
    Doorman,
    NotAllowed,
    Operator,
    User,
    Viewer,
)
from patchlight.controller.api.circuits import circuit_routes, claim_routes
from patchlight.controller.api.events import EventFeed
from patchlight.controller.api.jobs import job_routes
from patchlight.controller.api.openapi import (
    DATA,
    JsonAnswer,
    also,
    docs_routes,
    new_app,
    under_way,
)
from patchlight.controller.api.turns import InTurn, Turns
from patchlight.controller.changes.record import Refused
from patchlight.controller.metrics.exposition import ControllerMetrics
from patchlight.controller.paths.bounds import BoundsService
from patchlight.controller.paths.service import PathService
from patchlight.testbed.jobs import JobState
from patchlight.testbed.lab.rules import Role
from patchlight.testbed.labfile.writer import write_lab
from patchlight.testbed.wire.rest import lab as rest
from patchlight.testbed.wire.rest import requests
from patchlight.testbed.wire.rest.circuits import (
    PathNetworkShape,
    PathShape,
    PathsShape,
)

if TYPE_CHECKING:
    from patchlight.controller.discovery.discovery import Discovery
    from patchlight.controller.parts import Controller
    from patchlight.controller.storage.store import Store


def create_app(controller: Controller) -> FastAPI:
    """The API of one controller."""
    app = new_app("Patchlight controller")
    tokens = access.Tokens(controller.store)
    audit = access.AuditLog(controller.store)
    doorman = Doorman(controller.lab.access, tokens)
    kept = KeptAnswers(controller.store)
    app.add_middleware(
        Admission,
        doorman=doorman,
        audit=audit,
        kept=kept,
    )

    @app.get("/v1/lab", **DATA)
    async def lab() -> rest.LabShape:
        return rest.LabShape(**asdict(controller.identity))

    @app.get("/v1/lab.yaml", response_class=PlainTextResponse)
    async def lab_file() -> str:
        return write_lab(controller.lab)

    @app.get("/v1/status", **DATA)
    async def status() -> rest.Status:
        return await controller.status()

    @app.post("/v1/shutdown", **DATA)
    async def shutdown(caller: Admin, release: bool = False) -> rest.Shutdown:
        """End the controller; ``release``: first remove its entries from the packet switches."""
        if release:
            if running := sorted(controller.jobs.running):
                raise Refused(
                    f"nothing was removed: {', '.join(running)} would lose the network",
                    hint="end them first: patchlight controller drain",
                )
            await controller.switches.release()
        # As when it is ended by other means: the cleanup is in one place.
        os.kill(os.getpid(), signal.SIGTERM)
        counts = controller.jobs.ledger.counts().items()
        return rest.Shutdown(
            jobs={
                state: n for state, n in counts if not JobState(state).is_final
            }
        )

    app.state.events = EventFeed(controller.store)
    for routes in (
        circuit_routes(controller.circuit_service),
        claim_routes(controller.scheduler.claims),
        job_routes(controller),
        path_routes(controller.paths, controller.path_bounds),
        access_routes(tokens, audit),
        docs_routes(),
        event_routes(controller.store, app.state.events),
        discovery_routes(controller.discovery),
        sample_routes(controller),
    ):
        app.include_router(routes)
    return app


def sample_routes(controller: Controller) -> APIRouter:
    """Routes for samples of one lab."""
    routes = APIRouter(
        prefix="/v1",
        tags=["samples"],
    )

    @routes.get("/ports", **DATA)
    async def ports(since: float = 0.0) -> rest.PortSamples:
        return rest.PortSamples(
            ports=[
                rest.PortSample(**s)
                for s in controller.switches.port_rates
                if s["at"] > since
            ]
        )

    @routes.get("/gpus", **DATA)
    async def gpus(since: float = 0.0) -> rest.GpuSamples:
        return rest.GpuSamples(
            gpus=[
                rest.GpuSample(**s)
                for s in controller.fleet.gpu_samples
                if s["at"] > since
            ]
        )

    @routes.get("/samples", **DATA)
    async def samples(
        since: requests.Moment = 0.0,
        until: requests.Moment = requests.LATEST,
        points: requests.PageLength = 300,
        job: Annotated[
            list[requests.Text] | None, Query(max_length=1000)
        ] = None,
    ) -> rest.Samples:
        """The samples of a period, as about ``points`` windows of the lab and of each job.

        With ``job``, only of these jobs. Older data has wider windows.
        """
        jobs = None if job is None else ["", *job]
        width_s, windows = await asyncio.to_thread(
            controller.series.read,
            since,
            until,
            points,
            jobs,
        )
        by_job: dict[str, list[rest.WindowShape]] = {"": []}
        for window in windows:
            shape = rest.WindowShape(**window.as_json)
            by_job.setdefault(window.job, []).append(shape)
        return rest.Samples(
            width_s=width_s,
            lab=by_job.pop(""),
            jobs=by_job,
        )

    return routes


_EVENT_STREAM = "text/event-stream"


def event_routes(store: Store, feed: EventFeed) -> APIRouter:
    """Routes for events."""
    routes = APIRouter(
        prefix="/v1",
        tags=["events"],
    )

    @routes.get(
        "/events",
        response_model=rest.EventList,
        responses=also(_EVENT_STREAM),
        **DATA,
    )
    async def events(
        request: Request,
        after: requests.Number | None = None,
        last: requests.PageLength | None = None,
        since: requests.Moment = 0.0,
        until: requests.Moment = requests.LATEST,
        before: requests.Number = requests.NO_NUMBER,
        kind: Annotated[
            list[requests.Text] | None, Query(max_length=100)
        ] = None,
    ) -> rest.EventList | Response:
        """Events after a number, at most a thousand at a time.

        With ``last``, the latest ones of a period instead: of these kinds, before that number.

        With ``Accept: text/event-stream``, an endless stream from then on; a reconnecting client
        sends the last number that it has as ``Last-Event-ID``.
        """
        if _EVENT_STREAM in request.headers.get("accept", ""):
            cut_off_at = request.headers.get("last-event-id", "")
            begun = int(cut_off_at[:18]) if cut_off_at.isdecimal() else after
            head = {"Cache-Control": "no-store"}
            return StreamingResponse(
                feed.follow(begun),
                media_type=_EVENT_STREAM,
                headers=head,
            )
        if last is not None:
            period = since, until
            found = await asyncio.to_thread(
                store.past_events,
                period,
                last,
                before,
                kind or (),
            )
        else:
            found = store.events(after or 0)
        return rest.EventList.model_validate(
            {"events": found, "last": store.last_event()}
        )

    return routes


def discovery_routes(discovery: Discovery) -> APIRouter:
    """Routes for the wiring of one lab."""
    routes = APIRouter(
        prefix="/v1",
        tags=["discovery"],
    )

    @routes.post(
        "/discovery",
        response_model=rest.SearchPlan,
        responses=under_way(rest.Search, "The search has started."),
        **DATA,
    )
    async def begin(
        request: requests.DiscoveryRequest, caller: Operator
    ) -> rest.SearchPlan | Response:
        if request.dry_run:
            return await discovery.preview(request)
        await discovery.start(request, caller)
        where = {"Location": "/v1/discovery"}
        return JsonAnswer(discovery.status.as_json, 202, headers=where)

    @routes.get("/discovery", **DATA)
    async def status(
        step: requests.Number = 0, wait_s: requests.WaitSeconds = 0.0
    ) -> rest.Search:
        """The progress of the search: once it is beyond ``step``, or after ``wait_s``."""
        if discovery.under_way and wait_s:
            await discovery.news.after(step, wait_s)
        return discovery.status

    @routes.delete("/discovery", **DATA)
    async def stop(caller: Operator) -> rest.Search:
        await discovery.stop()
        return discovery.status

    return routes


RoleName = Literal["viewer", "user", "operator", "admin"]
TokenId = Annotated[str, Field(pattern=r"^[0-9a-f]{8}$")]


class TokenRequest(requests.Strict):
    """A token for ``user`` with that role, valid for that many seconds."""

    user: Annotated[
        requests.Text,
        Field(
            min_length=1,
            max_length=80,
        ),
    ]
    role: RoleName = "viewer"
    lifetime_s: Annotated[float, Ge(60), Le(access.LONGEST_LIFETIME_S)] = (
        access.USUAL_LIFETIME_S
    )
    why: requests.Text = ""


def access_routes(tokens: access.Tokens, audit: access.AuditLog) -> APIRouter:
    """Routes for access to one lab."""
    routes = APIRouter(
        prefix="/v1",
        tags=["access"],
    )

    @routes.get("/whoami", **DATA)
    async def whoami(caller: Viewer) -> rest.WhoAmI:
        return rest.WhoAmI(
            user=caller.by,
            role=str(caller.role),
            origin=caller.origin,
        )

    @routes.get("/tokens", **DATA)
    async def all_tokens(caller: Admin) -> rest.TokensShape:
        return rest.TokensShape(tokens=tokens.all())

    @routes.post("/tokens", status_code=201, **DATA)
    async def create(request: TokenRequest, caller: Admin) -> rest.NewToken:
        role = Role.named(request.role)
        made, text = tokens.create(
            access.without_tokens(request.user),
            role,
            caller.by,
            access.without_tokens(request.why),
            request.lifetime_s,
        )
        return rest.NewToken(**dict(made), token=text)

    @routes.delete("/tokens/{token_id}", **DATA)
    async def revoke(token_id: TokenId, caller: Admin) -> rest.TokenShape:
        return tokens.revoke(token_id, caller.by)

    @routes.get("/audit", **DATA)
    async def attempts(
        caller: Admin,
        last: requests.PageLength = requests.PAGE,
        after: requests.Number | None = None,
        user: requests.Text = "",
        outcome: requests.Text = "",
    ) -> rest.AuditShape:
        return rest.AuditShape(
            attempts=audit.rows(
                last,
                after,
                by=user,
                outcome=outcome,
            )
        )

    return routes


def path_routes(paths: PathService, bounds: BoundsService) -> APIRouter:
    """Routes for the paths of one lab."""
    routes = APIRouter(
        prefix="/v1",
        tags=["paths"],
    )

    @routes.get("/paths", **DATA)
    async def look_at_all() -> PathsShape:
        await paths.follow_light()
        return PathsShape(
            scheduler=paths.book.scheduler,
            networks=[
                PathNetworkShape(
                    hosts=list(network.hosts),
                    channels=[str(channel) for channel in network.channels],
                    routed=network.paths.routes is not None,
                    tuning_s=network.paths.tuning_s,
                )
                for network in paths.book.networks
            ],
            paths=paths.book.live,
            nodes=bounds.nodes(),
        )

    @routes.post("/paths", status_code=201, **DATA)
    async def want(request: requests.PathRequest, caller: User) -> PathShape:
        return await paths.want(request, caller.by)

    @routes.get("/paths/{number}", **DATA)
    async def look(
        number: requests.Number,
        caller: Viewer,
        wait_s: requests.WaitSeconds = 0.0,
    ) -> PathShape:
        return await paths.look(number, caller.by, wait_s)

    @routes.delete("/paths/{number}", **DATA)
    async def release(number: requests.Number, caller: User) -> PathShape:
        by = (await paths.look(number, "")).by
        if caller.by != by and caller.role < Role.OPERATOR:
            raise NotAllowed(
                f"this path belongs to {by}: only they and operators may end it"
            )
        return paths.release(number)

    return routes


_OPENMETRICS = "application/openmetrics-text"
_PLAIN = "text/plain; version=0.0.4; charset=utf-8"


def metrics_routes(metrics: ControllerMetrics) -> APIRouter:
    """``/metrics``, in the requested format."""
    routes = APIRouter()

    @routes.get("/metrics", include_in_schema=False)
    async def answer(request: Request) -> Response:
        openmetrics = _OPENMETRICS in request.headers.get("accept", "")
        content_type = f"{_OPENMETRICS}; version=1.0.0; charset=utf-8"
        return Response(
            metrics.as_text(openmetrics=openmetrics),
            headers={"content-type": content_type if openmetrics else _PLAIN},
        )

    return routes


def metrics_app(metrics: ControllerMetrics) -> FastAPI:
    """An application with only ``/metrics``."""
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.include_router(metrics_routes(metrics))
    app.add_middleware(
        InTurn,
        turns=Turns(
            at_once=4,
            share=0.25,
        ),
    )
    return app
