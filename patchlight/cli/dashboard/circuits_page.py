"""The Circuits page: the map of a switch, and its changes."""

import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from nicegui import run, ui

from patchlight.cli.dashboard import matrix
from patchlight.cli.dashboard.lab_view import LabView
from patchlight.cli.dashboard.page import (
    Dragging,
    Layer,
    Page,
    columns,
    confirmed,
    table,
    titled,
)
from patchlight.cli.dashboard.texts import (
    change_row,
    changes_words,
    circuit_row,
    claims_words,
    stage_rows,
)
from patchlight.console.rendering import harmless
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Endpoint, OpticalSwitch
from patchlight.testbed.lab.wavelengths import WavelengthSwitch
from patchlight.testbed.lab.wiring import Place, check_place, parse_map
from patchlight.testbed.wire.rest.circuits import MapChangeAnswer, PlanAnswer

_MARKS = {"done": "✓", "now": "▶", "next": "·"}
_LOOKS = {"done": "", "now": "font-bold", "next": "opacity-60"}
_COLUMNS = {
    "inp": "in",
    "source": "from",
    "channel": "THz",
    "out": "out",
    "sink": "to",
    "in_dbm": "in dBm",
    "out_dbm": "out dBm",
    "expected_dbm": "expected dBm",
    "job": "job",
    "condition": "condition",
    "words": "details",
}


class CircuitsPage(Page):
    """One switch at a time: its matrix, its circuits, and a change."""

    def build(self) -> None:
        """The matrix and the change beside each other, the table below."""
        self._drawn: Any = None
        self._laid_out: Any = None
        self._panel = ChangePanel(self)
        self._form = ChangeForm(self, self._panel.carry_out)
        ui.add_css(matrix.STYLE)
        with ui.element("div").classes("pl-aside pl-even"):
            with ui.card().classes("p-3 gap-1"):
                with ui.row(wrap=False).classes("items-center gap-4 w-full"):
                    self._ocs = ui.select(
                        [],
                        label="switch",
                        on_change=self._pick,
                    ).classes("w-24")
                    self._ocs.props("dense options-dense")
                    self._picked = ui.input(
                        "show only, like server1 1-40", on_change=self._pick
                    ).classes("grow")
                    self._picked.props("dense clearable debounce=300")
                with Dragging(self._form.dropped).classes(
                    "w-full"
                ) as self._dragging:
                    self._matrix = (
                        Layer().classes("pl-matrix").props("role=img")
                    )
                self._hint = ui.label().classes("text-xs opacity-80")
            with ui.column().classes("min-w-0 gap-4"):
                with ui.card().classes("w-full p-3 gap-2"):
                    self._stop = ui.label().classes("text-negative font-bold")
                    self._claims = ui.label().classes(
                        "text-sm whitespace-pre-line"
                    )
                    self._form.build()
                with ui.card().classes("w-full p-3 gap-2"):
                    self._panel.build()
        self._table = table(_COLUMNS, "Circuits", rows_per_page=20)

    def refresh(self) -> None:
        """Show the circuits that differ, and the progress of a change."""
        view = self.watch.view
        names = [switch.name for switch in view.lab.optical_switches]
        if self._ocs.options != names:  # this triggers another refresh
            wanted = self.query.get("ocs")
            first = wanted if wanted in names else next(iter(names), None)
            self._ocs.set_options(names, value=self._ocs.value or first)
        stopped = self.watch.stopped
        self._stop.text = (
            f"stopped by {stopped.by}: {stopped.why}" if stopped else ""
        )
        self._stop.set_visibility(bool(stopped))
        self._claims.text = "\n".join(claims_words(self.watch.claims))
        self._claims.set_visibility(bool(self._claims.text))
        if self._ocs.value in names:
            self._form.begin(self._ocs.value)
            self._draw(self._ocs.value)
        self._panel.refresh()

    def _pick(self) -> None:
        if self.watch.lab.name:
            self.refresh()

    def _draw(self, ocs: str) -> None:
        view = self.watch.view
        circuits = [c for c in view.circuits if c.ocs == ocs]
        shown = matrix.sides(view, ocs, self._picked.value or "")
        drawn = (ocs, circuits, shown, view.colours, self._form.planned)
        if drawn == self._drawn:
            return
        all_again = self._laid_out != (ocs, shown)
        self._drawn = drawn
        self._laid_out = (ocs, shown)
        width, height = matrix.matrix_size(shown)
        self._dragging.style(f"max-width: {1.1 * width:.0f}px")
        self._matrix.props["aria-label"] = (
            f"{ocs}: {len(circuits)} circuits, listed below"
        )
        shapes = matrix.draw_matrix(
            view,
            ocs,
            shown,
            self._form.planned,
        )
        self._matrix.show(
            f"0 0 {width:.0f} {height:.0f}", shapes, all_again=all_again
        )
        self._hint.text = (
            "Rows are inputs, columns outputs; a circuit has its job's colour. Drag a row or its "
            "circuit to a column to plan it there; drag a circuit out of the matrix to free it."
            if shown.are_named
            else f"{shown.of} ports. Pick {matrix.MOST_NAMED} or fewer above, by number or name, "
            "to see their names and drag them."
        )
        selective = isinstance(view.lab.optical_switch(ocs), WavelengthSwitch)
        headings = {
            k: v for k, v in _COLUMNS.items() if selective or k != "channel"
        }
        if len(self._table.columns) != len(headings):
            self._table.columns = columns(headings)
        self._table.rows = [circuit_row(c, view.job_names) for c in circuits]


