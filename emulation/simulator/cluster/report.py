"""Writes what came of simulations: a table of jobs for each, the figures, and plots."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as parquet

from patchlight.emulation.output_folder import cannot_write
from patchlight.emulation.simulator.cluster.plots import completion, load
from patchlight.emulation.simulator.cluster.sweep import CombinationResult

SCHEMA_VERSION = 1
_DPI = 130


def result_of(outcomes: Sequence[CombinationResult], setting: Mapping[str, Any]) -> dict[str, Any]:
    """What ``result.json`` holds: what was simulated, and the figures of each run."""
    names, files = run_names(outcomes), jobs_files(outcomes)
    return {
        "simulation": "queue",
        "schema_version": SCHEMA_VERSION,
        **setting,
        "runs": [
            {
                "name": name,
                **each.combination._asdict(),
                **each.summary,
                "cpu_s": each.cpu_s,
                "jobs_per_cpu_s": each.summary["jobs"] / each.cpu_s if each.cpu_s else None,
                "faults": list(each.faults),
                "jobs_file": file,
            }
            for each, name, file in zip(outcomes, names, files, strict=True)
        ],
    }


def run_names(outcomes: Sequence[CombinationResult]) -> list[str]:
    """A name for each run; of two files of one name, the second has ``(2)``."""
    return _apart([each.combination.name for each in outcomes], "{} ({})")


def jobs_files(outcomes: Sequence[CombinationResult]) -> list[str]:
    """For each run the file's name of its table of jobs."""
    plain = [re.sub(r"[^A-Za-z0-9.-]+", "-", each.combination.name) for each in outcomes]
    return [f"jobs-{name}.parquet" for name in _apart(plain, "{}-run-{}")]


def _apart(names: Sequence[str], form: str) -> list[str]:
    return [
        form.format(name, names[: place + 1].count(name)) if name in names[:place] else name
        for place, name in enumerate(names)
    ]


def write_report(
    outcomes: Sequence[CombinationResult], setting: Mapping[str, Any], folder: Path
) -> list[Path]:
    """Everything into ``folder``; the files, ``result.json`` first, then tables, then pictures."""
    written = folder / "result.json"
    text = json.dumps(result_of(outcomes, setting), indent=2, ensure_ascii=False, allow_nan=False)
    named = {name: each.result for name, each in zip(run_names(outcomes), outcomes, strict=True)}
    tables = [folder / file for file in jobs_files(outcomes)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written.write_text(text + "\n", encoding="utf-8")
        for file, each in zip(tables, outcomes, strict=True):
            # With ``JobRecord``'s columns.
            parquet.write_table(arrow.table(dict(each.result.jobs)), file, compression="zstd")
        pictures = [folder / "completion.png", folder / "load.png"]
        completion(named).savefig(pictures[0], dpi=_DPI)
        load(named).savefig(pictures[1], dpi=_DPI)
    except OSError as error:
        raise cannot_write(folder, error) from error
    return [written, *tables, *pictures]
