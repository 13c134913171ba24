"""Charts of the dashboard, as options of ECharts: plain values, and nothing that is run."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from patchlight.cli.dashboard.lab_view import NO_JOB, LabView
from patchlight.cli.dashboard.lab_watch import LabWatch, Past

Options = dict[str, Any]
Points = list[tuple[float, float]]
Answer = Mapping[str, Any]

Series = dict[str, list[Options]]
"""The series of each chart: the rates ``sent``, the times iterations ``took``, ``busy`` GPUs."""

_GBPS, _PERCENT = 1e-9, 100.0

_GREY = "#888888"
_MS = 1000.0
_BAND_LINES: Mapping[str, Options] = {
    "least": {"width": 1, "opacity": 0.4},
    "most": {"width": 1, "opacity": 0.4},
    "mean": {"width": 3},
    "predicted": {"width": 1, "type": "dashed"},
}


def empty(value_name: str) -> Options:
    """An empty chart over time."""
    return {
        "animation": False,
        "textStyle": {"color": _GREY},
        "grid": {"left": 64, "right": 16, "top": 28, "bottom": 24},
        "tooltip": {"trigger": "item", "confine": True},
        "legend": {"type": "scroll", "top": 0, "textStyle": {"color": _GREY}},
        "xAxis": {"type": "time", "axisLabel": {"hideOverlap": True, "color": _GREY}},
        "yAxis": {
            "type": "value",
            "name": value_name,
            "min": 0,
            "axisLabel": {"color": _GREY},
            "splitLine": {"lineStyle": {"opacity": 0.25}},
        },
        "series": [],
    }


def averaged(points: Sequence[tuple[float, float]], every_s: float = 5.0) -> Points:
    """Means over windows of ``every_s`` seconds, each at its middle (Unix time)."""
    windows: dict[int, list[float]] = {}
    for at, value in points:
        windows.setdefault(math.floor(at / every_s), []).append(value)
    return [((number + 0.5) * every_s, fmean(values)) for number, values in windows.items()]


def summed(series: Iterable[Sequence[tuple[float, float]]], since: float = 0.0) -> Points:
    """The sum of several series since a Unix time, each the mean of what it has in each second."""
    sums: dict[float, float] = {}
    for points in series:
        for at, mean in averaged([point for point in points if point[0] >= since], every_s=1.0):
            sums[at] = sums.get(at, 0.0) + mean
    return sorted(sums.items())


def over_time(
    series: Mapping[str, Sequence[tuple[float, float]]],
    colours: Mapping[str, str],
    changes: Sequence[Answer],
    factor: float = 1.0,
) -> list[Options]:
    """For each name a bold line of means with the fine-grained points thin beneath it.

    Changes of circuits are marked by lines across.
    """
    found: list[Options] = []
    for name, points in series.items():
        colour = colours.get(name, NO_JOB)
        fine, bold = {"width": 1, "opacity": 0.4}, {"width": 3}
        for z, shown, style in ((2, points, fine), (3, averaged(points), bold)):
            found.append(_line(name, colour, style) | {"data": _scaled(shown, factor), "z": z})
    if found:
        found[0]["markLine"] = _marks(
            changes, min((p[0][0] for p in series.values() if p), default=0)
        )
    return found


def _line(name: str, colour: str, style: Options) -> Options:
    line = {"type": "line", "name": name, "symbol": "none", "itemStyle": {"color": colour}}
    return {**line, "lineStyle": {"color": colour, **style}}


def bands(past: Past, key: str, view: LabView, factor: float) -> list[Options]:
    """For each job a bold line of means, with the least and the most of each window thin.

    The prediction is dashed. Lines break where windows are missing.
    """
    found: list[Options] = []
    told: Mapping[str, Sequence[Answer]] = past.windows
    for job, windows in told.items():
        colour = view.colours.get(job, NO_JOB)
        measured = [window for window in windows if window[key] is not None]
        for part, style in _BAND_LINES.items():
            if part == "predicted" and key != "iteration_s":
                continue
            points: list[list[float | None]] = []
            for window in measured:
                middle = round((window["at"] + past.width_s / 2) * _MS)
                if points and middle - (points[-1][0] or 0) > 1.5 * past.width_s * _MS:
                    points.append([middle - 1, None])
                value = window["predicted_s"] if part == "predicted" else window[key][part]
                points.append([middle, None if value is None else value * factor])
            if known := sum(value is not None for _, value in points):
                found.append(_line(job, colour, style) | {"data": points})
                if known == 1:  # no line would be seen
                    found[-1]["symbol"] = "circle"
    if found:
        found[0]["markLine"] = _marks(view.changes, 0.0)
    return found


def iteration_times(
    reports: Mapping[str, Sequence[Answer]], jobs: Sequence[Answer], colours: Mapping[str, str]
) -> list[Options]:
    """The time of each iteration as a point, and the predicted time as a dashed line."""
    predicted = {job["id"]: job.get("predicted_iteration_s") for job in jobs}
    found: list[Options] = []
    for job, told in reports.items():
        points = [(r["finished_at"], r["compute_s"] + r["communication_s"]) for r in told]
        colour = {"color": colours.get(job, NO_JOB)}
        dots: Options = {"type": "scatter", "name": job, "symbolSize": 5, "itemStyle": colour}
        dots["data"] = _scaled(points, 1.0)
        if predicted.get(job) is not None:
            dots["markLine"] = {
                "silent": True,
                "symbol": "none",
                "lineStyle": {**colour, "type": "dashed"},
                "label": {"formatter": "predicted", "position": "insideStartTop", "color": _GREY},
                "data": [{"yAxis": predicted[job]}],
            }
        found.append(dots)
    return found


def timeline(view: LabView, since: float, now: float) -> Options:
    """Which job had which GPUs, from ``since`` to ``now`` (Unix times), with changes marked."""
    names = [host.name for host in view.lab.hosts]
    options = empty("")
    options["yAxis"] = {"type": "category", "data": names, "inverse": True}
    options["yAxis"]["axisLabel"] = {"color": _GREY}
    options["xAxis"] |= {"min": since * _MS, "max": now * _MS}
    options["grid"]["left"] = 110
    for job in view.jobs:
        began, ended = job["runs_since"] or job["started_at"], job["finished_at"] or now
        if began is None or ended < since or began > now or not job["hosts"]:
            continue
        data: list[Any] = []
        for host in job["hosts"]:
            data += [[max(began, since) * _MS, host], [ended * _MS, host], ["-", "-"]]
        colour = view.colours.get(job["id"], NO_JOB)
        name = f"{job['spec']['name']} ({job['id']}, {job['state']})"
        style = {"width": 14, "cap": "butt"}
        options["series"].append(_line(name, colour, style) | {"data": data})
    if options["series"]:
        marks = options["series"][0]["markLine"] = _marks(view.changes, since)
        marks["label"]["position"] = "start"  # above: the axis goes down
    return options


def _scaled(points: Iterable[tuple[float, float]], factor: float) -> list[list[float]]:
    return [[round(at * _MS), value * factor] for at, value in points]


def _marks(changes: Sequence[Answer], since: float) -> Options:
    made = [c for c in changes if c["changes"] and c["started_at"] >= since]
    return {
        "symbol": "none",
        "lineStyle": {"color": _GREY, "type": "solid", "width": 1},
        "label": {"color": _GREY, "fontSize": 10},
        "data": [
            {"xAxis": round(c["started_at"] * _MS), "label": {"formatter": f"change {c['id']}"}}
            for c in made[-20:]
        ],
    }


def live(watch: LabWatch, since: float) -> Series:
    """The series of running jobs, from single samples since a Unix time."""
    view, sent, busy, told = watch.view, {}, {}, {}
    for job in view.at_work:
        hosts = [view.lab.host_names[h] for h in job["hosts"] if h in view.lab.host_names]
        rates = [list(watch.rates.get(h.name, ())) for h in hosts]
        sent[job["id"]] = summed(rates, since)
        gpus = [list(watch.gpus.get(f"{h.server.name}.{h.gpu.name}", ())) for h in hosts if h.gpu]
        shares = summed(gpus, since)
        busy[job["id"]] = [(at, share / max(1, len(gpus))) for at, share in shares]
        reports = list(watch.iterations.get(job["id"], ()))
        told[job["id"]] = [r for r in reports if r["finished_at"] >= since]
    return {
        "sent": over_time(sent, view.colours, view.changes, _GBPS),
        "took": iteration_times(told, view.at_work, view.colours),
        "busy": over_time(busy, view.colours, view.changes, _PERCENT),
    }


def of_past(past: Past, view: LabView) -> Series:
    """The series of the jobs of a period, from windows."""
    return {
        "sent": bands(past, "sent_bps", view, _GBPS),
        "took": bands(past, "iteration_s", view, 1.0),
        "busy": bands(past, "busy", view, _PERCENT),
    }