class ChangeForm:
    """The fields of a change of one switch, and its plan.

    ``carry_out`` gets the change once it is confirmed.
    """

    def __init__(
        self,
        page: Page,
        carry_out: Callable[[Callable[[], Any]], Awaitable[None]],
    ) -> None:
        self._page = page
        self._carry_out = carry_out
        self._ocs = ""
        self._asked: dict[str, Any] = {}
        self.planned: MapChangeAnswer | None = None

    def build(self) -> None:
        """The fields, and the plan below them."""
        page = self._page
        titled("Change circuits")
        if not page.may_change():
            ui.label(
                f"You are {page.visitor.user}, {page.visitor.role}. Only operators may change "
                "circuits: an admin gives roles with 'patchlight token create', or with "
                "controller: {access: …} in the lab file."
            ).classes("text-sm")
        with ui.row().classes("gap-2 w-full items-end"):
            self._makes = ui.input("make").classes("grow")
            self._frees = ui.input("free these ports").classes("grow")
        with ui.row().classes("gap-2 w-full items-end"):
            self._why = ui.input("why").classes("grow")
            ui.button("Plan", on_click=self._plan)
        for field in (self._makes, self._frees, self._why):
            field.props("dense").on("keydown.enter", self._plan)
        self._shown = (
            ui.column().classes("w-full gap-1").props("aria-live=polite")
        )

    def begin(self, ocs: str) -> None:
        """Change the switch that is planned for."""
        if ocs == self._ocs:
            return
        self._ocs = ocs
        self._makes.value = self._frees.value = ""
        selective = isinstance(self._switch, WavelengthSwitch)
        makes = "1-3@193.100 2>4@193.150-2dB" if selective else "1-7 2>8"
        self._makes.props["label"] = f"make, like {makes}"
        self._frees.props["label"] = (
            "free, like 3@193.100 4" if selective else "free, like 3 15"
        )
        self._forget()

    @property
    def _switch(self) -> OpticalSwitch:
        return self._page.watch.lab.optical_switch(self._ocs)

    def _forget(self) -> None:
        self._asked = {}
        self.planned = None
        self._shown.clear()

    async def dropped(
        self,
        inp: str,
        at: str,
        out: str,
    ) -> None:
        """Fill in a drag from an input to an output; without one it frees the input."""
        view = self._page.watch.view
        try:
            makes, frees = dragged(
                view,
                self._switch,
                int(inp),
                int(at) if at else None,
                int(out) if out else None,
            )
            if makes:
                self._makes.value = joined(
                    self._switch, _words(self._makes.value), makes
                )
        except BadInput as error:
            ui.notify(error.message, type="warning")
            return
        self._frees.value = " ".join(
            dict.fromkeys([*_words(self._frees.value), *frees])
        )
        await self._plan()

    async def _plan(self) -> None:
        self._forget()
        ocs = self._ocs
        makes = _words(self._makes.value)
        frees = _words(self._frees.value)
        if not ocs:
            return
        try:
            if not (makes or frees):
                raise BadInput(
                    "nothing to plan: enter circuits to make, or ports to free"
                )
            asked: dict[str, Any] = {
                "maps": {ocs: makes} if makes else {},
                "disconnect": {
                    ocs: [_place(self._switch, word) for word in frees]
                },
            }
            ask = partial(
                self._page.visitor.client.preview_reconfiguration, **asked
            )
            plan = await run.io_bound(ask)
        except PatchlightError as error:
            with self._shown:
                ui.label(error.message).classes("text-negative")
                ui.label(error.hint or "").classes("text-sm")
            return
        if plan is None:  # the page is being closed
            return
        self._asked = {
            **asked,
            "planned_from": plan.planned_from,
            "why": self._why.value,
        }
        self.planned = plan.changes.get(ocs)
        with self._shown:
            for line, is_bad in plan_lines(plan):
                ui.label(line).classes(
                    "text-sm" + (" text-negative" if is_bad else "")
                )
            if plan.changes and not plan.objections:
                apply = ui.button(
                    "Apply …", on_click=partial(self._confirm, plan)
                )
                apply.props("color=negative").set_enabled(
                    self._page.may_change()
                )

    async def _confirm(self, plan: PlanAnswer) -> None:
        words = changes_words(plan.changes)
        jobs = (
            f" The traffic of {', '.join(plan.jobs)} pauses."
            if plan.jobs
            else ""
        )
        asked = self._asked
        if await confirmed(f"Change circuits: {words}?{jobs}", "Change"):
            self._forget()
            self._makes.value = self._frees.value = ""
            await self._carry_out(
                partial(self._page.visitor.client.reconfigure, **asked)
            )


