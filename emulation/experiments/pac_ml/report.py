"""What the experiment leaves: ``result.json``, plots, and tables for the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.table import Table

from patchlight.emulation.experiments.pac_ml import paper
from patchlight.emulation.output_folder import cannot_write

_BOUND = "bound in hindsight"


def write_report(result: dict[str, Any], output: Path) -> list[Path]:
    """Write all into ``output``; the files, ``result.json`` first."""
    # Not above: importing Matplotlib takes longer than the rest of the command's start.
    from patchlight.emulation.experiments.pac_ml.figures import plot_rule

    path = output / "result.json"
    try:
        output.mkdir(parents=True, exist_ok=True)
        # No NaN: it would be no JSON.
        text = json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False)
        path.write_text(text + "\n", encoding="utf-8")
        return [path, *(p for rule in result["rules"] for p in plot_rule(result, rule, output))]
    except OSError as error:
        raise cannot_write(output, error) from error


def tables_of(result: dict[str, Any]) -> list[Table]:
    """For each placement rule the blocking rates, and completion times with throughput."""
    return [
        table
        for rule, laws in result["rules"].items()
        for table in (_blocking(result, rule, laws), _work(result, rule, laws))
    ]


def _blocking(result: dict[str, Any], rule: str, laws: dict[str, Any]) -> Table:
    comparable = result["comparable"]
    title = f"Blocking rate, {rule}, {len(result['seeds'])} seeds, mean ± 95 %"
    table = Table("policy", title=title)
    for law in laws:
        table.add_column(f"law {law}", justify="right", no_wrap=True)
        if comparable:
            table.add_column("publ.", justify="right", style="dim")
    names = list(next(iter(laws.values()))["policies"])
    best = {law: cell["target"]["best"] for law, cell in laws.items()}
    for name in names:
        row = [name]
        for law, cell in laws.items():
            figures = cell["policies"][name]
            text = with_interval(figures["blocking_rate"], figures["ci95"])
            row.append(f"[bold]{text}[/bold]" if figures["blocking_rate"] == best[law] else text)
            if comparable:
                row.append(_rate(paper.BLOCKING.get(name, {}).get(law)))
        table.add_row(*row)
    table.add_section()
    if comparable:
        for name, rates in paper.PAC_ML.items():
            table.add_row(name, *(text for law in laws for text in ("", _rate(rates.get(law)))))
    bounds = [cell["hindsight_bound"] for cell in laws.values()]
    row = [_BOUND]
    for bound in bounds:
        row += [with_interval(bound["blocking_rate"], bound["ci95"]), *([""] * comparable)]
    table.add_row(*row)
    return table


def _work(result: dict[str, Any], rule: str, laws: dict[str, Any]) -> Table:
    table = Table("policy", title=f"Mean completion time (s), demand throughput (MB/s), {rule}")
    for law in laws:
        table.add_column(f"{law}: JCT", justify="right")
        table.add_column("MB/s", justify="right")
    table.add_column("decisions/s", justify="right")
    for name in next(iter(laws.values()))["policies"]:
        row, speeds = [name], []
        for cell in laws.values():
            figures = cell["policies"][name]
            row += [
                _number(figures["jct_mean_s"], 1.0, "{:.0f}"),
                _number(figures["throughput_bytes_per_s"], 1e-6, "{:.2f}"),
            ]
            speeds.append(figures["decisions_per_s"] or 0.0)
        table.add_row(*row, f"{sum(speeds) / len(speeds):,.0f}")
    if result["comparable"]:
        table.add_section()
        for name, times in paper.JCT_S.items():
            rates = paper.THROUGHPUT_BYTES_PER_S.get(name, {})
            row = [f"{name} (published)"]
            for law in laws:
                row += [
                    _number(times.get(law), 1.0, "{:.0f}"),
                    _number(rates.get(law), 1e-6, "{:.2f}"),
                ]
            table.add_row(*row, "", style="dim")
    return table


def verdicts_of(result: dict[str, Any]) -> list[tuple[bool, str]]:
    """For each rule and law, whether the figure asked for was reached, in words."""
    if not result["comparable"]:
        return []
    found = []
    for rule, laws in result["rules"].items():
        for law, cell in laws.items():
            target = cell["target"]
            found.append(
                (
                    bool(target["met"]),
                    f"{rule}, law {law}: below {target['below']:.4f} "
                    f"{'reached' if target['met'] else 'not reached'} "
                    f"({target['best_policy']} {target['best']:.4f})",
                )
            )
    return found


def faults_of(result: dict[str, Any]) -> list[str]:
    """What policies did wrong, in words: how often, and how at first."""
    found: dict[str, tuple[int, str]] = {}
    for laws in result["rules"].values():
        for cell in laws.values():
            for name, figures in cell["policies"].items():
                count, first = found.get(name, (0, ""))
                faults = figures["faults"]
                found[name] = count + faults["count"], first or faults["first"]
    return [
        first if count == 1 else f"{count} times; at first: {first}"
        for count, first in found.values()
        if count
    ]


def with_interval(mean: float | None, half_width: float | None) -> str:
    """``0.2163 ± 0.0041``; without the interval where one seed gives none."""
    if mean is None:
        return "–"
    return f"{mean:.4f}" + ("" if half_width is None else f" ± {half_width:.4f}")


def _rate(published: paper.Published | None) -> str:
    return "" if published is None else f"{published.blocking_rate:.4f}"


def _number(value: float | None, factor: float, form: str) -> str:
    return "" if value is None else form.format(value * factor)
