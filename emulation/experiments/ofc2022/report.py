"""Results as files: JSON, plots as in Fig. 3 of the paper, one HTML page that holds them all."""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from patchlight.emulation.experiments import paper as papers
from patchlight.emulation.experiments.ofc2022 import analysis
from patchlight.emulation.simulator import results

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


def case_figure(static: analysis.CaseRun, optical: analysis.CaseRun) -> Figure:
    """Static on the left, optical on the right, the same axes for both."""
    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey="row")
    for column, run, title in ((0, static, "Static"), (1, optical, "Rewired by the controller")):
        rates, busy = axes[0][column], axes[1][column]
        _throughput(rates, run)
        _utilization(busy, run)
        start, end = analysis.training_window(run.jobs[0])
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


def live_figure(run: analysis.CaseRun) -> Figure:
    """Throughput, utilisation and each iteration's time, with the reconfiguration marked."""
    change = analysis.the_change(run)
    zero = analysis.training_window(run.jobs[0])[0]
    figure = Figure(figsize=(9, 8), layout="constrained")
    rates, busy, pace = figure.subplots(3, 1, sharex=True)
    _throughput(rates, run)
    _utilization(busy, run)
    for number, job in enumerate(run.jobs):
        ends = [end - zero for end in analysis.iteration_ends(job)]
        times = [
            b - a
            for a, b in zip([analysis.training_window(job)[0] - zero, *ends], ends, strict=False)
        ]
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


def _utilization(axis: Axes, run: analysis.CaseRun) -> None:
    """Each job's mean over its GPUs and a second, and under it each GPU in tenths of a second."""
    zero = analysis.training_window(run.jobs[0])[0]
    for number, job in enumerate(run.jobs):
        shades, hosts = _SHADES[number % 2], job.status.spec.hosts
        for rank in range(len(hosts)):
            at, busy = analysis.busy_tenths(job, rank)
            thin: dict[str, Any] = {"linewidth": 0.5, "alpha": 0.35, "color": shades[2]}
            axis.plot(at - zero, 100 * busy, **thin)
        mean = analysis.mean_utilization(run.gpus, hosts)
        axis.plot(
            [at - zero for at in mean],
            [100 * share for share in mean.values()],
            label=f"job {number + 1}, mean",
            **{**_look(number, 0), "linewidth": 1.8},
        )
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8)
    axis.set_ylim(top=105)


