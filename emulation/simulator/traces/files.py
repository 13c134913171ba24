"""Reads a trace file of any known format, or draws a trace from a cluster's published
distributions."""

import csv
import gzip
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np

from patchlight.emulation.simulator.traces import tables
from patchlight.emulation.simulator.traces.batch_logs import (
    SACCT,
    is_sacct,
    is_swf,
    read_sacct,
    read_swf,
)
from patchlight.emulation.simulator.traces.model import (
    Gathering,
    Trace,
    TraceJob,
)
from patchlight.emulation.simulator.traces.tables import read_log
from patchlight.testbed.errors import BadInput, reason

_DAY_S = 86400.0


@dataclass(frozen=True)
class TraceLaw:
    """What jobs of a cluster are like.

    ``sizes`` are the odds of each number of GPUs. ``durations`` are pairs of seconds and the
    percentage of jobs that last no longer, straight lines in the logarithm between. Size and
    duration go together as two normal variables of this ``correlation`` do (a Gaussian copula), so
    both keep their own law. ``jobs_per_gpu_day`` come in the mean, as a Poisson process. Left out:
    days and nights, users, bursts of equal jobs, and shares of a GPU, which count as one.
    """

    name: str
    about: str
    sizes: Mapping[int, float]
    durations: tuple[tuple[float, float], ...]
    correlation: float
    jobs_per_gpu_day: float

    def draw(
        self,
        seed: int,
        count: int,
        gpus: int,
    ) -> list[TraceJob]:
        """So many jobs for a cluster of so many GPUs; the first comes at 0 s.

        Sizes that the cluster does not have are left out, and the others come as much more often
        as keeps the number of jobs. ``BadInput`` where none fits.
        """
        sizes = np.array([size for size in self.sizes if size <= gpus])
        if not len(sizes):
            raise BadInput(
                f"jobs like those of {self.name!r} need at least one GPU"
            )
        rng = np.random.default_rng([seed, *self.name.encode()])
        odds = np.array([self.sizes[size] for size in sizes.tolist()])
        ends = np.cumsum(odds / odds.sum())
        size_like = rng.standard_normal(count)
        other = rng.standard_normal(count)
        lasts_like = (
            self.correlation * size_like
            + math.sqrt(1 - self.correlation**2) * other
        )
        normal = NormalDist()
        size_at = np.array([normal.cdf(z) for z in size_like])
        lasts_at = np.array([100 * normal.cdf(z) for z in lasts_like])
        workers = sizes[
            np.minimum(np.searchsorted(ends, size_at), len(sizes) - 1)
        ]
        seconds, percent = zip(*self.durations, strict=True)
        lasting = np.exp(np.interp(lasts_at, percent, np.log(seconds)))
        gap_s = _DAY_S / (self.jobs_per_gpu_day * gpus)
        arrivals = np.concatenate(
            ([0.0], np.cumsum(rng.exponential(gap_s, max(0, count - 1))))
        )
        rows = zip(
            arrivals.tolist(),
            lasting.tolist(),
            workers.tolist(),
            strict=False,
        )
        return [
            TraceJob(
                f"{self.name}{number}",
                at_s,
                lasts_s,
                size,
                self.name,
            )
            for number, (at_s, lasts_s, size) in enumerate(rows)
        ][:count]


