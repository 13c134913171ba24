"""``patchlight report``: what happened in a lab, as a page to keep or to pass on."""

import time
from datetime import datetime
from pathlib import Path

import click

from patchlight.console.connection import connect, controller_options
from patchlight.console.rendering import cannot_write, say
from patchlight.testbed.errors import BadInput
from patchlight.testbed.units import parse_time


@click.command()
@click.option(
    "--since",
    default="1d",
    metavar="TIME",
    help="How long ago it begins, like 2h or 7d; or a date, with a time of day or without.",
)
@click.option("--until", default="0s", metavar="TIME", help="When it ends, in the same ways.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("report.html"),
    metavar="FILE",
    help="Where the page is written.",
)
@controller_options
def report(since: str, until: str, output: Path, lab_name: str | None, address: str | None) -> None:
    """Write an HTML page on what happened in the lab: jobs, GPUs, changes of circuits, events.

    It is one file that loads nothing, with pictures in it, and goes back as far as the lab keeps
    what happened.
    """
    now = time.time()
    begins, ends = _moment(since, now, "--since"), _moment(until, now, "--until")
    if begins >= ends:
        raise BadInput(f"--since {since} is not before --until {until}")
    from patchlight.cli.report.page import as_page, look_back

    with connect(lab_name, address) as client:
        period = look_back(client, begins, ends)
    try:
        output.write_text(as_page(period), encoding="utf-8", errors="replace")
    except OSError as error:
        raise cannot_write(f"the report {output}", error) from error
    jobs, changes = len(period.jobs), len(period.changes)
    say(f"wrote {output}: {jobs} jobs, {changes} changes of circuits, {len(period.events)} events")


def _moment(text: str, now: float, option: str) -> float:
    """``2h`` ago, or a date, in Unix time."""
    try:
        return now - parse_time(text)
    except BadInput:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise BadInput(
            f"{option} {text}: expected how long ago, like 2h or 7d, or a date like "
            "'2026-11-22 14:30'"
        ) from error
