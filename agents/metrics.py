"""The agent's own metrics, for Prometheus."""

import logging
import time
from collections import Counter as Count
from collections.abc import Iterator

from fastapi import APIRouter, Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from patchlight.agents.service import VERSION, AgentService
from patchlight.testbed.wire.agent_status import API_VERSION
from patchlight.testbed.wire.worker_api import WorkerState

_REQUEST_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class AgentMetrics:
    """What is counted of one agent; the rest is looked up when somebody asks for it.

    ``certificate_end``: when the agent's certificate ends, in Unix time, if it has one.
    """

    def __init__(self, service: AgentService, certificate_end: float | None = None) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "patchlight_agent_requests",
            "Requests answered.",
            ("call", "code"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "patchlight_agent_request_seconds",
            "What requests took.",
            ("call",),
            buckets=_REQUEST_S,
            registry=self.registry,
        )
        self._records = Counter(
            "patchlight_agent_log_records",
            "Warnings and errors in the log.",
            ("level",),
            registry=self.registry,
        )
        for level in ("warning", "error"):
            self._records.labels(level)
        self.registry.register(_State(service, certificate_end))
        ProcessCollector(registry=self.registry)

    async def count(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Have ``app`` answer a request, and count it by what is called.

        By address would be no use: those may be any number.
        """
        code, began = 500, time.monotonic()

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
        """What counts the log's warnings and errors."""
        records = self._records

        class Counting(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                records.labels("warning" if record.levelno < logging.ERROR else "error").inc()

        return Counting(logging.WARNING)

    def routes(self) -> APIRouter:
        """``/metrics``."""
        routes = APIRouter()

        @routes.get("/metrics")
        async def metrics() -> Response:
            return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

        return routes


class _State:
    def __init__(self, service: AgentService, certificate_end: float | None) -> None:
        self._service, self._certificate_end = service, certificate_end

    def collect(self) -> Iterator[Metric]:
        service, now = self._service, time.monotonic()
        gauge = _gauge("info", "Which agent this is.", "server", "version", "api", "workers")
        gauge.add_metric([service.server, VERSION, str(API_VERSION), service.worker_kind], 1)
        yield gauge
        workers = Count(worker.state for worker in service.workers())
        gauge = _gauge("workers", "Workers by state.", "state")
        for state in WorkerState:
            gauge.add_metric([state], workers[state])
        yield gauge
        gauge = _gauge("leases", "GPUs and NICs that workers have.", "kind")
        for kind, count in service.leases().items():
            gauge.add_metric([kind], count)
        yield gauge
        about = "Seconds since a GPU or NIC was last seen to be well."
        gauge = _gauge("sample_age_seconds", about, "kind", "name")
        for (kind, name), at in service.seen_at.items():
            gauge.add_metric([kind, name], now - at)
        yield gauge
        if self._certificate_end is not None:
            gauge = _gauge("certificate_end_timestamp_seconds", "When the certificate ends.")
            gauge.add_metric([], self._certificate_end)
            yield gauge


def _gauge(name: str, about: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"patchlight_agent_{name}", about, labels=labels)
