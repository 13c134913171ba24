"""All metrics of one controller, as the text that Prometheus reads, and where they are read."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text
from prometheus_client.process_collector import ProcessCollector

from patchlight.controller.changes.record import Reconfiguration, State
from patchlight.controller.metrics.job_progress import JobProgress
from patchlight.controller.metrics.lab_state import LabMetrics
from patchlight.controller.metrics.optical_power import OpticalPower
from patchlight.controller.openflow.flowtable import OPERATIONS
from patchlight.testbed.errors import BadInput
from patchlight.testbed.linux.sockets import is_loopback, listen, split_address

if TYPE_CHECKING:
    from patchlight.controller.parts import Controller

_STAGE_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_ANSWER_S = (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0)

_STAGES = (
    *("read", "plan", "check", "drain", "break", "make", "verify", "flows", "undrain"),
    *("commit", "roll-back"),
)

_END = "# EOF\n"

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
"""What requests may call it by."""


class EventMetrics:
    """Instruments that are told of each event when it happens."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._stage_s = Histogram(
            "patchlight_reconfiguration_stage_seconds",
            "What the stages of a change of circuits took.",
            ("stage",),
            buckets=_STAGE_S,
            registry=registry,
        )
        self._change_s = Histogram(
            "patchlight_reconfiguration_seconds",
            "What changes of circuits took, by what became of them.",
            ("state",),
            buckets=_STAGE_S,
            registry=registry,
        )
        self._decisions_s = Histogram(
            "patchlight_policy_decision_seconds",
            "What policies took to decide; once for each job that a decision is about.",
            ("kind", "policy"),
            buckets=_ANSWER_S,
            registry=registry,
        )
        self._answers_s = Histogram(
            "patchlight_speaker_request_seconds",
            "What the OpenFlow speaker took to answer.",
            ("operation",),
            buckets=_ANSWER_S,
            registry=registry,
        )
        self._refusals = Counter(
            "patchlight_speaker_request_failures",
            "Requests that the OpenFlow speaker refused or did not answer.",
            ("operation",),
            registry=registry,
        )

        # There from the start: of what began with its first event, Prometheus sees no increase.
        for stage in _STAGES:
            self._stage_s.labels(stage)
        for state in get_args(State):
            self._change_s.labels(state)
        for operation in OPERATIONS:
            self._answers_s.labels(operation)
            self._refusals.labels(operation)

    def change_ended(self, change: Reconfiguration) -> None:
        """A change of circuits has come to its end. Exemplars have its number."""
        number = {"reconfiguration": str(change.id)}
        for stage, seconds in change.stages_s.items():
            self._stage_s.labels(stage).observe(seconds, exemplar=number)
        took_s = (change.finished_at or change.started_at) - change.started_at
        self._change_s.labels(change.state).observe(max(0.0, took_s), exemplar=number)

    def decided(self, job_id: str, decision: Mapping[str, Any]) -> None:
        """A policy has decided something about a job."""
        kind, policy = str(decision.get("kind")), str(decision.get("policy"))
        seconds = float(decision.get("seconds", 0.0))
        self._decisions_s.labels(kind, policy).observe(seconds, exemplar={"job_id": job_id})

    def speaker_answered(self, operation: str, seconds: float, *, good: bool) -> None:
        """The speaker has answered, or not."""
        self._answers_s.labels(operation).observe(seconds)
        if not good:
            self._refusals.labels(operation).inc()


class ControllerMetrics:
    """Instruments that listen to the parts of a controller, and what is looked up of them.

    ``power`` is to be run in the background.
    """

    def __init__(self, controller: Controller) -> None:
        # When a series began says nothing here, and would be half of them.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self.power = OpticalPower(controller.operations)
        jobs, happenings = controller.jobs, EventMetrics(self._registry)
        self._progress = JobProgress(
            self._registry, lambda: jobs.running.keys(), float(controller.lab.scale)
        )
        jobs.on_reports.append(self._progress.heard)
        jobs.ledger.on_decision.append(happenings.decided)
        controller.transactions.on_end.append(happenings.change_ended)
        controller.speaker.on_answer.append(happenings.speaker_answered)
        self._state = LabMetrics(controller)
        ProcessCollector(registry=self._registry)
        speaker = controller.speaker
        ProcessCollector(
            "patchlight_speaker", lambda: speaker.pid or "none", registry=self._registry
        )

    def as_text(self, *, openmetrics: bool = False) -> str:
        """All of it as it is now; OpenMetrics has exemplars."""
        self._progress.prune()
        encode = openmetrics_text if openmetrics else generate_latest
        instruments = encode(self._registry).decode().removesuffix(_END)
        families = (*self._state.collect(), *self.power.collect())
        looked_up = "".join(family.as_text(openmetrics=openmetrics) for family in families)
        return instruments + looked_up + (_END if openmetrics else "")


def listen_for_metrics(address: str) -> socket.socket:
    """A socket that listens at ``host:port``.

    ``BadInput`` for an address that other machines reach, ``PatchlightError`` if it is taken.
    """
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
            f"metrics cannot be answered at {host}:{port}: whoever reaches it could read them",
            hint="name a port of 127.0.0.1; for a Prometheus on another machine, go through SSH: "
            "ssh -L 9470:127.0.0.1:9470 THIS-MACHINE",
        )
    return listen(f"[{address}]:{port}" if ":" in address else f"{address}:{port}")
