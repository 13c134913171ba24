"""How long iterations of running jobs should take as the lab is lit now, and when they end."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from patchlight.controller.jobs.cluster_view import training_of
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.prediction.completion import PlacedJob, Prediction, predict_on
from patchlight.controller.prediction.network import LabNetwork
from patchlight.testbed.jobs import JobState, JobStatus
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.wiring import Links

_AT_WORK = (JobState.RUNNING, JobState.PAUSED)


class Forecasts:
    """Predictions of the flow model. ``links`` gives the links as last known, or ``None``."""

    def __init__(self, lab: Lab, table: JobTable, links: Callable[[], Links | None]) -> None:
        self._lab, self._table, self._links = lab, table, links

    def running(
        self, links: Links | None = None, more: Sequence[JobStatus] = ()
    ) -> dict[str, dict[str, Any]]:
        """Of each job that runs, and of ``more`` as if they did, what is predicted.

        ``links`` are those that would be lit; by default those that are. Jobs of which nothing is
        known are left out.
        """
        lit = links or self._links()
        statuses = [s for s in self._table.live() if s.state in _AT_WORK and s.hosts]
        placed = [job for status in (*statuses, *more) if (job := _placed(status)) is not None]
        if lit is None or not placed:
            return {}
        found = predict_on(LabNetwork(self._lab, lit), placed)
        return {each.job: as_record(each) for each in found}

    def shown(self, statuses: Sequence[JobStatus]) -> Mapping[str, dict[str, Any]]:
        """The same for a list of jobs; nothing is worked out if none of them runs."""
        return self.running() if any(s.state in _AT_WORK for s in statuses) else {}


def _placed(status: JobStatus) -> PlacedJob | None:
    training = training_of(status)
    return None if training is None else PlacedJob(status.id, status.hosts, training)


def as_record(prediction: Prediction) -> dict[str, Any]:
    """What is added to a job's record."""
    return {
        "predicted_iteration_s": prediction.iteration_s,
        "predicted_completion_s": prediction.completion_s,
        "bottleneck": prediction.bottleneck,
    }
