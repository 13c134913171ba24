"""Tables as all pages have them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nicegui import run, ui

JOB_CELL = """<q-td :props="props"><span aria-hidden="true" :style="{background: props.row.colour,
display: 'inline-block', width: '0.8em', height: '0.8em', marginRight: '0.5em'}"></span>
{{ props.row.name }} <span class="text-xs opacity-70">{{ props.row.id }} {{ props.row.note }}</span>
</q-td>"""


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
