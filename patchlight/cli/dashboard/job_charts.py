"""The charts of jobs: of samples as they come, and of windows that are on disk."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from patchlight.cli.dashboard import charts
from patchlight.cli.dashboard.lab_view import LabView
from patchlight.cli.dashboard.past import Past
from patchlight.cli.dashboard.watching import LabWatch

Series = dict[str, list[charts.Options]]
"""The series of each chart: what is ``sent``, what iterations ``took``, how ``busy`` GPUs are."""

_GBPS, _PERCENT = 1e-9, 100.0


def live(watch: LabWatch, since: float) -> Series:
    """Of jobs at work, from single samples since a Unix time."""
    view, sent, busy, told = watch.view, {}, {}, {}
    for job in view.at_work:
        hosts = [view.lab.host_names[h] for h in job["hosts"] if h in view.lab.host_names]
        rates = [[(r[0], r[1]) for r in list(watch.rates.get(h.name, ()))] for h in hosts]
        sent[job["id"]] = charts.summed([_recent(points, since) for points in rates])
        gpus = [list(watch.gpus.get(f"{h.server.name}.{h.gpu.name}", ())) for h in hosts if h.gpu]
        shares = charts.summed([_recent(points, since) for points in gpus])
        busy[job["id"]] = [(at, share / max(1, len(gpus))) for at, share in shares]
        reports = list(watch.iterations.get(job["id"], ()))
        told[job["id"]] = [r for r in reports if r["finished_at"] >= since]
    return {
        "sent": charts.over_time(sent, view.colours, view.changes, _GBPS),
        "took": charts.iteration_times(told, view.at_work, view.colours),
        "busy": charts.over_time(busy, view.colours, view.changes, _PERCENT),
    }


def of_past(past: Past, view: LabView) -> Series:
    """Of the jobs of a period, from windows."""

    def drawn(key: str, factor: float, also: Callable[[Any], float | None] | None = None) -> Any:
        told = {job: _bands(windows, key, also) for job, windows in past.windows.items()}
        shown = {job: bands for job, bands in told.items() if bands}
        return charts.bands(shown, past.width_s, view.colours, view.changes, factor)

    return {
        "sent": drawn("sent_bps", _GBPS),
        "took": drawn("iteration_s", 1.0, lambda window: window["predicted_s"]),
        "busy": drawn("busy", _PERCENT),
    }


def _bands(
    windows: Sequence[Mapping[str, Any]], key: str, also: Callable[[Any], float | None] | None
) -> list[charts.Band]:
    return [
        charts.Band(window["at"], **window[key], predicted=None if also is None else also(window))
        for window in windows
        if window[key] is not None
    ]


def _recent(points: list[tuple[float, float]], since: float) -> list[tuple[float, float]]:
    return [point for point in points if point[0] >= since]
