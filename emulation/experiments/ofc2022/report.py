"""Results as files: JSON, plots as in Fig. 3 of the paper, one HTML page that holds them all."""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from patchlight.emulation.experiments import paper as papers
from patchlight.emulation.experiments.ofc2022 import analysis
from patchlight.emulation.simulator import figures, results


def case_figure(static: analysis.CaseRun, optical: analysis.CaseRun) -> Figure:
    """Static on the left, optical on the right; a second is as wide in both."""
    runs = {"static": static, "rewired": optical}
    lasts = [
        max(analysis.training_window(job)[1] for job in run.jobs)
        - analysis.training_window(run.jobs[0])[0]
        for run in runs.values()
    ]
    figure = figures.new(3.6)
    ratios = [max(last, 0.3 * max(lasts)) for last in lasts]
    axes = figure.subplots(
        2,
        2,
        sharex="col",
        sharey="row",
        width_ratios=ratios,
    )
    for column, (title, run) in enumerate(runs.items()):
        rates = axes[0][column]
        busy = axes[1][column]
        _steps(rates, busy, run)
        start, end = analysis.training_window(run.jobs[0])
        rates.set_title(f"{title}: job 1 took {end - start:.1f} s")
        busy.set_xlabel("training time (s)")
        busy.set_xlim(0, ratios[column])
        # The last label of one would touch the first of the other.
        busy.xaxis.set_major_locator(MaxNLocator(integer=True, prune="upper"))
    _label(*axes[:, 0])
    figures.legend(figure)
    return figure


def live_figure(run: analysis.CaseRun) -> Figure:
    """Throughput, utilisation and each iteration's time, with the reconfiguration marked."""
    change = analysis.the_change(run)
    zero = analysis.training_window(run.jobs[0])[0]
    figure = figures.new(4.8)
    rates, busy, pace = figure.subplots(3, 1, sharex=True)
    _steps(rates, busy, run)
    for number, job in enumerate(run.jobs):
        ends = np.array(analysis.iteration_ends(job)) - zero
        times = np.diff(ends, prepend=analysis.training_window(job)[0] - zero)
        pace.plot(
            ends,
            times,
            marker="os"[number % 2],
            **figures.look(number),
        )
    began = change.started_at - zero
    ended = change.finished_at - zero
    drained = ended - change.switching_s
    for axis in (rates, busy, pace):
        label = f"drain, {drained - began:.2f} s"
        axis.axvspan(
            began,
            drained,
            color=figures.GREEN,
            alpha=0.2,
            label=label,
            linewidth=0,
        )
        label = f"switching, {change.switching_s:.2f} s"
        axis.axvspan(
            drained,
            ended,
            color=figures.GREEN,
            alpha=0.8,
            label=label,
        )
    _label(rates, busy)
    pace.set_ylabel("iteration time (s)")
    pace.set_ylim(bottom=0)
    pace.set_xlim(left=0)
    pace.set_xlabel("time since training began (s)")
    figures.legend(figure)
    return figure


def reductions_figure(
    measured: Mapping[str, tuple[float, float]],
    paper: Mapping[str, tuple[float, float]],
) -> Figure:
    """Completion times (static, optical) as shares of the static one: the paper's and ours."""
    figure = figures.new(2.6, figures.COLUMN_IN)
    axis = figure.subplots()
    labels: list[str] = []
    for case, ours in measured.items():
        for who, (static, optical) in (("paper", paper[case]), ("ours", ours)):
            at = len(labels)
            share = optical / static
            axis.bar(at, 1, 0.8, color="#e5e5e5")
            axis.bar(
                at,
                share,
                0.8,
                color=figures.BLUE if who == "ours" else figures.GREY,
            )
            axis.text(
                at,
                share,
                f"−{100 * (1 - share):.0f} %",
                ha="center",
                va="bottom",
            )
            labels.append(f"({case}) {who}\n{static:.3g} s\n→ {optical:.3g} s")
    axis.set_xticks(range(len(labels)), labels)
    axis.set_ylabel("completion time of job 1, static = 1")
    return figure


