"""The page on jobs: their GPUs, states and rates over time, and the output of a worker."""

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from nicegui import run, ui

from patchlight.cli.dashboard import charts
from patchlight.cli.dashboard.auth import Visitor
from patchlight.cli.dashboard.lab_view import AT_WORK, WAITING, LabView
from patchlight.cli.dashboard.lab_watch import EVERY_S, LabWatch, look_back
from patchlight.cli.dashboard.page import JOB_CELL, Page, PeriodChoice, columns, now, table
from patchlight.cli.dashboard.texts import Row, job_row, measured_iteration_s
from patchlight.client.client import ControllerClient
from patchlight.console.rendering import harmless
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.units import format_time

_LINES = 500
_COLUMNS = {
    "name": "job",
    "state": "state",
    "why": "why it waits or ended",
    "user": "user",
    "gpus": "GPUs",
    "done": "iterations done",
    "iteration": "one takes",
    "predicted": "predicted",
    "sends": "sends",
    "submitted": "submitted",
}
# The first two are of single samples, as they come; the others of what is on disk.
_PERIODS = {60: "the last minute", 300: "the last 5 minutes", 3600: "the last hour"}
_PERIODS |= {86_400: "the last day", 604_800: "the last week"}
_LIVE_S = 300.0
_CHARTS_EVERY_S, _PAST_EVERY_S = 1.0, 10.0


class JobsPage(Page):
    """A table of jobs, charts over time, and the output of a chosen worker."""

    def __init__(
        self, watch: LabWatch, visitor: Visitor, path: str, given: tuple[str, str] = ("", "")
    ) -> None:
        """``given``: the period that it begins with, as for ``PeriodChoice``."""
        super().__init__(watch, visitor, path)
        self._given = given

    def build(self) -> None:
        """The period and all its jobs above, charts below, the log of one worker last."""
        self._drawn_at, self._asking = 0.0, asyncio.Lock()
        self._choices = 0
        self._has_past = False
        self._period = PeriodChoice("Jobs and charts of", _PERIODS, 300, self._given, self._at_once)
        self._jobs = table(columns(_COLUMNS), "Jobs", rows_per_page=10)
        self._jobs.add_slot("body-cell-name", JOB_CELL)
        self._about = ui.label().classes("text-xs opacity-80").props("role=note")
        with ui.element("div").classes("grid grid-cols-2 gap-2 w-full"):
            self._charts = {
                "gpus": _chart("GPUs by job", ""),
                "sent": _chart("What jobs send", "Gb/s"),
                "took": _chart("Iterations: measured, and predicted (dashed)", "s"),
                "busy": _chart("GPUs busy, by job", "%"),
            }
        self._output = JobOutput(self.visitor.client)
        ui.timer(_CHARTS_EVERY_S, self._look_back)

    def refresh(self) -> None:
        """Rows that differ at once, charts once a second; a past period by itself."""
        if not self._is_live or now() - self._drawn_at < _CHARTS_EVERY_S:
            return
        self._drawn_at, watch, view = now(), self.watch, self.watch.view
        rows = []
        for job in _listed(view.jobs):
            took = measured_iteration_s(watch.iterations.get(job["id"], ()))
            at_work = job["state"] in AT_WORK
            sends = [watch.rates[h][-1][1] for h in job["hosts"] if at_work and watch.rates.get(h)]
            rows.append(job_row(job, view, took, sum(sends) if sends else None))
        since, until = self._period.bounds(now())
        self._about.text = "Means over 5 s are bold, samples thin; a point is an iteration."
        self._show(rows, view, charts.live(watch, since), since, until)

    @property
    def _is_live(self) -> bool:
        length_s = self._period.length_s
        return length_s is not None and length_s <= _LIVE_S

    def _at_once(self) -> None:
        self._drawn_at, self._has_past = 0.0, False
        self._choices += 1

    async def _look_back(self) -> None:
        """Show a period from disk: a fixed one once, one up to now repeatedly."""
        again = not self._has_past or self._period.length_s is not None
        due = again and now() - self._drawn_at >= _PAST_EVERY_S
        if self._is_live or not due or self._asking.locked() or not self.watch.lab.name:
            return
        async with self._asking:
            choice, (since, until) = self._choices, self._period.bounds(now())
            try:
                past = await run.io_bound(partial(look_back, self.visitor.client, since, until))
            except PatchlightError as error:
                self._about.text = error.message
                return
            if past is None or choice != self._choices:
                return
        self._drawn_at, self._has_past = now(), True
        view = past.view(self.watch.lab, self.watch.view.colours)
        rows = []
        for job in _listed(past.jobs):
            number = job["id"]
            row_of = {**job, "predicted_iteration_s": past.predicted_s(number)}
            rows.append(job_row(row_of, view, past.iteration_s(number), past.sends_bps(number)))
        drawn, ran = len(past.windows), sum(bool(job["hosts"]) for job in past.jobs)
        some = f" The charts have the latest {drawn} of {ran} jobs." if drawn < ran else ""
        self._about.text = (
            f"Means over {format_time(past.width_s)} are bold, the least and the most in that time "
            f"thin.{some}"
        )
        self._show(rows, view, charts.of_past(past, view), since, until)

    def _show(
        self,
        rows: list[Row],
        view: LabView,
        series: Mapping[str, list[charts.Options]],
        since: float,
        until: float,
    ) -> None:
        if self._jobs.rows != rows:
            self._jobs.rows = rows
        self._output.offer(
            {
                job["id"]: f"{harmless(job['spec']['name'])} {job['id']}"
                for job in _listed(view.jobs)
                if job["state"] not in WAITING
            }
        )
        window = {"min": since * 1000, "max": until * 1000}
        for name, chart in self._charts.items():
            if name == "gpus":
                chart.options.update(charts.timeline(view, since, until))
            else:
                chart.options["series"] = series[name]
                chart.options["xAxis"] |= window
            chart.update()


