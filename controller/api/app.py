"""The north-bound REST API: thin, every route a call into the controller's parts."""

from __future__ import annotations

import os
import signal
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse

from patchlight.controller.api.answers import new_app
from patchlight.controller.api.circuits import circuit_routes
from patchlight.controller.api.discovery import discovery_routes
from patchlight.controller.api.jobs import job_routes
from patchlight.testbed.jobs import JobState
from patchlight.testbed.labfile.writer import write_lab

if TYPE_CHECKING:
    from patchlight.controller.parts import Controller

Answer = dict[str, Any]


def create_app(controller: Controller) -> FastAPI:
    """The API of one controller."""
    app = new_app("Patchlight controller")

    @app.get("/v1/lab")
    async def lab() -> Answer:
        return asdict(controller.identity)

    @app.get("/v1/lab.yaml", response_class=PlainTextResponse)
    async def lab_file() -> str:
        return write_lab(controller.lab)

    @app.get("/v1/status")
    async def status() -> Answer:
        return controller.status()

    @app.post("/v1/shutdown")
    async def shutdown() -> Answer:
        # As by whoever else ends it: what has to be put in order then is in one place.
        os.kill(os.getpid(), signal.SIGTERM)
        counts = controller.jobs.ledger.counts().items()
        return {"jobs": {state: n for state, n in counts if not JobState(state).is_final}}

    app.include_router(circuit_routes(controller.operations))

    app.include_router(job_routes(controller))

    app.include_router(discovery_routes(controller.discovery))

    @app.get("/v1/ports")
    async def ports(since: float = 0.0) -> Answer:
        return {"ports": [s for s in controller.switches.port_rates if s["at"] > since]}

    @app.get("/v1/gpus")
    async def gpus(since: float = 0.0) -> Answer:
        return {"gpus": [s for s in controller.fleet.gpu_samples if s["at"] > since]}

    return app
