"""Exports metrics of a controller for Prometheus, and traces of its jobs for OpenTelemetry."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

import prometheus_client as prometheus
from prometheus_client import Histogram
from prometheus_client.openmetrics.exposition import (
    generate_latest as openmetrics_text,
)
from prometheus_client.process_collector import ProcessCollector

from patchlight.controller.changes.record import Reconfiguration, State
from patchlight.controller.metrics.lab_state import OpticalPower, lab_metrics
from patchlight.controller.packet_switches.openflow.flowtable import OPERATIONS
from patchlight.testbed.clock import monotonic_s, unix_s
from patchlight.testbed.errors import BadInput, PackageMissing
from patchlight.testbed.jobs import JobState, JobStatus
from patchlight.testbed.linux.sockets import (
    is_loopback,
    joined_address,
    listen,
    split_address,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

    from patchlight.controller.jobs.job_table import JobTable
    from patchlight.controller.jobs.running_job import RunningJob
    from patchlight.controller.parts import Controller

KEPT_S = 120.0
"""How long the series of an ended job stay, so that a scrape sees its last values."""

_ITERATION_S = (
    0.01,
    0.03,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
    100.0,
    300.0,
)
_STAGE_S = (
    0.001,
    0.003,
    0.01,
    0.03,
    0.1,
    0.3,
    1.0,
    3.0,
    10.0,
    30.0,
    100.0,
    300.0,
)
_ANSWER_S = (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0)

_STAGES = (
    "read",
    "plan",
    "check",
    "drain",
    "break",
    "make",
    "verify",
    "flows",
    "announce",
    "undrain",
    "commit",
    "roll-back",
)

_END = "# EOF\n"

_STEPS = {
    JobState.QUEUED: "wait",
    JobState.BLOCKED: "wait",
    JobState.RECONFIGURING: "wire",
    JobState.PREPARING: "start",
    JobState.RUNNING: "first iteration",
    JobState.PAUSED: "wait for circuits",
}
_SEND_WITHIN_S = 2.0


class ControllerMetrics:
    """Instruments that listen to the controller's parts; ``power`` must run in the background."""

    def __init__(self, controller: Controller) -> None:
        # Creation times are not useful here, and would be half of the series.
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = prometheus.CollectorRegistry()
        self.power = OpticalPower(
            controller.circuit_service, controller.device_watch.looked
        )
        jobs = controller.jobs
        speaker = controller.speaker
        events = EventMetrics(self._registry)
        self._progress = JobProgress(
            self._registry, jobs.running, float(controller.lab.scale)
        )
        jobs.on_reports.append(self._progress.reported)
        jobs.ledger.on_decision.append(events.decided)
        controller.transactions.on_end.append(events.change_ended)
        speaker.on_answer.append(events.speaker_answered)
        self._controller = controller
        ProcessCollector(registry=self._registry)
        ProcessCollector(
            "patchlight_speaker",
            lambda: speaker.pid or "none",
            registry=self._registry,
        )

    def as_text(self, *, openmetrics: bool = False) -> str:
        """All present values; OpenMetrics includes exemplars."""
        self._progress.prune()
        encode = (
            openmetrics_text if openmetrics else prometheus.generate_latest
        )
        instruments = encode(self._registry).decode().removesuffix(_END)
        families = (*lab_metrics(self._controller), *self.power.collect())
        looked_up = "".join(
            family.as_text(openmetrics=openmetrics) for family in families
        )
        return instruments + looked_up + (_END if openmetrics else "")


def listen_for_metrics(address: str) -> socket.socket:
    """A socket at ``host:port``; ``BadInput`` if it is not local, ``PatchlightError`` if in use."""
    host, port = split_address(address)
    address = "127.0.0.1" if host == "localhost" else host
    try:
        here = is_loopback(address)
    except ValueError as error:
        raise BadInput(
            f"metrics at {host}:{port}: expected an IP address of this machine"
        ) from error
    if not here:
        raise BadInput(
            f"metrics at {host}:{port} would be readable by other machines",
            hint="use a port of 127.0.0.1; from a Prometheus on another machine, use SSH: ssh -L "
            "9470:127.0.0.1:9470 THIS-MACHINE",
        )
    return listen(joined_address(address, port))


