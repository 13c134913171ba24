"""What the experiment leaves: ``result.json``, plots, and tables for the terminal."""

import json
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from patchlight.emulation.experiments.pac_ml import paper
from patchlight.emulation.output_folder import cannot_write

_BOUND = "bound in hindsight"
_PAC_ML = "PAC-ML, best checkpoint"


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
    """For each placement rule the blocking rates, and completion times with throughput.

    Last, where the figures compare, the lowest rates beside the published ones.
    """
    tables = [
        table
        for rule, laws in result["rules"].items()
        for table in (_blocking(result, rule, laws), _work(result, rule, laws))
    ]
    if rows := rows_beside_published(result):
        title = f"Lowest blocking rate, {paper.RULE}, beside the published ({_PAC_ML})"
        beside = Table("", "published", "measured", "policy", "difference", title=title)
        for row in rows:
            beside.add_row(*row)
        tables.append(beside)
    return tables


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
        row: list[str | Text] = [name]
        for law, cell in laws.items():
            figures = cell["policies"][name]
            text = with_interval(figures["blocking_rate"], figures["ci95"])
            row.append(Text(text, "bold" if figures["blocking_rate"] == best[law] else ""))
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
            row += _jct_and_rate(figures["jct_mean_s"], figures["throughput_bytes_per_s"])
            speeds.append(figures["decisions_per_s"] or 0.0)
        table.add_row(*row, f"{sum(speeds) / len(speeds):,.0f}")
    if result["comparable"]:
        table.add_section()
        for name, times in paper.JCT_S.items():
            rates = paper.THROUGHPUT_BYTES_PER_S.get(name, {})
            row = [f"{name} (published)"]
            for law in laws:
                row += _jct_and_rate(times.get(law), rates.get(law))
            table.add_row(*row, "", style="dim")
    return table


def rows_beside_published(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """For each law PAC-ML's published rate, the lowest one here, its policy, and the difference.

    Figures of another placement rule than the published ones' do not compare.
    """
    rows: list[tuple[str, ...]] = []
    for law, cell in result["rules"].get(paper.RULE, {}).items() if result["comparable"] else ():
        published = paper.PAC_ML[_PAC_ML][law].blocking_rate
        measured, policy = cell["target"]["best"], cell["target"]["best_policy"]
        points = f"{100 * (measured - published):+.2f} points".replace("-", "−")
        rows.append((f"law {law}", f"{published:.4f}", f"{measured:.4f}", policy, points))
    return rows


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


def _jct_and_rate(jct_s: float | None, bytes_per_s: float | None) -> tuple[str, str]:
    moved = "" if bytes_per_s is None else f"{bytes_per_s / 1e6:.2f}"
    return "" if jct_s is None else f"{jct_s:.0f}", moved
