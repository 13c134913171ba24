"""How the commands print: lines and tables for people, JSON for programs.

Text of users and devices is never read as markup; control characters are shown, not sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from patchlight.console.shared import SharedOption
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.errors import harmless as harmless

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console, RenderableType
    from rich.table import Table as RichTable


Command = TypeVar("Command", bound=Callable[..., Any])
Meaning = Literal["good", "bad", "caution", "quiet"]

json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    cls=SharedOption,
    help="Print JSON, for programs.",
)
_COLOURS: dict[Meaning, str] = {
    "good": "green",
    "bad": "red",
    "caution": "yellow",
    "quiet": "dim",
}
_WIDE = "patchlight.wide"
# A pipe has no width: lines are then as long as they need to be, so that grep finds them whole.
_PIPE_WIDTH = 240
# What a column that folds is given at least, where a terminal is too narrow for the others.
_LEAST_WIDTH = 10


def wide_option(command: Command) -> Command:
    """Give a command that prints tables ``--wide``."""

    def remember(
        context: click.Context,
        parameter: click.Parameter,
        wide: bool,
    ) -> None:
        context.meta[_WIDE] = wide

    how: dict[str, Any] = {
        "is_flag": True,
        "expose_value": False,
        "callback": remember,
    }
    about = "Show every column of tables."
    return click.option(
        "--wide",
        cls=SharedOption,
        help=about,
        **how,
    )(command)


def is_wide() -> bool:
    """Whether the command that runs was given ``--wide``."""
    context = click.get_current_context(silent=True)
    return context is not None and context.meta.get(_WIDE, False)


def listing_options(command: Command) -> Command:
    """Give a command that prints tables ``--json``, as ``as_json``, and ``--wide``."""
    return json_option(wide_option(command))


def say(
    text: str,
    *,
    err: bool = False,
    meaning: Meaning | None = None,
) -> None:
    """Print lines of text, to standard error with ``err``; in colour on a terminal."""
    shown = harmless(text, keep="\n\t")
    if meaning is None:
        click.echo(shown, err=err)
    else:
        console(stderr=err).print(
            shown,
            style=_COLOURS[meaning],
            soft_wrap=True,
        )


def json_text(value: Any, *, one_line: bool = False) -> str:
    """A value, with answers of the API, as JSON, keys in their own order; indented, or on one
    line."""
    text = json.dumps(
        value,
        default=lambda answer: answer.as_json,
        indent=None if one_line else 2,
        ensure_ascii=False,
    )
    if not text.replace("\n", "").isprintable():
        # Such characters only stand inside texts, where JSON has an escape for them.
        text = "".join(
            c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1]
            for c in text
        )
    return text + "\n"


def print_json(value: Any, *, one_line: bool = False) -> None:
    """Print ``json_text`` in UTF-8."""
    print_document(json_text(value, one_line=one_line))


def print_answer(
    value: object,
    shown: str | Table | Callable[[], object],
    *,
    as_json: bool,
) -> None:
    """Print a value as JSON, or else as shown: lines, a table, or what a function prints."""
    if as_json:
        print_json(value)
    elif isinstance(shown, str):
        say(shown)
    elif isinstance(shown, Table):
        shown.print()
    else:
        shown()


def counted(count: float, noun: str) -> str:
    """A count and its noun: 1 alarm, 2 alarms."""
    return f"{count:.0f} {noun}{'' if round(count) == 1 else 's'}"


def when(at: float) -> str:
    """A Unix time as local date and time."""
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")


def print_document(text: str) -> None:
    """Print a file's whole text as it is, in UTF-8."""
    click.echo(text.encode(), nl=False)


FIRST_ESTIMATE_S = 2.0
LINE_EVERY_S = 15.0
"""When progress is printed first and how often then, where there is no terminal for a bar."""


