"""The Jobs page, with charts and output, and the History page: changes, events, alarms, drift."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from nicegui import events, run, ui

from patchlight.cli.dashboard import charts, page, texts
from patchlight.cli.dashboard.lab_view import AT_WORK, WAITING, LabView
from patchlight.cli.dashboard.lab_watch import EVERY_S, look_back
from patchlight.client.client import ControllerClient
from patchlight.console.rendering import harmless
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.wire.rest.jobs import JobInList

_LINES = 500
_COLUMNS = {
    "name": "job",
    "state": "state",
    "why": "reason",
    "user": "user",
    "gpus": "GPUs",
    "done": "iterations",
    "iteration": "iteration time",
    "predicted": "predicted",
    "sends": "sends",
    "submitted": "submitted",
}
# The first two periods show samples; the others are read from disk.
_PERIODS = {
    60: "the last minute",
    300: "the last 5 minutes",
    3600: "the last hour",
}
_PERIODS |= {86_400: "the last day", 604_800: "the last week"}
_PAST_PERIODS = {s: words for s, words in _PERIODS.items() if s >= 3600}
_PAST_PERIODS |= {31_536_000: "the last year"}
_LIVE_S = 300.0
_CHARTS_EVERY_S = 1.0
_PAST_EVERY_S = 10.0


class JobsPage(page.Page):
    """A table of jobs, charts over time, and the output of a chosen worker."""

    def build(self) -> None:
        """The period and its jobs at the top, charts below, one worker's log last."""
        self._drawn_at = 0.0
        self._asking = asyncio.Lock()
        self._choices = 0
        self._has_past = False
        self._period = page.PeriodChoice(
            "Jobs and charts of",
            _PERIODS,
            300,
            self.query,
            self._at_once,
        )
        self._jobs = page.table(_COLUMNS, "Jobs", rows_per_page=10)
        self._jobs.add_slot("body-cell-name", page.JOB_CELL)
        self._about = (
            ui.label().classes("text-xs opacity-80").props("role=note")
        )
        with ui.element("div").classes("pl-halves"):
            titles = {
                "gpus": "GPUs of each job",
                "sent": "Sent by each job, Gb/s",
                "took": "Time of an iteration, s (predicted: dashed)",
                "busy": "GPU utilisation of each job, %",
            }
            self._charts = {
                name: page.time_chart(title, "h-56")
                for name, title in titles.items()
            }
        self._output = JobOutput(self.visitor.client)
        ui.timer(_CHARTS_EVERY_S, self._look_back)

    def refresh(self) -> None:
        """Update rows that differ, and charts once a second; a past period stays."""
        if not self._is_live or time.time() - self._drawn_at < _CHARTS_EVERY_S:
            return
        self._drawn_at = time.time()
        watch = self.watch
        view = self.watch.view
        rows = []
        since, until = self._period.bounds(time.time())
        there = [j for j in view.jobs if (j.finished_at or until) >= since]
        for job in _listed(there):
            took = texts.measured_iteration_s(watch.iterations.get(job.id, ()))
            at_work = job.state in AT_WORK
            sends = [
                watch.rates[h][-1][1]
                for h in job.hosts
                if at_work and watch.rates.get(h)
            ]
            rows.append(
                texts.job_row(
                    job,
                    view,
                    took,
                    sum(sends) if sends else None,
                )
            )
        self._about.text = (
            "Means over 5 s are bold, samples thin; a point is one iteration."
        )
        self._show(
            rows,
            view,
            charts.live(watch, since, until),
            since,
            until,
        )

    @property
    def _is_live(self) -> bool:
        length_s = self._period.length_s
        return length_s is not None and length_s <= _LIVE_S

    def _at_once(self) -> None:
        self._drawn_at = 0.0
        self._has_past = False
        self._choices += 1

    async def _look_back(self) -> None:
        """Show a period from disk: a fixed one once, one until now repeatedly."""
        again = not self._has_past or self._period.length_s is not None
        due = again and time.time() - self._drawn_at >= _PAST_EVERY_S
        if (
            self._is_live
            or not due
            or self._asking.locked()
            or not self.watch.lab.name
        ):
            return
        async with self._asking:
            choice = self._choices
            since, until = self._period.bounds(time.time())
            try:
                past = await run.io_bound(
                    partial(
                        look_back,
                        self.visitor.client,
                        since,
                        until,
                    )
                )
            except PatchlightError as error:
                self._about.text = error.message
                return
            if past is None or choice != self._choices:
                return
        self._drawn_at = time.time()
        self._has_past = True
        view = past.view(self.watch.lab, self.watch.view.colours)
        rows = []
        for job in _listed(past.jobs):
            number = job.id
            job.predicted_iteration_s = past.predicted_s(number)
            rows.append(
                texts.job_row(
                    job,
                    view,
                    past.iteration_s(number),
                    past.sends_bps(number),
                )
            )
        drawn = len(past.windows)
        ran = sum(bool(job.hosts) for job in past.jobs)
        some = (
            f" The charts show the latest {drawn} of {ran} jobs."
            if drawn < ran
            else ""
        )
        self._about.text = f"Means over {past.width_s} s are bold, minimum and maximum thin.{some}"
        self._show(
            rows,
            view,
            charts.of_past(past, view),
            since,
            until,
        )

    def _show(
        self,
        rows: list[texts.Row],
        view: LabView,
        series: Mapping[str, list[charts.Options]],
        since: float,
        until: float,
    ) -> None:
        title = f"Jobs, {self._period.words}"
        if self._jobs.props["title"] != title:
            self._jobs.props["title"] = title
            self._jobs.update()
        if self._jobs.rows != rows:
            self._jobs.rows = rows
        self._output.offer(
            {
                job.id: f"{harmless(job.spec.name)} {job.id}"
                for job in _listed(view.jobs)
                if job.state not in WAITING
            }
        )
        self._charts["gpus"].options.update(
            charts.timeline(view, since, until)
        )
        self._charts["gpus"].update()
        for name, drawn in series.items():
            page.draw(
                self._charts[name],
                drawn,
                view,
                since,
                until,
            )


