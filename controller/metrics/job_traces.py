"""The way of a job from its submission to its first iteration, as an OpenTelemetry trace.

The trace is told of once the way is over, from times that were noted on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobState, JobStatus

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

    from patchlight.controller.jobs.job_table import JobTable
    from patchlight.controller.jobs.running_job import RunningJob

_STEPS = {
    JobState.QUEUED: "wait",
    JobState.BLOCKED: "wait",
    JobState.RECONFIGURING: "wire",
    JobState.PREPARING: "start",
    JobState.RUNNING: "first iteration",
    JobState.PAUSED: "wait for light",
}
_SEND_WITHIN_S = 2.0


@dataclass
class _Way:
    """What was noted of a job: when it came to which state, and who decided how long."""

    status: JobStatus
    states: list[tuple[JobState, float]] = field(default_factory=list)
    decisions: list[tuple[float, Mapping[str, Any]]] = field(default_factory=list)


class JobTraces:
    """Listens to the jobs of ``table``, and hands traces to ``processor``.

    Jobs that were submitted to an earlier controller have none. ``clock`` tells Unix time.
    """

    def __init__(
        self,
        lab: str,
        table: JobTable,
        processor: SpanProcessor,
        clock: Callable[[], float] = time.time,
    ) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        about = {"service.name": "patchlight-controller", "patchlight.lab": lab}
        self._provider: TracerProvider = TracerProvider(
            resource=Resource.create(about), shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("patchlight")
        self._clock = clock
        self._ways: dict[str, _Way] = {}
        table.on_state.append(self._moved)
        table.on_reports.append(self._reported)
        table.ledger.on_decision.append(self._decided)

    def close(self) -> None:
        """Send what is left, if somebody takes it soon."""
        self._provider.shutdown()

    def _moved(self, status: JobStatus) -> None:
        now = self._clock()
        if status.state is JobState.QUEUED and status.attempt == 0 and status.started_at is None:
            self._ways.setdefault(status.id, _Way(status))
        if (way := self._ways.get(status.id)) is None:
            return
        way.status = status
        if status.state.is_final:
            self._tell(self._ways.pop(status.id), now)
        elif not way.states or way.states[-1][0] is not status.state:
            way.states.append((status.state, now))

    def _decided(self, job_id: str, decision: Mapping[str, Any]) -> None:
        if (way := self._ways.get(job_id)) is not None:
            way.decisions.append((self._clock(), decision))

    def _reported(self, job: RunningJob, reports: Sequence[dict[str, Any]]) -> None:
        if reports and (way := self._ways.pop(job.id, None)) is not None:
            self._tell(way, max(float(report["finished_at"]) for report in reports))

    def _tell(self, way: _Way, end: float) -> None:
        from opentelemetry import trace

        status = way.status
        about = {"job.id": status.id, "job.name": status.spec.name, "job.user": status.by}
        root = self._tracer.start_span(
            "job",
            start_time=_ns(status.submitted_at),
            attributes={**about, "job.hosts": status.hosts},
        )
        inside = trace.set_span_in_context(root)
        ends = [at for _, at in way.states[1:]] + [end]
        for (state, begun), ended in zip(way.states, ends, strict=True):
            step = self._tracer.start_span(_STEPS[state], inside, start_time=_ns(begun))
            step.end(_ns(max(begun, ended)))
        for at, decision in way.decisions:
            said = {key: str(decision.get(key)) for key in ("kind", "policy")}
            begun = at - float(decision.get("seconds", 0.0))
            step = self._tracer.start_span("decide", inside, start_time=_ns(begun), attributes=said)
            step.end(_ns(at))
        if status.state.is_final and status.state is not JobState.DONE:
            root.set_status(trace.StatusCode.ERROR, status.message)
        # A server's clock may be behind.
        root.end(_ns(max(end, *(at for _, at in way.states), status.submitted_at)))


def sending_to(address: str) -> SpanProcessor:
    """Sends traces to an OTLP receiver, like ``http://127.0.0.1:4318``, beside everything else.

    ``BadInput`` if that is no HTTP address, or if the extra ``telemetry`` is not installed.
    """
    if not address.startswith(("http://", "https://")):
        raise BadInput(f"traces to {address}: expected an address like http://127.0.0.1:4318")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise BadInput(
            f"traces cannot be sent: {error}", hint="pip install 'patchlight[telemetry]'"
        ) from error
    endpoint = f"{address.rstrip('/')}/v1/traces"
    return BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=_SEND_WITHIN_S))


def _ns(at: float) -> int:
    return int(at * 1e9)
