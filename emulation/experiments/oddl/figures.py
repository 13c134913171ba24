"""The plots of ODDL, in flows and in packets."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from patchlight.emulation.simulator import figures, results

LABELS = {
    "fat_tree": "fat-tree 1:1",
    "fat_tree_2_1": "fat-tree 2:1",
    "sip_ring": "SiP-Ring",
    "ideal": "ideal switch",
}
_LOOKS = {name: figures.look(number) for number, name in enumerate(LABELS)}
_TAKES_PART = ("fat_tree", "fat_tree_2_1", "sip_ring")
_TICKS = (1, 1.5, 2, 3, 5, 10, 20, 50, 100)


def write_report(result: dict[str, Any], output: Path) -> list[Path]:
    """Write ``result.json`` and the plots into ``output``; the files."""
    plots = {
        "speedups": lambda: speedups_figure(result),
        "f-and-c": lambda: plane_figure(result),
    }
    if decomposed := _decomposed(result):
        plots["decomposition"] = lambda: decomposition_figure(decomposed)
    return results.write_report(result, output, plots)


def speedups_figure(result: dict[str, Any]) -> Figure:
    """A panel for each model: ODDL's speedup over the other networks, by the job's size."""
    speedups = result["speedups"]
    rows = math.ceil(len(speedups) / 3)
    columns = min(3, len(speedups))
    figure = figures.new(0.6 + 1.9 * rows)
    axes = list(
        figure.subplots(
            rows,
            columns,
            sharey=True,
            squeeze=False,
        ).flat
    )
    for axis in axes[len(speedups) :]:
        axis.remove()
    most = 1.0
    for axis, (model, by_nodes) in zip(axes, speedups.items(), strict=False):
        nodes = [int(each) for each in by_nodes]
        for name, label in LABELS.items():
            values = [row[name] for row in by_nodes.values()]
            ranges = np.array(
                [row[name] for row in result["speedup_ranges"][model].values()]
            ).T
            axis.plot(
                nodes,
                values,
                marker="o",
                label=f"over {label}",
                **_LOOKS[name],
            )
            axis.fill_between(
                nodes,
                *ranges,
                color=_LOOKS[name]["color"],
                alpha=0.2,
                linewidth=0,
            )
            most = max(most, ranges.max())
        for published, row in result["paper"].get(model, {}).items():
            for name, value in row.items() if published in by_nodes else ():
                look = {
                    "color": _LOOKS[name]["color"],
                    "markersize": 9,
                    "linestyle": "",
                }
                label = f"paper, over {LABELS[name]}"
                axis.plot(
                    int(published),
                    value,
                    marker="*",
                    label=label,
                    **look,
                )
                most = max(most, value)
        axis.set_xscale("log", base=2)
        axis.set_xticks(nodes, [str(each) for each in nodes])
        axis.set_title(model)
        axis.set_xlabel("nodes of the job")
    _log_ticks(axes[0], 0.95, 1.1 * most)
    for axis in axes[::columns]:
        axis.set_ylabel("speedup of ODDL")
    figures.legend(figure)
    return figure


def _log_ticks(
    axis: Axes,
    least: float,
    most: float,
) -> None:
    axis.set_yscale("log")
    ticks = [each for each in _TICKS if each < most]
    axis.set_yticks(ticks, [f"{each:g}" for each in ticks])
    axis.minorticks_off()
    axis.set_ylim(least, most)


def _decomposed(
    result: dict[str, Any],
) -> list[tuple[str, list[dict[str, Any]]]]:
    """The steps that change the speedup of the largest jobs, if any, and their titles."""
    model = result["scenarios_model"]
    found = []
    for nodes, by_network in list(result["decomposition"][model].items())[-3:]:
        for name in _TAKES_PART:
            steps = [
                step
                for step in by_network[name]
                if abs(step["factor"] - 1) >= _LEAST_CHANGE
            ]
            if steps:
                found.append(
                    (f"{model}, {nodes} nodes, over {LABELS[name]}", steps)
                )
    return found


_LEAST_CHANGE = 0.005


def decomposition_figure(
    decomposed: Sequence[tuple[str, list[dict[str, Any]]]],
) -> Figure:
    """The speedup with one thing after the other put in; steps that change it by 0.5 % or more."""
    rows = math.ceil(len(decomposed) / 2)
    columns = min(2, len(decomposed))
    figure = figures.new(0.4 + 1.4 * rows)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[len(decomposed) :]:
        axis.remove()
    for axis, (title, steps) in zip(axes, decomposed, strict=False):
        ends = [each["speedup"] for each in steps]
        begins = [
            end / each["factor"] for end, each in zip(ends, steps, strict=True)
        ]
        widths = [end - begin for begin, end in zip(begins, ends, strict=True)]
        colours = [
            figures.GREEN if each > 0 else figures.VERMILION for each in widths
        ]
        bars = axis.barh(
            [each["step"] for each in steps],
            widths,
            left=begins,
            color=colours,
        )
        for bar, begin, each in zip(
            bars,
            begins,
            steps,
            strict=True,
        ):
            middle = bar.get_y() + bar.get_height() / 2
            words = f" × {each['factor']:.2f} = {each['speedup']:.2f}"
            axis.text(
                max(begin, each["speedup"]),
                middle,
                words,
                va="center",
            )
        axis.axvline(
            1,
            color="black",
            linewidth=0.8,
        )
        most = max(*ends, *begins)
        axis.set_xlim(min(0.9, *ends), 1 + 1.5 * max(0.5, most - 1))
        axis.invert_yaxis()
        axis.grid(visible=False)
        axis.set_title(title)
    figure.supxlabel(
        "speedup of ODDL, cumulative from top to bottom", fontsize=8
    )
    return figure


def plane_figure(result: dict[str, Any]) -> Figure:
    """Speedups over f and C, the published ones as lines, and each scenario where it lies."""
    scenarios = result["scenarios"]
    model = result["scenarios_model"]
    compute_s = result["models"][model]["compute_s"]
    most_f = 1.5 * max(row["f"] for row in scenarios)
    figure = figures.new(4.4)
    shown = sorted({row["compared"] for row in scenarios})
    for axis, name in zip(
        figure.subplots(1, len(shown), sharey=True), shown, strict=True
    ):
        rows = [row for row in scenarios if row["compared"] == name]
        oddl_s = float(np.median([row["oddl_s"] for row in rows]))
        c_s = np.linspace(0, 6 * compute_s, 200)
        c, f = np.meshgrid(c_s, np.geomspace(0.9, most_f, 400))
        levels = [1.1, 1.25, 1.5, 2, 3, 5, 10]
        contours = {"colors": figures.SKY, "linewidths": 0.8}
        lines = axis.contour(
            1e3 * c,
            f,
            (c + f * oddl_s) / (c + oddl_s),
            levels,
            **contours,
        )
        # At the right, where no scenario is; at the top the lines that leave there.
        tops = [
            oddl_s * (0.9 * most_f - level) / (level - 1) for level in levels
        ]
        at_c = [min(5.2 * compute_s, top) for top in tops]
        places = [
            (1e3 * x, n + (n - 1) * x / oddl_s)
            for n, x in zip(levels, at_c, strict=True)
        ]
        axis.clabel(
            lines,
            fmt="%g ×",
            fontsize=8,
            manual=places,
        )
        if (published := rows[0]["paper"]) is not None:
            needed = published + (published - 1) * c_s / oddl_s
            line = {"linestyle": "--", "color": figures.VERMILION}
            axis.plot(
                1e3 * c_s,
                needed,
                label=f"paper: {published:g} ×",
                **line,
            )
        at = 0.0
        for row in sorted(rows, key=lambda row: row["f"]):
            axis.plot(
                1e3 * compute_s,
                row["f"],
                "o",
                color=_LOOKS[name]["color"],
            )
            at = max(row["f"], 1.19 * at)
            words = (1e3 * compute_s, row["f"]), (1.35e3 * compute_s, at)
            arrow = {"arrowstyle": "-", "linewidth": 0.4}
            axis.annotate(
                row["words"],
                *words,
                va="center",
                arrowprops=arrow,
            )
        axis.set_xlabel("computing time C (ms)")
        axis.set_xlim(0, 6e3 * compute_s)
        axis.set_title(
            f"{model} over {LABELS[name]}; dots at C = {1e3 * compute_s:.0f} ms"
        )
    _log_ticks(figure.axes[0], 0.9, most_f)
    figure.axes[0].set_ylabel("f: communication time over ODDL's")
    figures.legend(figure)
    return figure


ARM_LABELS = {
    "ideal": "ideal switch",
    "kept": "ODDL, fixed ring",
    "turned": "ODDL, ring reversed in every iteration",
}
STAGE_LABELS = {
    "compute": "compute",
    "ask": "request a path",
    "tune": "tune",
    "send": "all-reduce",
    "acknowledge": "all acknowledged",
    "release": "release the path",
}
ISOLATION_LABELS = {
    "together": "one star for both jobs",
    "star": "a star for each job",
    "channels": "channels for each job",
}


def write_packets_report(result: dict[str, Any], output: Path) -> list[Path]:
    """Write ``result.json`` and the plots of ODDL with packets; the files."""
    plots = {
        "tuning-time": lambda: sweep_figure(result),
        "stages": lambda: stages_figure(result),
        "isolation": lambda: isolation_figure(result),
    }
    return results.write_report(result, output, plots)


def sweep_figure(result: dict[str, Any]) -> Figure:
    """Training time over that on the ideal switch, by tuning time."""
    rows = sorted(result["sweep"], key=lambda row: row["tuning_time_s"])
    tuning_ms = [1e3 * row["tuning_time_s"] for row in rows]
    figure = figures.new(3.4, figures.COLUMN_IN)
    axis = figure.subplots()
    axis.axhspan(
        0.98,
        1.02,
        color=figures.GREEN,
        alpha=0.15,
        label="within 2 %",
    )
    axis.axhline(
        1.0,
        color="black",
        linewidth=0.8,
    )
    for number, arm in enumerate(("kept", "turned", "tuning_alone")):
        label = ARM_LABELS.get(arm, "tuning alone, computed")
        look = {**figures.look(number), "marker": "os "[number]}
        axis.plot(
            tuning_ms,
            [row[arm] for row in rows],
            label=label,
            **look,
        )
    axis.set_xscale("log")
    axis.set_xticks(tuning_ms, [f"{each:g}" for each in tuning_ms])
    axis.minorticks_off()
    axis.set_xlabel("tuning time of a transceiver (ms)")
    axis.set_ylabel("training time / ideal switch")
    axis.set_title(
        f"{result['model']}, {result['nodes']} nodes, ring all-reduce"
    )
    figures.legend(figure, 1)
    return figure


def stages_figure(result: dict[str, Any]) -> Figure:
    """The stages of an iteration on each network: all, and those of tuning and control."""
    figure = figures.new(2.4)
    arms = list(result["stages"])
    small = [
        stage for stage in STAGE_LABELS if stage not in ("compute", "send")
    ]
    colours = dict(zip(STAGE_LABELS, figures.COLOURS, strict=False))
    for axis, shown in zip(
        figure.subplots(1, 2), (list(STAGE_LABELS), small), strict=True
    ):
        for row, arm in enumerate(arms):
            left_ms = 0.0
            for stage in shown:
                ms = (
                    1e3
                    * result["stages"][arm].get(stage, {"median_s": 0.0})[
                        "median_s"
                    ]
                )
                label = STAGE_LABELS[stage]
                axis.barh(
                    row,
                    ms,
                    left=left_ms,
                    label=label,
                    color=colours[stage],
                )
                left_ms += ms
        axis.set_yticks(
            range(len(arms)),
            [ARM_LABELS[arm].replace(", ", ",\n") for arm in arms],
        )
        axis.invert_yaxis()
        axis.set_xlabel("median of a node (ms)")
        axis.grid(visible=False)
    first, second = figure.axes
    second.set_yticks([])
    first.set_title("an iteration")
    second.set_title("tuning and control only")
    figures.legend(figure, len(STAGE_LABELS))
    return figure


def isolation_figure(result: dict[str, Any]) -> Figure:
    """By how much each iteration took longer while a neighbour flooded than just before."""
    figure = figures.new(2.2)
    axis = figure.subplots()
    axis.axvspan(
        -2,
        2,
        color=figures.GREEN,
        alpha=0.15,
        label="within 2 %",
    )
    axis.axvline(
        0,
        color="black",
        linewidth=0.8,
    )
    ways = [
        way
        for way in ISOLATION_LABELS
        if "iteration_change" in result["isolation"][way]
    ]
    for row, way in enumerate(ways):
        found = result["isolation"][way]
        pairs = zip(
            found["quiet_iterations_s"],
            found["flooded_iterations_s"],
            strict=True,
        )
        percents = [100 * (flooded / quiet - 1) for quiet, flooded in pairs]
        label = "a pair of iterations"
        axis.plot(
            percents,
            [row] * len(percents),
            "o",
            color=figures.SKY,
            label=label,
        )
        median = 100 * found["iteration_change"]
        low, high = (100 * end for end in found["iteration_change_interval"])
        label = "median and 95 % interval"
        reach = [[median - low], [high - median]]
        look: dict[str, Any] = {
            "fmt": "D",
            "color": figures.BLUE,
            "capsize": 3,
        }
        axis.errorbar(
            median,
            row,
            xerr=reach,
            label=label,
            **look,
        )
    axis.set_yticks(range(len(ways)), [ISOLATION_LABELS[way] for way in ways])
    axis.set_ylim(-0.6, len(ways) - 0.4)
    axis.invert_yaxis()
    axis.set_xlabel(
        "change of an iteration's time while the other job floods (%)"
    )
    figures.legend(figure)
    return figure
