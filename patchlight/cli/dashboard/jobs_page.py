"""The page on jobs: who runs where and since when, who waits and why, and how fast they are."""

import asyncio
from functools import partial
from typing import Any

from nicegui import run, ui

from patchlight.cli.dashboard import charts
from patchlight.cli.dashboard.frame import Page, now
from patchlight.cli.dashboard.lab_view import AT_WORK, WAITING
from patchlight.cli.dashboard.tables import JOB_CELL, columns, table
from patchlight.cli.dashboard.watching import EVERY_S
from patchlight.cli.dashboard.words import job_row, measured_iteration_s
from patchlight.cli.rendering import harmless
from patchlight.testbed.errors import PatchlightError

_COLUMNS = {
    "name": "job",
    "state": "state",
    "why": "why",
    "user": "user",
    "gpus": "GPUs",
    "done": "iterations",
    "iteration": "iteration",
    "predicted": "predicted",
    "sends": "sends",
    "submitted": "submitted",
}
_PERIODS = {60: "last minute", 300: "last 5 minutes", 3600: "last hour", 86_400: "last day"}
_CHARTS_EVERY_S = 1.0
_LOG_LINES = 500
_LOG_BYTES = 1 << 16


class JobsPage(Page):
    """A table of jobs, charts over time, and what a chosen worker prints."""

    def build(self) -> None:
        """All jobs above, charts below, the log of one worker last."""
        self._charts_at = 0.0
        self._following = ("", 0)
        self._jobs = table(columns(_COLUMNS), "Jobs", rows_per_page=10)
        self._jobs.add_slot("body-cell-name", JOB_CELL)
        with ui.row().classes("items-center gap-2 mt-2"):
            ui.label("Charts over the").props("id=period-label")
            self._period = ui.select(_PERIODS, value=300, on_change=self._at_once)
            self._period.props('dense options-dense aria-label="Period of the charts"')
        with ui.element("div").classes("grid grid-cols-2 gap-2 w-full"):
            self._timeline = _chart("GPUs by job", "")
            self._sent = _chart("What jobs send: means bold, samples thin", "Gb/s")
            self._took = _chart("Iterations: measured, and predicted (dashed)", "s")
            self._busy = _chart("GPUs busy, by job", "%")
        with ui.row().classes("items-center gap-2 mt-2"):
            ui.label("Output of").classes("font-bold")
            self._log_of = ui.select([], on_change=self._follow_another, label="job")
            self._worker = ui.number("worker", value=0, min=0, on_change=self._follow_another)
            self._log_of.props("dense options-dense").classes("w-64")
            self._worker.props("dense").classes("w-24")
        self._log = ui.log(max_lines=_LOG_LINES).classes("w-full h-64").props("role=log")
        self._next_byte, self._asking = 0, asyncio.Lock()
        ui.timer(2 * EVERY_S, self._follow_log)

    def refresh(self) -> None:
        """Rows that differ at once, charts once a second."""
        view, watch = self.watch.view, self.watch
        order = (*AT_WORK, *WAITING)
        listed = sorted(
            view.jobs,
            key=lambda job: (
                order.index(job["state"]) if job["state"] in order else len(order),
                -job["submitted_at"],
            ),
        )
        rows = []
        for job in listed:
            took = measured_iteration_s(watch.iterations.get(job["id"], ()))
            at_work = job["state"] in AT_WORK
            sends = [watch.rates[h][-1][1] for h in job["hosts"] if at_work and watch.rates.get(h)]
            rows.append(job_row(job, view, took, sum(sends) if sends else None))
        if self._jobs.rows != rows:
            self._jobs.rows = rows
        names = {
            job["id"]: f"{harmless(job['spec']['name'])} {job['id']}"
            for job in listed
            if job["state"] not in WAITING
        }
        if self._log_of.options != names:
            kept = self._log_of.value if self._log_of.value in names else next(iter(names), None)
            self._log_of.set_options(names, value=kept)
        if now() - self._charts_at >= _CHARTS_EVERY_S:
            self._charts_at = now()
            self._draw()

    def _at_once(self) -> None:
        self._charts_at = 0.0

    def _draw(self) -> None:
        view, watch, until = self.watch.view, self.watch, now()
        since = until - float(self._period.value or 300)
        names = view.colours
        sent: dict[str, Any] = {}
        busy: dict[str, Any] = {}
        for job in view.at_work:
            hosts = [view.lab.host_names[h] for h in job["hosts"] if h in view.lab.host_names]
            rates = [[(r[0], r[1]) for r in list(watch.rates.get(h.name, ()))] for h in hosts]
            sent[job["id"]] = charts.summed([_recent(points, since) for points in rates])
            gpus = [
                list(watch.gpus.get(f"{h.server.name}.{h.gpu.name}", ())) for h in hosts if h.gpu
            ]
            shares = charts.summed([_recent(points, since) for points in gpus])
            busy[job["id"]] = [(at, share / max(1, len(gpus))) for at, share in shares]
        told = {
            job["id"]: [
                r for r in list(watch.iterations.get(job["id"], ())) if r["finished_at"] >= since
            ]
            for job in view.at_work
        }
        window = {"min": since * 1000, "max": until * 1000}
        drawn = {
            self._sent: charts.over_time(sent, names, view.changes, 1e-9),
            self._took: charts.iteration_times(told, view.at_work, names),
            self._busy: charts.over_time(busy, names, view.changes, 100.0),
        }
        for chart, series in drawn.items():
            chart.options["series"] = series
            chart.options["xAxis"] |= window
            chart.update()
        self._timeline.options.update(charts.timeline(view, since, until))
        self._timeline.update()

    # -- what a worker prints ------------------------------------------------------------------

    def _follow_another(self) -> None:
        self._log.clear()
        self._next_byte = 0

    async def _follow_log(self) -> None:
        job, worker = self._log_of.value, int(self._worker.value or 0)
        if not job or self._asking.locked():
            return
        async with self._asking:
            after = self._next_byte
            try:
                part = await run.io_bound(partial(self.visitor.client.log, job, worker, after))
            except PatchlightError as error:
                if not after:
                    self._log.clear()
                    self._log.push(error.message)
                return
            unchanged = (job, worker, after) == (
                self._log_of.value,
                int(self._worker.value or 0),
                self._next_byte,
            )
            if part is not None and unchanged and part["text"]:
                self._next_byte = int(part["next"])
                self._log.push(harmless(part["text"], keep="\n\t"))


def _recent(points: list[tuple[float, float]], since: float) -> list[tuple[float, float]]:
    return [point for point in points if point[0] >= since]


def _chart(title: str, value_name: str) -> ui.echart:
    with ui.card().classes("p-2 gap-0"):
        ui.label(title).classes("text-sm font-bold").props("role=heading")
        chart = ui.echart(charts.empty(value_name)).classes("w-full h-56")
        return chart.props(f'role=img aria-label="{title}"')
