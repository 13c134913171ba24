"""The plots: speedups by size, what they are made of, and the plane of f and C."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from patchlight.emulation import output_folder

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
    return output_folder.write_report(result, output, plots)


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
