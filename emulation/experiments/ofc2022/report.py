"""Writes an experiment's results: JSON, plots, an HTML page that holds them, a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from patchlight.emulation.experiments.ofc2022.figures import plot_case, plot_live, plot_reductions
from patchlight.emulation.experiments.ofc2022.html import page
from patchlight.emulation.experiments.ofc2022.measurements import CaseRun, Wiring
from patchlight.emulation.experiments.ofc2022.paper import PAPER
from patchlight.testbed.errors import PatchlightError

Row = tuple[str, str, str, str, str]  # case, figure, paper, measured, difference


def write_report(result: dict[str, Any], runs: Sequence[CaseRun], output: Path) -> list[Path]:
    """Write everything into the folder ``output``; the files, the HTML page first."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        plots = _plots(result, runs, output)
        written = {
            "report.html": page(result, rows_of(result), plots),
            "result.json": _json(result),
            "measurements.json": _json([asdict(run) for run in runs]),
        }
        for name, text in written.items():
            (output / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise PatchlightError(
            f"cannot write the results to {output}: {error.strerror or error}",
            hint="choose another folder with --output",
        ) from error
    return [*(output / name for name in written), *plots]


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _plots(result: dict[str, Any], runs: Sequence[CaseRun], output: Path) -> list[Path]:
    by_name: dict[tuple[str, Wiring], CaseRun] = {(run.case, run.wiring): run for run in runs}
    whole = {case: found for case, found in result["cases"].items() if "reduction" in found}
    plots = []
    if whole:
        measured = {
            case: (found["static"]["completion_s"], found["optical"]["completion_s"])
            for case, found in whole.items()
        }
        paper = {c: (p.static_completion_s, p.optical_completion_s) for c, p in PAPER.items()}
        plots.append(plot_reductions(measured, paper, output / "completion.png"))
    for case in whole:
        static, optical = by_name[case, "static"], by_name[case, "optical"]
        plots.append(plot_case(static, optical, output / f"case-{case}.png"))
    plots += [plot_live(r, output / "live.png") for r in runs if r.wiring == "live"]
    return plots


def rows_of(result: dict[str, Any]) -> list[Row]:
    """The table: what the paper says, what was measured, and the difference."""
    differences = {each["name"]: each["difference"] for each in result["comparisons"]}
    rows: list[Row] = []
    for case, found in result["cases"].items():
        paper = PAPER[case]
        for wiring, paper_s in (
            ("static", paper.static_completion_s),
            ("optical", paper.optical_completion_s),
        ):
            if wiring in found:
                ours = found[wiring]
                rows.append(
                    (
                        f"({case})",
                        f"completion time, {wiring}",
                        f"{paper_s:g} s",
                        f"{ours['completion_s']:.2f} s ({ours['iterations']} iterations)",
                        "",
                    )
                )
        if "reduction" not in found:
            continue
        static, optical = found["static"], found["optical"]
        ratio, lower = found["gpu_utilization_ratio"], differences[f"cases.{case}.reduction"]
        rows += [
            (f"({case})", "completion time lower by", f"{100 * paper.reduction:.1f} %",
             f"{100 * found['reduction']:.1f} %", _signed(100 * lower, " points")),
            (f"({case})", "GPU utilisation, static → optical",
             f"× {paper.utilization_ratio:g}" if paper.utilization_ratio else "",
             f"{100 * static['gpu_utilization']:.0f} % → {100 * optical['gpu_utilization']:.0f} %"
             f" (× {ratio:.2f})", _signed(differences.get(f"cases.{case}.gpu_utilization_ratio"))),
            (f"({case})", "throughput of a worker, static → optical", "",
             f"{static['throughput_bps'] / 1e9:.1f} → {optical['throughput_bps'] / 1e9:.1f} Gb/s "
             f"(peak {static['throughput_peak_bps'] / 1e9:.1f} → "
             f"{optical['throughput_peak_bps'] / 1e9:.1f})", ""),
        ]  # fmt: skip
    if "live" in result:
        live = result["live"]
        rows += [
            ("live", "iteration, before → after", "",
             f"{live['iteration_before_s']:.2f} → {live['iteration_after_s']:.2f} s", ""),
            ("live", "longest time without an iteration", "", f"{live['longest_gap_s']:.2f} s", ""),
        ]  # fmt: skip
    if "reconfiguration" in result:
        change = result["reconfiguration"]
        rows.append(
            (
                "",
                f"reconfiguration, {change['cross_connects_changed']} cross-connects",
                "",
                f"{change['total_s']:.2f} s, {change['switching_s']:.2f} s of it after the drain",
                "",
            )
        )
    return rows


def _signed(difference: float | None, unit: str = "") -> str:
    return "" if difference is None else f"{difference:+.1f}{unit}".replace("-", "−")


def table_of(result: dict[str, Any]) -> Table:
    """The rows for a terminal."""
    table = Table(
        "case",
        "first job",
        "paper",
        "measured",
        "difference",
        title="OFC 2022: training on a network rewired with light",
    )
    previous = None
    for row in rows_of(result):
        if previous is not None and row[0] != previous:
            table.add_section()
        previous = row[0]
        table.add_row(*row)
    return table
