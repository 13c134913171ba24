"""The north-bound REST API: thin, every route a call into the controller's parts."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import generate_latest

from controller.api.metrics import registry_of
from controller.api.models import (
    GangRequest,
    ReconfigurationRequest,
    RegroupRequest,
)
from controller.planning import wanted_maps
from testbed.errors import BadInput, PatchlightError
from testbed.portmap import PortMap

if TYPE_CHECKING:
    from controller.service import Controller

Answer = dict[str, Any]


def create_app(controller: Controller) -> FastAPI:
    """The API of one controller."""
    app = FastAPI(title="Patchlight controller", version="1")

    @app.exception_handler(PatchlightError)
    async def explain(_: Request, error: PatchlightError) -> JSONResponse:
        status = 422 if isinstance(error, BadInput) else 502
        return JSONResponse({"error": error.message, "hint": error.hint}, status_code=status)

    @app.get("/v1/status")
    async def status() -> Answer:
        return controller.status()

    @app.get("/v1/links")
    async def links() -> Answer:
        found = await controller.reconfigurer.links()
        return {
            "links": [
                {
                    "a": str(a),
                    "b": str(b),
                    "rate_bps": found.paths[a].rate_bps,
                    "via": [
                        {"ocs": ocs, "inp": c.inp, "out": c.out} for ocs, c in found.paths[a].hops
                    ],
                }
                for a, b in found.pairs()
            ]
        }

    @app.get("/v1/circuits")
    async def circuits() -> Answer:
        maps = await controller.reconfigurer.read_maps()
        return {name: {"map": [str(c) for c in port_map]} for name, port_map in maps.items()}

    @app.post("/v1/reconfigurations")
    async def reconfigure(request: ReconfigurationRequest) -> Answer:
        asked = {name: PortMap.parse(texts) for name, texts in request.maps.items()}
        record = await controller.reconfigurer.change(
            lambda maps: wanted_maps(
                controller.lab, maps, asked, request.disconnect, only=request.only
            ),
            request.why,
        )
        return asdict(record)

    @app.get("/v1/reconfigurations")
    async def reconfigurations() -> Answer:
        return {"reconfigurations": controller.store.reconfigurations()}

    @app.get("/v1/reconfigurations/{number}")
    async def reconfiguration(number: int) -> Answer:
        for record in controller.store.reconfigurations():
            if record["id"] == number:
                return record
        raise BadInput(f"no reconfiguration {number}")

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
        found, last = controller.store.iterations(job_id, after)
        return {"iterations": found, "next": last}

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

    @app.get("/v1/events")
    async def events(after: int = 0) -> Answer:
        return {"events": controller.store.events(after)}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> str:
        return generate_latest(registry_of(controller)).decode()

    return app
