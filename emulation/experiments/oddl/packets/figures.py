"""The plots of the form with packets: tuning times, what an iteration is, a job that floods."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from patchlight.emulation import output_folder

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


def write_report(result: dict[str, Any], output: Path) -> list[Path]:
    """Write ``result.json`` and the plots into ``output``; the files."""
    plots = {
        "tuning-time": lambda: sweep_figure(result),
        "stages": lambda: stages_figure(result),
        "isolation": lambda: isolation_figure(result),
    }
    return output_folder.write_report(result, output, plots)


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
