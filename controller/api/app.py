"""The north-bound REST API: thin, every route a call into the controller's parts."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from prometheus_client import generate_latest

from patchlight.controller.api.circuits import circuit_routes, explain
from patchlight.controller.api.metrics import registry_of
from patchlight.controller.api.models import GangRequest, RegroupRequest
from patchlight.testbed.errors import PatchlightError

if TYPE_CHECKING:
    from patchlight.controller.parts import Controller

Answer = dict[str, Any]


def create_app(controller: Controller) -> FastAPI:
    """The API of one controller."""
    app = FastAPI(title="Patchlight controller", version="1")

    app.exception_handler(PatchlightError)(explain)

    @app.get("/v1/status")
    async def status() -> Answer:
        return controller.status()

    app.include_router(circuit_routes(controller.operations))

    @app.post("/v1/jobs", status_code=201)
    async def submit(request: GangRequest) -> Answer:
        specs = [job.spec() for job in request.jobs]
        return {"jobs": [asdict(s) for s in controller.scheduler.submit(specs, request.topology)]}

    @app.get("/v1/jobs")
    async def jobs() -> Answer:
        return {"jobs": [asdict(status) for status in controller.scheduler.jobs()]}

    @app.get("/v1/jobs/{job_id}")
    async def job(job_id: str) -> Answer:
        return asdict(controller.scheduler.job(job_id))

    @app.get("/v1/jobs/{job_id}/iterations")
    async def iterations(job_id: str, after: int = 0) -> Answer:
        controller.scheduler.job(job_id)
        reports, last = controller.store.iterations(job_id, after)
        return {"iterations": reports, "next": last}

    @app.delete("/v1/jobs/{job_id}")
    async def stop(job_id: str) -> Answer:
        return asdict(await controller.scheduler.stop(job_id))

    @app.post("/v1/regroup")
    async def regroup(request: RegroupRequest) -> Answer:
        return asdict(await controller.scheduler.regroup(request.jobs))

    @app.get("/v1/ports")
    async def ports(since: float = 0.0) -> Answer:
        return {"ports": [s for s in controller.switches.port_rates if s["at"] > since]}

    @app.get("/v1/gpus")
    async def gpus(since: float = 0.0) -> Answer:
        return {"gpus": [s for s in controller.fleet.gpu_samples if s["at"] > since]}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> str:
        return generate_latest(registry_of(controller)).decode()

    return app
