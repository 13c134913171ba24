"""All metrics of one controller, and how they are answered to Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text
from prometheus_client.process_collector import ProcessCollector

from patchlight.controller.metrics.happenings import Happenings
from patchlight.controller.metrics.job_progress import JobProgress
from patchlight.controller.metrics.lab_state import LabState
from patchlight.controller.metrics.optical_power import OpticalPower

if TYPE_CHECKING:
    from patchlight.controller.parts import Controller


_OPENMETRICS = "application/openmetrics-text"
_PLAIN = "text/plain; version=0.0.4; charset=utf-8"
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

    def routes(self) -> APIRouter:
        """``/metrics``, in the format that is asked for."""
        routes = APIRouter()

        @routes.get("/metrics", include_in_schema=False)
        async def metrics(request: Request) -> Response:
            openmetrics = _OPENMETRICS in request.headers.get("accept", "")
            content_type = f"{_OPENMETRICS}; version=1.0.0; charset=utf-8"
            return Response(
                self.as_text(openmetrics=openmetrics),
                headers={"content-type": content_type if openmetrics else _PLAIN},
            )

        return routes


def metrics_app(metrics: ControllerMetrics) -> FastAPI:
    """An application that has ``/metrics`` and nothing else."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.include_router(metrics.routes())
    return app
