"""What the experiment leaves: ``result.json``, plots, and tables for the terminal."""

import json
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from patchlight.emulation.experiments.pac_ml import paper
from patchlight.emulation.experiments.pac_ml.episodes import CONSTANTS
from patchlight.emulation.output_folder import cannot_write

_BOUND = "bound in hindsight"
_PAC_ML = "PAC-ML, best checkpoint"
_BOLD = "bold: below every other policy, on the same seeds (paired 95 % intervals)"


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
    """For each placement rule the blocking rates, what policies block less the best constant
    degree, and completion times with throughput.

    Last, where the figures compare, the lowest rates beside the published ones.
    """
    made = (
        (
            _blocking(result, rule, laws),
            _less_constant(result, rule, laws),
            _work(result, rule, laws),
        )
        for rule, laws in result["rules"].items()
    )
    tables = [table for of_rule in made for table in of_rule if table is not None]
    if rows := rows_beside_published(result):
        title = f"Lowest blocking rate, {paper.RULE}, beside the published ({_PAC_ML})"
        beside = Table("", "published", "measured", "policy", "difference", title=title)
        for row in rows:
            beside.add_row(*row)
        tables.append(beside)
    return tables


def _blocking(result: dict[str, Any], rule: str, laws: dict[str, Any]) -> Table:
    comparable = result["comparable"]
    instance = result["law_instance"]
    drawn = "laws made anew for each" if instance is None else f"instance {instance} of the laws"
    title = f"Blocking rate, {rule}, {len(result['seeds'])} seeds, {drawn}, mean ± 95 %"
    table = Table("policy", title=title, caption=_BOLD)
    for law in laws:
        table.add_column(f"law {law}", justify="right", no_wrap=True)
        if comparable:
            table.add_column("publ.", justify="right", style="dim")
    names = list(next(iter(laws.values()))["policies"])
    lowest = {
        law: cell["lowest"]["policy"] for law, cell in laws.items() if cell["lowest"]["below_all"]
    }
    for name in names:
        row: list[str | Text] = [name]
        for law, cell in laws.items():
            figures = cell["policies"][name]
            text = with_interval(figures["blocking_rate"], figures["ci95"])
            row.append(Text(text, "bold" if name == lowest.get(law) else ""))
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


def _less_constant(result: dict[str, Any], rule: str, laws: dict[str, Any]) -> Table | None:
    """Paired differences of those that are no constants; ``None`` where there is no constant."""
    if any(cell["lowest"]["constant"] is None for cell in laws.values()):
        return None
    constants = {f"constant-{degree}" for degree in CONSTANTS}
    names = [name for name in next(iter(laws.values()))["policies"] if name not in constants]
    if not names:
        return None
    title = f"Blocking rate less the best constant degree's, {rule}, same seeds, mean ± 95 %"
    caption = "in brackets in how many episodes it is above; bold: significant"
    table = Table("policy", title=title, caption=caption)
    for law, cell in laws.items():
        table.add_column(f"{law}: less {cell['lowest']['constant']}", justify="right")
    for name in names:
        row = [name]
        for cell in laws.values():
            found = cell["lowest"]["less_constant"][name]
            text = with_interval(found["difference"], found["ci95"], signed=True)
            text += f" ({found['worse_episodes']})"
            row.append(Text(text, "bold" if found["significant"] else ""))
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
        measured, policy = cell["lowest"]["blocking_rate"], cell["lowest"]["policy"]
        points = _signed(f"{100 * (measured - published):+.2f} points")
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


def with_interval(mean: float | None, half_width: float | None, signed: bool = False) -> str:
    """``0.2163 ± 0.0041``; without the interval where one seed gives none."""
    if mean is None:
        return "–"
    shown = _signed(f"{mean:+.4f}") if signed else f"{mean:.4f}"
    return shown + ("" if half_width is None else f" ± {half_width:.4f}")


def _signed(text: str) -> str:
    return text.replace("-", "−")


def _rate(published: paper.Published | None) -> str:
    return "" if published is None else f"{published.blocking_rate:.4f}"


def _jct_and_rate(jct_s: float | None, bytes_per_s: float | None) -> tuple[str, str]:
    moved = "" if bytes_per_s is None else f"{bytes_per_s / 1e6:.2f}"
    return "" if jct_s is None else f"{jct_s:.0f}", moved
