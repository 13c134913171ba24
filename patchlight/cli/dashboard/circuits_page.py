"""The page on circuits: the map of an OCS with its powers, and changes, planned before made."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from nicegui import run, ui

from patchlight.cli.dashboard import charts
from patchlight.cli.dashboard.door import Visitor
from patchlight.cli.dashboard.frame import Page
from patchlight.cli.dashboard.tables import columns, table
from patchlight.cli.dashboard.watching import LabWatch
from patchlight.cli.dashboard.words import change_row, changes_words, circuit_row
from patchlight.cli.rendering import harmless
from patchlight.testbed.errors import BadInput, PatchlightError

_COLUMNS = {
    "inp": "in",
    "source": "from",
    "out": "out",
    "sink": "to",
    "in_dbm": "in dBm",
    "out_dbm": "out dBm",
    "expected_dbm": "should be",
    "job": "job",
    "condition": "condition",
    "words": "",
}
_PORTS = re.compile(r"[0-9]{1,7}")


class CircuitsPage(Page):
    """One OCS at a time: its matrix, its circuits, and a change of it."""

    def __init__(self, watch: LabWatch, visitor: Visitor, path: str, ocs: str) -> None:
        super().__init__(watch, visitor, path)
        self._wanted = ocs
        self._drawn: Any = None
        self._planned: dict[str, Any] = {}
        self._followed: int | None = None

    def build(self) -> None:
        """The matrix and the change beside each other, the table below."""
        with ui.row().classes("items-center gap-2"):
            self._ocs = ui.select([], label="circuit switch", on_change=self._another)
            self._ocs.props("dense options-dense").classes("w-64")
            self._stop = ui.label().classes("text-negative font-bold")
        with ui.row(wrap=False).classes("w-full gap-4 items-stretch"):
            with ui.card().classes("w-[26rem] p-2 gap-0 shrink-0"):
                ui.label("Input to output").classes("text-sm font-bold").props("role=heading")
                self._matrix = ui.echart(charts.matrix(())).classes("w-full h-80")
            with ui.card().classes("grow p-3 gap-2"):
                self._form()
        self._table = table(columns(_COLUMNS), "Circuits", rows_per_page=20)

    def _form(self) -> None:
        ui.label("Change circuits").classes("font-bold").props("role=heading")
        if not self.may_change():
            ui.label(
                f"{self.visitor.user} is a {self.visitor.role} here, and changes are for "
                "operators: an admin gives roles with 'patchlight token create', or with "
                "controller: {access: …} in the lab file."
            ).classes("text-sm")
        with ui.row().classes("gap-2 w-full items-end"):
            self._makes = ui.input("make, like 1-7 2>8").classes("grow")
            self._frees = ui.input("free these ports, like 3 15").classes("grow")
        with ui.row().classes("gap-2 w-full items-end"):
            self._why = ui.input("why").classes("grow")
            ui.button("Plan", on_click=self._plan)
        for field in (self._makes, self._frees, self._why):
            field.props("dense").on("keydown.enter", self._plan)
        self._plan_shown = ui.column().classes("w-full gap-1").props("aria-live=polite")
        self._stages = ui.column().classes("w-full gap-1").props("aria-live=polite")

    def refresh(self) -> None:
        """The circuits that differ; how far the change is that was just asked for."""
        view = self.watch.view
        names = list(view.lab.circuit_fibres)
        if self._ocs.options != names:
            first = self._wanted if self._wanted in names else next(iter(names), None)
            self._ocs.set_options(names, value=self._ocs.value or first)
        stopped = self.watch.stopped
        self._stop.text = f"stopped by {stopped['by']}: {stopped['why']}" if stopped else ""
        circuits = [c for c in view.circuits if c.ocs == self._ocs.value]
        if (shown := (self._ocs.value, circuits)) != self._drawn and self._ocs.value:
            self._drawn = shown
            self._matrix.options.update(charts.matrix(circuits))
            self._matrix.update()
            self._table.rows = [circuit_row(c) for c in circuits]
        if self._followed is not None:
            self._follow()

    def _another(self) -> None:
        self._planned = {}
        self._plan_shown.clear()

    # -- a change ------------------------------------------------------------------------------

    async def _plan(self) -> None:
        self._planned = {}
        self._plan_shown.clear()
        ocs = self._ocs.value
        try:
            asked: dict[str, Any] = {
                "maps": {ocs: re.split(r"[\s,;]+", made)}
                if (made := self._makes.value.strip())
                else {},
                "disconnect": {ocs: ports} if (ports := _ports(self._frees.value)) else {},
            }
            if not any(asked.values()):
                raise BadInput("nothing to plan: say what to make, or which ports to free")
            ask = partial(self.visitor.client.preview_reconfiguration, **asked)
            plan = await run.io_bound(ask)
        except PatchlightError as error:
            with self._plan_shown:
                ui.label(error.message).classes("text-negative")
                ui.label(error.hint or "").classes("text-sm")
            return
        if plan is None:  # the page is being closed
            return
        self._planned = {**asked, "planned_from": plan["planned_from"], "why": self._why.value}
        with self._plan_shown:
            for line, is_bad in plan_lines(plan):
                ui.label(line).classes("text-sm" + (" text-negative" if is_bad else ""))
            if plan["changes"] and not plan["objections"]:
                apply = ui.button("Apply …", on_click=partial(self._confirm, plan))
                apply.props("color=negative").set_enabled(self.may_change())

    async def _confirm(self, plan: Mapping[str, Any]) -> None:
        words = changes_words(plan["changes"])
        jobs = f" The traffic of {', '.join(plan['jobs'])} pauses." if plan["jobs"] else ""
        if await confirmed(f"Change circuits: {words}?{jobs}", "Change"):
            asked, self._planned = self._planned, {}
            self._plan_shown.clear()
            await self._carry_out(partial(self.visitor.client.reconfigure, **asked))

    async def _carry_out(self, change: Any) -> None:
        latest = max((c["id"] for c in self.watch.changes), default=0)
        self._followed = latest + 1
        with self._stages:
            ui.label("the change is under way …")
        await self.ask(change, "changing circuits")

    def _follow(self) -> None:
        found = [c for c in self.watch.changes if c["id"] >= (self._followed or 0)]
        if not found:
            return
        row = change_row(found[-1])
        lines = [f"change {row['id']}: {row['state']}, {row['message']}", row["stages"]]
        self._stages.clear()
        with self._stages:
            for line in filter(None, lines):
                ui.label(line).classes("text-sm")
            if row["can_undo"] and self.may_change():
                undo = partial(self._undo, row["id"])
                ui.button(f"Roll back change {row['id']} …", on_click=undo).props("outline")
        if found[-1]["state"] != "intent":
            self._followed = None

    async def _undo(self, number: int) -> None:
        if await confirmed(f"Undo change {number}, and nothing that others did?", "Roll back"):
            await self._carry_out(partial(self.visitor.client.roll_back, number))


async def confirmed(question: str, verb: str) -> bool:
    """Whether the visitor says so."""
    with ui.dialog() as dialog, ui.card():
        ui.label(question)
        with ui.row():
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat autofocus")
            ui.button(verb, on_click=lambda: dialog.submit(True)).props("color=negative")
    answer = await dialog
    dialog.delete()
    return bool(answer)


def plan_lines(plan: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """What a plan says, line by line, and whether it speaks against the change."""
    if not plan["changes"]:
        return [("nothing to change: the map is so already", False)]
    lines = [(changes_words(plan["changes"]), False)]
    for key, words in (("links_down", "links that go down"), ("links_up", "links that come up")):
        if plan[key]:
            lines.append((f"{words}: {', '.join(plan[key])}", False))
    jobs = ", ".join(plan["jobs"])
    lines.append((f"jobs whose traffic rides on it: {jobs or 'none'}", bool(jobs)))
    for ocs, theirs in plan["strangers"].items():
        lines.append((f"nobody committed what would break on {ocs}: {' '.join(theirs)}", True))
    lines += [(f"not possible: {harmless(words)}", True) for words in plan["objections"]]
    return lines


def _ports(text: str) -> list[int]:
    """Ports out of a line of text; ``BadInput`` for what is none."""
    words = re.split(r"[\s,;]+", text.strip()) if text.strip() else []
    for word in words:
        if not _PORTS.fullmatch(word):
            raise BadInput(f"{word!r} is no port: expected numbers, like 3 15")
    return [int(word) for word in words]