HELIOS = TraceLaw(
    "helios",
    "GPU jobs of SenseTime's Helios (Hu et al., SC 2021)",
    {
        1: 72.5,
        2: 3.5,
        4: 5.1,
        8: 13.1,
        16: 3.4,
        32: 1.6,
        64: 0.5,
        128: 0.3,
    },
    (
        (1, 4.3),
        (3, 6.1),
        (10, 9.2),
        (30, 16.1),
        (60, 24.9),
        (100, 33.6),
        (206, 50.0),
        (300, 59.4),
        (600, 69.8),
        (1000, 74.9),
        (2000, 83.6),
        (3600, 87.0),
        (7200, 90.3),
        (14_400, 93.8),
        (36_000, 96.6),
        (86_400, 98.4),
        (172_800, 99.2),
        (432_000, 99.9),
        (2_100_000, 100.0),
    ),
    0.22,
    1_580_464 / (6_220 * 183),
)
"""Helios: Hu, Sun, Yan, Wen, Zhang, *Characterization and Prediction of Deep Learning Workloads in
Large-Scale GPU Datacenters*, SC 2021, and its artifact (github.com/S-Lab-System-
Group/HeliosArtifact).

From the artifact's ``helios_cluster_summary.csv``, all four clusters: 6,220 GPUs; 1,580,464 GPU
jobs, from April to September 2020 (183 days); median duration 206 s (in the table), mean 6,652 s
(to which the last three points were fitted); 3.716 GPUs in the mean (the sizes here have 3.8);
7.80 × 10¹⁰ GPU seconds of completed, cancelled and failed jobs, 49,350 for each (to which the
correlation was fitted). Odds of sizes and all other durations are read off the curves of its
notebook ``job characterization`` (the paper's figures of job sizes and execution times), each
cluster weighed by its GPU jobs, to about a point of a percent. Jobs of more than 64 GPUs are drawn
as of 128."""

PAI = TraceLaw(
    "pai",
    "tasks of Alibaba's PAI (Weng et al., NSDI 2022)",
    {
        1: 80.5,
        4: 5.9,
        8: 2.2,
        12: 3.8,
        20: 3.6,
        50: 2.9,
        100: 0.9,
        200: 0.17,
        400: 0.09,
    },
    (
        (8, 0.0),
        (10, 2.0),
        (25, 10.0),
        (67, 22.0),
        (106, 27.5),
        (168, 32.6),
        (268, 40.0),
        (425, 47.5),
        (676, 54.2),
        (1074, 60.8),
        (1706, 67.6),
        (2710, 73.3),
        (4306, 79.3),
        (10_000, 88.5),
        (22_000, 94.0),
        (43_600, 97.8),
        (69_000, 99.1),
        (1_000_000, 100.0),
    ),
    0.0,
    1_200_000 / (6_742 * 62),
)
"""PAI: Weng et al., *MLaaS in the Wild: Workload Analysis and Scheduling in Large-Scale
Heterogeneous GPU Clusters*, NSDI 2022, and its trace (github.com/alibaba/clusterdata, cluster-
trace-gpu-v2020).

1.2 million tasks on 6,742 GPUs in July and August 2020 (62 days) are the paper's. Durations are
read off the curve *task runtime* of the trace's notebook ``analysis``, to about a point of a
percent. Sizes are numbers of instances, from its curve of how many of all instances are in tasks
of at least so many: at least 2: 85 %, 8: 80, 10: 76.5, 16: 68, 32: 53, 64: 28, 128: 13, 256: 7;
what is between two of these stands here as one size. That comes to 5.4 instances for each task;
the paper's 7.5 million instances of 1.2 million tasks are 6.3. Each instance has a GPU here: 97 %
of PAI's tasks want one or a part of one for each instance (the notebook's figure of GPU requests),
over half of them a part, so the GPUs are busier here than they were. How size and duration go
together is not published there."""

LAWS: Mapping[str, TraceLaw] = {law.name: law for law in (HELIOS, PAI)}
"""The laws by the name that stands where a trace's file could."""


_MOST_BYTES = 512 * 2**20
_READERS = {"philly-json": read_log, "swf": read_swf, "sacct": read_sacct}
"""Readers of formats that are not CSV tables."""


def read_trace(path: str | Path, *, skip_bad: bool = False) -> list[TraceJob]:
    """The jobs of a trace by submission, as ``load_trace`` reads them."""
    return load_trace(path, skip_bad=skip_bad).jobs


