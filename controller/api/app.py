"""The north-bound REST API: thin, every route a call into the controller's parts; its metrics."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from patchlight.controller.api import shapes
from patchlight.controller.api.access import access_routes
from patchlight.controller.api.admission import Admission
from patchlight.controller.api.answers import new_app
from patchlight.controller.api.caller import Admin, Doorman
from patchlight.controller.api.circuits import circuit_routes
from patchlight.controller.api.describing import gives
from patchlight.controller.api.discovery import discovery_routes
from patchlight.controller.api.docs_page import docs_routes
from patchlight.controller.api.events import EventFeed, event_routes
from patchlight.controller.api.gpu_metrics import gpu_gauges
from patchlight.controller.api.idempotency import KeptAnswers
from patchlight.controller.api.jobs import job_routes
from patchlight.controller.audit import AuditLog
from patchlight.controller.tokens import Tokens
from patchlight.testbed.jobs import JobState
from patchlight.testbed.labfile.writer import write_lab

if TYPE_CHECKING:
    from patchlight.controller.parts import Controller


class _State:
    """A collector over one controller: no counters of its own, nothing to keep in step."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def collect(self) -> Iterator[Metric]:
        controller = self._controller
        jobs = controller.jobs.ledger.counts()
        changes = controller.store.reconfiguration_counts()
        gpus = controller.fleet.latest_utilization()
        devices = {row["name"]: row["reachable"] for row in controller.circuits.devices.status()}
        yield _gauge("jobs", "Jobs by state.", "state", jobs)
        yield _gauge("reconfigurations", "Changes of circuits by outcome.", "state", changes)
        yield _gauge("gpu_utilization_ratio", "Busy share of the last second.", "gpu", gpus)
        nics = controller.fleet.nics()
        up = {name: nic.carrier for name, nic in nics.items()}
        changes_of = {name: nic.carrier_changes for name, nic in nics.items()}
        paused = {name: sum(nic.counters.pause_frames.values()) for name, nic in nics.items()}
        yield _gauge("nic_carrier", "Whether a NIC has a carrier.", "nic", up)
        yield _gauge("nic_carrier_changes", "Ups and downs of a NIC's carrier.", "nic", changes_of)
        yield _gauge("nic_pause_frames", "Pause frames that a NIC counted.", "nic", paused)
        for name, about, values in gpu_gauges(controller.fleet.latest_gpus()):
            yield _gauge(name, about, "gpu", values)
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

    app.include_router(access_routes(tokens, audit))

    app.include_router(docs_routes())

    app.state.events = EventFeed(controller.store)
    app.include_router(event_routes(controller.store, app.state.events))

    app.include_router(discovery_routes(controller.discovery))

    @app.get("/v1/ports", **gives(shapes.Samples))
    async def ports(since: float = 0.0) -> Answer:
        return {"ports": [s for s in controller.switches.port_rates if s["at"] > since]}

    @app.get("/v1/gpus", **gives(shapes.Samples))
    async def gpus(since: float = 0.0) -> Answer:
        return {"gpus": [s for s in controller.fleet.gpu_samples if s["at"] > since]}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> str:
        return generate_latest(registry_of(controller)).decode()

    return app
