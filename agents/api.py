"""The agent's HTTP API, version 1 (JSON), and its metrics for Prometheus."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated

import prometheus_client
from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from patchlight.agents.errors import AgentError, Conflict
from patchlight.agents.service import VERSION, AgentService
from patchlight.testbed.errors import PatchlightError, joined, mistake_in_words
from patchlight.testbed.linux import credentials, sockets
from patchlight.testbed.wire import agent_status, worker_api

_REQUEST_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class AgentMetrics:
    """Metrics of one agent. ``certificate_end`` is when its certificate expires, in Unix time."""

    def __init__(
        self, service: AgentService, certificate_end: float | None = None
    ) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self._requests = prometheus_client.Counter(
            "patchlight_agent_requests",
            "Requests answered.",
            ("call", "code"),
            registry=self.registry,
        )
        self._seconds = prometheus_client.Histogram(
            "patchlight_agent_request_seconds",
            "Duration of requests.",
            ("call",),
            buckets=_REQUEST_S,
            registry=self.registry,
        )
        self._records = prometheus_client.Counter(
            "patchlight_agent_log_records",
            "Warnings and errors logged.",
            ("level",),
            registry=self.registry,
        )
        for level in ("warning", "error"):
            self._records.labels(level)
        self._service = service
        self._certificate_end = certificate_end
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    async def count(
        self,
        app: ASGIApp,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer a request and count it by endpoint. Paths are not used as labels."""
        code = 500
        began = time.monotonic()

        async def noted(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        try:
            await app(scope, receive, noted)
        finally:
            call = getattr(scope.get("endpoint"), "__name__", "none")
            self._requests.labels(call, code).inc()
            self._seconds.labels(call).observe(time.monotonic() - began)

    def log_handler(self) -> logging.Handler:
        """A log handler that counts warnings and errors."""
        records = self._records

        class Counting(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                records.labels(
                    "warning" if record.levelno < logging.ERROR else "error"
                ).inc()

        return Counting(logging.WARNING)

    def collect(self) -> Iterator[Metric]:
        """Objects that every request handler needs."""
        service = self._service
        now = time.monotonic()
        gauge = _gauge(
            "info",
            "Information about this agent.",
            "server",
            "version",
            "api",
            "workers",
        )
        site = service.site
        api = str(agent_status.API_VERSION)
        gauge.add_metric(
            [
                site.server.name,
                VERSION,
                api,
                site.runner.name,
            ],
            1,
        )
        yield gauge
        workers = Counter(worker.state for worker in service.workers())
        gauge = _gauge("workers", "Workers by state.", "state")
        for state in worker_api.WorkerState:
            gauge.add_metric([state], workers[state])
        yield gauge
        gauge = _gauge("leases", "GPUs and NICs leased to workers.", "kind")
        for kind, count in service.leases().items():
            gauge.add_metric([kind], count)
        yield gauge
        about = "Seconds since a GPU or NIC was last healthy."
        gauge = _gauge(
            "sample_age_seconds",
            about,
            "kind",
            "name",
        )
        for (kind, name), at in service.seen_at.items():
            gauge.add_metric([kind, name], now - at)
        yield gauge
        if self._certificate_end is not None:
            gauge = _gauge(
                "certificate_end_timestamp_seconds",
                "Expiry of the certificate, in Unix time.",
            )
            gauge.add_metric([], self._certificate_end)
            yield gauge


def _gauge(
    name: str,
    about: str,
    *labels: str,
) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"patchlight_agent_{name}", about, labels=labels)


_USUAL_LOG_BYTES = 64 * 1024
_MOST_LOG_BYTES = 1024 * 1024


def make_app(
    service: AgentService,
    lab: str,
    metrics: AgentMetrics,
) -> FastAPI:
    """The API and the Prometheus metrics, for clients on the Unix socket and clients with a
    certificate of the lab's controller."""

    @asynccontextmanager
    async def life(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()

    # Redirects and API descriptions would be answered before the client is checked.
    app = FastAPI(
        title="Patchlight agent",
        lifespan=life,
        openapi_url=None,
        redirect_slashes=False,
    )

    app.add_middleware(
        _Admission,
        lab=lab,
        metrics=metrics,
    )
    app.include_router(_routes(service), prefix="/v1")

    @app.get("/metrics")
    async def read_metrics() -> Response:
        answer = prometheus_client.generate_latest(metrics.registry)
        return Response(
            answer, media_type=prometheus_client.CONTENT_TYPE_LATEST
        )

    app.add_exception_handler(PatchlightError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    return app


class _Admission:
    """Refuses unauthorised clients and counts all other requests. Starlette's middleware class
    would add a task and two streams to each request."""

    def __init__(
        self,
        app: ASGIApp,
        lab: str,
        metrics: AgentMetrics,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._controller = credentials.controller_name(lab)
        self._reader = credentials.prometheus_name(lab)

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        who = scope["client"][0] if scope["client"] else ""
        reads_metrics = who == self._reader and scope["path"] == "/metrics"
        if who in (sockets.UNIX_CLIENT, self._controller) or reads_metrics:
            await self._metrics.count(
                self._app,
                scope,
                receive,
                send,
            )
            return
        words = f"access denied for a certificate of {who[:80]}"
        hint = f"use the certificate of {self._controller}, or that of {self._reader} for /metrics"
        await JSONResponse({"error": words, "hint": hint}, 403)(
            scope, receive, send
        )


def _routes(service: AgentService) -> APIRouter:
    routes = APIRouter()

    @routes.get("/status")
    async def status() -> agent_status.AgentStatus:
        return await service.status()

    @routes.post("/drain")
    async def drain() -> agent_status.AgentStatus:
        return await service.drain()

    @routes.post("/probes")
    async def probe(
        request: agent_status.ProbeRequest,
    ) -> agent_status.ProbeAnswer:
        return await service.probe(request)

    @routes.post("/workers", status_code=201)
    async def create(
        spec: worker_api.WorkerSpec, response: Response
    ) -> worker_api.WorkerStatus:
        status, is_new = await service.create(spec)
        if not is_new:
            response.status_code = 200
        return status

    @routes.get("/workers/{name}")
    async def worker(name: str) -> worker_api.WorkerStatus:
        return service.known(name).status()

    @routes.get("/workers/{name}/reports")
    async def reports(
        name: str, after: Annotated[int, Query(ge=0)] = 0
    ) -> worker_api.Reports:
        new = service.known(name).reports.after(after)
        return worker_api.Reports(
            reports=new,
            next=after + len(new),
        )

    @routes.get("/workers/{name}/log")
    async def log(
        name: str,
        after: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[
            int,
            Query(
                ge=4,
                le=_MOST_LOG_BYTES,
            ),
        ] = _USUAL_LOG_BYTES,
    ) -> worker_api.LogPart:
        return await asyncio.to_thread(service.known(name).log, after, limit)

    @routes.put("/workers/{name}/workdir")
    async def ship(
        name: str, part: worker_api.WorkdirPart
    ) -> worker_api.WorkdirAnswer:
        return worker_api.WorkdirAnswer(
            next=await service.known(name).take_workdir(part)
        )

    @routes.post("/workers/{name}/start")
    async def start(name: str) -> worker_api.GateAnswer:
        return worker_api.GateAnswer(
            iteration=await service.known(name).start()
        )

    @routes.post("/workers/{name}/hold")
    async def hold(
        name: str, request: worker_api.HoldRequest
    ) -> worker_api.GateAnswer:
        return worker_api.GateAnswer(
            iteration=await service.known(name).hold(request.iteration)
        )

    @routes.post("/workers/{name}/slot")
    async def slot(
        name: str, request: worker_api.SlotRequest
    ) -> worker_api.GateAnswer:
        return worker_api.GateAnswer(
            iteration=await service.known(name).slot(request)
        )

    @routes.post("/workers/{name}/release")
    async def release(name: str) -> worker_api.GateAnswer:
        return worker_api.GateAnswer(
            iteration=await service.known(name).release()
        )

    @routes.post("/workers/{name}/announce")
    async def announce(
        name: str, request: worker_api.AnnounceRequest
    ) -> worker_api.AnnounceAnswer:
        return await service.known(name).announce(request)

    @routes.post("/workers/{name}/stop-at")
    async def stop_at(
        name: str, request: worker_api.StopAtRequest
    ) -> worker_api.GateAnswer:
        return worker_api.GateAnswer(
            iteration=await service.known(name).stop_at(request.iteration)
        )

    @routes.post("/workers/{name}/end")
    async def end(name: str) -> worker_api.WorkerStatus:
        return await service.end(name)

    @routes.delete("/workers/{name}")
    async def delete(name: str) -> worker_api.WorkerStatus:
        return await service.delete(name)

    @routes.put("/nics/{name}/paths")
    async def bind(
        name: str, bounds: agent_status.PathBounds
    ) -> agent_status.PathNodeStatus:
        return service.paths.bind(name, bounds)

    @routes.delete("/nics/{name}/paths", status_code=204)
    async def withdraw(name: str, epoch: Annotated[int, Query(ge=0)]) -> None:
        service.paths.withdraw(name, epoch)

    return routes


async def _on_error(_request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, PatchlightError)
    body: dict[str, object] = {"error": exc.message, "hint": exc.hint}
    if isinstance(exc, Conflict) and exc.iteration is not None:
        body["iteration"] = exc.iteration
    return JSONResponse(
        body, exc.status if isinstance(exc, AgentError) else 500
    )


async def _on_invalid(_request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, RequestValidationError)
    words = joined(
        mistake_in_words(m, m["loc"][1:], "body") for m in exc.errors()
    )
    return JSONResponse(
        {"error": f"invalid request: {words}", "hint": None}, 422
    )


async def _on_http(request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, HTTPException)
    words = str(exc.detail)
    hint = None
    if exc.status_code in (404, 405):
        words = f"unknown request: {request.method} {request.url.path[:200]}"
        hint = "check that the controller and the agent have the same version"
    return JSONResponse(
        {"error": words, "hint": hint}, exc.status_code, exc.headers
    )
