"""Writes what came of simulations: a table of jobs for each, the figures, and plots."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as parquet

from emulation.flow.queues.plots import plot_completion, plot_load
from emulation.flow.queues.results import QueueResult
from emulation.flow.queues.sweep import Outcome
from testbed.errors import BadInput

SCHEMA_VERSION = 1


def check_output(folder: Path) -> None:
    """``BadInput`` if results could not be written there."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"results cannot go to {folder}: that is a file")


def result_of(outcomes: Sequence[Outcome], setting: Mapping[str, Any]) -> dict[str, Any]:
    """What ``result.json`` holds: what was simulated, and the figures of each run."""
    return {
        "simulation": "queue", "schema_version": SCHEMA_VERSION, **setting,
        "runs": [
            {
                "name": each.combination.name, **each.combination._asdict(),
                **each.summary, "cpu_s": each.cpu_s,
                "jobs_per_cpu_s": each.summary["jobs"] / each.cpu_s if each.cpu_s else None,
                "faults": list(each.faults),
                "jobs_file": jobs_file(each),
            }
            for each in outcomes
        ],
    }  # fmt: skip


def jobs_file(outcome: Outcome) -> str:
    """The file's name of the jobs' table of a run."""
    return f"jobs-{re.sub(r'[^A-Za-z0-9.-]+', '-', outcome.combination.name)}.parquet"


def write_report(
    outcomes: Sequence[Outcome], setting: Mapping[str, Any], folder: Path
) -> list[Path]:
    """Everything into ``folder``; the files, ``result.json`` first, then tables, then pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / "result.json"
    text = json.dumps(result_of(outcomes, setting), indent=2, ensure_ascii=False, allow_nan=False)
    written.write_text(text + "\n", encoding="utf-8")
    tables = [write_jobs(each.result, folder / jobs_file(each)) for each in outcomes]
    named = {each.combination.name: each.result for each in outcomes}
    pictures = [
        plot_completion(named, folder / "completion.png"),
        plot_load(named, folder / "load.png"),
    ]
    return [written, *tables, *pictures]


def write_jobs(result: QueueResult, path: Path) -> Path:
    """The records of all jobs as a Parquet table, with ``JobRecord``'s columns."""
    parquet.write_table(arrow.table(dict(result.jobs)), path, compression="zstd")
    return path
