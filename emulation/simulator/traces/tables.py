"""Readers of traces: CSV with a job in each row, Alibaba's PAI tables, Philly's JSON.

Which columns a format has is data here; further columns are ignored.
"""

import csv
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from patchlight.emulation.simulator.traces.model import (
    Gathering,
    TraceJob,
    Wrong,
    duration,
    gpus,
    lasting,
    moment,
    share,
    some_gpus,
)


@dataclass(
    frozen=True,
    slots=True,
)
class Layout:
    """The columns of a format. Without a ``name`` jobs are numbered by their rows.

    ``instances`` is a column to multiply ``gpus`` by; then a GPU may be shared by several jobs,
    and a job's part of it counts as a whole one. With ``began``, ``duration`` is when a job ended
    and that when it began.
    """

    submitted: str
    duration: str
    gpus: str
    name: str | None = None
    cluster: str | None = None
    instances: str | None = None
    user: str | None = None
    began: str | None = None

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns without which it is not this format."""
        found = (
            self.name,
            self.submitted,
            self.duration,
            self.gpus,
            self.instances,
            self.began,
        )
        return tuple(column for column in found if column)


LAYOUTS = {
    # The form that the artifact of the Sia scheduler has.
    "philly-csv": Layout(
        "timestamp",
        "duration",
        "num_gpus",
        cluster="cluster",
    ),
    # S-Lab-System-Group/HeliosData: cluster_log.csv.
    "helios": Layout(
        "submit_time",
        "duration",
        "gpu_num",
        "job_id",
        "vc",
        user="user",
    ),
    # alibaba/clusterdata, cluster-trace-gpu-v2020: the job lists of its simulator.
    "pai": Layout(
        "submit_time",
        "duration",
        "num_gpu",
        "job_id",
        None,
        "num_inst",
        "user",
    ),
    # cluster-trace-gpu-v2023: openb_pod_list_*.csv. A pod of part of a GPU has num_gpu 1.
    "openb": Layout(
        "creation_time",
        "deletion_time",
        "num_gpu",
        "name",
        began="scheduled_time",
    ),
    # cluster-trace-gpu-v2025: disaggregated_DLRM_trace.csv. Its instances of CPU nodes have no GPU.
    "dlrm": Layout(
        "creation_time",
        "deletion_time",
        "gpu_request",
        "instance_sn",
        user="app_name",
        began="scheduled_time",
    ),
    # cluster-trace-v2026-spot-gpu: job_info_df.csv.
    "spot-gpu": Layout(
        "submit_time",
        "duration",
        "gpu_request",
        "job_name",
        None,
        "worker_num",
        "organization",
    ),
}


def layout_of(header: Sequence[str]) -> str | None:
    """The format whose columns these are."""
    there = set(header)
    return next(
        (
            name
            for name, each in LAYOUTS.items()
            if there.issuperset(each.needed)
        ),
        None,
    )


def header_of(text: str) -> list[str]:
    """The names in the first row of a CSV text."""
    return [
        name.strip() for name in next(csv.reader(text.split("\n")[:1]), [])
    ]


def read_table(
    text: str,
    layout: Layout,
    into: Gathering,
) -> None:
    """Read a CSV text with the header of a layout; ``TraceFileError`` for a column twice."""
    lines = text.split("\n")
    header = header_of(text)
    for column in filter(None, (*layout.needed, layout.cluster, layout.user)):
        if header.count(column) > 1:
            raise into.refuse(
                1,
                f"column {column!r} appears twice: the columns are {', '.join(header)}",
            )
    place = {column: number for number, column in enumerate(header)}
    submitted, lasted, wanted = (
        place[each]
        for each in (layout.submitted, layout.duration, layout.gpus)
    )
    name = place[layout.name] if layout.name else -1
    cluster = place.get(layout.cluster or "", -1)
    user = place.get(layout.user or "", -1)
    instances = place[layout.instances] if layout.instances else -1
    width = len(header)
    at = 0
    rows = csv.reader(lines)
    seen: set[tuple[str, ...]] = set()
    next(rows)
    for row in rows:
        if not row:
            continue
        try:
            at = 0
            if len(row) != width:
                raise Wrong(
                    f"{len(row)} values, expected {width}",
                    "wrong number of values",
                )
            at = submitted
            when = moment(row[at], layout.submitted)
            at = lasted
            if layout.began:
                ended = moment(row[at], layout.duration)
                at = place[layout.began]
                since = moment(row[at], layout.began)
                what = f"{layout.duration} - {layout.began}"
                long = lasting(ended - since, what)
            else:
                long = duration(row[at], layout.duration)
            at = wanted
            if instances < 0:
                count = gpus(row[at], layout.gpus)
            else:
                shared = share(row[at], layout.gpus) * share(
                    row[instances], layout.instances or ""
                )
                what = f"{layout.gpus} × {layout.instances}"
                count = some_gpus(math.ceil(shared), what)
            at = max(name, 0)
            called = row[name] if name >= 0 else f"row-{rows.line_num}"
            if not called:
                raise Wrong(f"{layout.name} is missing", "no name")
            where, whose = (
                row[each] if each >= 0 else "" for each in (cluster, user)
            )
            into.job(
                TraceJob(
                    called,
                    when,
                    long,
                    count,
                    where,
                    user=whose,
                )
            )
            if name < 0:
                into.repeated += tuple(row) in seen
                seen.add(tuple(row))
        except Wrong as wrong:
            into.bad(
                rows.line_num,
                _column(lines[rows.line_num - 1], row, at),
                wrong,
            )


def read_rows(
    text: str,
    columns: Sequence[str],
    take: Callable[[int, dict[str, str]], None],
    bad: Callable[[int, Wrong], None],
) -> None:
    """Give each row of a table, with or without a header, and its line to ``take``.

    A row of another width goes to ``bad``.
    """
    rows = csv.reader(text.split("\n"))
    for row in rows:
        if not row or (rows.line_num == 1 and row == list(columns)):
            continue
        if len(row) != len(columns):
            said = f"{len(row)} values, expected {len(columns)}: {', '.join(columns)}"
            bad(rows.line_num, Wrong(said, "wrong number of values"))
            continue
        take(rows.line_num, dict(zip(columns, row, strict=True)))


def _column(
    line: str,
    row: Sequence[str],
    at: int,
) -> int:
    """Where a value begins in its line; 1 where quotes make that hard to say."""
    return 1 if '"' in line else 1 + sum(len(value) + 1 for value in row[:at])


JOB_TABLE = "pai_job_table.csv"
TASK_TABLE = "pai_task_table.csv"
JOB_COLUMNS = (
    "job_name",
    "inst_id",
    "user",
    "status",
    "start_time",
    "end_time",
)
_PLANNED = ("plan_cpu", "plan_mem", "plan_gpu", "gpu_type")
TASK_COLUMNS = (
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    *_PLANNED,
)
_STATES = ("Terminated", "Failed", "Running", "Waiting")


@dataclass(slots=True)
class _Job:
    """A job as read; ``spoilt`` says what is wrong with it, where, and in which file."""

    line: int
    user: str = ""
    submitted: float = math.inf
    starts: float = math.inf
    ends: float = -math.inf
    hundredths: float = 0.0
    spoilt: tuple[int, Wrong, str | None] | None = None


def looks_like(row: Sequence[str], columns: Sequence[str]) -> bool:
    """Whether a table's first row is of this table: its header, or values without one."""
    return tuple(row) == tuple(columns) or (
        len(row) == len(columns) and row[3] in _STATES
    )


