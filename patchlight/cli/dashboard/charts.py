"""Makes the dashboard's charts as options of ECharts, without code."""

import math
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from statistics import fmean
from typing import Any

from patchlight.cli.dashboard.lab_view import NO_JOB, LabView
from patchlight.cli.dashboard.lab_watch import LabWatch, Past
from patchlight.testbed.lab.model import Host
from patchlight.testbed.wire.rest.circuits import ChangeAnswer
from patchlight.testbed.wire.rest.jobs import IterationReport, JobInList

Options = dict[str, Any]
Points = list[tuple[float, float]]
Samples = Iterable[tuple[float, float]]

Series = dict[str, list[Options]]
"""The series of each chart: the rates ``sent``, the times iterations ``took``, ``busy`` GPUs."""

_GBPS = 1e-9
_PERCENT = 100.0

_GREY = "#888888"
_MS = 1000.0
_SAMPLE_S = 1.0
_BAND_LINES: Mapping[str, Options] = {
    "least": {"width": 1, "opacity": 0.4},
    "most": {"width": 1, "opacity": 0.4},
    "mean": {"width": 3},
    "predicted": {"width": 1, "type": "dashed"},
}


def empty() -> Options:
    """An empty chart over time."""
    return {
        "animation": False,
        "textStyle": {"color": _GREY},
        "grid": {
            "left": 40,
            "right": 24,
            "top": 44,
            "bottom": 24,
        },
        "tooltip": {"trigger": "item", "confine": True},
        "legend": {"type": "scroll", "top": 0, "textStyle": {"color": _GREY}},
        "xAxis": {
            "type": "time",
            "axisLabel": {"hideOverlap": True, "color": _GREY},
        },
        "yAxis": {
            "type": "value",
            "min": 0,
            "axisLabel": {"color": _GREY},
            "splitLine": {"lineStyle": {"color": _GREY, "opacity": 0.25}},
        },
        "series": [],
    }


def averaged(
    points: Sequence[tuple[float, float]], every_s: float = 5.0
) -> Points:
    """Means over windows of ``every_s`` seconds, each at its middle (Unix time)."""
    windows: dict[int, list[float]] = {}
    for at, value in points:
        windows.setdefault(math.floor(at / every_s), []).append(value)
    return [
        ((number + 0.5) * every_s, fmean(values))
        for number, values in windows.items()
    ]


def summed(
    series: Iterable[Sequence[tuple[float, float]]],
    since: float = 0.0,
    until: float = math.inf,
) -> Points:
    """The sum of several series in a period, each the mean of what it has in each second."""
    sums: dict[float, float] = {}
    for points in series:
        for at, mean in averaged(
            [p for p in points if since <= p[0] <= until], every_s=1.0
        ):
            sums[at] = sums.get(at, 0.0) + mean
    return sorted(sums.items())


def over_time(
    series: Mapping[str, Sequence[tuple[float, float]]],
    colours: Mapping[str, str],
    marks: Options,
    factor: float = 1.0,
) -> list[Options]:
    """For each name a bold line of means with thin sample points below."""
    found: list[Options] = []
    for name, points in series.items():
        colour = colours.get(name, NO_JOB)
        fine = {"width": 1, "opacity": 0.4}
        bold = {"width": 3}
        for z, shown, style in (
            (2, points, fine),
            (3, averaged(points), bold),
        ):
            found.append(
                _line(name, colour, style)
                | {"data": _scaled(shown, factor), "z": z}
            )
    if found:
        found[0]["markLine"] = marks
    return found


def _line(
    name: str,
    colour: str,
    style: Options,
) -> Options:
    line = {
        "type": "line",
        "name": name,
        "symbol": "none",
        "itemStyle": {"color": colour},
    }
    return {**line, "lineStyle": {"color": colour, **style}}


