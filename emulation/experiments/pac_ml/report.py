"""What the experiment leaves: ``result.json``, plots as in the paper, and tables' rows."""

from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from patchlight.emulation import results
from patchlight.emulation.experiments import paper
from patchlight.emulation.experiments.pac_ml.episodes import ROLL_OUT
from patchlight.emulation.experiments.pac_ml.results import policies_in

_CONSTANT_SHADES = ("#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#084594")
_COLOURS = {
    "maximum": "#fdae6b",
    "minimum": "#e6550d",
    "sufficient": "#a63603",
    "random": "#bdbdbd",
    ROLL_OUT: "#31a354",
}
_OTHERS = ("#756bb1", "#dd1c77", "#1b9e77", "#d8b365", "#80cdc1", "#7f3b08")
# Bars that a printer without colours tells apart.
_HATCHES = ("", "//", "..", "\\\\", "xx", "--", "oo", "||", "++", "**", "OO", "/.", "\\o")
_BOUNDS = (
    ("hindsight_bound", "bound in hindsight", "-"),
    ("online_bound", "bound without foresight", ":"),
)
_PAC_ML = "PAC-ML, best checkpoint"


def blocking_figure(result: dict[str, Any], rule: str) -> Figure:
    """The blocking rates of a placement rule, with the bound and the published ones."""
    laws: dict[str, Any] = result["rules"][rule]
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    axis = figure.subplots()
    _bars(axis, laws, "blocking_rate", 1.0, error="ci95")
    _reference_lines(axis, result, laws)
    axis.set_ylabel("blocking rate")
    axis.set_ylim(bottom=0)
    figure.legend(loc="outside right upper", fontsize=8)
    figure.suptitle(f"Jobs blocked, {rule}, {len(result['seeds'])} seeds, 95 % intervals")
    return figure


def completion_figure(result: dict[str, Any], rule: str) -> Figure:
    """Completion times and demand throughput of a placement rule."""
    laws: dict[str, Any] = result["rules"][rule]
    figure = Figure(figsize=(11, 7), layout="constrained")
    times, moved = figure.subplots(2, 1, sharex=True)
    _bars(times, laws, "jct_mean_s", 1e-3)
    times.set_ylabel("mean completion time (1,000 s)")
    _bars(moved, laws, "throughput_bytes_per_s", 1e-6)
    moved.set_ylabel("demand throughput (MB/s)")
    handles, labels = times.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8)
    figure.suptitle(f"Completed jobs, {rule}, {len(result['seeds'])} seeds")
    return figure


def _bars(
    axis: Axes, laws: dict[str, Any], key: str, factor: float, error: str | None = None
) -> None:
    names = policies_in(laws)
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        found = [cell["policies"].get(name, {}) for cell in laws.values()]
        at = [place - 0.4 + width * (number + 0.5) for place in range(len(laws))]
        heights = [(figures.get(key) or 0.0) * factor for figures in found]
        spread = [figures.get(error) or 0.0 for figures in found] if error else None
        # A policy's file without its folders: the plot needs the room.
        label, colour = name.rpartition("/")[2], _colour(name, number)
        look: dict[str, Any] = {"color": colour, "hatch": _hatch(number)}
        look |= {"edgecolor": "#ffffff", "linewidth": 0}
        axis.bar(at, heights, width, yerr=spread, label=label, error_kw={"linewidth": 0.8}, **look)
    axis.set_xticks(range(len(laws)), [f"law {law}" for law in laws])
    axis.grid(axis="y", alpha=0.25)


def _reference_lines(axis: Axes, result: dict[str, Any], laws: dict[str, Any]) -> None:
    for number, (law, cell) in enumerate(laws.items()):
        # Matplotlib leaves labels that begin with an underscore out of the legend.
        first, span = "_" if number else "", (number - 0.4, number + 0.4)
        for key, name, style in _BOUNDS:
            bound, label = cell[key]["blocking_rate"], f"{first}{name} (no policy is below)"
            if bound is not None:
                axis.hlines(bound, *span, "#000000", linestyle=style, linewidth=1, label=label)
        if result["comparable"] and law in result["published"]["blocking_rate"][_PAC_ML]:
            published = result["published"]["blocking_rate"][_PAC_ML][law]["blocking_rate"]
            label = f"{first}{_PAC_ML} (published)"
            axis.hlines(published, *span, "#d62728", linestyle="--", linewidth=1.2, label=label)


def _colour(name: str, place: int) -> str:
    constants = [f"constant-{degree}" for degree in (1, 2, 4, 6, 8, 16)]
    if name in constants:
        return _CONSTANT_SHADES[constants.index(name)]
    return _COLOURS[name] if name in _COLOURS else _OTHERS[place % len(_OTHERS)]


def _hatch(place: int) -> str:
    turn, kind = divmod(place, len(_HATCHES))
    return _HATCHES[kind] * (turn + 1)


def write_report(result: dict[str, Any], output: Path) -> list[Path]:
    """Write ``result.json`` and the plots into ``output``; the files."""
    plots = {}
    for rule in result["rules"]:
        plots[f"blocking-{rule}"] = partial(blocking_figure, result, rule)
        plots[f"completion-{rule}"] = partial(completion_figure, result, rule)
    return results.write_report(result, output, plots)


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
    """What policies did wrong: how often, and the first time."""
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
