"""Tables as all pages have them."""

from collections.abc import Mapping
from typing import Any

from nicegui import ui

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
    made.props("dense flat bordered wrap-cells" + ("" if rows_per_page else " hide-pagination"))
    return made.classes("w-full")
