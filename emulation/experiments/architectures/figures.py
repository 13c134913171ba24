"""The plot: iteration time against the ideal switch, beside power and cost."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from patchlight.emulation.output_folder import cannot_write, save_plot, write_result


def write_report(result: dict[str, Any], output: Path) -> list[Path]:
    """Write ``result.json`` and the plot into ``output``; the files."""
    try:
        files = [write_result(result, output)]
        return [*files, *save_plot(architectures_figure(result), output / "architectures")]
    except OSError as error:
        raise cannot_write(output, error) from error


def architectures_figure(result: dict[str, Any]) -> Figure:
    """A row for each network; shorter bars are better in all three panels."""
    networks: dict[str, dict[str, Any]] = result["networks"]
    figure = Figure(figsize=(11, 1.5 + 0.35 * len(networks)), layout="constrained")
    panels = (
        ("iteration_to_ideal", "iteration time / ideal switch", 1.0, "#2171b5"),
        ("power_w", "power (kW)", 1e3, "#e6550d"),
        ("cost_usd", "cost (k$)", 1e3, "#31a354"),
    )
    names = list(networks)
    for axis, (key, label, unit, colour) in zip(
        figure.subplots(1, 3, sharey=True), panels, strict=True
    ):
        values = [networks[name][key] for name in names]
        bars = axis.barh(names, [(value or 0.0) / unit for value in values], color=colour)
        unknown = [networks[name].get(key.split("_")[0] + "_unknown") for name in names]
        labels = [
            "–" if value is None else f"{'≥ ' if parts else ''}{value / unit:.3g}"
            for value, parts in zip(values, unknown, strict=True)
        ]
        axis.bar_label(bars, labels, padding=3, fontsize=8)
        axis.set_xlabel(label)
        axis.margins(x=0.2)
        axis.spines[["top", "right"]].set_visible(False)
    axis.invert_yaxis()
    figure.suptitle(f"{result['jobs']} jobs on {result['nodes']} nodes, {result['placement']}")
    return figure
