"""The page on circuits: the map of a switch with its powers, and changes, planned before made."""

from typing import Any

from nicegui import ui

from patchlight.cli.dashboard import matrix
from patchlight.cli.dashboard.change_form import ChangeForm
from patchlight.cli.dashboard.change_panel import ChangePanel
from patchlight.cli.dashboard.door import Visitor
from patchlight.cli.dashboard.dragging import Dragging
from patchlight.cli.dashboard.frame import Page
from patchlight.cli.dashboard.frame import confirmed as confirmed
from patchlight.cli.dashboard.layer import Layer
from patchlight.cli.dashboard.picture import COLOURS as PICTURE_COLOURS
from patchlight.cli.dashboard.tables import columns, table
from patchlight.cli.dashboard.watching import LabWatch
from patchlight.cli.dashboard.words import circuit_row
from patchlight.testbed.lab.wavelengths import WavelengthSwitch

_COLUMNS = {
    "inp": "in",
    "source": "from",
    "channel": "THz",
    "out": "out",
    "sink": "to",
    "in_dbm": "in dBm",
    "out_dbm": "out dBm",
    "expected_dbm": "should be",
    "job": "job",
    "condition": "condition",
    "words": "",
}


class CircuitsPage(Page):
    """One switch at a time: its matrix, its circuits, and a change of it."""

    def __init__(self, watch: LabWatch, visitor: Visitor, path: str, ocs: str) -> None:
        super().__init__(watch, visitor, path)
        self._wanted = ocs
        self._drawn: Any = None
        self._laid_out: Any = None
        self._panel = ChangePanel(self)
        self._form = ChangeForm(self, self._panel.carry_out)

    def build(self) -> None:
        """The matrix and the change beside each other, the table below."""
        ui.add_css(PICTURE_COLOURS + matrix.STYLE)
        with ui.row(wrap=False).classes("w-full gap-4 items-stretch"):
            with ui.card().classes("w-[32rem] p-2 gap-1 shrink-0"):
                with ui.row(wrap=False).classes("items-center gap-4 w-full"):
                    self._ocs = ui.select([], label="switch", on_change=self._pick).classes("w-52")
                    self._ocs.props("dense options-dense")
                    self._picked = ui.input(
                        "show only, like server1 1-40", on_change=self._pick
                    ).classes("grow")
                    self._picked.props("dense clearable debounce=300")
                with Dragging(self._form.dropped).classes("w-full") as self._dragging:
                    self._matrix = Layer().classes("pl-matrix").props("role=img")
                self._hint = ui.label().classes("text-xs opacity-80")
            with ui.column().classes("grow min-w-0 gap-4"):
                with ui.card().classes("w-full p-3 gap-2"):
                    self._stop = ui.label().classes("text-negative font-bold")
                    self._form.build()
                with ui.card().classes("w-full p-3 gap-2"):
                    self._panel.build()
        self._table = table(columns(_COLUMNS), "Circuits", rows_per_page=20)

    def refresh(self) -> None:
        """The circuits that differ; how far the change is that is under way."""
        view = self.watch.view
        names = [switch.name for switch in view.lab.optical_switches]
        if self._ocs.options != names:  # which asks for another refresh
            first = self._wanted if self._wanted in names else next(iter(names), None)
            self._ocs.set_options(names, value=self._ocs.value or first)
        stopped = self.watch.stopped
        self._stop.text = f"stopped by {stopped['by']}: {stopped['why']}" if stopped else ""
        self._stop.set_visibility(bool(stopped))
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
        anew = self._laid_out != (ocs, shown)
        self._drawn, self._laid_out = drawn, (ocs, shown)
        width, height = matrix.matrix_size(shown)
        self._dragging.style(f"max-width: {width:.0f}px")
        self._matrix.props["aria-label"] = f"{ocs}: {len(circuits)} circuits, listed below"
        shapes = matrix.draw_matrix(view, ocs, shown, self._form.planned)
        self._matrix.show(f"0 0 {width:.0f} {height:.0f}", shapes, anew=anew)
        self._hint.text = (
            "Rows are inputs, columns outputs; light has its job's colour. Drag a row's name, or "
            "its circuit, to a column to plan it there; a circuit out of the matrix to free it."
            if shown.are_named
            else f"{shown.of} ports. With {matrix.MOST_NAMED} or fewer of them, picked above by "
            "number or name, they have names and can be dragged."
        )
        selective = isinstance(view.lab.optical_switch(ocs), WavelengthSwitch)
        headings = {k: v for k, v in _COLUMNS.items() if selective or k != "channel"}
        if len(self._table.columns) != len(headings):
            self._table.columns = columns(headings)
        self._table.rows = [circuit_row(c, view.job_names) for c in circuits]
