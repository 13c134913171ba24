"""The plots: throughput and GPU utilisation over time, as in Fig. 3 of the paper."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from patchlight.emulation.experiments.ofc2022.analysis import (
    busy_tenths,
    iteration_ends,
    mean_utilization,
    the_change,
    training_window,
)
from patchlight.emulation.experiments.ofc2022.measurements import CaseRun, JobRun

# One family of shades for each job, so that a plot shows who trains with whom; a printer without
# colours tells jobs by their marks, and the workers of one by their lines.
_SHADES = (
    ("#08306b", "#2171b5", "#4fa3d1", "#7fbfa8", "#3b8f8f", "#9ecae1"),
    ("#7f2704", "#d94801", "#fdae6b", "#b30059", "#e7298a", "#fdd0a2"),
)
_MARKS = ("o", "s")
_LINES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))
_MARK_EVERY = 0.08  # of a plot's width
_AFTER_S = 1.5


def case_figure(static: CaseRun, optical: CaseRun) -> Figure:
    """Static on the left, optical on the right, the same axes for both."""
    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey="row")
    for column, run, title in ((0, static, "Static"), (1, optical, "Rewired by the controller")):
        rates, busy = axes[0][column], axes[1][column]
        _throughput(rates, run)
        _utilization(busy, run)
        start, end = training_window(run.jobs[0])
        rates.set_title(f"{title}: first job done after {end - start:.1f} s")
        busy.set_xlabel("time since training began (s)")
        for axis in (rates, busy):
            axis.axvline(end - start, color="#444444", linewidth=1, linestyle=":")
    _from_zero(axes[0][0], axes[1][0])
    axes[0][0].set_ylabel("received by each worker (Gb/s)")
    axes[1][0].set_ylabel("GPU utilisation (%)")
    _share_legend(figure, axes[0][0])
    figure.suptitle(f"Case ({static.case}): {_jobs_in_words(static.jobs)}")
    return figure


def live_figure(run: CaseRun) -> Figure:
    """Throughput, utilisation and each iteration's time, with the reconfiguration marked."""
    change = the_change(run)
    zero = training_window(run.jobs[0])[0]
    figure = Figure(figsize=(9, 8), layout="constrained")
    rates, busy, pace = figure.subplots(3, 1, sharex=True)
    _throughput(rates, run)
    _utilization(busy, run)
    for number, job in enumerate(run.jobs):
        ends = [end - zero for end in iteration_ends(job)]
        times = [b - a for a, b in zip([training_window(job)[0] - zero, *ends], ends, strict=False)]
        look = {**_look(number, 0), "markevery": 1, "markersize": 3, "linewidth": 1}
        pace.plot(ends, times, label=job.status.spec.name, **look)
    began, ended = change.started_at - zero, change.finished_at - zero
    drained = ended - change.switching_s
    for axis in (rates, busy, pace):
        axis.axvspan(began, drained, color="#31a354", alpha=0.15)
        axis.axvspan(drained, ended, color="#31a354", alpha=0.8)
    words = f"reconfiguration: drain {drained - began:.2f} s, switching {change.switching_s:.2f} s"
    at: dict[str, Any] = {"xy": (began, 1), "xycoords": ("data", "axes fraction")}
    shifted: dict[str, Any] = {"xytext": (-4, -12), "textcoords": "offset points"}
    rates.annotate(words, **at, **shifted, ha="right", fontsize=8, color="#006d2c")
    _from_zero(rates, busy, pace)
    rates.set_ylabel("received by each worker (Gb/s)")
    busy.set_ylabel("GPU utilisation (%)")
    pace.set_ylabel("time of each iteration (s)")
    pace.set_xlabel("time since training began (s)")
    pace.legend(fontsize=8)
    _share_legend(figure, rates)
    figure.suptitle(f"Case ({run.case}), rewired while it trains: {_jobs_in_words(run.jobs)}")
    return figure


def reductions_figure(
    measured: Mapping[str, tuple[float, float]], paper: Mapping[str, tuple[float, float]]
) -> Figure:
    """Completion times (static, optical) as shares of the static one, the paper's beside ours."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    labels: list[str] = []
    for case, ours in measured.items():
        for who, (static, optical) in (("paper", paper[case]), ("measured", ours)):
            at, share = len(labels), optical / static
            colour = "#2171b5" if who == "measured" else "#969696"
            axis.bar(at, 1, 0.6, color="#e5e5e5")
            axis.bar(at, share, 0.6, color=colour)
            axis.annotate(f"−{100 * (1 - share):.1f} %", (at, share), ha="center", va="bottom")
            labels.append(f"({case}) {who}\n{static:.3g} s → {optical:.3g} s")
    axis.set_xticks(range(len(labels)), labels, fontsize=8)
    axis.set_ylabel("completion time, static = 1")
    figure.suptitle("First job's completion time: static network → rewired with light")
    return figure


def _throughput(axis: Axes, run: CaseRun) -> None:
    _draw(axis, run, [(p.host, p.at, p.rx_bps / 1e9) for p in run.ports])


def _utilization(axis: Axes, run: CaseRun) -> None:
    """Each job's mean over its GPUs and a second, and under it each GPU in tenths of a second."""
    zero = training_window(run.jobs[0])[0]
    for number, job in enumerate(run.jobs):
        shades, hosts = _SHADES[number % 2], job.status.spec.hosts
        for rank in range(len(hosts)):
            at, busy = busy_tenths(job, rank)
            thin: dict[str, Any] = {"linewidth": 0.5, "alpha": 0.35, "color": shades[2]}
            axis.plot(at - zero, 100 * busy, **thin)
        mean = mean_utilization(run.gpus, hosts)
        axis.plot(
            [at - zero for at in mean],
            [100 * share for share in mean.values()],
            label=f"job {number + 1}, mean",
            **{**_look(number, 0), "linewidth": 1.8},
        )
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8)
    axis.set_ylim(top=105)


def _draw(axis: Axes, run: CaseRun, samples: Sequence[tuple[str, float, float]]) -> None:
    zero = training_window(run.jobs[0])[0]
    last = max(training_window(job)[1] for job in run.jobs) - zero + _AFTER_S
    for number, job in enumerate(run.jobs):
        for rank, host in enumerate(job.status.spec.hosts):
            points = [
                (at - zero, value)
                for name, at, value in samples
                if name == host and 0 <= at - zero <= last
            ]
            axis.plot(
                [at for at, _ in points],
                [value for _, value in points],
                label=f"{host}, job {number + 1}",
                **_look(number, rank),
            )
    axis.grid(alpha=0.25)


def _look(job: int, rank: int) -> dict[str, Any]:
    """Of a curve: the job's marks, and its worker's shade and line."""
    # Of two jobs' marks none hides the other.
    marks = {"marker": _MARKS[job % 2], "markevery": (0.04 * (job % 2), _MARK_EVERY)}
    line = {"linestyle": _LINES[rank % len(_LINES)], "linewidth": 1.2, "markersize": 4}
    return {"color": _SHADES[job % 2][rank % 6], **line, **marks}


def _from_zero(*axes: Axes) -> None:
    """Once all is drawn: earlier, shared axes would keep the first column's limits."""
    for axis in axes:
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)


def _share_legend(figure: Figure, axis: Axes) -> None:
    lines, labels = axis.get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=3, fontsize=8)


def _jobs_in_words(jobs: Sequence[JobRun]) -> str:
    sizes = [len(job.status.spec.hosts) for job in jobs]
    return "jobs of " + " and ".join(str(size) for size in sizes) + " GPUs"
