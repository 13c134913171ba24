"""The table of ``patchlight experiment ofc2022``, from what its ``result.json`` holds."""

from typing import Any

from patchlight.console.rendering import Column, Table, say
from patchlight.emulation.experiments.ofc2022.report import COLUMNS, rows_of, too_busy


def print_table(result: dict[str, Any]) -> None:
    """The paper's figures beside the measured ones."""
    title = "OFC 2022: static network → rewired with light"
    if percent := result["mismatch_percent"]:
        title += f", second job computing {percent:g} % longer"
    case, job, paper, measured, difference = COLUMNS
    kept = (Column(name, whole=True) for name in (measured, difference))
    table = Table(Column(case, whole=True), Column(job, whole=True), paper, *kept, title=title)
    previous = None
    for row in rows_of(result):
        if previous is not None and row[0] != previous:
            table.end_section()
        previous = row[0]
        table.add_row(*row)
    table.print()
    if busy := too_busy(result):
        say(busy, meaning="caution")
