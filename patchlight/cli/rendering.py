"""How the commands print: tables for people, JSON for programs."""

from __future__ import annotations

import contextlib
import json
import sys
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
    """A bar on a terminal while work is done; call what it gives with (done, of how many)."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    with Progress(
        f"{counted} done",
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=out,
        disable=not out.is_terminal,
        transient=True,
    ) as progress:
        task = progress.add_task(counted, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


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
