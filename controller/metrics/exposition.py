"""All metrics of one controller, as the text that Prometheus reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text
from prometheus_client.process_collector import ProcessCollector

from patchlight.controller.metrics.happenings import Happenings
from patchlight.controller.metrics.job_progress import JobProgress
from patchlight.controller.metrics.lab_state import LabState
from patchlight.controller.metrics.optical_power import OpticalPower

if TYPE_CHECKING:
    from patchlight.controller.parts import Controller


_END = "# EOF\n"


class ControllerMetrics:
    """Instruments that listen to the parts of a controller, and what is looked up of them.

    ``power`` is to be run in the background.
    """

    def __init__(self, controller: Controller) -> None:
        # When a series began says nothing here, and would be half of them.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self.power = OpticalPower(controller.operations)
        jobs, happenings = controller.jobs, Happenings(self._registry)
        self._progress = JobProgress(
            self._registry, lambda: jobs.running.keys(), float(controller.lab.scale)
        )
        jobs.on_reports.append(self._progress.heard)
        jobs.ledger.on_decision.append(happenings.decided)
        controller.transactions.on_end.append(happenings.change_ended)
        controller.speaker.on_answer.append(happenings.speaker_answered)
        self._state = LabState(controller)
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
