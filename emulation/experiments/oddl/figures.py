"""The plots of ODDL, in flows and in packets."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from patchlight.emulation.simulator import results

LABELS = {
    "fat_tree": "fat-tree 1:1",
    "fat_tree_2_1": "fat-tree 2:1",
    "sip_ring": "SiP-Ring",
    "ideal": "ideal switch",
}
COLOURS = {
    "fat_tree": "#2171b5",
    "fat_tree_2_1": "#08306b",
    "sip_ring": "#e6550d",
    "ideal": "#737373",
}
_TAKES_PART = ("fat_tree", "fat_tree_2_1", "sip_ring")


def write_report(result: dict[str, Any], output: Path) -> list[Path]:
    """Write ``result.json`` and the plots into ``output``; the files."""
    plots = {
        "speedups": lambda: speedups_figure(result),
        "decomposition": lambda: decomposition_figure(result),
        "f-and-c": lambda: plane_figure(result),
    }
    return results.write_report(result, output, plots)


def speedups_figure(result: dict[str, Any]) -> Figure:
    """A panel for each model: how many times as fast as on the other networks, over nodes."""
    speedups = result["speedups"]
    figure = Figure(figsize=(3.2 * len(speedups), 3.4), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(speedups), sharey=True))
    for axis, (model, by_nodes) in zip(axes, speedups.items(), strict=True):
        nodes = [int(each) for each in by_nodes]
        for name, label in LABELS.items():
            values = [row[name] for row in by_nodes.values()]
            ranges = np.array([row[name] for row in result["speedup_ranges"][model].values()]).T
            axis.plot(nodes, values, "o-", color=COLOURS[name], label=label, markersize=4)
            axis.fill_between(nodes, *ranges, color=COLOURS[name], alpha=0.15, linewidth=0)
        for published, row in result["paper"].get(model, {}).items():
            for name, value in row.items() if published in by_nodes else ():
                axis.plot(int(published), value, "*", color=COLOURS[name], markersize=13)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(nodes, [str(each) for each in nodes])
        axis.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
        axis.minorticks_off()
        axis.set_title(model)
        axis.set_xlabel("nodes of the job")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("speedup of ODDL")
    axes[0].legend(fontsize=8, title="over (★ paper)", title_fontsize=8)
    return figure


def decomposition_figure(result: dict[str, Any]) -> Figure:
    """The speedup with one thing after the other put in, of the largest jobs."""
    model = result["scenarios_model"]
    by_nodes = result["decomposition"][model]
    sizes = list(by_nodes)[-3:]
    shape = len(sizes), len(_TAKES_PART)
    figure = Figure(figsize=(12, 1 + 2.2 * len(sizes)), layout="constrained")
    axes = np.atleast_2d(figure.subplots(*shape))
    for row, nodes in zip(axes, sizes, strict=True):
        for axis, name in zip(row, _TAKES_PART, strict=True):
            steps = by_nodes[nodes][name]
            ends = [each["speedup"] for each in steps]
            begins = [1.0, *ends[:-1]]
            places = np.arange(len(steps))
            grows = [end >= begin for begin, end in zip(begins, ends, strict=True)]
            colours = ["#31a354" if each else "#de2d26" for each in grows]
            widths = [end - begin for begin, end in zip(begins, ends, strict=True)]
            axis.barh(places, widths, left=begins, color=colours)
            for place, each, begin in zip(places, steps, begins, strict=True):
                at = max(begin, each["speedup"])
                axis.annotate(
                    f"× {each['factor']:.2f} → {each['speedup']:.2f}",
                    (at, place),
                    xytext=(4, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=7,
                )
            axis.axvline(1, color="black", linewidth=0.8)
            axis.set_yticks(places, [each["step"] for each in steps], fontsize=8)
            axis.set_xlim(min(0.9, *ends), 1 + 1.5 * max(0.5, *(each - 1 for each in ends)))
            axis.invert_yaxis()
            axis.set_title(f"{model}, {nodes} nodes, over {LABELS[name]}", fontsize=9)
            axis.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("speedup of ODDL, with what stands at the left and above it", fontsize=9)
    return figure


def plane_figure(result: dict[str, Any]) -> Figure:
    """Speedups over f and C, the published ones as lines, and each scenario where it lies."""
    scenarios = result["scenarios"]
    model = result["scenarios_model"]
    compute_s = result["models"][model]["compute_s"]
    most_f = 1.5 * max(row["f"] for row in scenarios if row["f"] < 20)
    figure = Figure(figsize=(10, 5.5), layout="constrained")
    shown = sorted({row["compared"] for row in scenarios})
    for axis, name in zip(figure.subplots(1, len(shown), sharey=True), shown, strict=True):
        rows = [row for row in scenarios if row["compared"] == name]
        oddl_s = float(np.median([row["oddl_s"] for row in rows]))
        c, f = np.meshgrid(np.linspace(0, 6 * compute_s, 200), np.linspace(0.9, most_f, 400))
        levels = [1.1, 1.25, 1.5, 2, 3, 5]
        lines = axis.contour(1e3 * c, f, (c + f * oddl_s) / (c + oddl_s), levels, colors="#9ecae1")
        axis.clabel(lines, fmt="%g ×", fontsize=7)
        if rows[0]["paper"] is not None:
            published = rows[0]["paper"]
            c_s = np.linspace(0, 6 * compute_s, 200)
            needed = published + (published - 1) * c_s / oddl_s
            axis.plot(1e3 * c_s, needed, "--", color="#de2d26", label=f"paper: {published:g} ×")
            axis.legend(loc="lower right", fontsize=8)
        seen: list[float] = []
        for row in sorted((row for row in rows if row["f"] <= most_f), key=lambda row: row["f"]):
            axis.plot(1e3 * compute_s, row["f"], "o", color=COLOURS[name], markersize=4)
            at = max([row["f"], *(1.13 * each for each in seen[-1:])])
            seen.append(at)
            words = (1e3 * compute_s, row["f"]), (1.35e3 * compute_s, at)
            axis.annotate(
                row["words"],
                *words,
                fontsize=7,
                va="center",
                arrowprops={"arrowstyle": "-", "linewidth": 0.4},
            )
        axis.set_yscale("log")
        axis.set_ylim(0.9, most_f)
        ticks = [each for each in (1, 2, 3, 5, 10, 20) if each < most_f]
        axis.set_yticks(ticks, [str(each) for each in ticks])
        axis.minorticks_off()
        axis.set_xlim(0, 6e3 * compute_s)
        axis.set_xlabel("computing time C (ms)")
        axis.set_title(f"{model}, over {LABELS[name]}; dots at C = {1e3 * compute_s:.0f} ms")
    figure.axes[0].set_ylabel("f: communication time over ODDL's")
    return figure


ARM_LABELS = {
    "ideal": "ideal switch",
    "kept": "ODDL, ring kept",
    "turned": "ODDL, ring turned in every iteration",
}
STAGE_LABELS = {
    "compute": "compute",
    "ask": "ask for a path",
    "tune": "tune",
    "send": "all-reduce",
    "acknowledge": "all acknowledged",
    "release": "give it back",
}
ISOLATION_LABELS = {
    "together": "one star for both jobs",
    "star": "a star for each job",
    "channels": "channels for each job",
}
_ARM_COLOURS = {"kept": "#2171b5", "turned": "#e6550d"}
_STAGE_COLOURS = {
    "compute": "#d9d9d9",
    "ask": "#de2d26",
    "tune": "#fd8d3c",
    "send": "#6baed6",
    "acknowledge": "#756bb1",
    "release": "#31a354",
}


def write_packets_report(result: dict[str, Any], output: Path) -> list[Path]:
    """The same of the form with packets."""
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
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    axis.axhspan(0.98, 1.02, color="#31a354", alpha=0.12, label="within 2 %")
    axis.axhline(1.0, color="black", linewidth=0.8)
    for arm, colour in _ARM_COLOURS.items():
        ratios = [row[arm] for row in rows]
        axis.plot(tuning_ms, ratios, "o-", color=colour, label=ARM_LABELS[arm])
    alone = [row["tuning_alone"] for row in rows]
    axis.plot(tuning_ms, alone, "--", color="#737373", label="if nothing but tuning took time")
    axis.set_xscale("log")
    axis.set_xticks(tuning_ms, [f"{each:g}" for each in tuning_ms])
    axis.minorticks_off()
    axis.set_xlabel("tuning time of a transceiver (ms)")
    axis.set_ylabel("training time over that on an ideal switch")
    axis.set_title(f"{result['model']}, {result['nodes']} nodes, ring all-reduce")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return figure


def stages_figure(result: dict[str, Any]) -> Figure:
    """What an iteration is made of on each network; beside it, without computing and all-reduce."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    arms = list(result["stages"])
    small = [stage for stage in STAGE_LABELS if stage not in ("compute", "send")]
    for axis, shown in zip(figure.subplots(1, 2), (list(STAGE_LABELS), small), strict=True):
        for row, arm in enumerate(arms):
            left_ms = 0.0
            for stage in shown:
                ms = 1e3 * result["stages"][arm].get(stage, {"median_s": 0.0})["median_s"]
                label = STAGE_LABELS[stage] if row == 0 else None
                colour = _STAGE_COLOURS[stage]
                axis.barh(row, ms, left=left_ms, color=colour, label=label)
                left_ms += ms
        axis.set_yticks(range(len(arms)), [ARM_LABELS[arm].replace(", ", ",\n") for arm in arms])
        axis.invert_yaxis()
        axis.set_xlabel("median of a node (ms)")
        axis.spines[["top", "right"]].set_visible(False)
    first, second = figure.axes
    second.set_yticks([])
    first.set_title("an iteration", fontsize=10)
    second.set_title("tuning and control alone", fontsize=10)
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8)
    return figure


