"""Reads a trace file, whose format is told by what is in it, or draws a trace by its name."""

import csv
import gzip
import zlib
from pathlib import Path

from patchlight.emulation.simulator.traces import tables
from patchlight.emulation.simulator.traces.laws import LAWS
from patchlight.emulation.simulator.traces.model import Gathering, Trace, TraceJob
from patchlight.emulation.simulator.traces.tables import read_log
from patchlight.testbed.errors import BadInput, nearest

FORMATS = (*tables.LAYOUTS, "pai-tables", "philly-json")
"""The formats by name."""

_MOST_BYTES = 512 * 2**20


def read_trace(
    path: str | Path, format: str | None = None, *, skip_bad: bool = False
) -> list[TraceJob]:
    """The jobs of a trace by submission, as ``load_trace`` reads them."""
    return load_trace(path, format, skip_bad=skip_bad).jobs


def load_trace(path: str | Path, format: str | None = None, *, skip_bad: bool = False) -> Trace:
    """Read a trace in one of ``FORMATS``; without ``format`` it is recognised.

    ``path`` is a file, which gzip may have packed, or, for PAI's own tables, also the folder that
    holds them. With
    ``skip_bad`` a job with something wrong (no GPU, no end, a negative duration …) is left out
    and counted. ``TraceFileError`` names what is wrong with line and column; ``BadInput`` if the
    file cannot be read, or ``format`` is unknown.
    """
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise BadInput(f"no trace format {format!r}: {nearest(format, FORMATS)}")
    if path.is_dir():
        path = _table(path, tables.TASK_TABLE)
    text = _text(path)
    into = Gathering(str(path), skip_bad)
    try:
        format = format or _recognised(text, into)
        if format == "philly-json":
            read_log(text, into)
        elif format == "pai-tables":
            _read_pai_tables(path, text, into)
        else:
            tables.read_table(text, tables.LAYOUTS[format], into)
    except csv.Error as error:
        raise into.refuse(1, f"not a CSV table: {error}") from error
    return into.finish(format)


def is_drawn(trace: str | Path) -> bool:
    """Whether this names a law of jobs (``LAWS``), and not a file; a file of that name is one."""
    return str(trace) in LAWS and not Path(trace).exists()


def drawn_trace(name: str, seed: int, count: int, gpus: int) -> Trace:
    """So many jobs drawn by the law of a name, for a cluster of so many GPUs."""
    law = LAWS[name]
    return Trace(f"{name} ({law.about}, drawn)", "drawn", law.draw(seed, count, gpus), 0, {})


def _recognised(text: str, into: Gathering) -> str:
    if not text.strip():
        raise into.refuse(1, "the file is empty")
    if text.lstrip().startswith(("[", "{")):
        return "philly-json"
    header = tables.header_of(text)
    if any(
        tables.looks_like(header, columns) for columns in (tables.TASK_COLUMNS, tables.JOB_COLUMNS)
    ):
        return "pai-tables"
    if found := tables.layout_of(header):
        return found
    known = "; ".join(f"{name}: {', '.join(each.needed)}" for name, each in tables.LAYOUTS.items())
    raise into.refuse(
        1,
        f"cannot tell the trace's format from its columns ({', '.join(header)[:200]}): expected "
        f"those of {known}; or PAI's own tables, or Philly's JSON log",
    )


def _read_pai_tables(path: Path, text: str, into: Gathering) -> None:
    """The tables lie beside each other; the one with the tasks is needed."""
    first = next(csv.reader(text.splitlines()[:1]), [])
    if tables.looks_like(first, tables.JOB_COLUMNS):
        tasks = _table(path.parent, tables.TASK_TABLE)
        if not tasks.is_file():
            raise into.refuse(
                1, f"the job table says nothing of GPUs: expected {tables.TASK_TABLE} beside it"
            )
        into.file = str(tasks)
        tables.read_tables(_text(tasks), (str(path), text), into)
        return
    jobs = _table(path.parent, tables.JOB_TABLE)
    tables.read_tables(text, (str(jobs), _text(jobs)) if jobs.is_file() else None, into)


def _table(folder: Path, name: str) -> Path:
    """A table in a folder, or what gzip made of it where only that is there."""
    packed = folder / f"{name}.gz"
    return packed if packed.is_file() and not (folder / name).is_file() else folder / name


def _text(path: Path) -> str:
    try:
        with path.open("rb") as plain:
            is_packed = plain.peek(2).startswith(b"\x1f\x8b")
            with gzip.open(plain) if is_packed else plain as file:
                content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise BadInput(
                f"the trace {path} is longer than {_MOST_BYTES >> 20} MiB"
                f"{' once it is unpacked' if is_packed else ''}",
                hint="give a part of it",
            )
        if content[257:262] == b"ustar":
            raise BadInput(f"{path} is a tar archive", hint="unpack it, and give a file of it")
        return content.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if isinstance(error, UnicodeDecodeError):
            reason = "it is not UTF-8 text"
        raise BadInput(
            f"reading the trace {path}: {reason}",
            hint="expected a CSV table or a JSON job log, as it is or packed by gzip",
        ) from error
