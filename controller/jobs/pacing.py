"""Measures the iterations of running jobs, from one change of their circuits to the next."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from patchlight.controller.jobs.cluster_view import training_of
from patchlight.controller.storage.store import Store
from patchlight.testbed.jobs import MOST_PACES, JobStatus, Pace

Record = Mapping[str, Any]


@dataclass
class IterationCounter:
    """Joins the reports of a job's ranks to iterations: of those ranks that report."""

    attempt: int | None = None
    moved: bool = False
    """Whether a change of circuits has held the job since its last reports."""
    _ranks: set[int] = field(default_factory=set)
    _ends: dict[int, list[float]] = field(default_factory=dict)
    _last: tuple[int, float] = (-1, 0.0)

    def begin(self, attempt: int) -> bool:
        """Forget what was reported, for this attempt; returns whether there was one before."""
        is_next = self.attempt is not None
        self.attempt = attempt
        self.moved = False
        self._ranks.clear()
        self._ends.clear()
        self._last = (-1, 0.0)
        return is_next

    def whole(self, reports: Sequence[Record]) -> list[tuple[float, float]]:
        """When iterations that have now ended on all ranks began and ended; not the first one."""
        self._ranks |= {report["rank"] for report in reports}
        found = []
        for report in sorted(reports, key=lambda each: int(each["index"])):
            index = report["index"]
            before, began = self._last
            if index <= before:
                continue
            ends = self._ends.setdefault(index, [])
            ends.append(report["finished_at"])
            if len(ends) < len(self._ranks):
                continue
            self._ends = {i: e for i, e in self._ends.items() if i > index}
            self._last = (index, max(ends))
            if before >= 0 and index == before + 1:
                found.append((began, max(ends)))
        return found


class Paces:
    """Adds reports to the paces of jobs, which ``JobStatus`` keeps; ``predict`` returns the
    predictions of running jobs by id."""

    def __init__(
        self, store: Store, predict: Callable[[], Mapping[str, Record]]
    ) -> None:
        self._store = store
        self._predict = predict

    def with_reports(
        self,
        counter: IterationCounter,
        status: JobStatus,
        reports: Sequence[Record],
    ) -> tuple[Pace, ...]:
        """The job's paces, with these reports of its workers."""
        begins = self._begins(counter, status, reports)
        whole = counter.whole(reports)
        paces = (*status.paces, *([begins] if begins else []))[-MOST_PACES:]
        if counter.moved or not paces:
            return paces
        pace = paces[-1]
        if pace.predicted_s is None and training_of(status) is not None:
            predicted = self._predict().get(status.id, {})
            predicted_s = predicted.get("predicted_iteration_s")
            pace = replace(pace, predicted_s=predicted_s)
        return (*paces[:-1], _added(pace, whole, reports))

    def _begins(
        self,
        counter: IterationCounter,
        status: JobStatus,
        reports: Sequence[Record],
    ) -> Pace | None:
        """The pace that begins with these reports, if one does."""
        first_at = min(report["finished_at"] for report in reports)
        attempt = status.attempt
        if counter.attempt != attempt:
            if counter.begin(attempt) or not status.paces:
                why = f"attempt {attempt + 1}" * bool(attempt)
                return Pace(first_at, why)
            return None
        if not counter.moved:
            return None
        change = next(iter(self._store.reconfigurations(last=1)), None)
        if change is None or change.state == "intent":
            return None
        counter.moved = False
        if change.state != "committed" or not change.changes:
            return None
        return Pace(
            change.finished_at or first_at,
            change.why,
            reconfiguration=change.id,
        )


def _added(
    pace: Pace,
    whole: Sequence[tuple[float, float]],
    reports: Sequence[Record],
) -> Pace:
    times_s = [end - begin for begin, end in whole if begin >= pace.since]
    count = pace.iterations + len(times_s)
    if not times_s:
        return pace
    had = pace.iterations
    mean_s = ((pace.iteration_s or 0.0) * had + sum(times_s)) / count
    sent_s = sum(report["communication_s"] for report in reports)
    all_s = sent_s + sum(report["compute_s"] for report in reports)
    share = pace.communication
    if all_s > 0:
        before = 0.0 if share is None else share * had
        known = len(times_s) if share is None else count
        share = (before + sent_s / all_s * len(times_s)) / known
    return replace(
        pace,
        iterations=count,
        iteration_s=mean_s,
        communication=share,
        source=reports[-1].get("origin") or "reported",
    )