def _steps(
    rates: Axes,
    busy: Axes,
    run: analysis.CaseRun,
) -> None:
    """For each job its workers' mean, over whole iterations, in a band from least to most."""
    zero = analysis.training_window(run.jobs[0])[0]
    for number, job in enumerate(run.jobs):
        cuts = analysis.whole_iterations(job)
        received = analysis.received_bps(run, job, cuts) / 1e9
        label = f"job {number + 1}, {len(received)} GPUs"
        look = figures.look(number)
        for axis, rows in (
            (rates, received),
            (busy, 100 * analysis.busy_shares(job, cuts)),
        ):
            axis.stairs(
                rows.mean(axis=0),
                cuts - zero,
                baseline=None,
                label=label,
                **look,
            )
            least, most = (
                np.append(ends, ends[-1])
                for ends in (rows.min(0), rows.max(0))
            )
            band = {
                "color": look["color"],
                "alpha": 0.2,
                "linewidth": 0,
                "step": "post",
            }
            axis.fill_between(
                cuts - zero,
                least,
                most,
                **band,
            )


def _label(rates: Axes, busy: Axes) -> None:
    rates.set_ylabel("received per\nworker (Gb/s)")
    rates.set_ylim(bottom=0)
    busy.set_ylabel("GPU\nutilisation (%)")
    busy.set_ylim(0, 105)


Row = tuple[str, str, str, str, str]
COLUMNS = ("case", "first job", "paper", "measured", "difference")


def write_report(
    result: dict[str, Any],
    runs: Sequence[analysis.CaseRun],
    output: Path,
) -> list[Path]:
    """Write everything into the folder ``output``; the files, the HTML page first."""
    lives = json.dumps(
        [asdict(run) for run in runs],
        indent=2,
        ensure_ascii=False,
    )
    tables = {
        "measurements.json": lambda file: file.write_text(
            lives + "\n", encoding="utf-8"
        )
    }
    files = results.write_report(
        result,
        output,
        _plots(result, runs),
        tables,
    )
    report = output / "report.html"
    report.write_text(
        page(result, rows_of(result), files[2:]), encoding="utf-8"
    )
    return [report, *files]


def _plots(
    result: dict[str, Any], runs: Sequence[analysis.CaseRun]
) -> dict[str, Callable[[], Figure]]:
    """The plots, by the name of their files."""
    by_name: dict[tuple[str, analysis.Wiring], analysis.CaseRun] = {
        (run.case, run.wiring): run
        for run in runs
        if run.trainer == "synthetic"
    }
    whole = {
        case: found
        for case, found in result["cases"].items()
        if "reduction" in found
    }
    plots: dict[str, Callable[[], Figure]] = {}
    if whole:
        measured = {
            case: (
                found["static"]["completion_s"],
                found["optical"]["completion_s"],
            )
            for case, found in whole.items()
        }
        paper = {
            c: (p.static_completion_s, p.optical_completion_s)
            for c, p in papers.PAPER.items()
        }
        plots["completion"] = partial(reductions_figure, measured, paper)
    for case in whole:
        static = by_name[case, "static"]
        optical = by_name[case, "optical"]
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
        name = f"({case})"
        paper = papers.PAPER[case]
        published_s = {
            "static": paper.static_completion_s,
            "optical": paper.optical_completion_s,
        }
        for wiring, paper_s in published_s.items():
            if wiring in found:
                ours = found[wiring]
                measured = f"{ours['completion_s']:.2f} s, {ours['iterations']} iterations"
                rows.append(
                    (
                        name,
                        f"completion, {wiring}",
                        f"{paper_s:g} s",
                        measured,
                        "",
                    )
                )
        for wiring, rdma in found["rdma"].items():
            if rdma:
                rows.append(
                    (name, f"RoCEv2 packets, {wiring}", "", _of_rdma(rdma), "")
                )
        if "reduction" not in found:
            continue
        static = found["static"]
        optical = found["optical"]
        published = (
            f"{100 * paper.reduction:.1f} %",
            f"{100 * found['reduction']:.1f} %",
        )
        points = f"{100 * compared[f'cases.{case}.reduction']['difference']:+.1f} points"
        rows.append(
            (name, "completion lower by", *published, points.replace("-", "−"))
        )
        used = f"{100 * static['gpu_utilization']:.0f} % → {100 * optical['gpu_utilization']:.0f} %"
        ratio = paper.utilization_words or f"× {paper.utilization_ratio:g}"
        measured = f"{used} (× {found['gpu_utilization_ratio']:.2f})"
        beside = compared[f"cases.{case}.gpu_utilization_ratio"][
            "relative_difference"
        ]
        above = (
            f"{100 * abs(beside):.0f} % {'above' if beside >= 0 else 'below'}"
        )
        difference = above
        if paper.utilization_words and beside > 0.05:
            difference = "differs"
        rows.append((name, "GPU utilisation", ratio, measured, difference))
        rates = f"{static['throughput_bps'] / 1e9:.1f} → {optical['throughput_bps'] / 1e9:.1f} Gb/s"
        rows.append((name, "worker's throughput", "", rates, ""))
    if live := result.get("live"):
        pace = f"{live['iteration_before_s']:.2f} s → {live['iteration_after_s']:.2f} s"
        rows.append(("live", "iteration", "", pace, ""))
        gap = f"{live['longest_gap_s']:.2f} s"
        rows.append(("live", "longest gap", "", gap, ""))
        if rdma := live.get("rdma"):
            rows.append(("live", "RoCEv2 packets", "", _of_rdma(rdma), ""))
            lived = rdma["connections"] - rdma["made_again"]
            pairs = f"{lived:g} of {rdma['connections']} survived, {rdma['retries']} retries"
            rows.append(("live", "queue pairs", "", pairs, ""))
    if real := result.get("real"):
        rows += _rows_of_real(real, result["cases"].get(real["case"], {}))
    if change := result.get("reconfiguration"):
        what = f"{change['cross_connects_changed']} cross-connects"
        drain_s = change["total_s"] - change["switching_s"]
        took = f"{change['total_s']:.2f} s ({drain_s:.2f} s drain)"
        rows.append(("", what, "", took, ""))
    return rows