def dragged(
    view: LabView,
    switch: OpticalSwitch,
    inp: int,
    at: int | None,
    out: int | None,
) -> tuple[list[str], list[str]]:
    """The circuits to make and the ports to free if input ``inp`` is dragged to an output.

    ``at``: the output of the dragged circuit. ``out`` ``None``: out of the matrix. A duplex circuit
    stays duplex; at a wavelength switch all its channels move. ``BadInput`` if no channel arrives
    at the input.
    """
    there = {c.ports: c for c in view.circuits if c.ocs == switch.name}
    moved = [
        c
        for c in there.values()
        if c.ports.inp == inp and at in (None, c.ports.out)
    ]
    if out is None:
        return [], [
            f"{inp}@{c.channel}" if c.channel else str(inp) for c in moved
        ]
    if inp == out:
        raise BadInput(
            f"port {inp} cannot be connected to itself by dragging: write {inp}>{inp}"
        )
    if not isinstance(switch, WavelengthSwitch):
        one_way = moved and all(
            circuit.ports.reverse not in there for circuit in moved
        )
        return [f"{inp}{'>' if one_way else '-'}{out}"], []
    if at is not None:
        way = {c: "-" if c.ports.reverse in there else ">" for c in moved}
        return [
            f"{inp}{way[c]}{out}@{str(c.ports).partition('@')[2]}"
            for c in moved
        ], []
    signals = view.signals_at(Endpoint(switch.name, str(inp)))
    channels = sorted(
        {str(signal.channel) for signal in signals if signal.channel}
    )
    if not channels:
        raise BadInput(
            f"no channel arrives at {inp}: write one, like {inp}-{out}@193.100"
        )
    return [f"{inp}-{out}@{channel}" for channel in channels], []


def joined(
    switch: OpticalSwitch,
    words: list[str],
    makes: list[str],
) -> str:
    """The circuits in ``words`` and ``makes``, without those that ``makes`` excludes."""
    fresh = parse_map(switch, makes)

    def stays(word: str) -> bool:
        try:
            return not len(parse_map(switch, [word]).clashing(fresh))
        except BadInput:
            return True  # still being typed

    return " ".join([*filter(stays, words), *makes])


