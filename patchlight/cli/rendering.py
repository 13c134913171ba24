"""How the commands print: tables for people, JSON for programs."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from patchlight.testbed.errors import BadInput, PatchlightError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
# A pipe has no width: lines are then as long as they need to be, so that grep finds them whole.
_PIPE_WIDTH = 240
# Where there is no terminal for a bar.
_LINE_EVERY_S = 15.0


def console(*, stderr: bool = False) -> Console:
    """A console on standard output (or error) that does not fold lines into a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(file=stream, width=width, highlight=False)


def new_table(*columns: str, title: str | None = None) -> Table:
    """An empty table in the look all commands share."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


@contextlib.contextmanager
def progress_bar(counted: str, out: Console) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal while work is done; call what it gives with (done, of how many).

    Elsewhere a line on standard error now and then. Both say how long it may still take.
    """
    from rich import progress as bars

    if not out.is_terminal:
        with _progress_lines(counted) as tell:
            yield tell
        return
    columns = (bars.BarColumn(), bars.MofNCompleteColumn(), bars.TimeElapsedColumn())
    left = (bars.TextColumn("left:"), bars.TimeRemainingColumn())
    with bars.Progress(f"{counted} done", *columns, *left, console=out, transient=True) as progress:
        task = progress.add_task(counted, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextlib.contextmanager
def _progress_lines(
    counted: str, every_s: float = _LINE_EVERY_S
) -> Iterator[Callable[[int, int], None]]:
    began, over = time.monotonic(), threading.Event()
    latest = [0, 0]

    def tell(done: int, total: int) -> None:
        latest[:] = done, total

    def speak() -> None:
        while not over.wait(every_s):
            done, total = latest
            passed_s = time.monotonic() - began
            counts = f"{done} of {total} {counted} done" if total else f"no {counted} done yet"
            left = f", about {_span(passed_s / done * (total - done))} left" if done else ""
            click.echo(f"patchlight: {counts} after {_span(passed_s)}{left}", err=True)

    speaker = threading.Thread(target=speak, name="progress", daemon=True)
    speaker.start()
    try:
        yield tell
    finally:
        over.set()
        speaker.join()


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def save_picture(file: Path, draw: Callable[[], Figure]) -> None:
    """Write what ``draw`` draws into a file, in the format that its name says."""
    from patchlight.testbed.drawing import FORMATS

    suffix = file.suffix.lower().lstrip(".")
    if suffix not in FORMATS:
        expected = ", .".join(FORMATS)
        raise BadInput(f"cannot draw {str(file)!r}: expected a name ending in .{expected}")
    figure = draw()
    try:
        figure.savefig(file, format=suffix)
    except OSError as error:
        raise cannot_write(f"the picture {file}", error) from error
    click.echo(f"wrote {file}")


def cannot_write(what: str, error: OSError) -> PatchlightError:
    """The error to raise where the file that a user named cannot be written."""
    hint = "name a file in a folder you can write to"
    return PatchlightError(f"cannot write {what}: {error.strerror}", hint=hint)


def print_json(value: Any) -> None:
    """Print a value as JSON, indented, keys in their own order."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