def _of_rdma(rdma: dict[str, Any]) -> str:
    missed = (
        f" ({rdma['frames_missed']} missed)" if rdma["frames_missed"] else ""
    )
    shares = [
        f"{100 * rdma[key]:.1f} %" for key in ("packets_share", "bytes_share")
    ]
    return f"{shares[0]}, {shares[1]} of bytes{missed}"


def _rows_of_real(real: dict[str, Any], beside: dict[str, Any]) -> list[Row]:
    """The case with a real model, and the reduction with synthetic gradients."""
    rows: list[Row] = []
    for wiring in ("static", "optical"):
        measured = f"{real[wiring]['completion_s']:.2f} s, {real[wiring]['iterations']} iterations"
        rows.append(("real", f"completion, {wiring}", "", measured, ""))
    rows.append(
        (
            "real",
            "completion lower by",
            "",
            f"{100 * real['reduction']:.1f} %",
            "",
        )
    )
    if "reduction" in beside:
        synthetic = f"{100 * beside['reduction']:.1f} %"
        rows.append(("real", "… with synthetic gradients", "", synthetic, ""))
    return rows


def differences(result: dict[str, Any]) -> list[str]:
    """Where the paper and the measurement differ, and why, a sentence each."""
    return [
        f"{case} {words} differs: GPUs that wait less for the network compute more."
        for case, words, _, _, difference in rows_of(result)
        if difference == "differs"
    ]


def is_void(result: dict[str, Any]) -> bool:
    """Whether the measured times say nothing."""
    return bool(result["disturbance"]["effect"] == "void")


def disturbed(result: dict[str, Any]) -> str:
    """What else the machine did and its effect; empty if it was quiet."""
    found = result["disturbance"]
    reasons = "; ".join(found["too_busy"])
    stretch = f"{100 * max(0.0, found['compute_stretch']):.1f} %"
    error = f"{100 * found['iteration_error']:.1f} %"
    measured = (
        f"compute phases took {stretch} longer than given, and the mean iteration is "
        f"uncertain by {error}"
    )
    if found["effect"] == "void":
        why = f"{reasons}; {measured}" if reasons else measured
        return f"These times are void: {why}. Run it again when nothing else runs."
    if found["effect"] == "note":
        return f"Times may be off by some percent: {measured}."
    if not reasons:
        return ""
    reasons = reasons[0].upper() + reasons[1:]
    return f"{reasons}, which did not affect these figures: {measured}."


def _of_real(result: dict[str, Any]) -> str:
    """A sentence on the rows with a real model; empty where there are none."""
    real = result.get("real")
    if real is None:
        return ""
    return (
        f"In the rows “real” the jobs of case ({real['case']}) train the {real['model']} with "
        "PyTorch over Gloo: real gradients of "
        f"{real['gradient_bytes'] / result['scale'] / 1e3:.0f} kB, real parameters, compared "
        f"after each iteration, and emulated GPUs that compute as long as in the other rows."
    )


