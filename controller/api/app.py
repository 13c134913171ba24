"""The north-bound REST API: thin, every route a call into the controller's parts."""

from __future__ import annotations

import os
import signal
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse

from patchlight.controller.access.audit import AuditLog
from patchlight.controller.access.tokens import Tokens
from patchlight.controller.api.access import access_routes
from patchlight.controller.api.admission import Admission
from patchlight.controller.api.answers import new_app
from patchlight.controller.api.caller import Admin, Doorman
from patchlight.controller.api.circuits import circuit_routes
from patchlight.controller.api.describing import gives
from patchlight.controller.api.discovery import discovery_routes
from patchlight.controller.api.docs_page import docs_routes
from patchlight.controller.api.events import EventFeed, event_routes
from patchlight.controller.api.idempotency import KeptAnswers
from patchlight.controller.api.jobs import job_routes
from patchlight.controller.api.paths import path_routes
from patchlight.controller.api.samples import sample_routes
from patchlight.testbed.jobs import JobState
from patchlight.testbed.labfile.writer import write_lab
from patchlight.testbed.wire.rest import lab as shapes

if TYPE_CHECKING:
    from patchlight.controller.parts import Controller

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
