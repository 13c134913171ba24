"""The frame of all pages, and their elements: tables, charts, shape layers, periods."""

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from nicegui import events, run, ui
from starlette.requests import Request

from patchlight.cli.dashboard import charts
from patchlight.cli.dashboard.auth import visitor_of
from patchlight.cli.dashboard.lab_view import LabView
from patchlight.cli.dashboard.lab_watch import EVERY_S, LabWatch
from patchlight.cli.dashboard.picture import Shape, Shapes
from patchlight.console.rendering import when
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.rules import Role

T = TypeVar("T")
# Times stay on one line; texts of devices and users may contain long words.
_STYLES = dict.fromkeys(("at", "submitted"), "width: 1%; white-space: nowrap")
_STYLES |= dict.fromkeys(
    ("why", "words", "result"), "min-width: 8rem; overflow-wrap: anywhere"
)
_STYLES = {
    field: f"{style}; grid-column: 1 / -1" for field, style in _STYLES.items()
}
_STYLES |= dict.fromkeys(("name", "gpus", "changes"), "grid-column: 1 / -1")
PAGES = {
    "/": "Lab",
    "/jobs": "Jobs",
    "/circuits": "Circuits",
    "/history": "History",
}

JOB_CELL = """<q-td :props="props"><span><span aria-hidden="true" class="pl-swatch"
:style="{background: props.row.colour}"></span>
{{ props.row.name }} <span class="text-xs opacity-70">{{ props.row.id }}</span></span></q-td>"""

FROM_TO = 0
"""The choice of two moments, next to numbers of seconds until now."""


class Page(ABC):
    """A page that one visitor has open, refreshed twice a second.

    Only changes are sent to the browser.
    """

    def __init__(self, watch: LabWatch, request: Request) -> None:
        self.watch = watch
        self.visitor = visitor_of(request)
        self._path = request.url.path
        self.query = request.query_params
        self._shown = -1

    def open(self) -> None:
        """Build the page and keep it up to date."""
        self.watch.viewed()
        self._header()
        with ui.element("main"):
            self.build()
        ui.timer(EVERY_S, self._again)

    @abstractmethod
    def build(self) -> None:
        """Make the page's elements."""

    @abstractmethod
    def refresh(self) -> None:
        """Show the controller's latest answers."""

    def may_change(self) -> bool:
        """Whether the visitor may change circuits."""
        return self.visitor.role >= Role.OPERATOR

    async def ask(self, what: Callable[[], T], doing: str) -> T | None:
        """Send a request to the controller with the visitor's role; returns the answer.

        A refusal is shown on the page, and the result is ``None``.
        """
        try:
            return await run.io_bound(what)
        except PatchlightError as error:
            words = f"{doing}: {error.message}" + (
                f" ({error.hint})" if error.hint else ""
            )
            ui.notify(
                words,
                type="negative",
                multi_line=True,
                timeout=0,
                close_button="Close",
            )
            return None
        finally:
            self.watch.look_again()

    def _header(self) -> None:
        ui.colors(primary="#1f4e79")
        with ui.header(elevated=False).classes("items-center gap-3 py-1 px-4"):
            ui.label("Patchlight").classes("font-bold")
            self._lab = ui.label()
            with ui.element("nav").props('aria-label="Pages"'):
                for path, name in PAGES.items():
                    link = ui.link(name, path)
                    if path == self._path:
                        link.props("aria-current=page")
            ui.space()
            self._heard = ui.label().props("role=status")
            ui.label(f"{self.visitor.user}, {self.visitor.role}").mark(
                "visitor"
            )

    def _again(self) -> None:
        self.watch.viewed()
        if self._shown == self.watch.revision:
            return
        self._shown = self.watch.revision
        self._lab.text = (
            f"lab {self.watch.lab.name}" if self.watch.lab.name else ""
        )
        self._heard.text = (
            f"no answer: {self.watch.trouble}"
            if self.watch.trouble
            else "live"
        )
        if self.watch.lab.name:
            self.refresh()


async def confirmed(question: str, verb: str) -> bool:
    """Ask for confirmation in a dialog; returns whether it was given."""
    with ui.dialog() as dialog, ui.card():
        ui.label(question)
        with ui.row():
            ui.button("No", on_click=lambda: dialog.submit(False)).props(
                "flat autofocus"
            )
            ui.button(verb, on_click=lambda: dialog.submit(True)).props(
                "color=negative"
            )
    answer = await dialog
    dialog.delete()
    return bool(answer)


def titled(title: str, size: str = "") -> None:
    """The title of a card, in bold."""
    ui.label(title).classes(f"{size} font-bold").props("role=heading")


def columns(headings: Mapping[str, str]) -> list[dict[str, Any]]:
    """The columns of a table; ``headings`` by the field of a row.

    On narrow pages a row becomes a list, with the heading before each cell.
    """
    like: dict[str, Any] = {"align": "left", "sortable": True}
    found = []
    for field, label in headings.items():
        style = f"--pl-label: '{label}'; {_STYLES.get(field, '')}"
        found.append(
            {
                "name": field,
                "field": field,
                "label": label,
                "style": style,
                **like,
            }
        )
    return found


def table(
    headings: Mapping[str, str],
    title: str,
    rows_per_page: int = 0,
) -> ui.table:
    """An empty table under a title; ``rows_per_page`` 0: all rows."""
    pages = {"rowsPerPage": rows_per_page}
    made = ui.table(
        rows=[],
        columns=columns(headings),
        title=title,
        pagination=pages,
    )
    made.props("dense flat bordered wrap-cells").add_slot("no-data", "none")
    made.props("" if rows_per_page else "hide-pagination")
    return made.classes("w-full")


