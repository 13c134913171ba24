"""Writes an experiment's results: JSON, plots, one HTML page that holds them all."""

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from patchlight.emulation.experiments.ofc2022.figures import (
    case_figure,
    live_figure,
    reductions_figure,
)
from patchlight.emulation.experiments.ofc2022.measurements import CaseRun, Wiring
from patchlight.emulation.experiments.ofc2022.paper import (
    LOCKSTEP,
    PAPER,
    PHYSICS,
    SOURCE,
    STANDING,
    UTILIZATION,
)
from patchlight.emulation.output_folder import cannot_write, save_plot, write_result

Row = tuple[str, str, str, str, str]
COLUMNS = ("case", "first job", "paper", "measured", "difference")


def write_report(result: dict[str, Any], runs: Sequence[CaseRun], output: Path) -> list[Path]:
    """Write everything into the folder ``output``; the files, the HTML page first."""
    try:
        result_file = write_result(result, output)
        plots = _plots(result, runs, output)
        measured, report = output / "measurements.json", output / "report.html"
        lives = json.dumps([asdict(run) for run in runs], indent=2, ensure_ascii=False)
        measured.write_text(lives + "\n", encoding="utf-8")
        report.write_text(page(result, rows_of(result), plots), encoding="utf-8")
    except OSError as error:
        raise cannot_write(output, error) from error
    return [report, result_file, measured, *plots]


def _plots(result: dict[str, Any], runs: Sequence[CaseRun], output: Path) -> list[Path]:
    by_name: dict[tuple[str, Wiring], CaseRun] = {
        (run.case, run.wiring): run for run in runs if run.trainer == "synthetic"
    }
    whole = {case: found for case, found in result["cases"].items() if "reduction" in found}
    plots: list[Path] = []
    if whole:
        measured = {
            case: (found["static"]["completion_s"], found["optical"]["completion_s"])
            for case, found in whole.items()
        }
        paper = {c: (p.static_completion_s, p.optical_completion_s) for c, p in PAPER.items()}
        plots += save_plot(reductions_figure(measured, paper), output / "completion")
    for case in whole:
        static, optical = by_name[case, "static"], by_name[case, "optical"]
        plots += save_plot(case_figure(static, optical), output / f"case-{case}")
    for run in runs:
        if run.wiring == "live":
            plots += save_plot(live_figure(run), output / "live")
    return plots


def rows_of(result: dict[str, Any]) -> list[Row]:
    """The table: what the paper says, what was measured, and the difference.

    An arrow leads from the static network to the rewired one, of a live run from before to after.
    """
    compared = {each["name"]: each for each in result["comparisons"]}
    rows: list[Row] = []
    for case, found in result["cases"].items():
        name, paper = f"({case})", PAPER[case]
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
        points = _signed(100 * compared[f"cases.{case}.reduction"]["difference"], " points")
        rows.append((name, "completion lower by", *published, points))
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


def _signed(difference: float, unit: str) -> str:
    return f"{difference:+.1f}{unit}".replace("-", "−")


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
        f"<p>The experiment of {escape(SOURCE)}, run with packets on "
        f"lab {escape(result['lab'])} on {escape(result['started_at'])}. "
        f"OpenFlow engine: {escape(result['engine'])}. Workers: {escape(result['workers'])}. "
        f"Rates, bytes and TCP windows are those of the lab divided by {result['scale']:g}, times "
        f"are not; all figures here are the lab's. The second job of each case computes "
        f"{result['mismatch_percent']:g} % longer than its GPUs say. "
        f"Machine: {escape(machine)}.</p>",
        *([f"<p>{escape(words)}</p>"] if (words := _of_real(result)) else []),
        *([f"<p><strong>{escape(busy)}</strong></p>"] if (busy := too_busy(result)) else []),
        _table(COLUMNS, rows),
        *(f"<p>{escape(text)}</p>" for text in (PHYSICS, STANDING, UTILIZATION, LOCKSTEP)),
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