def read_tables(
    tasks: str,
    jobs: tuple[str, str] | None,
    into: Gathering,
) -> None:
    """Read PAI's own tables: the text of the tasks', and (file, text) of the jobs' if there is one.

    The tables come without a header line. A task of a job has ``inst_num`` instances of
    ``plan_gpu`` hundredths of a GPU each. The job table has the time of submission; where it lacks
    the job, the launch of its first task stands for it.
    """
    found: dict[str, _Job] = {}

    def task(line: int, row: dict[str, str]) -> None:
        job = found.setdefault(row["job_name"], _Job(line))
        try:
            starts = moment(row["start_time"], "start_time")
            ends = moment(row["end_time"], "end_time")
            lasting(ends - starts, "end_time - start_time")
            instances = share(row["inst_num"], "inst_num")
            job.hundredths += instances * share(row["plan_gpu"], "plan_gpu")
            job.starts = min(job.starts, starts)
            job.ends = max(job.ends, ends)
        except Wrong as wrong:
            # The job is left out whole: what is left of it would be another job.
            job.spoilt = job.spoilt or (line, wrong, None)

    read_rows(
        tasks,
        TASK_COLUMNS,
        task,
        lambda line, wrong: into.bad(line, 1, wrong),
    )
    if jobs:
        _submissions(*jobs, found, into)
    for name, job in found.items():
        try:
            if job.spoilt:
                raise job.spoilt[1]
            count = some_gpus(
                math.ceil(job.hundredths / 100),
                "plan_gpu × inst_num of all tasks",
            )
            submitted = (
                job.submitted if math.isfinite(job.submitted) else job.starts
            )
            into.job(
                TraceJob(
                    name,
                    submitted,
                    job.ends - job.starts,
                    count,
                    user=job.user,
                )
            )
        except Wrong as wrong:
            line, _, file = job.spoilt or (job.line, wrong, None)
            into.bad(
                line,
                1,
                Wrong(f"job {name!r}: {wrong}", wrong.reason),
                file,
            )