class EventMetrics:
    """Instruments that are updated with each event."""

    def __init__(self, registry: prometheus.CollectorRegistry) -> None:
        def seconds(
            name: str,
            about: str,
            buckets: Sequence[float],
            *labels: str,
        ) -> Histogram:
            name = f"patchlight_{name}_seconds"
            return Histogram(
                name,
                about,
                labels,
                buckets=buckets,
                registry=registry,
            )

        about = "Duration of the stages of a change of circuits."
        self._stage_s = seconds(
            "reconfiguration_stage",
            about,
            _STAGE_S,
            "stage",
        )
        about = "Duration of changes of circuits, by result."
        self._change_s = seconds(
            "reconfiguration",
            about,
            _STAGE_S,
            "state",
        )
        about = "Duration of policies' decisions, once per affected job."
        self._decisions_s = seconds(
            "policy_decision",
            about,
            _ANSWER_S,
            "kind",
            "policy",
        )
        about = "Response time of the OpenFlow speaker."
        self._answers_s = seconds(
            "speaker_request",
            about,
            _ANSWER_S,
            "operation",
        )
        self._refusals = prometheus.Counter(
            "patchlight_speaker_request_failures",
            "Requests that the OpenFlow speaker refused or did not answer.",
            ("operation",),
            registry=registry,
        )

        # Initialised to 0: Prometheus sees no increase if a series starts with its first event.
        for stage in _STAGES:
            self._stage_s.labels(stage)
        for state in get_args(State):
            self._change_s.labels(state)
        for operation in OPERATIONS:
            self._answers_s.labels(operation)
            self._refusals.labels(operation)

    def change_ended(self, change: Reconfiguration) -> None:
        """A change of circuits has ended. Exemplars have its number."""
        number = {"reconfiguration": str(change.id)}
        for stage, seconds in change.stages_s.items():
            self._stage_s.labels(stage).observe(seconds, exemplar=number)
        took_s = (change.finished_at or change.started_at) - change.started_at
        self._change_s.labels(change.state).observe(
            max(0.0, took_s), exemplar=number
        )

    def decided(self, job_id: str, decision: Mapping[str, Any]) -> None:
        """A policy has decided about a job."""
        kind = str(decision.get("kind"))
        policy = str(decision.get("policy"))
        seconds = float(decision.get("seconds", 0.0))
        self._decisions_s.labels(kind, policy).observe(
            seconds, exemplar={"job_id": job_id}
        )

    def speaker_answered(
        self,
        operation: str,
        seconds: float,
        *,
        good: bool,
    ) -> None:
        """The speaker has answered, or not."""
        self._answers_s.labels(operation).observe(seconds)
        if not good:
            self._refusals.labels(operation).inc()


class JobProgress:
    """Counters of each worker of the ``running`` jobs, for ``KEPT_S`` after; bytes are those of the
    lab: sent × ``scale``. A worker's earlier hosts are dropped."""

    def __init__(
        self,
        registry: prometheus.CollectorRegistry,
        running: Collection[str],
        scale: float,
        clock: Callable[[], float] = monotonic_s,
    ) -> None:
        self._running = running
        self._scale = scale
        self._clock = clock
        labels = ("job_id", "rank", "host")
        self._counters = [
            prometheus.Counter(
                f"patchlight_worker_{name}",
                about,
                labels,
                registry=registry,
            )
            for name, about in (
                ("iterations", "Iterations that a worker has finished."),
                (
                    "sent_bytes",
                    "Payload that a worker has sent, in the lab's scale.",
                ),
                ("compute_seconds", "Time that a worker has spent computing."),
                (
                    "communication_seconds",
                    "Time that a worker has spent communicating.",
                ),
            )
        ]
        name = "job_iteration_seconds"
        about = "Duration of iterations of a job's workers."
        self._iteration_s = Histogram(
            f"patchlight_{name}",
            about,
            ("job_id",),
            buckets=_ITERATION_S,
            registry=registry,
        )
        name = "patchlight_job_last_iteration_timestamp_seconds"
        about = "When a worker of the job last finished an iteration."
        self._last = prometheus.Gauge(
            name,
            about,
            ("job_id",),
            registry=registry,
        )
        self._hosts: dict[str, dict[int, str]] = {}
        self._gone_at: dict[str, float] = {}

    def reported(
        self, job: RunningJob, reports: Sequence[dict[str, Any]]
    ) -> None:
        """Count finished iterations of a job's workers."""
        self.prune()
        known = self._hosts.setdefault(job.id, {})
        whole = self._iteration_s.labels(job.id)
        last = self._last.labels(job.id)
        for report in reports:
            rank = report["rank"]
            host = job.hosts[report["rank"]].name
            if known.setdefault(rank, host) != host:
                self._forget_worker(job.id, rank, known[rank])
                known[rank] = host
            compute_s = report["compute_s"]
            communication_s = report["communication_s"]
            amounts = (
                1,
                report["sent_bytes"] * self._scale,
                compute_s,
                communication_s,
            )
            for counter, amount in zip(self._counters, amounts, strict=True):
                counter.labels(job.id, str(rank), host).inc(max(0, amount))
            whole.observe(compute_s + communication_s)
        last.set(max(report["finished_at"] for report in reports))

    def prune(self) -> None:
        """Drop the series of jobs that ended a while ago."""
        now = self._clock()
        running = self._running
        for job_id in list(self._hosts):
            if job_id in running:
                self._gone_at.pop(job_id, None)
            elif now - self._gone_at.setdefault(job_id, now) > KEPT_S:
                for rank, host in self._hosts.pop(job_id).items():
                    self._forget_worker(job_id, rank, host)
                del self._gone_at[job_id]
                self._iteration_s.remove(job_id)
                self._last.remove(job_id)

    def _forget_worker(
        self,
        job_id: str,
        rank: int,
        host: str,
    ) -> None:
        for counter in self._counters:
            counter.remove(job_id, str(rank), host)