_STEPS = (
    "Each line is the mean over a job's workers and over whole iterations of at least 2 s; the "
    "band spans the lowest to the highest worker. Throughput is from the counters of switch "
    "ports, GPU utilisation from the workers' reports."
)
_CAPTIONS = {
    "completion.png": "Completion time of the first job as a share of the static network's.",
    "case-a.png": f"Case (a): a job of four GPUs and a job of two. {_STEPS}",
    "case-b.png": f"Case (b): two jobs of three GPUs. {_STEPS}",
    "live.png": "Case (a), started static and regrouped half way through training. Light green: "
    "the jobs finish their iteration (drain); dark green: the circuits are switched.",
}
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #1a1a1a; background: #fff; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { text-align: left; padding: .3rem .8rem; border-bottom: 1px solid #ddd; }
@media (max-width: 600px) {
  th { display: none; }
  td { display: block; padding: .1rem 0; border: 0; overflow-wrap: anywhere; }
  td:empty { display: none; }
  td[title]::before { content: attr(title) ": "; color: #555; }
  tr { display: block; padding: .4rem 0; border-bottom: 1px solid #ddd; }
}
figure { margin: 2rem 0; } img { max-width: 100%; } figcaption { color: #555; }
"""


def page(
    result: dict[str, Any],
    rows: Sequence[Sequence[str]],
    plots: Sequence[Path],
) -> str:
    """The whole page as text."""
    stages = result.get("reconfiguration", {}).get("stages_s", {})
    mismatch = ""
    if percent := result["mismatch_percent"]:
        mismatch = f" The second job of each case computes {percent:g} % longer per iteration."
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>Patchlight: OFC 2022</title><style>{_STYLE}</style></head><body>",
        "<h1>Two training jobs on a network with an optical circuit switch</h1>",
        f"<p><strong>{escape(result['headline'])}</strong></p>",
        f"<p>The experiment of {escape(papers.SOURCE)}, run with packets on "
        f"lab {escape(result['lab'])} on {escape(result['started_at'])}. "
        f"OpenFlow engine: {escape(result['engine'])}. Workers: {escape(result['workers'])}. "
        f"Servers: {escape(result['servers'])}. Transport: {escape(result['transport'])}. "
        f"Rates, bytes and TCP windows are emulated at 1:{result['scale']:g}, times at 1:1; all "
        f"figures here are those of the unscaled lab.{mismatch}</p>",
        *([f"<p>{escape(words)}</p>"] if (words := _of_real(result)) else []),
        *([_note(result)] if disturbed(result) else []),
        _table(COLUMNS, rows),
        *(
            f"<p>{escape(text)}</p>"
            for text in (
                *differences(result),
                papers.PHYSICS,
                papers.STANDING,
                papers.UTILIZATION,
                papers.LOCKSTEP,
            )
        ),
        *(_figure(plot) for plot in plots if plot.suffix == ".png"),
    ]
    if stages:
        spent = [
            (name, f"{1000 * seconds:.0f} ms")
            for name, seconds in stages.items()
        ]
        parts += [
            "<h2>Stages of the reconfiguration</h2>",
            _table(("stage", "time"), spent),
        ]
    parts += [
        "<h2>Machine</h2>",
        _table(("", ""), _machine(result["machine"])),
    ]
    return "\n".join([*parts, "</body></html>", ""])


def _note(result: dict[str, Any]) -> str:
    words = escape(disturbed(result))
    if is_void(result):
        return f"<p><strong>{words}</strong></p>"
    return f"<p><small>{words}</small></p>"


def _machine(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The machine and versions of the experiment, as rows."""
    shown = {key.replace("_", " "): str(fact) for key, fact in facts.items()}
    if memory := facts.get("memory_bytes"):
        del shown["memory bytes"]
        shown["memory"] = f"{memory / 1e9:.0f} GB"
    if load := facts.get("load_average_1min"):
        shown["load average 1min"] = f"{load:.2f} before"
    return list(shown.items())


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [
        "<table><tr>",
        *(f"<th>{escape(text)}</th>" for text in head),
        "</tr>",
    ]
    for row in rows:
        cells = (
            f"<td{f' title={escape(title)!r}' if title else ''}>{escape(text)}</td>"
            for title, text in zip(head, row, strict=True)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "".join([*lines, "</table>"])


def _figure(plot: Path) -> str:
    data = base64.b64encode(plot.read_bytes()).decode()
    caption = escape(_CAPTIONS.get(plot.name, plot.stem))
    return (
        f"<figure><img alt='{caption}' src='data:image/png;base64,{data}'>"
        f"<figcaption>{caption}</figcaption></figure>"
    )
