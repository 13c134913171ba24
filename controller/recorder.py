"""Puts what is sampled on disk, a window of time after the other."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from patchlight.controller.hosts.fleet import Fleet
from patchlight.controller.jobs.job_table import Forecasts, JobTable
from patchlight.controller.jobs.running_job import RunningJob
from patchlight.controller.openflow.packet_switches import PacketSwitches
from patchlight.controller.storage.database import JournalError
from patchlight.controller.storage.series_store import (
    WIDTHS_S,
    IterationStatistics,
    JobThen,
    Sample,
    SeriesStore,
    SeriesWindow,
    job_window,
    lab_window,
)
from patchlight.testbed.lab.model import Host

_log = logging.getLogger(__name__)

WIDTH_S = WIDTHS_S[0]
# What was sampled in a window may come so much after its end.
_LATE_S = 1.5


class Recorder:
    """The samples of GPUs and ports, and what workers report, by job, as windows in a store.

    Nothing is kept for longer than ``keep_for_s`` (``None``: until there is too much of it).
    """

    def __init__(
        self,
        store: SeriesStore,
        fleet: Fleet,
        switches: PacketSwitches,
        table: JobTable,
        forecasts: Forecasts,
        keep_for_s: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._fleet, self._switches = store, fleet, switches
        self._table, self._forecasts = table, forecasts
        self._keep_for_s, self._clock = keep_for_s, clock
        self._heard: dict[str, IterationStatistics] = {}
        table.on_reports.append(self._hear)

    async def run(self) -> None:
        """Write each window when it is over, for ever."""
        while True:
            now = self._clock() - _LATE_S
            begin = int(now - now % WIDTH_S)
            await asyncio.sleep(begin + WIDTH_S - now)
            await self.write(begin)

    async def write(self, begin: int) -> None:
        """Write the window that began then; what was told of iterations is told as of it."""
        period = float(begin), float(begin + WIDTH_S)
        gpu_samples = _within(self._fleet.gpu_samples, period)
        port_rates = _within(self._switches.port_rates, period)
        jobs = self._jobs_then(period)
        before = 0.0 if self._keep_for_s is None else begin - self._keep_for_s

        def put_on_disk() -> None:
            busy = _by_name(gpu_samples, "gpu", "utilization")
            sent = _by_name(port_rates, "host", "tx_bps")
            windows = [lab_window(begin, busy, sent)] if busy or sent else []
            windows += [job_window(begin, job, then, busy, sent) for job, then in jobs.items()]
            self._store.add((window for window in windows if _says_anything(window)), before)

        try:
            await asyncio.to_thread(put_on_disk)
        except JournalError as error:  # a disk that is full, say: these samples are lost
            _log.warning("%s", error)

    def _hear(self, job: RunningJob, reports: Sequence[Mapping[str, Any]]) -> None:
        if (heard := self._heard.get(job.id)) is None:
            heard = self._heard[job.id] = IterationStatistics(_named(job.hosts))
        for report in reports:
            heard.add(report["compute_s"] + report["communication_s"])

    def _jobs_then(self, period: tuple[float, float]) -> dict[str, JobThen]:
        """The jobs that have hosts, and those that reported and are gone by now."""
        heard, self._heard = self._heard, {}
        for job_id, job in self._table.running.items():
            if job_id not in heard and job.hosts:
                heard[job_id] = IterationStatistics(_named(job.hosts))
        predicted = self._forecasts.running() if heard else {}
        found = {}
        for job_id, iterations in heard.items():
            status = self._table.find(job_id)
            since = status.runs_since if status is not None else None
            until = status.finished_at if status is not None else None
            begins, ends = period[0] if since is None else since, until or period[1]
            should = predicted.get(job_id, {}).get("predicted_iteration_s")
            found[job_id] = JobThen(iterations, begins, ends, should)
        return found


def _named(hosts: Iterable[Host]) -> list[tuple[str, str]]:
    return [(h.name, f"{h.server.name}.{h.gpu.name}" if h.gpu else "") for h in hosts]


def _within(
    samples: Sequence[Mapping[str, Any]], period: tuple[float, float]
) -> list[Mapping[str, Any]]:
    """The samples of a period: the last of what comes in as time goes by."""
    since, until = period
    latest = takewhile(lambda sample: sample["at"] >= since, reversed(samples))
    return [sample for sample in latest if sample["at"] < until][::-1]


def _by_name(
    samples: Iterable[Mapping[str, Any]], name: str, value: str
) -> Mapping[str, list[Sample]]:
    found: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        found[sample[name]].append((sample["at"], sample[value]))
    return found


def _says_anything(window: SeriesWindow) -> bool:
    return window.busy is not None or window.sent_bps is not None or window.iterations > 0
