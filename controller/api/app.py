"""The north-bound REST API: thin, every route a call into the controller's parts."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Le
from fastapi import APIRouter, FastAPI, Query
from fastapi.responses import PlainTextResponse
from pydantic import Field

from patchlight.controller.access.audit import AuditLog
from patchlight.controller.access.tokens import Tokens
from patchlight.controller.api.access import access_routes
from patchlight.controller.api.admission import Admission, KeptAnswers
from patchlight.controller.api.answers import JsonAnswer, new_app
from patchlight.controller.api.caller import Admin, Doorman, Operator
from patchlight.controller.api.circuits import circuit_routes
from patchlight.controller.api.events import EventFeed, event_routes
from patchlight.controller.api.jobs import job_routes
from patchlight.controller.api.openapi import docs_routes, gives, under_way
from patchlight.controller.api.paths import path_routes
from patchlight.controller.changes import requests
from patchlight.controller.discovery.discovery import WantedSearch
from patchlight.testbed.jobs import JobState
from patchlight.testbed.labfile.writer import write_lab
from patchlight.testbed.wire.rest import lab as shapes
from patchlight.testbed.wire.rest.discovery import Search, SearchPlan

if TYPE_CHECKING:
    from patchlight.controller.discovery.discovery import Discovery
    from patchlight.controller.parts import Controller


def sample_routes(controller: Controller) -> APIRouter:
    """The routes on samples of one lab."""
    routes = APIRouter(prefix="/v1", tags=["samples"])

    @routes.get("/ports", **gives(shapes.PortSamples))
    async def ports(since: float = 0.0) -> Answer:
        return {"ports": [s for s in controller.switches.port_rates if s["at"] > since]}

    @routes.get("/gpus", **gives(shapes.GpuSamples))
    async def gpus(since: float = 0.0) -> Answer:
        return {"gpus": [s for s in controller.fleet.gpu_samples if s["at"] > since]}

    @routes.get("/samples", **gives(shapes.Samples))
    async def samples(
        since: requests.Moment = 0.0,
        until: requests.Moment = requests.LATEST,
        points: requests.PageLength = 300,
        job: Annotated[list[requests.Text] | None, Query(max_length=1000)] = None,
    ) -> Answer:
        """What was sampled in a period, as some ``points`` windows of the lab and of each job.

        With ``job``, of these jobs alone. What is older is kept in wider windows.
        """
        jobs = None if job is None else ["", *job]
        width_s, windows = await asyncio.to_thread(
            controller.series.read, since, until, points, jobs
        )
        answer: dict[str, list[Answer]] = {"": []}
        for window in windows:
            answer.setdefault(window.job, []).append(window.as_json)
        return {"width_s": width_s, "lab": answer.pop(""), "jobs": answer}

    return routes


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
        wanted = WantedSearch(request.ports, request.listen_s, request.every_port)
        if request.dry_run:
            return await discovery.preview(wanted)
        await discovery.start(wanted, caller)
        return JsonAnswer(discovery.status, 202, headers={"Location": "/v1/discovery"})

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


Answer = dict[str, Any]


def create_app(controller: Controller) -> FastAPI:
    """The API of one controller."""
    app = new_app("Patchlight controller")
    tokens, audit = Tokens(controller.store), AuditLog(controller.store)
    doorman = Doorman(controller.lab.access, tokens)
    kept = KeptAnswers(controller.store)
    app.add_middleware(Admission, doorman=doorman, audit=audit, kept=kept)

    @app.get("/v1/lab", **gives(shapes.LabShape))
    async def lab() -> Answer:
        return asdict(controller.identity)

    @app.get("/v1/lab.yaml", response_class=PlainTextResponse)
    async def lab_file() -> str:
        return write_lab(controller.lab)

    @app.get("/v1/status", **gives(shapes.Status))
    async def status() -> Answer:
        return controller.status()

    @app.post("/v1/shutdown", **gives(shapes.Shutdown))
    async def shutdown(caller: Admin) -> Answer:
        # As by whoever else ends it: what has to be put in order then is in one place.
        os.kill(os.getpid(), signal.SIGTERM)
        counts = controller.jobs.ledger.counts().items()
        return {"jobs": {state: n for state, n in counts if not JobState(state).is_final}}

    app.include_router(circuit_routes(controller.operations))

    app.include_router(job_routes(controller))

    app.include_router(path_routes(controller.paths, controller.path_bounds))

    app.include_router(access_routes(tokens, audit))

    app.include_router(docs_routes())

    app.state.events = EventFeed(controller.store)
    app.include_router(event_routes(controller.store, app.state.events))

    app.include_router(discovery_routes(controller.discovery))

    app.include_router(sample_routes(controller))

    return app