def console(*, stderr: bool = False) -> Console:
    """A console on standard output (or error) that does not fold lines into a pipe."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return Console(
        file=stream,
        width=width,
        highlight=False,
        markup=False,
        emoji=False,
    )


@dataclass(frozen=True)
class Column:
    """A column of a table. With ``wide`` it is shown with ``--wide`` only.

    Cells fold where the terminal is narrow; with ``whole`` (names to type, numbers) they do not,
    and with ``cut`` they lose their end: where each row is to be one line.
    """

    heading: str
    wide: bool = False
    whole: bool = False
    right: bool = False
    cut: bool = False


def number(heading: str, *, wide: bool = False) -> Column:
    """A column of numbers: to the right, and never folded."""
    return Column(
        heading,
        wide=wide,
        whole=True,
        right=True,
    )


def numbers(*headings: str) -> list[Column]:
    """Columns of numbers."""
    return [number(heading) for heading in headings]


@dataclass(frozen=True)
class Coloured:
    """A cell whose colour says what its text means."""

    text: str
    meaning: Meaning


Cell = str | Coloured


class Table:
    """Rows under headings, in the look that all commands share."""

    def __init__(
        self,
        *columns: str | Column,
        title: str | None = None,
        rows: Iterable[Sequence[Cell]] = (),
        empty: str = "",
    ) -> None:
        self.columns = [
            Column(c) if isinstance(c, str) else c for c in columns
        ]
        self.title = title
        self._empty = empty
        self._rows: list[tuple[Cell, ...]] = []
        self._ends: set[int] = set()
        for row in rows:
            self.add_row(*row)

    def add_row(self, *cells: Cell) -> None:
        """One cell for each column, those that only ``--wide`` shows included."""
        if len(cells) != len(self.columns):
            raise ValueError(
                f"{len(cells)} cells for {len(self.columns)} columns"
            )
        self._rows.append(cells)

    def end_section(self) -> None:
        """Draw a line below the last row."""
        self._ends.add(len(self._rows))

    def print(self) -> None:
        """Print it, no wider than the terminal unless names or numbers would be cut.

        Without a row, print the text ``empty`` instead, if there is one.
        """
        if self._empty and not self._rows:
            say(self._empty)
            return
        table, needed = self.drawn()
        out = console()
        out.width = max(out.width, needed)
        out.print(table)

    def drawn(self) -> tuple[RichTable, int]:
        """The table for a console, and its least width."""
        from rich import box
        from rich.cells import cell_len
        from rich.table import Table as RichTable
        from rich.text import Text

        # Without a column that only --wide shows, lines stay as short as without it.
        every = is_wide() and any(column.wide for column in self.columns)
        shown = [
            i
            for i, column in enumerate(self.columns)
            if every or not column.wide
        ]
        look: dict[str, Any] = {"box": box.SIMPLE_HEAD, "show_edge": False}
        look |= {
            "title_justify": "left",
            "title_style": "bold",
            "padding": (0, 1, 0, 0),
        }
        title = None if self.title is None else harmless(self.title)
        table = RichTable(
            **look,
            pad_edge=False,
            title=title,
        )
        needed = 0
        for i in shown:
            column = self.columns[i]
            cells = [column.heading, *(_text(row[i]) for row in self._rows)]
            longest = max(map(cell_len, cells))
            whole = column.whole or every
            needed += 2 + (longest if whole else min(longest, _LEAST_WIDTH))
            justify: Any = "right" if column.right else "left"
            overflow: Any = "ellipsis" if column.cut else "fold"
            one_line = whole or column.cut
            table.add_column(
                column.heading,
                overflow=overflow,
                no_wrap=one_line,
                justify=justify,
            )
        for number, row in enumerate(self._rows, 1):
            styles = (
                _COLOURS[c.meaning] if isinstance(c, Coloured) else ""
                for c in row
            )
            texts = [
                Text(_text(cell), style)
                for cell, style in zip(row, styles, strict=True)
            ]
            table.add_row(
                *(texts[i] for i in shown), end_section=number in self._ends
            )
        return table, needed


class Screen:
    """Tables one below the other."""

    def __init__(self, *tables: Table) -> None:
        self._tables = tables

    def print(self) -> None:
        """Print them, with an empty line between."""
        for number, table in enumerate(self._tables):
            if number:
                say("")
            table.print()

    def drawn(self) -> tuple[RenderableType, int]:
        """The tables for a console, and their least width."""
        from rich.console import Group

        drawn = [table.drawn() for table in self._tables]
        parts: list[RenderableType] = []
        for table, _ in drawn:
            parts += [table, ""]
        return Group(*parts[:-1]), max(needed for _, needed in drawn)


def terminal_lines() -> int:
    """How many lines the terminal has; many where there is none."""
    out = console()
    return out.height if out.is_terminal else 1000


def live(
    make: Callable[[], Table | Screen],
    every_s: float,
    *,
    once: bool = False,
) -> None:
    """Show tables on the whole terminal and renew them, until Ctrl-C; else print them once."""
    out = console()
    if once or not out.is_terminal:
        make().print()
        return
    from rich.live import Live

    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(
            make().drawn()[0],
            console=out,
            screen=True,
            auto_refresh=False,
        ) as shown,
    ):
        while True:
            time.sleep(every_s)
            shown.update(make().drawn()[0], refresh=True)


def _text(cell: Cell) -> str:
    return harmless(cell.text if isinstance(cell, Coloured) else cell)


@contextlib.contextmanager
def progress_bar(
    counted: str, out: Console
) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, else a line on standard error now and then, with the time left.

    Call the function that it yields with (done, of how many).
    """
    from rich import progress as bars

    if not out.is_terminal:
        with _progress_lines(counted) as tell:
            yield tell
        return
    columns = (
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
    )
    left = (bars.TextColumn("left:"), bars.TimeRemainingColumn())
    with bars.Progress(
        f"{counted} done",
        *columns,
        *left,
        console=out,
        transient=True,
    ) as progress:
        task = progress.add_task(counted, total=None)
        yield lambda done, total: progress.update(
            task,
            completed=done,
            total=total,
        )