def bands(
    past: Past,
    key: str,
    view: LabView,
    factor: float,
) -> list[Options]:
    """For each job a bold line of means, with thin lines for the minimum and maximum.

    Predictions are dashed. Lines break where windows are missing.
    """
    found: list[Options] = []
    for job, windows in past.windows.items():
        colour = view.colours.get(job, NO_JOB)
        measured = [
            window for window in windows if getattr(window, key) is not None
        ]
        for part, style in _BAND_LINES.items():
            if part == "predicted" and key != "iteration_s":
                continue
            points: list[list[float | None]] = []
            for window in measured:
                middle = round((window.at + past.width_s / 2) * _MS)
                if (
                    points
                    and middle - (points[-1][0] or 0)
                    > 1.5 * past.width_s * _MS
                ):
                    points.append([middle - 1, None])
                value = (
                    window.predicted_s
                    if part == "predicted"
                    else getattr(getattr(window, key), part)
                )
                points.append(
                    [middle, None if value is None else value * factor]
                )
            if known := sum(value is not None for _, value in points):
                found.append(_line(job, colour, style) | {"data": points})
                if known == 1:  # a line of one point would be invisible
                    found[-1]["symbol"] = "circle"
    if found:
        found[0]["markLine"] = marks_of(view.changes, past.since, past.until)
    return found


def iteration_times(
    reports: Mapping[str, Collection[IterationReport]],
    jobs: Sequence[JobInList],
    colours: Mapping[str, str],
    marks: Options,
) -> list[Options]:
    """The time of each iteration as a point, and the predicted time as a dashed line."""
    predicted = {job.id: job.predicted_iteration_s for job in jobs}
    found: list[Options] = []
    for job, told in reports.items():
        points = [
            (r.finished_at, r.compute_s + r.communication_s) for r in told
        ]
        colour = {"color": colours.get(job, NO_JOB)}
        dots: Options = {
            "type": "scatter",
            "name": job,
            "symbolSize": 5,
            "itemStyle": colour,
        }
        dots["data"] = _scaled(points, 1.0)
        line: Options = {"symbol": "none", "silent": True, "data": []}
        if predicted.get(job) is not None:
            style = {**colour, "type": "dashed"}
            line["data"] = [
                {
                    "yAxis": predicted[job],
                    "label": {"show": False},
                    "lineStyle": style,
                }
            ]
        if not found:
            line = {**marks, "data": [*line["data"], *marks["data"]]}
        found.append(dots | {"markLine": line})
    return found


def timeline(
    view: LabView,
    since: float,
    now: float,
) -> Options:
    """The GPUs of each job, from ``since`` to ``now`` (Unix times), with marks for changes."""
    names = [host.name for host in view.lab.hosts]
    options = empty()
    options["yAxis"] = {"type": "category", "data": names, "inverse": True}
    options["yAxis"]["axisLabel"] = {"color": _GREY}
    options["xAxis"] |= {"min": since * _MS, "max": now * _MS}
    options["grid"] |= {"left": 104, "bottom": 36}
    for job, began, ended in ran(view.jobs, since, now):
        data: list[Any] = []
        for host in job.hosts:
            begin = max(began, since)
            end = min(ended, now)
            data += [[begin * _MS, host], [end * _MS, host], ["-", "-"]]
        colour = view.colours.get(job.id, NO_JOB)
        style = {"width": 14, "cap": "butt"}
        name = view.labels[job.id]
        options["series"].append(_line(name, colour, style) | {"data": data})
    if options["series"]:
        marks = options["series"][0]["markLine"] = marks_of(
            view.changes, since, now
        )
        marks["label"]["position"] = (
            "start"  # at the top: the axis is inverted
        )
    return options


def _scaled(
    points: Iterable[tuple[float, float]], factor: float
) -> list[list[float]]:
    return [[round(at * _MS), value * factor] for at, value in points]


