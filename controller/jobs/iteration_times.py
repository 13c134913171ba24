"""How long iterations of running jobs take, as predicted and as measured, and when jobs end."""

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from patchlight.controller.changes.record import Reconfiguration
from patchlight.controller.jobs.cluster_view import training_of
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.prediction.network import (
    LabNetwork,
    PredictedJob,
    Prediction,
    predict_on,
)
from patchlight.controller.storage.store import Store
from patchlight.testbed.jobs import JobState, JobStatus
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.wiring import Links

_AT_WORK = (JobState.RUNNING, JobState.PAUSED)

_ITERATIONS = 20
"""As many iterations as a measured time is the mean of."""

_PREDICTED, _KEPT = "predicted_iteration_s", "light"


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


def _placed(status: JobStatus) -> PredictedJob | None:
    training = training_of(status)
    return None if training is None else PredictedJob(status.id, status.hosts, training)


def as_record(prediction: Prediction) -> dict[str, Any]:
    """What is added to a job's record."""
    return {
        "predicted_iteration_s": prediction.iteration_s,
        "predicted_completion_s": prediction.completion_s,
        "bottleneck": prediction.bottleneck,
    }


@dataclass(frozen=True)
class PacesBefore:
    """What was known of each job at work before a change; ``reported``: its reports, by number.

    Of those ``unsettled`` something else changed since the measured iterations began.
    """

    predicted_s: Mapping[str, float | None]
    measured_s: Mapping[str, float | None]
    unsettled: Mapping[str, bool]
    reported: Mapping[str, int]


class IterationTimes:
    """Predicted and measured iterations of jobs whose light moved; the ledger keeps them."""

    def __init__(self, store: Store, table: JobTable, forecasts: Forecasts) -> None:
        self._store, self._table, self._forecasts = store, table, forecasts

    def before(self, job_ids: Collection[str]) -> PacesBefore:
        """How fast those of the jobs are that train, to be asked for just before a change."""
        jobs = self._table.several(job_ids)
        predicted = self._forecasts.shown(list(jobs.values()))
        jobs = {job_id: status for job_id, status in jobs.items() if job_id in predicted}
        settled = {job_id: self.measured_s(status) for job_id, status in jobs.items()}
        latest = {
            job_id: self._latest_s(status, -math.inf)
            if settled[job_id] is None
            else settled[job_id]
            for job_id, status in jobs.items()
        }
        return PacesBefore(
            {job_id: predicted[job_id][_PREDICTED] for job_id in jobs},
            latest,
            {job_id: each is None for job_id, each in settled.items()},
            {job_id: self._table.ledger.reported(job_id) for job_id in jobs},
        )

    def kept(self, before: PacesBefore, change: Reconfiguration) -> dict[str, dict[str, Any]]:
        """What to keep with the decisions on these jobs, by job, just after a change.

        Nothing if no light moved.
        """
        if not before.reported or change.state != "committed" or not change.changes:
            return {}
        after = self._forecasts.running()
        return {
            job_id: {
                _KEPT: {
                    "moved_at": change.finished_at,
                    "predicted_before_s": before_s,
                    "predicted_after_s": after[job_id][_PREDICTED],
                    "measured_before_s": before.measured_s[job_id],
                    "unsettled_before": before.unsettled[job_id],
                    "reported": before.reported[job_id],
                }
            }
            for job_id, before_s in before.predicted_s.items()
            if job_id in after
        }

    def of(self, status: JobStatus) -> list[dict[str, Any]]:
        """Each time that light of a job moved while it trained, oldest first.

        ``measured_after_s`` is ``None`` until an iteration has begun and ended since. With
        ``unsettled_before`` other jobs began or ended, or other circuits changed, while it was
        measured before.
        """
        ledger, ranks = self._table.ledger, max(1, len(status.hosts))
        kept = [each for each in ledger.decisions(status.id) if _KEPT in each]
        found = []
        for number, decision in enumerate(kept):
            light = dict(decision[_KEPT])
            most = (_ITERATIONS + 3) * ranks
            reports, _ = ledger.iterations(status.id, light.pop("reported"), most)
            until = kept[number + 1][_KEPT]["moved_at"] if number + 1 < len(kept) else math.inf
            times_s = durations_s(reports, ranks, light["moved_at"], until)
            after_s = fmean(times_s[:_ITERATIONS]) if times_s else None
            names = {key: decision[key] for key in ("policy", "reconfiguration")}
            found.append({**names, **light, "measured_after_s": after_s})
        return found

    def shown(self, status: JobStatus) -> dict[str, Any]:
        """What is added to a job's record."""
        running = status.state is JobState.RUNNING
        measured_s = self.measured_s(status) if running else None
        return {"measured_iteration_s": measured_s, "light_moves": self.of(status)}

    def measured_s(self, status: JobStatus) -> float | None:
        """The mean of a running job's latest iterations, as far as nothing else changed since they
        began: no circuits, and no other job began or ended."""
        return self._latest_s(status, self._settled_at())

    def _latest_s(self, status: JobStatus, since: float) -> float | None:
        ranks = max(1, len(status.hosts))
        reports = self._table.ledger.latest_iterations(status.id, (_ITERATIONS + 3) * ranks)
        times_s = durations_s(reports, ranks, since)[-_ITERATIONS:]
        return fmean(times_s) if times_s else None

    def _settled_at(self) -> float:
        at = [each.started_at for each in self._table.recent()]
        at += [each.finished_at for each in self._table.recent()]
        at += [change["finished_at"] for change in self._store.reconfigurations(last=1)]
        return max((each for each in at if each is not None), default=-math.inf)

    def note(self, job_id: str) -> None:
        """Put down in events what each move of a job's light gained, once the job has ended."""
        moves = self.of(self._table[job_id])
        events = [(time.time(), {"job": job_id, **each}) for each in moves]
        self._store.add_events("light-measured", events)


def durations_s(
    reports: Sequence[Mapping[str, Any]],
    ranks: int,
    since: float = -math.inf,
    until: float = math.inf,
) -> list[float]:
    """How long the iterations took that began and ended between these times (Unix time).

    An iteration lasts from the end of the one before to its own, each as of the last rank to report
    it; ``ranks`` have to. Of several attempts the last one counts.
    """
    attempt = max((report.get("attempt", 0) for report in reports), default=0)
    ends: dict[int, float] = {}
    reported: Counter[int] = Counter()
    for report in reports:
        if report.get("attempt", 0) == attempt:
            index = report["index"]
            reported[index] += 1
            ends[index] = max(ends.get(index, -math.inf), report["finished_at"])
    whole = sorted(index for index, count in reported.items() if count >= ranks)
    return [
        ends[after] - ends[before]
        for before, after in pairwise(whole)
        if after == before + 1 and ends[before] >= since and ends[after] <= until
    ]
