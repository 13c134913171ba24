"""Keeps the status of each job, on disk first, and predicted and measured iteration times."""

import math
import time
from collections import ChainMap, Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any

from patchlight.controller.changes.record import Reconfiguration
from patchlight.controller.jobs.cluster_view import training_of
from patchlight.controller.jobs.ledger import JobLedger, JobOutputs
from patchlight.controller.jobs.lives import AT_WORK, JOB_MOVES, check_move
from patchlight.controller.jobs.running_job import RunningJob
from patchlight.controller.jobs.workdirs import Workdirs
from patchlight.controller.prediction import completion, network
from patchlight.controller.prediction.interleaving import set_slots_of
from patchlight.controller.storage.database import Period
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.jobs import JobState, JobStatus
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.wiring import Links
from patchlight.testbed.wire.worker_api import WorkdirPart

_RECENT = 64  # as many as policies see
_LISTED = 1000  # the longest page


class JobTable:
    """The status of jobs by id; ``running`` have hosts. ``on_reports`` are called with iterations,
    ``on_state`` with new jobs and states, once on disk."""

    def __init__(
        self,
        ledger: JobLedger,
        outputs: JobOutputs | None = None,
        workdirs: Workdirs | None = None,
    ) -> None:
        self.running: dict[str, RunningJob] = {}
        self.on_reports: list[
            Callable[[RunningJob, Sequence[dict[str, Any]]], None]
        ] = []
        self.on_state: list[Callable[[JobStatus], None]] = []
        self.ledger = ledger
        self.outputs = outputs
        self.workdirs = workdirs
        self._live = {status.id: status for status in ledger.unfinished()}
        self.unreadable = ledger.unreadable()
        """Jobs whose records were lost while they ran; their workers may continue."""
        # Ended jobs of the last pages: reading them takes most of the time of a list.
        self._listed: OrderedDict[str, JobStatus] = OrderedDict()
        self._texts: dict[str, tuple[JobStatus, bytes]] = {}
        self._recent = OrderedDict(
            (each.id, each) for each in ledger.page(_RECENT)
        )

    def __getitem__(self, job_id: str) -> JobStatus:
        """One job; ``BadInput`` for an unknown id."""
        if (status := self.find(job_id)) is not None:
            return status
        raise BadInput(
            f"unknown job {job_id!r}: 'patchlight job list' shows all"
        )

    def find(self, job_id: str) -> JobStatus | None:
        """One job, or ``None``."""
        return self._live.get(job_id) or self.ledger.find(job_id)

    def meant(self, text: str) -> list[JobStatus]:
        """The jobs that a text may mean: an id, its start, or a name."""
        exact = self.find(text)
        return [exact] if exact else self.ledger.meant(text)

    @property
    def hosts(self) -> dict[str, list[str]]:
        """The hosts of each running job, including those reserved for it."""
        return {
            job_id: [host.name for host in job.all_hosts]
            for job_id, job in self.running.items()
        }

    def page(
        self,
        last: int = 100,
        after: str | None = None,
        period: Period | None = None,
        **which: str,
    ) -> list[JobStatus]:
        """As ``JobLedger.page``."""
        known = ChainMap(self._live, self._listed)
        found = self.ledger.page(
            last,
            after,
            period,
            **which,
            known=known,
        )
        for status in found:
            if status.state.is_final:
                self._listed[status.id] = status
                self._listed.move_to_end(status.id)
        while len(self._listed) > _LISTED:
            self._texts.pop(self._listed.popitem(last=False)[0], None)
        return found

    def text(self, status: JobStatus) -> bytes:
        """``status.as_text``, cached for unfinished jobs and those of the last pages."""
        known, text = self._texts.get(status.id, (None, b""))
        if known is not status:
            text = status.as_text
            if any(
                each.get(status.id) is status
                for each in (self._live, self._listed)
            ):
                self._texts[status.id] = status, text
        return text

    def several(self, job_ids: Iterable[str]) -> dict[str, JobStatus]:
        """The known jobs of these ids."""
        return {
            job_id: found
            for job_id in job_ids
            if (found := self.find(job_id)) is not None
        }

    def live(self) -> list[JobStatus]:
        """Every unfinished job, in order of submission."""
        return list(self._live.values())

    def recent(self) -> list[JobStatus]:
        """The latest jobs, ended or not, latest last; at most 64."""
        return list(self._recent.values())

    def add(self, statuses: Sequence[JobStatus]) -> None:
        """Store jobs in new states, with events, all or none."""
        now = time.time()
        events = [
            (now, f"job-{s.state}", {"job": s.id, "message": s.message})
            for s in statuses
        ]
        self.ledger.save(statuses, events)
        for status in statuses:
            self._remember(status)
            for hear in self.on_state:
                hear(status)
        ended = [status for status in statuses if status.state.is_final]
        if self.workdirs is not None and ended:
            self.workdirs.forget(ended, self.live())

    def add_to_workdir(
        self,
        user: str,
        digest: str,
        part: WorkdirPart,
    ) -> int:
        """Store a part of what a user ships with jobs; returns the offset to continue at."""
        if self.workdirs is None:
            raise BadInput("this controller stores no working directories")
        try:
            return self.workdirs.add(
                user,
                digest,
                part,
                self.live(),
            )
        except OSError as error:
            raise PatchlightError(
                f"storing a job's working directory: {error.strerror}"
            ) from error

    def keep(self, status: JobStatus) -> None:
        """Store the status of a job in an unchanged state."""
        self.ledger.save([status])
        self._remember(status)

    def move(
        self,
        job_id: str,
        state: JobState,
        message: str = "",
        last_lines: Sequence[str] = (),
        **changes: Any,
    ) -> JobStatus:
        """Set a job's state, with an event; ``IllegalMove`` unless ``JOB_MOVES`` has this move.
        ``changes`` are other fields."""
        (moved,) = self._move(
            [job_id],
            state,
            message,
            last_lines,
            **changes,
        )
        return moved

    def end(
        self,
        job_ids: Sequence[str],
        state: JobState,
        message: str,
        last_lines: Sequence[str] = (),
    ) -> None:
        """End those of the jobs that have not ended yet, all or none."""
        live = [job_id for job_id in job_ids if job_id in self._live]
        self._move(
            live,
            state,
            message,
            last_lines,
        )

    def _move(
        self,
        job_ids: Sequence[str],
        state: JobState,
        message: str,
        last_lines: Sequence[str],
        **changes: Any,
    ) -> list[JobStatus]:
        now = time.time()
        moved = []
        for job_id in job_ids:
            status = self[job_id]
            check_move(
                f"job {job_id}",
                JOB_MOVES,
                status.state,
                state,
            )
            begins = state is JobState.RUNNING and status.started_at is None
            moved.append(
                replace(
                    status,
                    state=state,
                    message=message,
                    last_lines=tuple(last_lines),
                    started_at=now if begins else status.started_at,
                    finished_at=now if state.is_final else None,
                    **changes,
                )
            )
        if moved:
            self.add(moved)
        return moved

    def _remember(self, status: JobStatus) -> None:
        self._listed.pop(status.id, None)
        if status.state.is_final:
            self._live.pop(status.id, None)
            self._texts.pop(status.id, None)
        else:
            self._live[status.id] = status
        self.unreadable.discard(status.id)
        self._recent[status.id] = status
        while len(self._recent) > _RECENT:
            self._recent.popitem(last=False)


