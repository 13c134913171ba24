"""The page on what happened: changes of circuits, events, alarms, drift; and who is there now."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from nicegui import events, ui

from patchlight.cli.dashboard.circuits_page import confirmed
from patchlight.cli.dashboard.frame import Page
from patchlight.cli.dashboard.tables import columns, table
from patchlight.cli.dashboard.words import change_row, event_row, health_rows
from patchlight.cli.rendering import harmless, when

if TYPE_CHECKING:
    from patchlight.controller.shapes.circuits import AlarmShape, DriftOf

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
_UNDO = """<q-td :props="props"><q-btn v-if="props.row.can_undo" dense outline size="sm"
:label="'Undo ' + props.row.id" @click="() => $parent.$emit('undo', props.row.id)" /></q-td>"""
_GOOD = """<q-td :props="props"><span :class="props.row.good ? '' : 'text-negative font-bold'">
{{ props.row.words }}</span></q-td>"""


class HistoryPage(Page):
    """Tables, the latest row first."""

    def build(self) -> None:
        """Changes first, which one looks for most."""
        shown = columns(_CHANGES)
        if self.may_change():
            shown.append({"name": "undo", "field": "id", "label": "", "align": "left"})
        self._changes = table(shown, "Changes of circuits", rows_per_page=10)
        self._changes.add_slot("body-cell-undo", _UNDO)
        self._changes.on("undo", self._undo)
        with ui.element("div").classes("grid grid-cols-2 gap-2 w-full mt-2"):
            self._health = table(columns(_HEALTH), "Devices, agents, and the controller")
            self._health.add_slot("body-cell-words", _GOOD)
            with ui.column().classes("gap-2"):
                self._drift = table(columns(_DRIFT), "Drift from committed maps")
                self._alarms = table(columns(_ALARMS), "Alarms of circuit switches", 10)
        self._events = table(columns(_EVENTS), "Events", rows_per_page=15)

    def refresh(self) -> None:
        """Send the tables that differ."""
        watch, view = self.watch, self.watch.view
        drifted = {ocs: d for ocs, d in watch.drift.items() if d["missing"] or d["unknown"]}
        for shown, rows in (
            (self._changes, [change_row(c) for c in reversed(watch.changes)]),
            (self._health, sorted(health_rows(view), key=lambda row: bool(row["good"]))),
            (self._drift, [_drift_row(ocs, drift) for ocs, drift in drifted.items()]),
            (self._alarms, [_alarm_row(n, a) for n, a in enumerate(watch.alarms)][::-1]),
            (self._events, [event_row(e) for e in reversed(list(watch.events))]),
        ):
            if shown.rows != rows:
                shown.rows = rows

    async def _undo(self, event: events.GenericEventArguments) -> None:
        number = int(event.args)
        if await confirmed(f"Undo change {number}, and nothing that others did?", "Roll back"):
            await self.ask(partial(self.visitor.client.roll_back, number), f"undoing {number}")


def _drift_row(ocs: str, drift: DriftOf) -> dict[str, Any]:
    since = "" if drift["reconfiguration"] is None else f"change {drift['reconfiguration']}"
    missing, unknown = " ".join(drift["missing"]), " ".join(drift["unknown"])
    return {"id": ocs, "ocs": ocs, "missing": missing, "unknown": unknown, "since": since}


def _alarm_row(number: int, alarm: AlarmShape) -> dict[str, Any]:
    told = {key: harmless(str(each)) for key, each in alarm.items() if key in _ALARMS}
    return {"id": number, **told, "at": when(alarm["at"])}