def _throughput(axis: Axes, run: analysis.CaseRun) -> None:
    zero = analysis.training_window(run.jobs[0])[0]
    last = max(analysis.training_window(job)[1] for job in run.jobs) - zero + _AFTER_S
    for number, job in enumerate(run.jobs):
        for rank, host in enumerate(job.status.spec.hosts):
            points = [
                (each.at - zero, each.rx_bps / 1e9)
                for each in run.ports
                if each.host == host and 0 <= each.at - zero <= last
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


def _jobs_in_words(jobs: Sequence[analysis.JobRun]) -> str:
    sizes = [len(job.status.spec.hosts) for job in jobs]
    return "jobs of " + " and ".join(str(size) for size in sizes) + " GPUs"


Row = tuple[str, str, str, str, str]
COLUMNS = ("case", "first job", "paper", "measured", "difference")


def write_report(
    result: dict[str, Any], runs: Sequence[analysis.CaseRun], output: Path
) -> list[Path]:
    """Write everything into the folder ``output``; the files, the HTML page first."""
    lives = json.dumps([asdict(run) for run in runs], indent=2, ensure_ascii=False)
    tables = {"measurements.json": lambda file: file.write_text(lives + "\n", encoding="utf-8")}
    files = results.write_report(result, output, _plots(result, runs), tables)
    report = output / "report.html"
    report.write_text(page(result, rows_of(result), files[2:]), encoding="utf-8")
    return [report, *files]


def _plots(
    result: dict[str, Any], runs: Sequence[analysis.CaseRun]
) -> dict[str, Callable[[], Figure]]:
    """What is drawn, by the name of its files."""
    by_name: dict[tuple[str, analysis.Wiring], analysis.CaseRun] = {
        (run.case, run.wiring): run for run in runs if run.trainer == "synthetic"
    }
    whole = {case: found for case, found in result["cases"].items() if "reduction" in found}
    plots: dict[str, Callable[[], Figure]] = {}
    if whole:
        measured = {
            case: (found["static"]["completion_s"], found["optical"]["completion_s"])
            for case, found in whole.items()
        }
        paper = {
            c: (p.static_completion_s, p.optical_completion_s) for c, p in papers.PAPER.items()
        }
        plots["completion"] = partial(reductions_figure, measured, paper)
    for case in whole:
        static, optical = by_name[case, "static"], by_name[case, "optical"]
        plots[f"case-{case}"] = partial(case_figure, static, optical)
    for run in runs:
        if run.wiring == "live":
            plots["live"] = partial(live_figure, run)
    return plots


def rows_of(result: dict[str, Any]) -> list[Row]:
    """The table: paper, measured, difference; an arrow leads from static to rewired."""
    compared = {each["name"]: each for each in result["comparisons"]}
    rows: list[Row] = []
    for case, found in result["cases"].items():
        name, paper = f"({case})", papers.PAPER[case]
        published_s = {"static": paper.static_completion_s, "optical": paper.optical_completion_s}
        for wiring, paper_s in published_s.items():
            if wiring in found:
                ours = found[wiring]
                measured = f"{ours['completion_s']:.2f} s, {ours['iterations']} iterations"
                rows.append((name, f"completion, {wiring}", f"{paper_s:g} s", measured, ""))
        if "reduction" not in found:
            continue
        static, optical = found["static"], found["optical"]
        published = f"{100 * paper.reduction:.1f} %", f"{100 * found['reduction']:.1f} %"
        points = f"{100 * compared[f'cases.{case}.reduction']['difference']:+.1f} points"
        rows.append((name, "completion lower by", *published, points.replace("-", "−")))
        used = f"{100 * static['gpu_utilization']:.0f} % → {100 * optical['gpu_utilization']:.0f} %"
        ratio = paper.utilization_words or f"× {paper.utilization_ratio:g}"
        measured = f"{used} (× {found['gpu_utilization_ratio']:.2f})"
        beside = compared[f"cases.{case}.gpu_utilization_ratio"]["relative_difference"]
        difference = f"{100 * abs(beside):.0f} % {'above' if beside >= 0 else 'below'}"
        rows.append((name, "GPU utilisation", ratio, measured, difference))
        model = f"× {paper.model_utilization_ratio:.2f}"
        rows.append((name, "… if T = C + V/B", model, "", ""))
        for what, key in (
            ("worker's throughput", "throughput_bps"),
            ("… its peak", "throughput_peak_bps"),
        ):
            measured = f"{static[key] / 1e9:.1f} → {optical[key] / 1e9:.1f} Gb/s"
            rows.append((name, what, "", measured, ""))
    if live := result.get("live"):
        pace = f"{live['iteration_before_s']:.2f} s → {live['iteration_after_s']:.2f} s"
        rows.append(("live", "iteration", "", pace, ""))
        gap = f"{live['longest_gap_s']:.2f} s"
        rows.append(("live", "longest without one", "", gap, ""))
    if real := result.get("real"):
        rows += _rows_of_real(real, result["cases"].get(real["case"], {}))
    if change := result.get("reconfiguration"):
        what = f"{change['cross_connects_changed']} cross-connects"
        drain_s = change["total_s"] - change["switching_s"]
        took = f"{change['total_s']:.2f} s ({drain_s:.2f} s drain)"
        rows.append(("", what, "", took, ""))
    return rows


def _rows_of_real(real: dict[str, Any], beside: dict[str, Any]) -> list[Row]:
    """The case with a real model, and beside it the reduction with made-up gradients."""
    rows: list[Row] = []
    for wiring in ("static", "optical"):
        measured = f"{real[wiring]['completion_s']:.2f} s, {real[wiring]['iterations']} iterations"
        rows.append(("real", f"completion, {wiring}", "", measured, ""))
    rows.append(("real", "completion lower by", "", f"{100 * real['reduction']:.1f} %", ""))
    if "reduction" in beside:
        made_up = f"{100 * beside['reduction']:.1f} %"
        rows.append(("real", "… with made-up gradients", "", made_up, ""))
    return rows


def too_busy(result: dict[str, Any]) -> str:
    """Why the figures are not to be believed, in a sentence; empty if the machine was quiet."""
    reasons = result["disturbance"]["too_busy"]
    if not reasons:
        return ""
    return (
        f"The machine was too busy for these figures to be believed: {'; '.join(reasons)}. "
        "Run it again when nothing else runs."
    )


def _of_real(result: dict[str, Any]) -> str:
    """What the rows with a real model are, in a sentence; empty where there are none."""
    real = result.get("real")
    if real is None:
        return ""
    return (
        f"In the rows “real” the jobs of case ({real['case']}) train the {real['model']} with "
        "PyTorch over Gloo: real gradients of "
        f"{real['gradient_bytes'] / result['scale'] / 1e3:.0f} kB, real parameters that are "
        "compared after each iteration, and emulated GPUs that are busy for as long as in the "
        "other rows."
    )


_CAPTIONS = {
    "completion.png": "Completion time of the first job as a share of the static network's.",
    "case-a.png": "Case (a): a job of four GPUs beside one of two. What each worker's switch port "
    "counted, second by second, and how busy the GPUs were: the mean of each job's over seconds "
    "and, light, each GPU in tenths of a second, from its worker's reports; the dotted line is the "
    "first job's end.",
    "case-b.png": "Case (b): two jobs of three GPUs.",
    "live.png": "Case (a), started static and regrouped half way while it trained. Light "
    "green: the jobs finish the iteration they are in; dark green: the light is switched.",
}
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #1a1a1a; background: #fff; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { text-align: left; padding: .3rem .8rem; border-bottom: 1px solid #ddd; }
figure { margin: 2rem 0; } img { max-width: 100%; } figcaption { color: #555; }
"""


def page(result: dict[str, Any], rows: Sequence[Sequence[str]], plots: Sequence[Path]) -> str:
    """The whole page as text."""
    machine = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
    stages = result.get("reconfiguration", {}).get("stages_s", {})
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>Patchlight: OFC 2022</title><style>{_STYLE}</style></head><body>",
        "<h1>Training on a network rewired with light</h1>",
        f"<p>The experiment of {escape(papers.SOURCE)}, run with packets on "
        f"lab {escape(result['lab'])} on {escape(result['started_at'])}. "
        f"OpenFlow engine: {escape(result['engine'])}. Workers: {escape(result['workers'])}. "
        f"Rates, bytes and TCP windows are those of the lab divided by {result['scale']:g}, times "
        f"are not; all figures here are the lab's. The second job of each case computes "
        f"{result['mismatch_percent']:g} % longer than its GPUs say. "
        f"Machine: {escape(machine)}.</p>",
        *([f"<p>{escape(words)}</p>"] if (words := _of_real(result)) else []),
        *([f"<p><strong>{escape(busy)}</strong></p>"] if (busy := too_busy(result)) else []),
        _table(COLUMNS, rows),
        *(
            f"<p>{escape(text)}</p>"
            for text in (papers.PHYSICS, papers.STANDING, papers.UTILIZATION, papers.LOCKSTEP)
        ),
        *(_figure(plot) for plot in plots if plot.suffix == ".png"),
    ]
    if stages:
        spent = [(name, f"{1000 * seconds:.0f} ms") for name, seconds in stages.items()]
        parts += [
            "<h2>Where the reconfiguration's time went</h2>",
            _table(("stage", "time"), spent),
        ]
    return "\n".join([*parts, "</body></html>", ""])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["<table><tr>", *(f"<th>{escape(text)}</th>" for text in head), "</tr>"]
    lines += [f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows]
    return "".join([*lines, "</table>"])


def _figure(plot: Path) -> str:
    data = base64.b64encode(plot.read_bytes()).decode()
    caption = escape(_CAPTIONS.get(plot.name, plot.stem))
    return (
        f"<figure><img alt='{caption}' src='data:image/png;base64,{data}'>"
        f"<figcaption>{caption}</figcaption></figure>"
    )
