"""Writes simulation results: one table of jobs per run, ``result.json``, and plots."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from patchlight.emulation.simulator import figures, results
from patchlight.emulation.simulator.cluster.results import Floats, QueueResult
from patchlight.emulation.simulator.cluster.sweep import CombinationResult

SCHEMA_VERSION = 1


def result_of(
    outcomes: Sequence[CombinationResult], setting: Mapping[str, Any]
) -> dict[str, Any]:
    """The content of ``result.json``: the simulated setting, and the figures of each run."""
    names = run_names(outcomes)
    files = jobs_files(outcomes)
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
                "jobs_per_cpu_s": each.summary["jobs"] / each.cpu_s
                if each.cpu_s
                else None,
                "faults": {
                    "count": each.faults.count,
                    "first": each.faults.first,
                },
                "jobs_file": file,
            }
            for each, name, file in zip(
                outcomes,
                names,
                files,
                strict=True,
            )
        ],
    }


def run_names(outcomes: Sequence[CombinationResult]) -> list[str]:
    """A name for each run; of two files with one name, the second gets ``(2)``."""
    return _apart([each.combination.name for each in outcomes], "{} ({})")


def jobs_files(outcomes: Sequence[CombinationResult]) -> list[str]:
    """The file name of the table of jobs of each run."""
    plain = [
        re.sub(r"[^A-Za-z0-9.-]+", "-", each.combination.name)
        for each in outcomes
    ]
    return [f"jobs-{name}.parquet" for name in _apart(plain, "{}-run-{}")]


def _apart(names: Sequence[str], form: str) -> list[str]:
    return [
        form.format(name, names[: place + 1].count(name))
        if name in names[:place]
        else name
        for place, name in enumerate(names)
    ]


def write_report(
    outcomes: Sequence[CombinationResult],
    setting: Mapping[str, Any],
    folder: Path,
) -> list[Path]:
    """Write everything into ``folder``; returns the files: ``result.json``, tables, plots."""
    named = {
        name: each.result
        for name, each in zip(run_names(outcomes), outcomes, strict=True)
    }
    # With ``JobRecord``'s columns.
    tables = {
        file: partial(
            parquet.write_table,
            arrow.table(dict(each.result.jobs)),
            compression="zstd",
        )
        for file, each in zip(jobs_files(outcomes), outcomes, strict=True)
    }
    plots = {
        "completion": lambda: completion(named),
        "load": lambda: load(named),
    }
    note = ""
    if setting.get("interrupted"):
        note = f"interrupted: {len(outcomes)} of {setting['runs_wanted']} runs"
    return results.write_report(
        result_of(outcomes, setting),
        folder,
        plots,
        tables,
        note,
    )


def notes_on(
    outcomes: Sequence[CombinationResult],
    *,
    preempts: bool,
    communicates: bool,
) -> list[str]:
    """Runs with equal results, and the reason from the setting, if known."""
    runs = {
        name: each.result
        for name, each in zip(run_names(outcomes), outcomes, strict=True)
    }
    times = {
        name: [run.jobs["jct_s"], run.jobs["waited_s"]]
        for name, run in runs.items()
    }
    waited = any(run.jobs["waited_s"].any() for run in runs.values())
    reasons = [
        "" if waited else "no job waited",
        "" if preempts else "no preemption",
        ""
        if communicates
        else "jobs do not communicate, so placement has no effect",
    ]
    because = "; ".join(filter(None, reasons))
    return [
        f"identical results: {', '.join(names)}"
        + (f" ({because})" if because else "")
        for names, _ in figures.merged(times)
        if len(names) > 1
    ]


_POINTS = 300


def completion(runs: Mapping[str, QueueResult]) -> Figure:
    """The share of completed jobs with at most this duration, and with at most this wait."""
    curves = {}
    for name, result in runs.items():
        done = np.array(
            [state == "done" for state in result.jobs["state"]], dtype=bool
        )
        curves[name] = [
            np.sort(result.jobs[key][done]) for key in ("jct_s", "waited_s")
        ]
    labels = ["job completion time"]
    if any(result.jobs["waited_s"].any() for result in runs.values()):
        labels.append("time in the queue")
    figure = figures.new(
        2.8, figures.PAGE_IN if len(labels) == 2 else figures.COLUMN_IN
    )
    panels = figure.subplots(
        1,
        len(labels),
        sharey=True,
        squeeze=False,
    )[0]
    for number, (names, columns) in enumerate(figures.merged(curves)):
        for axis, values in zip(panels, columns, strict=False):
            _distribution(
                axis,
                values,
                figures.label(names, len(runs)),
                figures.look(number),
            )
    for axis, label in zip(panels, labels, strict=True):
        if axis.lines:
            figures.log_time_axis(axis)
        axis.set_xlabel(label)
    if len(labels) == 1:
        panels[0].set_xlabel("job completion time (no job waited)")
    panels[0].set_ylabel("share of completed jobs")
    panels[0].set_ylim(0, 1)
    figures.legend(figure)
    return figure


def load(runs: Mapping[str, QueueResult]) -> Figure:
    """GPUs held, jobs waiting and fragmentation over time; only those that are ever above 0."""
    longest_s = max(
        float(r.series.until_s[-1])
        for r in runs.values()
        if r.series.until_s.size
    )
    unit_s, unit = figures.time_unit(longest_s)
    curves: dict[str, list[Floats]] = {}
    for name, result in runs.items():
        held = 100 / result.gpus * result.series.held
        series = result.series
        scattered = 100 * series.fragmentation
        curves[name] = [
            series.until_s / unit_s,
            held,
            series.queue,
            scattered,
        ]
    labels = (
        "GPUs in use (%)",
        "jobs waiting",
        "free GPUs on servers\nin use (%)",
    )
    shown = [
        n
        for n in range(3)
        if not n or any(each[n + 1].any() for each in curves.values())
    ]
    figure = figures.new(0.7 + 1.4 * len(shown))
    panels = figure.subplots(
        len(shown),
        1,
        sharex=True,
        squeeze=False,
    )[:, 0]
    for number, (names, (until, *columns)) in enumerate(
        figures.merged(curves)
    ):
        for axis, column in zip(panels, shown, strict=True):
            means, ends = _means(until, columns[column])
            axis.stairs(
                means,
                ends,
                baseline=None,
                label=figures.label(names, len(runs)),
                **figures.look(number),
            )
    for axis, column in zip(panels, shown, strict=True):
        axis.set_ylabel(labels[column])
        axis.set_ylim(bottom=0)
    missing = "" if 1 in shown else "; no job waited"
    panels[-1].set_xlabel(
        f"time since the first job arrived ({unit}){missing}"
    )
    panels[-1].set_xlim(left=0)
    figures.legend(figure)
    return figure


def _distribution(
    axis: Axes,
    ordered: Floats,
    name: str,
    look: Mapping[str, Any],
) -> None:
    if len(ordered):
        share = np.arange(1, len(ordered) + 1) / len(ordered)
        # More points than columns of the plot only cost time.
        chosen = np.unique(
            np.linspace(0, len(ordered) - 1, 8 * _POINTS).astype(int)
        )
        axis.step(
            ordered[chosen],
            share[chosen],
            where="post",
            label=name,
            **look,
        )


def _means(until: Floats, values: Floats) -> tuple[Floats, Floats]:
    """The mean over each of equal parts of the time, and the ends of these."""
    if not len(until):
        return np.empty(0), np.zeros(1)
    ends = np.linspace(0.0, until[-1], _POINTS + 1)
    area = np.concatenate(
        ([0.0], np.cumsum(values * np.diff(until, prepend=0.0)))
    )
    at_ends = np.interp(ends, np.concatenate(([0.0], until)), area)
    return np.diff(at_ends) / np.diff(ends), ends
