"""The north-bound REST API: thin, every route a call into the controller's parts; its metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from patchlight.controller.api import models
from patchlight.controller.api.answers import new_app
from patchlight.controller.api.circuits import Caller, circuit_routes
from patchlight.testbed.labfile.writer import write_lab

if TYPE_CHECKING:
    from patchlight.controller.parts import Controller


class _State:
    """A collector over one controller: no counters of its own, nothing to keep in step."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def collect(self) -> Iterator[Metric]:
        controller = self._controller
        jobs = controller.scheduler.counts()
        changes = controller.store.reconfiguration_counts()
        gpus = controller.fleet.latest_utilization()
        devices = {row["name"]: row["reachable"] for row in controller.circuits.devices.status()}
        yield _gauge("jobs", "Jobs by state.", "state", jobs)
        yield _gauge("reconfigurations", "Changes of circuits by outcome.", "state", changes)
        yield _gauge("gpu_utilization_ratio", "Busy share of the last second.", "gpu", gpus)
        yield _gauge("agent_up", "Whether an agent answers.", "server", controller.fleet.reachable)
        yield _gauge("ocs_up", "Whether a circuit switch answers.", "ocs", devices)


def _gauge(name: str, about: str, label: str, values: Mapping[str, float]) -> Metric:
    gauge = GaugeMetricFamily(f"patchlight_{name}", about, labels=[label])
    for key, value in values.items():
        gauge.add_metric([key], value)
    return gauge


def registry_of(controller: Controller) -> CollectorRegistry:
    """A registry that shows this controller."""
    registry = CollectorRegistry()
    registry.register(_State(controller))
    return registry


Answer = dict[str, Any]

_MOST_REPORTS = 5000


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

    app.include_router(circuit_routes(controller.operations))

    @app.post("/v1/jobs", status_code=201)
    async def submit(request: models.GangRequest, caller: Caller) -> Answer:
        statuses = controller.scheduler.submit(request.jobs, request.topology, caller.by)
        return {"jobs": [asdict(status) for status in statuses]}

    @app.get("/v1/jobs")
    async def jobs(
        last: models.PageLength = models.PAGE,
        after: str | None = None,
        state: models.Text = "",
        user: models.Text = "",
        name: models.Text = "",
    ) -> Answer:
        found = controller.scheduler.jobs(last, after, state=state, owner=user, name=name)
        return {"jobs": [asdict(status) for status in found]}

    @app.get("/v1/jobs-meant")
    async def jobs_meant(text: models.Text) -> Answer:
        return {"jobs": [asdict(status) for status in controller.scheduler.meant(text)]}

    @app.get("/v1/jobs/{job_id}")
    async def job(job_id: str) -> Answer:
        return asdict(controller.scheduler.job(job_id))

    @app.get("/v1/jobs/{job_id}/iterations")
    async def iterations(job_id: str, after: models.Number = 0) -> Answer:
        reports, last = controller.scheduler.iterations(job_id, after, _MOST_REPORTS)
        return {"iterations": reports, "next": last}

    @app.delete("/v1/jobs/{job_id}")
    async def stop(job_id: str, caller: Caller, force: bool = False) -> Answer:
        return asdict(await controller.scheduler.stop(job_id, caller.by, force=force))

    @app.post("/v1/jobs/{job_id}/restart")
    async def restart(job_id: str, caller: Caller, force: bool = False) -> Answer:
        return asdict(await controller.scheduler.restart(job_id, caller.by, force=force))

    @app.post("/v1/drain")
    async def drain(request: models.StopRequest) -> Answer:
        return {"ended": await controller.scheduler.drain(request.why)}

    @app.delete("/v1/drain")
    async def resume() -> Answer:
        controller.scheduler.resume()
        return {"drained": False}

    @app.post("/v1/regroup")
    async def regroup(request: models.RegroupRequest) -> Answer:
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
