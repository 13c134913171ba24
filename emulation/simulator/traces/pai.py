"""Alibaba's PAI 2020 trace in its own tables (``pai_task_table.csv``, ``pai_job_table.csv``).

The tables come without a header line. A job is made of tasks; a task has ``inst_num`` instances
of ``plan_gpu`` hundredths of a GPU each. The job table has the time of submission; where it lacks
the job, the launch of its first task stands for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from patchlight.emulation.simulator.traces.model import Gathering, TraceJob, Wrong
from patchlight.emulation.simulator.traces.tables import read_rows
from patchlight.emulation.simulator.traces.values import lasting, moment, share, some_gpus

JOB_TABLE, TASK_TABLE = "pai_job_table.csv", "pai_task_table.csv"
JOB_COLUMNS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
TASK_COLUMNS = ("job_name", "task_name", "inst_num", "status", "start_time", "end_time",
                "plan_cpu", "plan_mem", "plan_gpu", "gpu_type")  # fmt: skip
_STATES = ("Terminated", "Failed", "Running", "Waiting")


@dataclass(slots=True)
class _Job:
    """What was found of a job; ``spoilt`` is what is wrong with it, where, and in which file."""

    line: int
    submitted: float = math.inf
    starts: float = math.inf
    ends: float = -math.inf
    hundredths: float = 0.0
    spoilt: tuple[int, Wrong, str | None] | None = None


def looks_like(row: Sequence[str], columns: Sequence[str]) -> bool:
    """Whether a table's first row is of this table: its header, or values without one."""
    return tuple(row) == tuple(columns) or (len(row) == len(columns) and row[3] in _STATES)


def read_tables(tasks: str, jobs: tuple[str, str] | None, into: Gathering) -> None:
    """Read the text of the task table, and (file, text) of the job table where there is one."""
    found: dict[str, _Job] = {}

    def task(line: int, row: dict[str, str]) -> None:
        job = found.setdefault(row["job_name"], _Job(line))
        try:
            starts = moment(row["start_time"], "start_time")
            ends = moment(row["end_time"], "end_time")
            lasting(ends - starts, "end_time - start_time")
            instances = share(row["inst_num"], "inst_num")
            job.hundredths += instances * share(row["plan_gpu"], "plan_gpu")
            job.starts, job.ends = min(job.starts, starts), max(job.ends, ends)
        except Wrong as wrong:
            # The job is left out whole: what is left of it would be another job.
            job.spoilt = job.spoilt or (line, wrong, None)

    read_rows(tasks, TASK_COLUMNS, task, lambda line, wrong: into.bad(line, 1, wrong))
    if jobs:
        _submissions(*jobs, found, into)
    for name, job in found.items():
        try:
            if job.spoilt:
                raise job.spoilt[1]
            count = some_gpus(math.ceil(job.hundredths / 100), "plan_gpu × inst_num of all tasks")
            submitted = job.submitted if math.isfinite(job.submitted) else job.starts
            into.job(TraceJob(name, submitted, job.ends - job.starts, count))
        except Wrong as wrong:
            line, _, file = job.spoilt or (job.line, wrong, None)
            into.bad(line, 1, Wrong(f"job {name!r}: {wrong}", wrong.reason), file)


def _submissions(file: str, text: str, found: dict[str, _Job], into: Gathering) -> None:
    """Say of each job that has tasks when it was submitted; one without asks for no GPU."""

    def row(line: int, row: dict[str, str]) -> None:
        job = found.get(row["job_name"])
        if job is None:
            return
        try:
            job.submitted = moment(row["start_time"], "start_time")
        except Wrong as wrong:
            job.spoilt = job.spoilt or (line, wrong, file)

    read_rows(text, JOB_COLUMNS, row, lambda line, wrong: into.bad(line, 1, wrong, file))
