"""What happens in a controller, counted and timed: changes, decisions, requests to the speaker."""

from collections.abc import Mapping
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram

from patchlight.controller.changes.record import Reconfiguration, State
from patchlight.controller.openflow.protocol import OPERATIONS

_STAGE_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_ANSWER_S = (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0)

_STAGES = (
    *("read", "plan", "check", "drain", "break", "make", "verify", "flows", "undrain"),
    *("commit", "roll-back"),
)


class Happenings:
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