def _listed(jobs: Iterable[JobInList]) -> list[JobInList]:
    rank = {state: number for number, state in enumerate((*AT_WORK, *WAITING))}
    return sorted(
        jobs,
        key=lambda j: (rank.get(j.state, len(rank)), -j.submitted_at),
    )


class JobOutput:
    """The choice of a job and a worker, and the end of its output."""

    def __init__(self, client: ControllerClient) -> None:
        self._client = client
        with ui.row().classes("items-center gap-2"):
            ui.label("Output of").classes("font-bold")
            self._job = ui.select(
                [],
                on_change=self._follow_another,
                label="job",
            )
            self._worker = ui.number(
                "worker",
                value=0,
                min=0,
                on_change=self._follow_another,
            )
            self._job.props(
                'dense options-dense aria-label="Output of job"'
            ).classes("w-64")
            self._worker.props("dense").classes("w-24")
        self._log = (
            ui.log(max_lines=_LINES).classes("w-full h-48").props("role=log")
        )
        self._next_byte = 0
        self._asking = asyncio.Lock()
        ui.timer(2 * EVERY_S, self._follow)

    def offer(self, names: Mapping[str, str]) -> None:
        """Update the choice of jobs; ``names`` by id."""
        if self._job.options != names:
            kept = (
                self._job.value
                if self._job.value in names
                else next(iter(names), None)
            )
            self._job.set_options(dict(names), value=kept)

    def _follow_another(self) -> None:
        self._log.clear()
        self._log.classes(remove="pl-ended")
        self._next_byte = 0

    async def _follow(self) -> None:
        job = self._job.value
        worker = int(self._worker.value or 0)
        if not job or self._asking.locked():
            return
        async with self._asking:
            after = self._next_byte
            try:
                part = await run.io_bound(
                    partial(
                        self._client.log,
                        job,
                        worker,
                        after,
                    )
                )
            except PatchlightError as error:
                if not after:
                    self._log.clear()
                    self._log.push(error.message)
                return
            still = (
                self._job.value,
                int(self._worker.value or 0),
                self._next_byte,
            )
            if part is None or still != (job, worker, after):
                return
            self._log.classes("pl-ended" if part.ended else "")
            if part.text:
                self._next_byte = int(part.next)
                self._log.push(harmless(part.text, keep="\n\t"))
            elif part.ended and not after:
                self._log.clear()
                self._log.push("It printed nothing.")


_CHANGES = {
    "id": "change",
    "at": "began",
    "by": "by",
    "why": "why",
    "changes": "circuits",
    "result": "result",
    "stages": "stages",
}
_HEALTH = {"name": "name", "kind": "kind", "words": "state"}
_EVENTS = {"at": "at", "words": "event"}
TROUBLES = (
    "alarm",
    "drift",
    "unreachable",
    "reachable",
    "port-missing",
    "port-back",
    "openflow-switch-down",
    "openflow-speaker-down",
    "openflow-second-switch",
    "openflow-refused-switch",
    "openflow-unknown-switch",
    "part-fault",
    "policy-fault",
    "record-set-aside",
    "worker-left-behind",
)
"""Kinds of events about faults and their ends."""

_UNDO = """<q-td :props="props"><q-btn v-if="props.row.can_undo" dense outline size="sm" no-caps
:label="'Undo ' + props.row.id" @click="() => $parent.$emit('undo', props.row.id)" /></q-td>"""
_GOOD = """<q-td :props="props"><span :class="props.row.good ? '' : 'text-negative font-bold'">
{{ props.row.words }}</span></q-td>"""