def time_chart(title: str, height: str) -> ui.echart:
    """A card with an empty chart over time."""
    with ui.card().classes("w-full p-2 gap-0"):
        titled(title, "text-sm")
        chart = ui.echart(charts.empty()).classes(f"w-full {height}")
        return chart.props(f'role=img aria-label="{title}"')


def draw(
    chart: ui.echart,
    series: list[charts.Options],
    view: LabView,
    since: float,
    until: float,
) -> None:
    """Show these series, by job id, of a period (Unix times)."""
    for each in series:
        each["name"] = view.labels.get(each["name"], each["name"])
    chart.options["series"] = series
    chart.options["xAxis"] |= {"min": since * 1000, "max": until * 1000}
    chart.update()


class Layer(ui.element, component="layer.js"):
    """Shows shapes in an ``svg``; users' texts are only text in it.

    Shapes are modified: replacing them twice a second would fill the browser's memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self._number = 0
        self._size = ""
        self._drawn = Shapes()
        # A browser missed an update: it needs the latest only.
        self.on(
            "missed",
            lambda: self.show(self._size, self._drawn, all_again=True),
        )

    def show(
        self,
        size: str,
        drawn: Shapes,
        *,
        all_again: bool = False,
    ) -> None:
        """Show these in a ``viewBox`` of that size; changes are sent.

        New shapes are on top of the others. ``all_again``: redraw all, in order.
        """
        before = self._drawn
        all_again = all_again or not self._number
        self._size = size
        self._drawn = drawn
        differ: dict[str, Shape | None] = {**drawn}
        if not all_again:
            differ = {
                name: shape
                for name, shape in drawn.items()
                if before.get(name) != shape
            }
            differ |= dict.fromkeys(before.keys() - drawn.keys())
        if differ or all_again:
            # A method call would make NiceGUI generate a script for each update.
            self._number += 1
            self.props["differ"] = [
                self._number,
                all_again,
                size,
                differ,
            ]


class Dragging(ui.element, component="dragging.js"):
    """Shapes in it with ``data-drag`` can be dropped on those with ``data-drop``.

    ``dropped`` gets the dragged shape's name, its previous target (empty: none) and the new target
    (empty: outside of all). ``data-name``, ``data-to`` and ``data-out`` are shown meanwhile.
    """

    def __init__(
        self, dropped: Callable[[str, str, str], Awaitable[None]]
    ) -> None:
        super().__init__()

        async def on_dropped(event: events.GenericEventArguments) -> None:
            await dropped(
                *(str(event.args[key]) for key in ("from", "at", "to"))
            )

        self.on("dropped", on_dropped)


class PeriodChoice:
    """A choice of periods by their length in seconds, and of two moments.

    It starts with ``since`` and ``until`` of the page's address (ISO 8601), if both are given.
    ``on_change`` is called when the choice changes. Moments are in the local time of the
    dashboard's machine.
    """

    def __init__(
        self,
        label: str,
        periods: Mapping[int, str],
        value: int,
        query: Mapping[str, str],
        on_change: Callable[[], None],
    ) -> None:
        self._on_change = on_change
        chosen = moments(query.get("since", ""), query.get("until", ""))
        with ui.row().classes("items-center gap-2"):
            ui.label(label)
            self._offered = {**periods, FROM_TO: "from … to …"}
            self._length = ui.select(
                self._offered, value=FROM_TO if chosen else value
            )
            self._length.props(f'dense options-dense aria-label="{label}"')
            with ui.row().classes("items-center gap-2") as self._between:
                self._since, self._until = (
                    ui.input(name) for name in ("from", "to")
                )
                for moment in (self._since, self._until):
                    moment.props(
                        "type=datetime-local step=1 dense stack-label"
                    ).classes("w-52")
                ui.button("Show", on_click=self._show).props("dense no-caps")
                self._wrong = (
                    ui.label().classes("text-negative").props("role=alert")
                )
        self._between.set_visibility(chosen is not None)
        self._bounds = chosen or (0.0, 0.0)
        self._write_down(*self._bounds)
        self._length.on_value_change(self._choose)

    @property
    def length_s(self) -> float | None:
        """Its length until now; ``None`` between two moments."""
        return float(self._length.value) or None

    @property
    def words(self) -> str:
        """The period as text."""
        if self.length_s is not None:
            return self._offered[self._length.value]
        return " to ".join(map(when, self._bounds))

    def bounds(self, now: float) -> tuple[float, float]:
        """Start and end (Unix times)."""
        return (
            self._bounds
            if self.length_s is None
            else (now - self.length_s, now)
        )

    def _choose(self) -> None:
        fixed = self.length_s is None
        self._between.set_visibility(fixed)
        if fixed:
            now = time.time()
            self._write_down(now - 3600, now)
            self._show()
        else:
            self._on_change()

    def _write_down(self, since: float, until: float) -> None:
        for field, at in ((self._since, since), (self._until, until)):
            field.value = datetime.fromtimestamp(at).isoformat(
                timespec="seconds"
            )

    def _show(self) -> None:
        chosen = moments(self._since.value, self._until.value)
        self._wrong.text = "" if chosen else "from must be before to"
        if chosen:
            self._bounds = chosen
            self._on_change()


def moments(since: str, until: str) -> tuple[float, float] | None:
    """Two local times (ISO 8601) as Unix times; ``None`` unless in order."""
    try:
        begins, ends = (
            datetime.fromisoformat(text).timestamp() for text in (since, until)
        )
    except (TypeError, ValueError, OverflowError):
        return None
    return (begins, ends) if 0 <= begins < ends else None
