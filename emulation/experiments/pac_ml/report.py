"""What the experiment leaves: ``result.json`` and plots; what it comes to in words."""

from pathlib import Path
from typing import Any

from patchlight.emulation.experiments.pac_ml import paper
from patchlight.emulation.output_folder import cannot_write, save_plot, write_result

_PAC_ML = "PAC-ML, best checkpoint"


def write_report(result: dict[str, Any], output: Path) -> list[Path]:
    """Write all into ``output``; the files, ``result.json`` first."""
    # Not above: importing Matplotlib takes longer than the rest of the command's start.
    from patchlight.emulation.experiments.pac_ml.figures import blocking_figure, completion_figure

    try:
        files = [write_result(result, output)]
        for rule in result["rules"]:
            files += save_plot(blocking_figure(result, rule), output / f"blocking-{rule}")
            files += save_plot(completion_figure(result, rule), output / f"completion-{rule}")
    except OSError as error:
        raise cannot_write(output, error) from error
    return files


def rows_beside_published(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """For each law PAC-ML's published rate, the lowest one here, its policy, and the difference.

    Figures of another placement rule than the published ones' do not compare.
    """
    rows: list[tuple[str, ...]] = []
    for law, cell in result["rules"].get(paper.RULE, {}).items() if result["comparable"] else ():
        if law not in paper.PAC_ML[_PAC_ML]:
            continue
        published = paper.PAC_ML[_PAC_ML][law].blocking_rate
        measured, policy = cell["lowest"]["blocking_rate"], cell["lowest"]["policy"]
        points = f"{100 * (measured - published):+.2f} points".replace("-", "−")
        rates = (f"{100 * each:.2f} %" for each in (published, measured))
        rows.append((f"law {law}", *rates, policy, points))
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
