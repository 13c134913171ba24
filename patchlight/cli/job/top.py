"""``patchlight job top``: how fast the running jobs are, now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

import click

from patchlight.cli.job import words
from patchlight.cli.job.follow import patiently
from patchlight.client.client import ControllerClient
from patchlight.console.connection import connect, controller_options
from patchlight.console.rendering import Column, Table, listing_options, live, print_json
from patchlight.testbed.jobs import JobState

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.jobs import IterationReport, JobInList

Answer = dict[str, Any]

_EVERY_S = 1.0
# As many iterations of each worker as a figure is the mean of.
_ITERATIONS = 8


@click.command()
@click.option("--once", is_flag=True, help="Print it once; so it is done where no terminal is.")
@listing_options
@controller_options
def top(once: bool, as_json: bool, lab_name: str | None, address: str | None) -> None:
    """Show how fast the running jobs are, again each second. Ends with Ctrl-C.

    Figures are means over a job's latest eight iterations: how many there are in a second, how
    long one computes and communicates, how long it was predicted to take, and how far off that was.
    With --json it is printed once.
    """
    with connect(lab_name, address) as client:
        if as_json:
            print_json(_rows(client))
        else:
            live(lambda: _table(patiently(lambda: _rows(client))), _EVERY_S, once=once)


def _rows(client: ControllerClient) -> list[Answer]:
    running = [*client.jobs(state=JobState.RUNNING), *client.jobs(state=JobState.PAUSED)]
    return [
        {**status, **pace(client.latest_iterations(status["id"], _most(status)))}
        for status in running
    ]


def _most(status: JobInList) -> int:
    return min(1000, _ITERATIONS * max(1, len(status["hosts"])))


def pace(reports: Sequence[IterationReport]) -> Answer:
    """``iterations_per_s``, ``compute_s`` and ``communication_s``, as means over these reports.

    ``None`` where nothing, or nothing but one iteration, was reported.
    """
    ends: defaultdict[int, float] = defaultdict(float)
    for report in reports:
        ends[report["index"]] = max(ends[report["index"]], report["finished_at"])
    at = sorted(ends.values())
    seconds = at[-1] - at[0] if at else 0.0
    return {
        "iterations_per_s": (len(at) - 1) / seconds if seconds > 0 else None,
        "compute_s": fmean(r["compute_s"] for r in reports) if reports else None,
        "communication_s": fmean(r["communication_s"] for r in reports) if reports else None,
    }


def _table(rows: list[Answer]) -> Table:
    table = Table(
        "id",
        Column("GPUs", whole=True, right=True),
        Column("done", whole=True, right=True),
        Column("in 1 s", whole=True, right=True),
        Column("compute", whole=True, right=True),
        Column("communicate", whole=True, right=True),
        Column("predicted", whole=True, right=True),
        Column("off", whole=True, right=True),
        Column("user", wide=True),
        Column("hosts", wide=True),
        Column("message", wide=True),
        title="running jobs" if rows else "no job runs",
    )
    for row in rows:
        table.add_row(
            row["id"],
            str(len(row["hosts"])),
            words.iterations(cast("JobInList", row)),
            _figure(row["iterations_per_s"], ""),
            _figure(row["compute_s"], " s"),
            _figure(row["communication_s"], " s"),
            _figure(row.get("predicted_iteration_s"), " s"),
            _off(row["iterations_per_s"], row.get("predicted_iteration_s")),
            row["by"],
            ", ".join(row["hosts"]),
            words.message(cast("JobInList", row)),
        )
    return table


def _off(iterations_per_s: float | None, predicted_s: float | None) -> str:
    """By how much an iteration takes longer than predicted."""
    if not iterations_per_s or not predicted_s:
        return ""
    return f"{1 / (iterations_per_s * predicted_s) - 1:+.0%}".replace("%", " %")


def _figure(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.3f}{unit}"


COMMANDS = (top,)
