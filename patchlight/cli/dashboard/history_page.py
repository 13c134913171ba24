"""The page on the past: changes of circuits, events, alarms, drift; and the devices now."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nicegui import events, run, ui

from patchlight.cli.dashboard.auth import Visitor
from patchlight.cli.dashboard.lab_watch import LabWatch
from patchlight.cli.dashboard.page import Page, PeriodChoice, columns, confirmed, now, table
from patchlight.cli.dashboard.texts import Row, change_row, event_row, health_rows
from patchlight.console.rendering import harmless, when
from patchlight.testbed.errors import PatchlightError

_CHANGES = {
    "id": "change",
    "at": "began",
    "state": "state",
    "by": "by",
    "why": "why",
    "took": "took",
    "dark": "light away",
    "stages": "stages",
    "changes": "circuits",
    "message": "",
}
_HEALTH = {"name": "name", "kind": "kind", "words": "how it is"}
_ALARMS = {"at": "at", "ocs": "circuit switch", "severity": "severity", "subject": "of"}
_ALARMS |= {"words": "what it says"}
_DRIFT = {"ocs": "circuit switch", "missing": "missing", "unknown": "not committed", "since": "of"}
_EVENTS = {"at": "at", "kind": "kind", "words": ""}
_PERIODS = {3600: "the last hour", 86_400: "the last day", 604_800: "the last week"}
_PERIODS |= {31_536_000: "the last year"}
_EVERY_S = 0.5
TROUBLES = (
    *("alarm", "drift", "unreachable", "reachable"),
    *("openflow-switch-down", "openflow-speaker-down", "openflow-second-switch"),
    *("openflow-refused-switch", "openflow-unknown-switch"),
    *("part-fault", "policy-fault", "record-set-aside", "worker-left-behind"),
)
"""The kinds of events on faults, and on their ends."""

_UNDO = """<q-td :props="props"><q-btn v-if="props.row.can_undo" dense outline size="sm"
:label="'Undo ' + props.row.id" @click="() => $parent.$emit('undo', props.row.id)" /></q-td>"""
_GOOD = """<q-td :props="props"><span :class="props.row.good ? '' : 'text-negative font-bold'">
{{ props.row.words }}</span></q-td>"""


class PagedTable:
    """A table of rows with a number as ``id``, loaded page by page, the latest first."""

    def __init__(self, shown: list[dict[str, Any]], title: str, rows_per_page: int) -> None:
        self._rows_per_page = rows_per_page
        self._before: list[int] = []
        self._wanted, self._loaded = 1, 0
        self.table = table(shown, title).classes("mt-2")
        with self.table.add_slot("bottom"), ui.row().classes("items-center gap-2"):
            self._newer = ui.button("Newer", on_click=self._turn_back)
            self._older = ui.button("Older", on_click=self._turn)
            for button in (self._newer, self._older):
                button.props(f'flat dense no-caps aria-label="{button.text} {title}"')
            self._about = ui.label().classes("text-xs")

    @property
    def is_due(self) -> bool:
        """Whether another page is wanted than the one that is shown."""
        return self._loaded != self._wanted

    @property
    def is_at_newest(self) -> bool:
        """Whether it shows the latest rows."""
        return not self._before

    def from_the_newest(self) -> None:
        """Show the first page next."""
        self._before.clear()
        self._want_another()

    async def load(self, page: Callable[[int, int | None], Sequence[dict[str, Any]]]) -> None:
        """Show the rows of ``page``: so many before a number, or the latest of all."""
        wanted, turned = self._wanted, len(self._before)
        before = self._before[-1] if self._before else None
        rows = await run.io_bound(page, self._rows_per_page + 1, before)
        if rows is None or wanted != self._wanted:  # it ends, or the reader is elsewhere by now
            return
        self._loaded, shown = wanted, list(rows[: self._rows_per_page])
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


class HistoryPage(Page):
    """Tables of a period, the latest row first, page by page from the controller's disk."""

    def __init__(
        self, watch: LabWatch, visitor: Visitor, path: str, given: tuple[str, str] = ("", "")
    ) -> None:
        """``given``: the period that it begins with, as for ``PeriodChoice``."""
        super().__init__(watch, visitor, path)
        self._given = given

    def build(self) -> None:
        """The period above; the present below."""
        self._asking, self._shown_of = asyncio.Lock(), (-1, "")
        self._period = PeriodChoice(
            "What happened in", _PERIODS, 604_800, self._given, self._from_the_newest
        )
        shown = columns(_CHANGES)
        if self.may_change():
            shown.append({"name": "undo", "field": "id", "label": "", "align": "left"})
        self._changes = PagedTable(shown, "Changes of circuits", 10)
        self._changes.table.add_slot("body-cell-undo", _UNDO)
        self._changes.table.on("undo", self._undo)
        self._troubles = PagedTable(columns(_EVENTS), "Alarms, drift and what failed", 10)
        self._events = PagedTable(columns(_EVENTS), "Events", 15)
        with ui.element("div").classes("grid grid-cols-2 gap-2 w-full mt-2"):
            self._health = table(columns(_HEALTH), "Devices, agents, and the controller now")
            self._health.add_slot("body-cell-words", _GOOD)
            with ui.column().classes("gap-2"):
                self._drift = table(columns(_DRIFT), "Drift from committed maps now")
                self._alarms = table(columns(_ALARMS), "What circuit switches report now", 10)
        ui.timer(_EVERY_S, self._load)

    def refresh(self) -> None:
        """Send the tables of the present that differ."""
        watch, view = self.watch, self.watch.view
        drifted = [
            {
                "id": ocs,
                "ocs": ocs,
                "missing": " ".join(d["missing"]),
                "unknown": " ".join(d["unknown"]),
                "since": "" if d["reconfiguration"] is None else f"change {d['reconfiguration']}",
            }
            for ocs, d in watch.drift.items()
            if d["missing"] or d["unknown"]
        ]
        alarms: list[Row] = []
        for number, alarm in enumerate(watch.alarms):
            told = {key: harmless(str(each)) for key, each in alarm.items() if key in _ALARMS}
            alarms.insert(0, {"id": number, **told, "at": when(alarm["at"])})
        for shown, rows in (
            (self._health, sorted(health_rows(view), key=lambda row: bool(row["good"]))),
            (self._drift, drifted),
            (self._alarms, alarms),
        ):
            if shown.rows != rows:
                shown.rows = rows

    def _from_the_newest(self) -> None:
        for paged in (self._changes, self._troubles, self._events):
            paged.from_the_newest()

    async def _load(self) -> None:
        """Load pages that are turned to, and the newest ones when something happened."""
        latest = self.watch.changes[-1:]
        state = f"{latest[0]['id']} {latest[0]['state']}" if latest else ""
        news = (self.watch.heard, state) != self._shown_of and self._period.length_s is not None
        if self._asking.locked():
            return
        async with self._asking:
            self._shown_of = self.watch.heard, state
            since, until = self._period.bounds(now())
            client = self.visitor.client

            def changes(last: int, before: int | None) -> list[Row]:
                found = client.past_reconfigurations(since, until, last=last, before=before)
                return [change_row(change) for change in reversed(found)]

            def events_of(kinds: Sequence[str], last: int, before: int | None) -> list[Row]:
                asked: Any = {"last": last, "before": before, "kinds": kinds}
                return [event_row(e) for e in reversed(client.past_events(since, until, **asked))]

            for paged, page in (
                (self._changes, changes),
                (self._troubles, partial(events_of, TROUBLES)),
                (self._events, partial(events_of, ())),
            ):
                if paged.is_due or (news and paged.is_at_newest):
                    try:
                        await paged.load(page)
                    except PatchlightError:  # the head of the page says what is wrong
                        self._shown_of = (-1, "")
                        return

    async def _undo(self, event: events.GenericEventArguments) -> None:
        number = int(event.args)
        if await confirmed(f"Undo change {number}, and nothing that others did?", "Roll back"):
            await self.ask(partial(self.visitor.client.roll_back, number), f"undoing {number}")
