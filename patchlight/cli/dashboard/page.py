"""The frame that all pages have, and what pages are made of: tables, layers of shapes, periods."""

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from nicegui import events, run, ui

from patchlight.cli.dashboard.auth import Visitor
from patchlight.cli.dashboard.lab_watch import EVERY_S, LabWatch
from patchlight.cli.dashboard.picture import Shape, Shapes
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.rules import Role

T = TypeVar("T")
PAGES = {"/": "Lab", "/jobs": "Jobs", "/circuits": "Circuits", "/history": "History"}


JOB_CELL = """<q-td :props="props"><span aria-hidden="true" :style="{background: props.row.colour,
display: 'inline-block', width: '0.8em', height: '0.8em', marginRight: '0.5em'}"></span>
{{ props.row.name }} <span class="text-xs opacity-70">{{ props.row.id }} {{ props.row.note }}</span>
</q-td>"""


FROM_TO = 0
"""The choice of two moments, among those of how many seconds up to now."""

_FORM = "%Y-%m-%dT%H:%M:%S"


class Page(ABC):
    """A page that one visitor has open; it is brought up to date twice a second.

    What it shows is sent to the browser only where it differs from what is there.
    """

    def __init__(self, watch: LabWatch, visitor: Visitor, path: str) -> None:
        self.watch, self.visitor, self._path = watch, visitor, path
        self._shown = -1

    def open(self) -> None:
        """Build the page and keep it up to date."""
        self.watch.viewed()
        self._header()
        with ui.element("main").classes("w-full"):
            self.build()
        ui.timer(EVERY_S, self._again)

    @abstractmethod
    def build(self) -> None:
        """Make what the page consists of."""

    @abstractmethod
    def refresh(self) -> None:
        """Bring it up to date with what the controller said last."""

    def may_change(self) -> bool:
        """Whether the visitor may change circuits."""
        return self.visitor.role >= Role.OPERATOR

    async def ask(self, what: Callable[[], T], doing: str) -> T | None:
        """Have the controller do something in the visitor's name; what it answers.

        What it refuses is said on the page, and ``None`` given.
        """
        try:
            return await run.io_bound(what)
        except PatchlightError as error:
            words = f"{doing}: {error.message}" + (f" ({error.hint})" if error.hint else "")
            ui.notify(words, type="negative", multi_line=True, timeout=0, close_button="Close")
            return None
        finally:
            self.watch.look_again()

    def _header(self) -> None:
        ui.colors(primary="#1f4e79")
        with ui.header(elevated=False).classes("items-center gap-4 py-2 px-4"):
            ui.label("Patchlight").classes("font-bold")
            self._lab = ui.label()
            with ui.element("nav").classes("flex gap-4").props('aria-label="Pages"'):
                for path, name in PAGES.items():
                    link = ui.link(name, path).classes("text-white px-2 py-1")
                    if path == self._path:
                        link.classes("font-bold underline").props("aria-current=page")
            ui.space()
            self._heard = ui.label().props("role=status")
            ui.label(f"{self.visitor.user}, {self.visitor.role}").mark("visitor")

    def _again(self) -> None:
        self.watch.viewed()
        if self._shown == self.watch.revision:
            return
        self._shown = self.watch.revision
        self._lab.text = f"lab {self.watch.lab.name}" if self.watch.lab.name else ""
        said = f"no answer: {self.watch.trouble}" if self.watch.trouble else "live"
        self._heard.text = said
        if self.watch.lab.name:
            self.refresh()


async def confirmed(question: str, verb: str) -> bool:
    """Whether the visitor says so."""
    with ui.dialog() as dialog, ui.card():
        ui.label(question)
        with ui.row():
            ui.button("No", on_click=lambda: dialog.submit(False)).props("flat autofocus")
            ui.button(verb, on_click=lambda: dialog.submit(True)).props("color=negative")
    answer = await dialog
    dialog.delete()
    return bool(answer)


def now() -> float:
    """Unix time."""
    return time.time()


def columns(headings: Mapping[str, str]) -> list[dict[str, Any]]:
    """Columns by the field of a row that each shows."""
    return [
        {"name": field, "field": field, "label": label, "align": "left", "sortable": True}
        for field, label in headings.items()
    ]


def table(shown: list[dict[str, Any]], title: str, rows_per_page: int = 0) -> ui.table:
    """An empty table under a title; ``rows_per_page`` 0: it shows all its rows."""
    pages = {"rowsPerPage": rows_per_page}
    made = ui.table(rows=[], columns=shown, title=title, pagination=pages)
    made.props("dense flat bordered wrap-cells no-data-label=none")
    made.props("" if rows_per_page else "hide-pagination")
    return made.classes("w-full")


