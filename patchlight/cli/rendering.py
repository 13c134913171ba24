"""How the commands print: tables for people, JSON for programs."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

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


def print_json(value: Any) -> None:
    """Print a value as JSON, indented, keys in their own order."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