_ITERATIONS = 20  # a measured time is the mean of this many

_PREDICTED = "predicted_iteration_s"
_AFTER = "predicted_after_s"
_KEPT = "light"


class Forecasts:
    """Predictions of the flow model. ``links`` returns the last known links, or ``None``, and
    ``interleaves`` whether jobs that share them send in turns."""

    def __init__(
        self,
        lab: Lab,
        table: JobTable,
        links: Callable[[], Links | None],
        interleaves: Callable[[], bool] = lambda: False,
    ) -> None:
        self._lab = lab
        self._table = table
        self._links = links
        self._interleaves = interleaves

    def running(
        self,
        links: Links | None = None,
        more: Sequence[JobStatus] = (),
        start_s: float = 0.0,
    ) -> dict[str, dict[str, Any]]:
        """Predictions for each running job of known work, and for ``more`` that begin after
        ``start_s``."""
        lit = links or self._links()
        statuses = [
            s for s in self._table.live() if s.state in AT_WORK and s.hosts
        ]
        placed = [
            completion.PredictedJob(
                status.id,
                status.hosts,
                training,
                begins_s,
            )
            for begins_s, each in ((0.0, statuses), (start_s, more))
            for status in each
            if (training := training_of(status)) is not None
        ]
        if lit is None or not placed:
            return {}
        endless = {s.id for s in (*statuses, *more) if not s.spec.iterations}
        return {
            each.job: {
                _PREDICTED: each.iteration_s,
                "predicted_completion_s": each.completion_s
                if each.job not in endless
                else None,
                "bottleneck": each.bottleneck,
            }
            for each in completion.predict(
                network.LabNetwork(self._lab, lit),
                placed,
                set_slots_of if self._interleaves() else None,
            )
        }

    def shown(
        self, statuses: Sequence[JobStatus]
    ) -> Mapping[str, dict[str, Any]]:
        """The same for a list of jobs; computes nothing if none of them runs."""
        return (
            self.running() if any(s.state in AT_WORK for s in statuses) else {}
        )