def plan_lines(plan: PlanAnswer) -> list[tuple[str, bool]]:
    """The lines of a plan, and whether each is an objection."""
    if not plan.changes:
        return [("nothing to change: the circuits are already there", False)]
    lines = [(changes_words(plan.changes), False)]
    for links, words in (
        (plan.links_down, "links that go down"),
        (plan.links_up, "links that come up"),
    ):
        if links:
            lines.append((f"{words}: {', '.join(links)}", False))
    jobs = ", ".join(plan.jobs)
    lines.append(
        (f"jobs that use these circuits: {jobs or 'none'}", bool(jobs))
    )
    for ocs, theirs in plan.strangers.items():
        lines.append(
            (
                f"would break, though not committed, on {ocs}: {' '.join(theirs)}",
                True,
            )
        )
    lines += [
        (f"not possible: {harmless(words)}", True) for words in plan.objections
    ]
    return lines


def _words(written: str) -> list[str]:
    return re.findall(r"[^\s,;]+", written)


def _place(switch: OpticalSwitch, word: str) -> int | str:
    """A port or channel in the form of a request; ``BadInput`` if invalid."""
    place = Place.parse(word)
    check_place(switch, place)
    return place.port if place.channel is None else str(place)


class ChangePanel:
    """The change in progress, by any user; else the last one."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._number = 0
        self._stages_shown: list[tuple[str, str]] = []

    def build(self) -> None:
        """Its title, its stages, and buttons."""
        self._title = (
            ui.label()
            .classes("font-bold")
            .props("role=heading aria-live=polite")
        )
        self._about = ui.label().classes("text-sm")
        stages = ui.element("ol").classes("flex list-none gap-3 text-sm")
        self._stages = stages.props('aria-label="Stages of the change"')
        with ui.row().classes("gap-2"):
            self._cancel = ui.button(on_click=self._cancel_it).props(
                "color=negative outline"
            )
            self._undo = ui.button(on_click=self._undo_it).props("outline")
        for button in (self._cancel, self._undo):
            button.set_visibility(False)

    def refresh(self) -> None:
        """Show its progress."""
        view = self._page.watch.view
        known = {change.id: change for change in view.changes}
        going = [c.id for c in view.under_way if c.progress]
        if going and self._number not in going:
            self._number = going[0]
        elif view.last_change is not None and not going:
            self._number = max(self._number, view.last_change.id)
        change = known.get(self._number)
        if change is None:
            self._title.text = "No circuits have been changed yet"
            return
        row = change_row(change, view)
        progress = change.progress
        self._title.text = f"Change {row['id']}: {row['result']}"
        by = f"by {row['by']}" if row["by"] else ""
        self._about.text = "; ".join(
            filter(None, (by, row["why"], row["changes"]))
        )
        stages = stage_rows(change, time.time())
        if stages != self._stages_shown:
            self._stages_shown = stages
            self._stages.clear()
            with self._stages:
                for words, state in stages:
                    with ui.element("li").classes(_LOOKS[state]) as item:
                        ui.label(f"{_MARKS[state]} {words}")
                    if state == "now":
                        item.props("aria-current=step")
        may = self._page.may_change()
        self._cancel.text = f"Cancel change {row['id']} …"
        self._cancel.set_visibility(
            bool(may and progress and progress.may_cancel)
        )
        self._undo.text = f"Roll back change {row['id']} …"
        self._undo.set_visibility(may and row["can_undo"])

    async def carry_out(self, change: Callable[..., Any]) -> None:
        """Start a change, and show its progress."""
        begun = await self._page.ask(
            partial(change, detach=True), "changing circuits"
        )
        if begun is not None:
            self._number = begun.id

    async def _cancel_it(self) -> None:
        number = self._number
        if await confirmed(
            f"Stop change {number} and undo what it did?", "Stop and undo"
        ):
            cancel = partial(self._page.visitor.client.cancel_change, number)
            await self._page.ask(cancel, f"cancelling change {number}")

    async def _undo_it(self) -> None:
        number = self._number
        if await confirmed(
            f"Undo change {number}? Other changes stay.", "Roll back"
        ):
            await self.carry_out(
                partial(self._page.visitor.client.roll_back, number)
            )
