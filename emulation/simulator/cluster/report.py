"""Writes what came of simulations: a table of jobs for each, the figures, and plots of them."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from patchlight.emulation.simulator import results
from patchlight.emulation.simulator.cluster.results import Floats, QueueResult
from patchlight.emulation.simulator.cluster.sweep import CombinationResult

SCHEMA_VERSION = 1


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
                "faults": {"count": each.faults.count, "first": each.faults.first},
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
    named = {name: each.result for name, each in zip(run_names(outcomes), outcomes, strict=True)}
    # With ``JobRecord``'s columns.
    tables = {
        file: partial(parquet.write_table, arrow.table(dict(each.result.jobs)), compression="zstd")
        for file, each in zip(jobs_files(outcomes), outcomes, strict=True)
    }
    plots = {"completion": lambda: completion(named), "load": lambda: load(named)}
    return results.write_report(result_of(outcomes, setting), folder, plots, tables)


_COLOURS = ("#08519c", "#d94801", "#31a354", "#756bb1", "#b30059", "#3b8f8f", "#636363", "#a63603")
# Curves that a printer without colours tells apart.
_STYLES: tuple[Any, ...] = (
    "-",
    "--",
    ":",
    "-.",
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (1, 4)),
    (0, (8, 2, 2, 2)),
)
_POINTS = 600
_DAY_S = 86400.0


def completion(runs: Mapping[str, QueueResult]) -> Figure:
    """Which part of the jobs is done after, and waited for, at most so long."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    done, waited = figure.subplots(1, 2, sharey=True)
    for number, (name, result) in enumerate(runs.items()):
        ended = np.array([state == "done" for state in result.jobs["state"]], dtype=bool)
        look = _look(number)
        _distribution(done, result.jobs["jct_s"][ended], name, look)
        _distribution(waited, result.jobs["waited_s"][ended], name, look)
    if not any(result.jobs["waited_s"].any() for result in runs.values()):
        _nobody_waited(waited, "x")
    for axis, words in ((done, "job completion time (s)"), (waited, "time in the queue (s)")):
        if axis.lines:
            axis.set_xscale("symlog", linthresh=1.0)
            axis.set_xlim(left=0)
        axis.set_xlabel(words)
        axis.grid(alpha=0.25)
    done.set_ylabel("part of the completed jobs")
    done.set_ylim(0, 1)
    _entitle(figure, done, "How long jobs take, and how much of it they wait")
    return figure


def load(runs: Mapping[str, QueueResult]) -> Figure:
    """GPUs held, jobs waiting and fragmentation over time."""
    figure = Figure(figsize=(11, 8), layout="constrained")
    held, queue, pieces = figure.subplots(3, 1, sharex=True)
    for number, (name, result) in enumerate(runs.items()):
        series, look = result.series, _look(number)
        percents = (100 / result.gpus * series.held, series.queue, 100 * series.fragmentation)
        for axis, values in zip((held, queue, pieces), percents, strict=True):
            days, means = _means(series.until_s, values)
            axis.plot(days, means, linewidth=1.1, label=name, **look)
    if not any(result.series.queue.any() for result in runs.values()):
        _nobody_waited(queue, "y")
    labels = ("GPUs held (%)", "jobs waiting", "free GPUs on servers\nin use (%)")
    for axis, words in zip((held, queue, pieces), labels, strict=True):
        axis.set_ylabel(words)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.25)
    pieces.set_xlabel("time since the first job came (days)")
    pieces.set_xlim(left=0)
    _entitle(figure, held, "The cluster over time")
    return figure


def _look(number: int) -> dict[str, Any]:
    """Colour and line of a curve; more curves than colours have other lines the second time."""
    turn, place = divmod(number, len(_COLOURS))
    line = _STYLES[(place + 3 * turn) % len(_STYLES)]
    return {"color": _COLOURS[place], "linestyle": line}


def _distribution(axis: Axes, values: Floats, name: str, look: Mapping[str, Any]) -> None:
    if len(values):
        ordered = np.sort(values)
        part = np.arange(1, len(ordered) + 1) / len(ordered)
        # More points than a picture has columns would only make it slow.
        chosen = np.unique(np.linspace(0, len(ordered) - 1, 4 * _POINTS).astype(int))
        axis.step(ordered[chosen], part[chosen], where="post", label=name, **look)


def _nobody_waited(axis: Axes, scale: Literal["x", "y"]) -> None:
    """Say so: the scale of a line at 0 would mean nothing."""
    for line in list(axis.lines):
        line.remove()
    axis.text(0.5, 0.5, "no job waited", transform=axis.transAxes, ha="center", va="center")
    (axis.xaxis if scale == "x" else axis.yaxis).set_ticks([])


def _means(until_s: Floats, values: Floats) -> tuple[Floats, Floats]:
    """The mean over each of equal parts of the time, at their middles in days."""
    if not len(until_s):
        return np.empty(0), np.empty(0)
    ends = np.linspace(0.0, until_s[-1], _POINTS + 1)
    area = np.concatenate(([0.0], np.cumsum(values * np.diff(until_s, prepend=0.0))))
    at_ends = np.interp(ends, np.concatenate(([0.0], until_s)), area)
    return (ends[:-1] + ends[1:]) / 2 / _DAY_S, np.diff(at_ends) / np.diff(ends)


def _entitle(figure: Figure, axis: Axes, title: str) -> None:
    handles, labels = axis.get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
        figure.suptitle(title)
    else:
        figure.suptitle(f"{title}: {labels[0]}" if labels else title)