def ran(
    jobs: Iterable[JobInList],
    since: float,
    until: float,
) -> Iterator[tuple[JobInList, float, float]]:
    """The jobs that ran in a period, each with when it began and ended (Unix times)."""
    for job in jobs:
        began = job.runs_since or job.started_at
        ended = job.finished_at or math.inf
        if (
            began is not None
            and job.hosts
            and ended >= since
            and began <= until
        ):
            yield job, began, ended


def marks_of(
    changes: Sequence[ChangeAnswer],
    since: float,
    until: float,
) -> Options:
    """A line for each change in a period that was begun; overlapping labels are merged."""
    made = [
        c
        for c in changes
        if c.changes
        and c.state != "refused"
        and since <= c.started_at <= until
    ][-20:]
    whole_s = until - since
    lines = list[Options]()
    labelled_at = -math.inf
    for change in made:
        at = change.started_at
        label = ""
        number = change.id
        if at - labelled_at > whole_s / 4:
            near = [
                c.id for c in made if at <= c.started_at <= at + whole_s / 4
            ]
            label = f"change {number}"
            labelled_at = at
            label = f"changes {number}–{near[-1]}" if near[1:] else label
        # Near the right edge a centred label would be cut.
        align = "right" if at > until - whole_s / 8 else "center"
        lines.append(
            {
                "xAxis": round(at * _MS),
                "label": {"formatter": label, "align": align},
            }
        )
    return {
        "symbol": "none",
        "lineStyle": {"color": _GREY, "type": "solid", "width": 1},
        "label": {"color": _GREY, "fontSize": 11},
        "data": lines,
    }


def sent(
    watch: LabWatch,
    since: float,
    now: float,
) -> list[Options]:
    """The rate sent by each job, from single samples since a Unix time."""
    view = watch.view
    rates = _while_they_ran(
        view,
        since,
        now,
        lambda host: watch.rates.get(host.name, ()),
    )
    return over_time(
        rates,
        view.colours,
        marks_of(view.changes, since, now),
        _GBPS,
    )


def live(
    watch: LabWatch,
    since: float,
    now: float,
) -> Series:
    """The series of the jobs that ran since a Unix time, from single samples."""
    view = watch.view

    def gpu(host: Host) -> Samples:
        name = f"{host.server.name}.{host.gpu.name}" if host.gpu else ""
        return watch.gpus.get(name, ())

    jobs = [job for job, _, _ in ran(view.jobs, since, now)]
    busy = _while_they_ran(
        view,
        since,
        now,
        gpu,
    )
    for job in jobs:
        busy[job.id] = [
            (at, share / len(job.hosts)) for at, share in busy[job.id]
        ]
    told = {
        job.id: [
            r
            for r in watch.iterations.get(job.id, ())
            if r.finished_at >= since
        ]
        for job in jobs
    }
    marks = marks_of(view.changes, since, now)
    return {
        "sent": sent(watch, since, now),
        "took": iteration_times(
            told,
            jobs,
            view.colours,
            marks,
        ),
        "busy": over_time(
            busy,
            view.colours,
            marks,
            _PERCENT,
        ),
    }


def _while_they_ran(
    view: LabView,
    since: float,
    now: float,
    samples: Callable[[Host], Samples],
) -> dict[str, Points]:
    """The sum of the samples of each job's hosts while it ran."""
    found = {}
    for job, began, ended in ran(view.jobs, since, now):
        hosts = [
            view.lab.host_names[h]
            for h in job.hosts
            if h in view.lab.host_names
        ]
        # The first sample covers the second before it, of another job perhaps.
        begin = max(since, began + _SAMPLE_S)
        found[job.id] = summed(
            [list(samples(host)) for host in hosts], begin, ended
        )
    return found


def of_past(past: Past, view: LabView) -> Series:
    """The series of the jobs of a period, from windows."""
    return {
        "sent": bands(
            past,
            "sent_bps",
            view,
            _GBPS,
        ),
        "took": bands(
            past,
            "iteration_s",
            view,
            1.0,
        ),
        "busy": bands(
            past,
            "busy",
            view,
            _PERCENT,
        ),
    }
