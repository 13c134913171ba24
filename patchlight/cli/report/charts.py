"""The pictures of a report, as SVG that needs no other file."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure

from patchlight.cli.report.period import Period
from patchlight.console.rendering import harmless

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.lab import Samples

MOST_JOBS = 60
_COLOURS = {"done": "#2e7d32", "failed": "#c62828", "stopped": "#757575"}
_AT_WORK, _WAITING, _CHANGE = "#1565c0", "#b0bec5", "#ef6c00"


def timeline(period: Period) -> str:
    """The latest jobs as bars: waiting, then running; changes of circuits as lines."""
    jobs = period.jobs[-MOST_JOBS:]
    figure = Figure(figsize=(11, 1.2 + 0.22 * max(4, len(jobs))), layout="constrained")
    axes = figure.add_subplot()
    for row, job in enumerate(jobs):
        ended = min(job["finished_at"] or period.until, period.until)
        started = job["started_at"] if job["started_at"] is not None else ended
        colour = _COLOURS.get(job["state"], _AT_WORK)
        _bar(axes, row, max(job["submitted_at"], period.since), started, _WAITING)
        _bar(axes, row, max(started, period.since), ended, colour)
    for change in period.changes:
        if change["state"] == "committed" and change["changes"]:
            axes.axvline(_at(change["started_at"]), color=_CHANGE, linewidth=0.8)
    axes.set_yticks(range(len(jobs)), [_plain(job["id"]) for job in jobs], fontsize=7)
    axes.set_ylim(len(jobs) - 0.4, -0.6)
    _time_axis(axes, period.since, period.until)
    return _svg(figure)


def utilization(period: Period) -> str | None:
    """The GPUs' mean utilisation, and how far they are apart; ``None`` without samples."""
    return _band(period.samples, "busy", 1.0, "busy share of GPUs")


def throughput(period: Period) -> str | None:
    """What hosts send, in the mean, and how far they are apart; ``None`` without samples."""
    return _band(period.samples, "sent_bps", 1e-9, "sent by a host (Gb/s)")


def _band(
    samples: Samples, key: Literal["busy", "sent_bps"], factor: float, about: str
) -> str | None:
    width_s = samples["width_s"]
    told = [(window["at"], spread) for window in samples["lab"] if (spread := window[key])]
    if not told:
        return None
    # Both edges of a window, so that a single one can be seen; between windows that are apart, a
    # value that is none.
    edges: list[float] = []
    values: list[Sequence[float]] = []
    for at, spread in told:
        if edges and at > edges[-1]:
            edges.append(edges[-1])
            values.append([math.nan] * 3)
        edges += [at, at + width_s]
        there = [factor * spread[name] for name in ("least", "most", "mean")]
        values += [there, there]
    times = [_at(edge) for edge in edges]
    least, most, means = zip(*values, strict=True)
    figure = Figure(figsize=(11, 3), layout="constrained")
    axes = figure.add_subplot()
    axes.fill_between(times, least, most, color=_AT_WORK, alpha=0.2, linewidth=0)
    axes.plot(times, means, color=_AT_WORK, linewidth=1.5)
    axes.set_ylabel(about)
    axes.set_ylim(bottom=0)
    _time_axis(axes, edges[0], edges[-1])
    return _svg(figure)


def _bar(axes: Axes, row: int, begin: float, end: float, colour: str) -> None:
    if end > begin:
        left = _at(begin)
        axes.barh(row, _at(end) - left, left=left, color=colour, height=0.7)


def _at(unix_time: float) -> float:
    return float(date2num(datetime.fromtimestamp(unix_time)))  # type: ignore[no-untyped-call]


def _time_axis(axes: Axes, since: float, until: float) -> None:
    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    shown = ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(shown)
    axes.set_xlim(_at(since), _at(max(until, since + 1)))
    axes.grid(axis="x", linewidth=0.3)


def _plain(name: str) -> str:
    """A name as text: to matplotlib, what is between dollars is a formula."""
    return harmless(name).replace("$", r"\$")


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "patchlight"}):
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", metadata=nothing)
    # Inside a page no declaration may stand, which also names a file of another host.
    return re.sub(r"^.*?(?=<svg)", "", out.getvalue(), count=1, flags=re.DOTALL)