def load_trace(path: str | Path, *, skip_bad: bool = False) -> Trace:
    """Read a trace; its format is recognised by its columns.

    ``path`` is a file, which may be packed by gzip, or the folder of PAI's own tables. With
    ``skip_bad``, a job with something wrong (no GPU, no end, a negative duration …) is left out
    and counted. ``TraceFileError`` names what is wrong with line and column; ``BadInput`` if the
    file cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        path = _table(path, tables.TASK_TABLE)
    text = _text(path)
    into = Gathering(str(path), skip_bad)
    try:
        format = _recognised(text, into)
        if reader := _READERS.get(format):
            reader(text, into)
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


def drawn_trace(
    name: str,
    seed: int,
    count: int,
    gpus: int,
) -> Trace:
    """So many jobs drawn by the law of a name, for a cluster of so many GPUs."""
    law = LAWS[name]
    return Trace(
        f"{name} ({law.about}, drawn)",
        "drawn",
        law.draw(seed, count, gpus),
        0,
        {},
    )


def _recognised(text: str, into: Gathering) -> str:
    if not text.strip():
        raise into.refuse(1, "the file is empty")
    if text.lstrip().startswith(("[", "{")):
        return "philly-json"
    if is_swf(text.lstrip().partition("\n")[0]):
        return "swf"
    if is_sacct(text.partition("\n")[0]):
        return "sacct"
    header = tables.header_of(text)
    if any(
        tables.looks_like(header, columns)
        for columns in (tables.TASK_COLUMNS, tables.JOB_COLUMNS)
    ):
        return "pai-tables"
    if found := tables.layout_of(header):
        return found
    known = "; ".join(
        f"{name}: {', '.join(each.needed)}"
        for name, each in tables.LAYOUTS.items()
    )
    raise into.refuse(
        1,
        f"unknown trace format with columns ({', '.join(header)[:200]}): expected "
        f"those of {known}; or PAI's own tables, Philly's JSON log, the Standard Workload Format, "
        f"or the output of: {SACCT}",
    )


def _read_pai_tables(
    path: Path,
    text: str,
    into: Gathering,
) -> None:
    """The tables lie beside each other; the one with the tasks is needed."""
    first = next(csv.reader(text.split("\n")[:1]), [])
    if tables.looks_like(first, tables.JOB_COLUMNS):
        tasks = _table(path.parent, tables.TASK_TABLE)
        if not tasks.is_file():
            raise into.refuse(
                1,
                f"the job table has no GPUs: expected {tables.TASK_TABLE} beside it",
            )
        into.file = str(tasks)
        tables.read_tables(_text(tasks), (str(path), text), into)
        return
    jobs = _table(path.parent, tables.JOB_TABLE)
    tables.read_tables(
        text, (str(jobs), _text(jobs)) if jobs.is_file() else None, into
    )


def _table(folder: Path, name: str) -> Path:
    """A table in a folder, or what gzip made of it where only that is there."""
    packed = folder / f"{name}.gz"
    return (
        packed
        if packed.is_file() and not (folder / name).is_file()
        else folder / name
    )


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
                hint="use a part of it",
            )
        if content[257:262] == b"ustar":
            raise BadInput(
                f"{path} is a tar archive",
                hint="unpack it, and use one of its files",
            )
        # Headers of older logs are in Latin-1, and their lines of jobs have numbers only.
        first_line = content.lstrip().partition(b"\n")[0]
        encoding = (
            "latin-1" if is_swf(first_line.decode("latin-1")) else "utf-8-sig"
        )
        # Other line breaks of Unicode, like NEL and form feed, may stand within a value.
        return re.sub("\r\n?", "\n", content.decode(encoding))
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        why = getattr(error, "strerror", None) or reason(error)
        if isinstance(error, UnicodeDecodeError):
            why = "it is not UTF-8 text"
        raise BadInput(
            f"reading the trace {path}: {why}",
            hint="expected a CSV table or a JSON job log, plain or compressed with gzip",
        ) from error
