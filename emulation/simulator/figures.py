"""One style for all figures: a paper's column widths, text of 8 pt, colour-blind safe."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

FORMATS = ("png", "pdf", "svg")
"""One to look at, and two for papers, which stay sharp."""

COLUMN_IN = 3.5
PAGE_IN = 7.0
"""The widths of one and of both columns of a paper."""

# Okabe and Ito's colours; their yellow cannot be read on white.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY = COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#555555",
)
_MOST_TICKS = 6
_LINES: tuple[Any, ...] = (
    "-",
    "--",
    ":",
    "-.",
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
)
_STYLE: Any = {
    **dict.fromkeys(
        ("font.size", "axes.titlesize", "axes.labelsize", "legend.fontsize"), 8
    ),
    **dict.fromkeys(
        ("xtick.labelsize", "ytick.labelsize", "figure.titlesize"), 8
    ),
    **dict.fromkeys(
        ("axes.spines.top", "axes.spines.right", "legend.frameon"), False
    ),
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "savefig.dpi": 200,
    # Publishers want TrueType; text in an SVG stays text.
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
}


def save(
    draw: Callable[[], Figure],
    plot: Path,
    note: str = "",
) -> list[Path]:
    """Draw in this style and write in all formats; ``plot`` is the path without its suffix.

    A ``note``, as of an interruption, stands above the figure.
    """
    files = [plot.with_name(f"{plot.name}.{suffix}") for suffix in FORMATS]
    with mpl.rc_context(_STYLE):
        figure = draw()
        if note:
            figure.suptitle(
                note,
                color=VERMILION,
                weight="bold",
            )
        for file in files:
            figure.savefig(file)
            # Laid out once, for all formats: doing it again costs as much as drawing.
            figure.set_layout_engine(None)
    return files


def new(height_in: float, width_in: float = PAGE_IN) -> Figure:
    """An empty figure, both columns wide or one."""
    return Figure(
        figsize=(width_in, height_in),
        layout="constrained",
    )


def look(number: int) -> dict[str, Any]:
    """Colour and line style of a curve; 42 differ, and without colours the first six."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": _LINES[number % len(_LINES)],
    }


def legend(figure: Figure, columns: int = 4) -> None:
    """One legend under the figure with each label of its axes once."""
    found: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, label in zip(
            *axis.get_legend_handles_labels(), strict=True
        ):
            found.setdefault(label, handle)
    if found:
        columns = min(columns, len(found))
        figure.legend(
            found.values(),
            found.keys(),
            loc="outside lower center",
            ncols=columns,
        )


Curve = Sequence[NDArray[np.float64]]


def merged(curves: Mapping[str, Curve]) -> list[tuple[list[str], Curve]]:
    """The curves that differ, each with the names of all that are equal to it."""
    groups: list[tuple[list[str], Curve]] = []
    for name, curve in curves.items():
        for names, other in groups:
            if all(
                np.array_equal(a, b) for a, b in zip(curve, other, strict=True)
            ):
                names.append(name)
                break
        else:
            groups.append(([name], curve))
    return groups


def label(names: Sequence[str], of: int) -> str:
    """The label of a curve that stands for all these, ``of`` so many."""
    return (
        f"all {of} runs are equal"
        if len(names) == of > 1
        else "\n= ".join(names)
    )


def time_unit(longest_s: float) -> tuple[float, str]:
    """The unit that suits times up to ``longest_s``: its length in seconds, and its name."""
    for most_s, unit_s, name in (
        (180, 1, "s"),
        (10_800, 60, "min"),
        (345_600, 3600, "h"),
    ):
        if longest_s <= most_s:
            return unit_s, name
    return 86_400, "days"


def log_time_axis(axis: Axes) -> None:
    """A logarithmic time axis that fits the curves, with seconds, minutes, hours and days.

    Its first part, for the shortest twentieth of the times above 0, is linear.
    """
    times = np.concatenate([line.get_xdata() for line in axis.lines])
    positive = times[times > 0]
    linear_s = float(np.percentile(positive, 5)) if positive.size else 1.0
    right = 1.1 * float(times.max()) or 1.0
    axis.set_xscale("symlog", linthresh=linear_s)
    ticks: dict[float, str] = {}
    for unit_s, unit, counts in (
        (1, "s", (1, 2, 5, 10, 30)),
        (60, "min", (1, 2, 5, 10, 30)),
        (3600, "h", (1, 2, 5, 12)),
        (86_400, "d", (1, 2, 7, 30, 100)),
    ):
        ticks |= {float(n * unit_s): f"{n} {unit}" for n in counts}
    inside = [at for at in ticks if linear_s <= at <= right]
    shown = inside[:: -(-len(inside) // _MOST_TICKS) or 1]
    axis.set_xticks([0, *shown], ["0", *(ticks[at] for at in shown)])
    axis.minorticks_off()
    axis.set_xlim(0, right)