def _submissions(
    file: str,
    text: str,
    found: dict[str, _Job],
    into: Gathering,
) -> None:
    """Say of each job that has tasks when it was submitted; one without asks for no GPU."""

    def row(line: int, row: dict[str, str]) -> None:
        job = found.get(row["job_name"])
        if job is None:
            return
        job.user = row["user"]
        try:
            job.submitted = moment(row["start_time"], "start_time")
        except Wrong as wrong:
            job.spoilt = job.spoilt or (line, wrong, file)

    read_rows(
        text,
        JOB_COLUMNS,
        row,
        lambda line, wrong: into.bad(
            line,
            1,
            wrong,
            file,
        ),
    )


_BETWEEN = re.compile(r"\s*(,|\])\s*")


def read_log(text: str, into: Gathering) -> None:
    """Read ``cluster_job_log``, as Philly was published (msr-fiddle/philly-traces).

    A job's duration is the time of all its attempts together; its GPUs are those of its largest
    attempt. ``TraceFileError`` if the log is not a JSON list.
    """
    decoder = json.JSONDecoder()
    opened = re.compile(r"\s*\[\s*").match(text)
    if not opened:
        raise into.refuse(
            1,
            'expected a JSON list of jobs: [{"jobid": …, "attempts": […]}, …]',
        )
    # Item by item, because so the place of each job is known.
    at = opened.end()
    ended = text.startswith("]", at)
    at += ended
    while not ended:
        try:
            item, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise into.refuse(
                error.lineno, f"not JSON: {error.msg}"
            ) from error
        except RecursionError as error:
            raise into.refuse(
                _place(text, at)[0], "a job nested too deeply"
            ) from error
        try:
            into.job(_job(item))
        except Wrong as wrong:
            line, column = _place(text, at) if into.wants_place() else (1, 1)
            into.bad(line, column, wrong)
        between = _BETWEEN.match(text, end)
        if not between:
            raise into.refuse(
                _place(text, end)[0],
                "not JSON: expected ',' or ']' after a job",
            )
        ended = between[1] == "]"
        at = between.end()
    if text[at:].strip():
        raise into.refuse(
            _place(text, at)[0], "not JSON: text after the list of jobs"
        )


def _job(item: Any) -> TraceJob:
    if not isinstance(item, dict) or not isinstance(item.get("jobid"), str):
        raise Wrong("expected a job: an object with a 'jobid'", "no jobid")
    name = item["jobid"]
    try:
        attempts = item.get("attempts")
        if not isinstance(attempts, list) or not attempts:
            raise Wrong("it has no attempts: it never ran", "no attempts")
        submitted = _moment(item, "submitted_time")
        seconds = 0.0
        gpus = 0
        for number, attempt in enumerate(attempts, 1):
            lasted, held = _attempt(attempt, number)
            seconds = seconds + lasted
            gpus = max(gpus, held)
        lasting(seconds, "the time of all attempts")
        some_gpus(gpus, "the number of GPUs")
        cluster, user = (str(item.get(key) or "") for key in ("vc", "user"))
        return TraceJob(
            name,
            submitted,
            seconds,
            gpus,
            cluster,
            user=user,
        )
    except Wrong as wrong:
        raise Wrong(f"job {name!r}: {wrong}", wrong.reason) from wrong


def _attempt(attempt: Any, number: int) -> tuple[float, int]:
    """How long it lasted, in seconds, and how many GPUs it held."""
    if not isinstance(attempt, dict):
        raise Wrong(f"attempt {number} is not an object", "attempt unreadable")
    start, end = (
        _moment(attempt, key, f"attempt {number}: ")
        for key in ("start_time", "end_time")
    )
    if end < start:
        raise Wrong(
            f"attempt {number} ends before it starts",
            "attempt ends before it starts",
        )
    try:
        held = sum(len(server["gpus"]) for server in attempt["detail"])
    except (KeyError, TypeError):
        raise Wrong(
            f"attempt {number}: expected 'detail' with the 'gpus' of each server",
            "attempt unreadable",
        ) from None
    return end - start, held


def _moment(
    item: dict[str, Any],
    key: str,
    where: str = "",
) -> float:
    value = item.get(key)
    try:
        return moment("" if value is None else str(value), key)
    except Wrong as wrong:
        raise Wrong(f"{where}{wrong}", wrong.reason) from wrong


def _place(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind(
        "\n", 0, offset
    )