class JobTraces:
    """Traces of jobs from submission to their first iteration, sent after it. Jobs submitted to an
    earlier controller have none."""

    def __init__(
        self,
        lab: str,
        table: JobTable,
        processor: SpanProcessor,
        clock: Callable[[], float] = unix_s,
    ) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        about = {
            "service.name": "patchlight-controller",
            "patchlight.lab": lab,
        }
        self._provider = TracerProvider(
            resource=Resource.create(about),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("patchlight")
        self._clock = clock
        self._noted: dict[str, _JobSteps] = {}
        table.on_state.append(self._moved)
        table.on_reports.append(self._reported)
        table.ledger.on_decision.append(self._decided)

    def close(self) -> None:
        """Send the rest, if the receiver is fast enough."""
        self._provider.shutdown()

    def _moved(self, status: JobStatus) -> None:
        now = self._clock()
        if (
            status.state is JobState.QUEUED
            and status.attempt == 0
            and status.started_at is None
        ):
            self._noted.setdefault(status.id, _JobSteps(status))
        if (way := self._noted.get(status.id)) is None:
            return
        way.status = status
        if status.state.is_final:
            self._tell(self._noted.pop(status.id), now)
        elif not way.states or way.states[-1][0] is not status.state:
            way.states.append((status.state, now))

    def _decided(self, job_id: str, decision: Mapping[str, Any]) -> None:
        if (way := self._noted.get(job_id)) is not None:
            way.decisions.append((self._clock(), decision))

    def _reported(
        self, job: RunningJob, reports: Sequence[dict[str, Any]]
    ) -> None:
        if reports and (way := self._noted.pop(job.id, None)) is not None:
            at = max(float(report["finished_at"]) for report in reports)
            # A program may report any time; one far away would spoil the other traces, too.
            self._tell(way, min(at, self._clock() + KEPT_S))

    def _tell(self, way: _JobSteps, end: float) -> None:
        from opentelemetry import trace

        status = way.status
        about = {
            "job.id": status.id,
            "job.name": status.spec.name,
            "job.user": status.by,
        }
        root = self._tracer.start_span(
            "job",
            start_time=_ns(status.submitted_at),
            attributes={**about, "job.hosts": status.hosts},
        )
        inside = trace.set_span_in_context(root)
        ends = [at for _, at in way.states[1:]] + [end]
        for (state, begun), ended in zip(way.states, ends, strict=True):
            step = self._tracer.start_span(
                _STEPS[state], inside, start_time=_ns(begun)
            )
            step.end(_ns(max(begun, ended)))
        for at, decision in way.decisions:
            said = {key: str(decision.get(key)) for key in ("kind", "policy")}
            begun = at - float(decision.get("seconds", 0.0))
            step = self._tracer.start_span(
                "decide",
                inside,
                start_time=_ns(begun),
                attributes=said,
            )
            step.end(_ns(at))
        if status.state.is_final and status.state is not JobState.DONE:
            root.set_status(trace.StatusCode.ERROR, status.message)
        # A server's clock may be slow.
        root.end(
            _ns(max(end, *(at for _, at in way.states), status.submitted_at))
        )


def sending_to(address: str) -> SpanProcessor:
    """A processor that sends traces to an OTLP receiver, like ``http://127.0.0.1:4318``;
    ``BadInput`` if that is not possible."""
    if not address.startswith(("http://", "https://")):
        raise BadInput(
            f"traces to {address}: expected an address like http://127.0.0.1:4318"
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise PackageMissing("sending traces", error) from error
    endpoint = f"{address.rstrip('/')}/v1/traces"
    return BatchSpanProcessor(
        OTLPSpanExporter(
            endpoint=endpoint,
            timeout=_SEND_WITHIN_S,
        )
    )


@dataclass
class _JobSteps:
    status: JobStatus
    states: list[tuple[JobState, float]] = field(default_factory=list)
    decisions: list[tuple[float, Mapping[str, Any]]] = field(
        default_factory=list
    )


def _ns(at: float) -> int:
    return int(at * 1e9)