class IterationTimes:
    """Predicted and measured iterations around circuit changes of jobs, kept in the ledger."""

    def __init__(
        self,
        store: Store,
        table: JobTable,
        forecasts: Forecasts,
    ) -> None:
        self._store = store
        self._table = table
        self._forecasts = forecasts

    def before(self, job_ids: Collection[str]) -> dict[str, dict[str, Any]]:
        """The times of jobs that train, just before a change. ``unsettled_before``: something else
        changed since the measured iterations began."""
        jobs = self._table.several(job_ids)
        found = {}
        predicted = self._forecasts.shown(list(jobs.values()))
        for job_id, status in jobs.items():
            if job_id in predicted:
                settled_s = self.measured_s(status)
                latest_s = (
                    self._latest_s(status, -math.inf)
                    if settled_s is None
                    else settled_s
                )
                found[job_id] = {
                    "predicted_before_s": predicted[job_id][_PREDICTED],
                    "measured_before_s": latest_s,
                    "unsettled_before": settled_s is None,
                    "reported": self._table.ledger.reported(job_id),
                }
        return found

    def expected(self, links: Links) -> dict[str, tuple[float, float]]:
        """The iterations predicted for running jobs (seconds): now, and with these links."""
        now = self._forecasts.running()
        then = self._forecasts.running(links)
        return {
            job_id: (each[_PREDICTED], then[job_id][_PREDICTED])
            for job_id, each in now.items()
            if job_id in then
        }

    def kept(
        self, before: Mapping[str, Mapping[str, Any]], change: Reconfiguration
    ) -> dict[str, dict[str, Any]]:
        """What to keep with these jobs' decisions, by job; nothing if no circuit changed."""
        if not before or change.state != "committed" or not change.changes:
            return {}
        after = {
            job_id: each[_PREDICTED]
            for job_id, each in self._forecasts.running().items()
        }
        return {
            job_id: {
                _KEPT: {
                    "moved_at": change.finished_at,
                    **was,
                    _AFTER: after[job_id],
                }
            }
            for job_id, was in before.items()
            if job_id in after
        }

    def of(self, status: JobStatus) -> list[dict[str, Any]]:
        """Each circuit change of a job while it trained, oldest first, with later measurements."""
        ledger = self._table.ledger
        ranks = max(1, len(status.hosts))
        kept = [each for each in ledger.decisions(status.id) if _KEPT in each]
        found = []
        for number, decision in enumerate(kept):
            light = dict(decision[_KEPT])
            most = (_ITERATIONS + 3) * ranks
            reports, _ = ledger.iterations(
                status.id, light.pop("reported"), most
            )
            until = (
                kept[number + 1][_KEPT]["moved_at"]
                if number + 1 < len(kept)
                else math.inf
            )
            times_s = durations_s(
                reports,
                ranks,
                light["moved_at"],
                until,
            )
            after_s = fmean(times_s[:_ITERATIONS]) if times_s else None
            names = {
                key: decision[key] for key in ("policy", "reconfiguration")
            }
            found.append({**names, **light, "measured_after_s": after_s})
        return found

    def shown(self, status: JobStatus) -> dict[str, Any]:
        """Additions to a job's record; after its end, as it was then."""
        measured_s = None
        ended: dict[str, Any] = {}
        if status.state is JobState.RUNNING:
            measured_s = self.measured_s(status)
        elif status.state.is_final and status.paces:
            measured_s = status.paces[-1].iteration_s
            ended = {_PREDICTED: status.paces[-1].predicted_s}
        return {
            **ended,
            "measured_iteration_s": measured_s,
            "light_moves": self.of(status),
        }

    def measured_s(self, status: JobStatus) -> float | None:
        """The mean of a running job's latest iterations since the last circuit change, and since
        another job last began or ended."""
        recent = self._table.recent()
        at = [each.started_at for each in recent] + [
            each.finished_at for each in recent
        ]
        at += [
            change.finished_at
            for change in self._store.reconfigurations(last=1)
        ]
        since = max(
            (each for each in at if each is not None), default=-math.inf
        )
        return self._latest_s(status, since)

    def _latest_s(self, status: JobStatus, since: float) -> float | None:
        ranks = max(1, len(status.hosts))
        reports = self._table.ledger.latest_iterations(
            status.id, (_ITERATIONS + 3) * ranks
        )
        times_s = durations_s(reports, ranks, since)[-_ITERATIONS:]
        return fmean(times_s) if times_s else None

    def note(self, job_id: str) -> None:
        """Write events with the effect of each circuit change of a job, once it has ended."""
        moves = self.of(self._table[job_id])
        events = [(time.time(), {"job": job_id, **each}) for each in moves]
        self._store.add_events("light-measured", events)


def durations_s(
    reports: Sequence[Mapping[str, Any]],
    ranks: int,
    since: float = -math.inf,
    until: float = math.inf,
) -> list[float]:
    """The durations of the last attempt's iterations that began and ended in this period. An
    iteration lasts from the previous end to its own, of the last rank."""
    attempt = max((report.get("attempt", 0) for report in reports), default=0)
    ends: dict[int, float] = {}
    reported: Counter[int] = Counter()
    for report in reports:
        if report.get("attempt", 0) == attempt:
            index = report["index"]
            reported[index] += 1
            ends[index] = max(
                ends.get(index, -math.inf), report["finished_at"]
            )
    whole = sorted(
        index for index, count in reported.items() if count >= ranks
    )
    return [
        ends[after] - ends[before]
        for before, after in pairwise(whole)
        if after == before + 1
        and ends[before] >= since
        and ends[after] <= until
    ]
