"""The plots of ODDL, in flows and in packets."""

import math
from collections.abc import Mapping, Sequence
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
    model = result["shown_model"]
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


_MOST_F = 25.0


def write_readings(result: dict[str, Any], output: Path) -> list[Path]:
    """Write ``result.json`` and the picture of all readings into ``output``; the files."""
    plots = {"readings": lambda: readings_figure(result)}
    return results.write_report(result, output, plots)


def readings_figure(result: dict[str, Any]) -> Figure:
    """Each reading's f at each preset's C, with its number; filled if it gives the published
    speedup, whose line is dashed."""
    rows = result["readings"]
    presets = {name: 1e3 * s for name, s in result["compute_s"].items()}
    most_ms = 1.15 * max(presets.values())
    c_ms = np.linspace(0, most_ms, 200)
    figure = figures.new(4.4)
    names = ("fat_tree", "sip_ring")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, compared in zip(axes, names, strict=True):
        shown = {
            number: row
            for number, row in enumerate(rows, 1)
            if row["compared"] == compared and row["f"] < _MOST_F
        }
        look = _LOOKS[compared]["color"]
        published = result["paper"].get(compared)
        if published is not None:
            m_ms = 1e3 * float(
                np.median([r["oddl_s"] for r in shown.values()])
            )
            axis.plot(
                c_ms,
                published + (published - 1) * c_ms / m_ms,
                linestyle="--",
                color=figures.VERMILION,
                label="gives the published speedup",
            )
        for gpu, at_ms in presets.items():
            given = result["given_by"][gpu].get(compared, ())
            for number, row in shown.items():
                fill = look if number - 1 in given else "none"
                axis.plot(
                    at_ms, row["f"], "o", color=look, markerfacecolor=fill
                )
            axis.annotate(
                f" {gpu}",
                (at_ms, 2.2 * _MOST_F),
                rotation=90,
                va="top",
                ha="right",
            )
        for f, numbers in _together(shown).items():
            axis.text(
                1.01 * most_ms,
                f,
                ", ".join(map(str, numbers)),
                va="center",
            )
        axis.set_xlim(0, most_ms)
        axis.set_xlabel("computing time C (ms)")
        over = {"fat_tree": "fat-trees", "sip_ring": "SiP-Ring"}[compared]
        axis.set_title(f"{result['model']} over {over}, readings by number")
    _log_ticks(axes[0], 0.5, 2.3 * _MOST_F)
    axes[0].set_ylabel("f: communication time over ODDL's")
    figures.legend(figure)
    return figure


_ONE_LABEL = 1.13


def _together(rows: Mapping[int, dict[str, Any]]) -> dict[float, list[int]]:
    """The numbers of rows with nearly the same f, by the least of these."""
    found: dict[float, list[int]] = {}
    for number, row in sorted(rows.items(), key=lambda each: each[1]["f"]):
        least = max(found, default=0.0)
        if row["f"] > _ONE_LABEL * least:
            found[least := row["f"]] = []
        found[least].append(number)
    return found


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