def _listed(jobs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those at work first, then those that wait, then the others, the latest first."""
    rank = {state: number for number, state in enumerate((*AT_WORK, *WAITING))}
    return sorted(jobs, key=lambda j: (rank.get(j["state"], len(rank)), -j["submitted_at"]))


def _chart(title: str, value_name: str) -> ui.echart:
    with ui.card().classes("p-2 gap-0"):
        ui.label(title).classes("text-sm font-bold").props("role=heading")
        chart = ui.echart(charts.empty(value_name)).classes("w-full h-56")
        return chart.props(f'role=img aria-label="{title}"')


class JobOutput:
    """The choice of a job and a worker, and the end of its output."""

    def __init__(self, client: ControllerClient) -> None:
        self._client = client
        with ui.row().classes("items-center gap-2 mt-2"):
            ui.label("Output of").classes("font-bold")
            self._job = ui.select([], on_change=self._follow_another, label="job")
            self._worker = ui.number("worker", value=0, min=0, on_change=self._follow_another)
            self._job.props('dense options-dense aria-label="Output of job"').classes("w-64")
            self._worker.props("dense").classes("w-24")
        self._log = ui.log(max_lines=_LINES).classes("w-full h-64").props("role=log")
        self._next_byte, self._asking = 0, asyncio.Lock()
        ui.timer(2 * EVERY_S, self._follow)

    def offer(self, names: Mapping[str, str]) -> None:
        """Let one of these jobs be chosen; ``names`` by id."""
        if self._job.options != names:
            kept = self._job.value if self._job.value in names else next(iter(names), None)
            self._job.set_options(dict(names), value=kept)

    def _follow_another(self) -> None:
        self._log.clear()
        self._next_byte = 0

    async def _follow(self) -> None:
        job, worker = self._job.value, int(self._worker.value or 0)
        if not job or self._asking.locked():
            return
        async with self._asking:
            after = self._next_byte
            try:
                part = await run.io_bound(partial(self._client.log, job, worker, after))
            except PatchlightError as error:
                if not after:
                    self._log.clear()
                    self._log.push(error.message)
                return
            still = (self._job.value, int(self._worker.value or 0), self._next_byte)
            if part is not None and still == (job, worker, after) and part["text"]:
                self._next_byte = int(part["next"])
                self._log.push(harmless(part["text"], keep="\n\t"))