@contextlib.contextmanager
def _progress_lines(counted: str) -> Iterator[Callable[[int, int], None]]:
    began = time.monotonic()
    over = threading.Event()
    latest = [0, 0]
    # When the first was done: what came before it, as starting processes, is no measure.
    first = [0.0, 0.0]

    def tell(done: int, total: int) -> None:
        if done and not latest[0]:
            first[:] = time.monotonic() - began, done
        latest[:] = done, total

    def speak() -> None:
        due_s = min(FIRST_ESTIMATE_S, LINE_EVERY_S)
        while not over.wait(min(0.5, LINE_EVERY_S)):
            done, total = latest
            passed_s = time.monotonic() - began
            if passed_s < (due_s if done else max(due_s, LINE_EVERY_S)):
                continue
            due_s = passed_s + LINE_EVERY_S
            counts = (
                f"{done} of {total} {counted} done"
                if total
                else f"no {counted} done yet"
            )
            since_s, before = first if done > first[1] else (0.0, 0.0)
            each_s = (passed_s - since_s) / max(1, done - before)
            left = (
                f", about {span(each_s * (total - done))} left" if done else ""
            )
            say(f"patchlight: {counts} after {span(passed_s)}{left}", err=True)

    speaker = threading.Thread(
        target=speak,
        name="progress",
        daemon=True,
    )
    speaker.start()
    try:
        yield tell
    finally:
        over.set()
        speaker.join()


def span(seconds: float) -> str:
    """A time, roughly: ``90 s``, ``5 min``."""
    for limit_s, unit_s, unit in (
        (120, 1, "s"),
        (7200, 60, "min"),
        (172_800, 3600, "h"),
    ):
        if seconds < limit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def save_picture(file: Path, draw: Callable[[], Figure]) -> None:
    """Draw into a file, in the format of its name's ending."""
    from patchlight.testbed.draw.drawing import FORMATS

    suffix = file.suffix.lower().lstrip(".")
    if suffix not in FORMATS:
        expected = ", .".join(FORMATS)
        raise BadInput(
            f"cannot draw {str(file)!r}: expected a name ending in .{expected}"
        )
    figure = draw()
    try:
        figure.savefig(file, format=suffix)
    except OSError as error:
        raise cannot_write(f"the picture {file}", error) from error
    say(f"wrote {file}")


def cannot_write(what: str, error: OSError) -> PatchlightError:
    """The error for a file that a user named and that cannot be written."""
    hint = "name a file in a writable folder"
    return PatchlightError(f"cannot write {what}: {error.strerror}", hint=hint)


def say_written(files: Sequence[Path], folder: Path) -> None:
    """Say which plots and ``result.json`` there are."""
    pictures = ", ".join(file.name for file in files if file.suffix == ".png")
    say(f"Plots ({pictures}, also as PDF and SVG) and result.json: {folder}/")