class PagedTable:
    """A table of rows with a number each as ``id``, which come page by page, the latest first."""

    def __init__(self, shown: list[dict[str, Any]], title: str, rows_per_page: int) -> None:
        self._rows_per_page = rows_per_page
        self._before: list[int] = []
        self._wanted, self._loaded = 1, 0
        self.table = table(shown, title).classes("mt-2")
        with self.table.add_slot("bottom"), ui.row().classes("items-center gap-2"):
            self._newer = _button("Newer", f"Newer {title}", self._turn_back)
            self._older = _button("Older", f"Older {title}", self._turn)
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
        """Show what ``page`` gives: so many rows before a number, or the latest of all."""
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


def _button(text: str, label: str, pressed: Callable[[], None]) -> ui.button:
    button = ui.button(text, on_click=pressed)
    return button.props(f'flat dense no-caps aria-label="{label}"')


class Layer(ui.element, component="layer.js"):
    """Shows shapes in an ``svg``; what users wrote is text in them, and nothing else.

    It alters what is there: shapes replaced twice a second would fill the browser's memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self._number, self._size, self._drawn = 0, "", Shapes()
        self.on("missed", self._show_all)

    def show(self, size: str, drawn: Shapes, *, anew: bool = False) -> None:
        """Show these from now on, under that ``viewBox``; those that differ are sent.

        What is new comes to lie on top of what is there. ``anew``: all is drawn again, in order.
        """
        before, anew = self._drawn, anew or not self._number
        self._size, self._drawn = size, drawn
        differ: dict[str, Shape | None] = {**drawn}
        if not anew:
            differ = {name: shape for name, shape in drawn.items() if before.get(name) != shape}
            differ |= dict.fromkeys(before.keys() - drawn.keys())
        if differ or anew:
            # Not as the call of a method, of which NiceGUI makes a script for each update.
            self._number += 1
            self.props["differ"] = [self._number, anew, size, differ]

    def _show_all(self) -> None:
        """A browser missed an update, as of several that wait for it the last alone is sent."""
        self.show(self._size, self._drawn, anew=True)


class Dragging(ui.element, component="dragging.js"):
    """Shapes in it that have ``data-drag`` can be dropped on those that have ``data-drop``.

    ``dropped`` is told from which, at which it was (empty if at none) and to which (empty: out of
    it all, which only what was at one can be). ``data-name``, ``data-to`` and ``data-out`` are
    what is said of each meanwhile.
    """

    def __init__(self, dropped: Callable[[str, str, str], Awaitable[None]]) -> None:
        super().__init__()

        async def on_dropped(event: events.GenericEventArguments) -> None:
            await dropped(*(str(event.args[key]) for key in ("from", "at", "to")))

        self.on("dropped", on_dropped)


class PeriodChoice:
    """A choice of periods by their length in seconds, and of two moments.

    ``given``: two moments as texts (ISO 8601) to begin with. ``on_change`` is called when another
    period is to be shown. Moments are in the local time of the dashboard's machine.
    """

    def __init__(
        self,
        label: str,
        periods: Mapping[int, str],
        value: int,
        given: tuple[str, str],
        on_change: Callable[[], None],
    ) -> None:
        self._on_change = on_change
        chosen = moments(*given)
        with ui.row().classes("items-center gap-2 mt-2"):
            ui.label(label)
            offered = {**periods, FROM_TO: "from … to …"}
            self._length = ui.select(offered, value=FROM_TO if chosen else value)
            self._length.props(f'dense options-dense aria-label="{label}"')
            with ui.row().classes("items-center gap-2") as self._between:
                self._since, self._until = (_moment_input(name) for name in ("from", "to"))
                ui.button("Show", on_click=self._show).props("dense no-caps")
                self._wrong = ui.label().classes("text-negative").props("role=alert")
        self._between.set_visibility(chosen is not None)
        self._bounds = chosen or (0.0, 0.0)
        self._write_down(*self._bounds)
        self._length.on_value_change(self._choose)

    @property
    def length_s(self) -> float | None:
        """How long it is, up to now; ``None`` between two moments."""
        return float(self._length.value) or None

    def bounds(self, now: float) -> tuple[float, float]:
        """From when until when (Unix times)."""
        return self._bounds if self.length_s is None else (now - self.length_s, now)

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
            field.value = datetime.fromtimestamp(at).strftime(_FORM)

    def _show(self) -> None:
        chosen = moments(self._since.value, self._until.value)
        self._wrong.text = "" if chosen else "from is to be before to"
        if chosen:
            self._bounds = chosen
            self._on_change()


def _moment_input(name: str) -> ui.input:
    return ui.input(name).props("type=datetime-local step=1 dense stack-label").classes("w-52")


def moments(since: str, until: str) -> tuple[float, float] | None:
    """Two local times (ISO 8601) as Unix times; ``None`` unless one is before the other."""
    try:
        begins, ends = (datetime.fromisoformat(text).timestamp() for text in (since, until))
    except (TypeError, ValueError, OverflowError):
        return None
    return (begins, ends) if 0 <= begins < ends else None