def isolation_figure(result: dict[str, Any]) -> Figure:
    """By how much each iteration took longer while a neighbour flooded than just before."""
    figure = Figure(figsize=(6.4, 2.8), layout="constrained")
    axis = figure.subplots()
    axis.axvspan(-2, 2, color="#31a354", alpha=0.12, label="within 2 %")
    axis.axvline(0, color="black", linewidth=0.8)
    ways = [way for way in ISOLATION_LABELS if "iteration_change" in result["isolation"][way]]
    for row, way in enumerate(ways):
        found = result["isolation"][way]
        pairs = zip(found["quiet_iterations_s"], found["flooded_iterations_s"], strict=True)
        percents = [100 * (flooded / quiet - 1) for quiet, flooded in pairs]
        first = row == 0
        label = "a pair of iterations" if first else None
        axis.plot(percents, [row] * len(percents), "o", color="#9ecae1", label=label)
        median = 100 * found["iteration_change"]
        low, high = (100 * end for end in found["iteration_change_interval"])
        label = "median, and 95 % interval" if first else None
        reach = [[median - low], [high - median]]
        axis.errorbar(median, row, xerr=reach, fmt="D", color="#08519c", capsize=4, label=label)
    axis.set_yticks(range(len(ways)), [ISOLATION_LABELS[way] for way in ways])
    axis.set_ylim(-0.6, len(ways) - 0.4)
    axis.invert_yaxis()
    axis.set_xlabel("iteration beside a job that floods, over one beside a quiet job (%)")
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    return figure