class PagedTable:
    """A table of rows with a number as ``id``, loaded page by page, latest first."""

    def __init__(
        self,
        headings: Mapping[str, str],
        title: str,
        rows_per_page: int,
    ) -> None:
        self._rows_per_page = rows_per_page
        self._before: list[int] = []
        self._wanted = 1
        self._loaded = 0
        self.table = page.table(headings, title)
        with (
            self.table.add_slot("bottom"),
            ui.row().classes("items-center gap-2"),
        ):
            self._newer = ui.button("Newer", on_click=self._turn_back)
            self._older = ui.button("Older", on_click=self._turn)
            for button in (self._newer, self._older):
                button.props(
                    f'flat dense no-caps aria-label="{button.text} {title}"'
                )
            self._about = ui.label().classes("text-xs")

    @property
    def is_due(self) -> bool:
        """Whether another page is requested than the one shown."""
        return self._loaded != self._wanted

    @property
    def is_at_newest(self) -> bool:
        """Whether it shows the latest rows."""
        return not self._before

    def from_the_newest(self) -> None:
        """Go to the first page."""
        self._before.clear()
        self._want_another()

    async def load(
        self, rows_of: Callable[[int, int | None], Sequence[dict[str, Any]]]
    ) -> None:
        """Show ``rows_of``: a number of rows before a row, or the latest."""
        wanted = self._wanted
        turned = len(self._before)
        before = self._before[-1] if self._before else None
        rows = await run.io_bound(rows_of, self._rows_per_page + 1, before)
        if (
            rows is None or wanted != self._wanted
        ):  # the end, or the reader has turned the page
            return
        self._loaded = wanted
        shown = list(rows[: self._rows_per_page])
        if self.table.rows != shown:
            self.table.rows = shown
        self._newer.set_enabled(turned > 0)
        self._older.set_enabled(len(rows) > len(shown))
        first = turned * self._rows_per_page + 1
        self._about.text = f"{first} to {first + len(shown) - 1}"

    def _turn(self) -> None:
        if not self.is_due:
            self._before.append(int(self.table.rows[-1]["id"]))
            self._want_another()

    def _turn_back(self) -> None:
        if not self.is_due:
            self._before.pop()
            self._want_another()

    def _want_another(self) -> None:
        self._wanted += 1
        self._newer.disable()
        self._older.disable()


class HistoryPage(page.Page):
    """Tables of a period, latest row first, loaded page by page from the controller's disk."""

    def build(self) -> None:
        """The period at the top; the present state at the bottom."""
        self._asking = asyncio.Lock()
        self._shown_of = (-1, "")
        self._period = page.PeriodChoice(
            "History of",
            _PAST_PERIODS,
            604_800,
            self.query,
            self._from_the_newest,
        )
        self._changes = PagedTable(_CHANGES, "Changes of circuits", 10)
        if self.may_change():
            undo = {
                "name": "undo",
                "field": "id",
                "label": "",
                "align": "left",
            }
            self._changes.table.columns = [*self._changes.table.columns, undo]
        self._changes.table.add_slot("body-cell-undo", _UNDO)
        self._changes.table.on("undo", self._undo)
        self._troubles = PagedTable(_EVENTS, "Alarms, drift and faults", 10)
        self._events = PagedTable(_EVENTS, "Events", 15)
        self._health = page.table(
            _HEALTH, "Devices, agents and controller now"
        )
        self._health.add_slot("body-cell-words", _GOOD)
        ui.timer(EVERY_S, self._load)

    def refresh(self) -> None:
        """Update the present state."""
        rows = sorted(
            texts.health_rows(self.watch.view),
            key=lambda row: bool(row["good"]),
        )
        if self._health.rows != rows:
            self._health.rows = rows

    def _from_the_newest(self) -> None:
        for paged in (self._changes, self._troubles, self._events):
            paged.from_the_newest()

    async def _load(self) -> None:
        latest = self.watch.changes[-1:]
        state = f"{latest[0].id} {latest[0].state}" if latest else ""
        news = (
            self.watch.heard,
            state,
        ) != self._shown_of and self._period.length_s is not None
        if self._asking.locked():
            return
        async with self._asking:
            self._shown_of = self.watch.heard, state
            since, until = self._period.bounds(time.time())
            client = self.visitor.client

            def changes(last: int, before: int | None) -> list[texts.Row]:
                found = client.past_reconfigurations(
                    since,
                    until,
                    last=last,
                    before=before,
                )
                return [
                    texts.change_row(c, self.watch.view)
                    for c in reversed(found)
                ]

            def events_of(
                kinds: Sequence[str],
                last: int,
                before: int | None,
            ) -> list[texts.Row]:
                asked: Any = {"last": last, "before": before, "kinds": kinds}
                return [
                    texts.event_row(e)
                    for e in reversed(
                        client.past_events(since, until, **asked)
                    )
                ]

            for paged, rows_of in (
                (self._changes, changes),
                (self._troubles, partial(events_of, TROUBLES)),
                (self._events, partial(events_of, ())),
            ):
                if paged.is_due or (news and paged.is_at_newest):
                    try:
                        await paged.load(rows_of)
                    except (
                        PatchlightError
                    ):  # the page's header shows the error
                        self._shown_of = (-1, "")
                        return

    async def _undo(self, event: events.GenericEventArguments) -> None:
        number = int(event.args)
        if await page.confirmed(
            f"Undo change {number}? Later changes stay.", "Roll back"
        ):
            await self.ask(
                partial(self.visitor.client.roll_back, number),
                f"undoing {number}",
            )
