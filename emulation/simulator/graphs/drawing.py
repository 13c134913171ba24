"""Draws a computation graph, from the input down, column by column.

An operation is a box, the darker the more of the training step's time it takes. An edge to the
next row is a line; one over more rows goes around the boxes on the right.
"""

from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path as Curve

from patchlight.testbed.graphs.model import ComputationGraph
from patchlight.testbed.units import format_size

_BOX_WIDTH = 2.0
_BOX_HEIGHT = 0.34
_LANE = 2.15
_ROW = 0.52
_AROUND = 0.7  # room right of a column for edges that pass rows by
_INK = "#222222"
_EDGE = "#8a8a8a"
_HOT = (0.835, 0.369, 0.0)  # Okabe and Ito's vermilion
_LETTERS = 31
_Point = tuple[float, float]


@dataclass(
    frozen=True,
    slots=True,
)
class GraphLayout:
    """The column, row and lane of each operation by its index; ``lanes``, ``rows``: the most."""

    spots: tuple[tuple[int, int, int], ...]
    columns: int
    lanes: int
    rows: int


def lay_out_graph(graph: ComputationGraph) -> GraphLayout:
    """Rows by the longest way from an input, in as many columns as make a page of it. Pure."""
    ranks = [0] * len(graph.operations)
    for index in graph.order:
        ranks[index] = max(
            (ranks[parent] + 1 for parent in graph.parents[index]), default=0
        )
    lanes = [0] * len(graph.operations)
    taken: set[tuple[int, int]] = set()
    for index in graph.order:
        parents = graph.parents[index]
        lane = min((lanes[parent] for parent in parents), default=0)
        while (ranks[index], lane) in taken:
            lane += 1
        taken.add((ranks[index], lane))
        lanes[index] = lane
    depth = max(ranks) + 1
    width = max(lanes) + 1
    column_width = width * _LANE + _AROUND
    # So many columns that the picture is about as wide as it is high.
    columns = max(1, round((depth * _ROW / column_width) ** 0.5))
    rows = -(-depth // columns)
    spots = tuple(
        (rank // rows, rank % rows, lane)
        for rank, lane in zip(ranks, lanes, strict=True)
    )
    return GraphLayout(
        spots,
        -(-depth // rows),
        width,
        rows,
    )


def draw_graph(graph: ComputationGraph) -> Figure:
    """The picture of a graph; save it with ``figure.savefig``."""
    return _Drawing(graph).figure


class _Drawing:
    def __init__(self, graph: ComputationGraph) -> None:
        self.graph = graph
        self.layout = lay_out_graph(graph)
        self.column_width = self.layout.lanes * _LANE + _AROUND
        margin = 0.4
        head = 0.9
        width = max(5.0, self.layout.columns * self.column_width + margin)
        height = self.layout.rows * _ROW + 2 * margin + head
        self.figure = Figure(
            figsize=(width, height),
            dpi=110,
        )
        self.axes = self.figure.add_axes((0.0, 0.0, 1.0, 1.0))
        self.axes.set_xlim(-margin, width - margin)
        self.axes.set_ylim(-height + head, head)
        self.axes.set_axis_off()
        self._draw_edges()
        self._draw_operations()
        self._draw_head()

    def _at(self, index: int) -> _Point:
        """The middle of an operation's box."""
        column, row, lane = self.layout.spots[index]
        x = column * self.column_width + lane * _LANE + _BOX_WIDTH / 2
        return x, -row * _ROW - _BOX_HEIGHT / 2

    def _draw_operations(self) -> None:
        times = [o.forward_ms + o.backward_ms for o in self.graph.operations]
        longest = max(times) or 1.0
        for index, operation in enumerate(self.graph.operations):
            x, y = self._at(index)
            part = times[index] / longest
            corner = (x - _BOX_WIDTH / 2, y - _BOX_HEIGHT / 2)
            shape = "round,pad=0,rounding_size=0.06"
            box = FancyBboxPatch(
                corner,
                _BOX_WIDTH,
                _BOX_HEIGHT,
                shape,
                zorder=3.0,
            )
            fill = tuple(1 - part * (1 - channel) for channel in _HOT)
            border = 1.8 if index == self.graph.loss else 0.7
            box.set(
                facecolor=fill,
                edgecolor=_INK,
                linewidth=border,
            )
            self.axes.add_patch(box)
            name = operation.kind or operation.name
            self._text(
                x,
                y + 0.075,
                name if len(name) <= _LETTERS else name[: _LETTERS - 1] + "…",
            )
            details = (
                f"{operation.forward_ms:.3g} + {operation.backward_ms:.3g} ms"
            )
            details += f", {format_size(operation.activation_bytes)}"
            if operation.parameter_bytes:
                details += (
                    f", weights {format_size(operation.parameter_bytes)}"
                )
            self._text(
                x,
                y - 0.08,
                details,
                size=5.2,
            )

    def _draw_edges(self) -> None:
        for source, target in self.graph.edges:
            c1, r1, _ = self.layout.spots[source]
            c2, r2, _ = self.layout.spots[target]
            if c1 != c2:
                points = self._to_another_column(source, target)
            elif r2 == r1 + 1:
                a = self._at(source)
                b = self._at(target)
                points = [
                    (a[0], a[1] - _BOX_HEIGHT / 2),
                    (b[0], b[1] + _BOX_HEIGHT / 2),
                ]
            else:
                points = self._around(source, target, r2 - r1)
            curved = c1 == c2 and len(points) == 4
            codes = [
                Curve.MOVETO,
                *[Curve.CURVE4 if curved else Curve.LINETO]
                * (len(points) - 1),
            ]
            curve = Curve(points, codes)
            arrow = FancyArrowPatch(
                path=curve,
                arrowstyle="-|>",
                mutation_scale=6,
                fill=False,
            )
            arrow.set(
                color=_EDGE,
                linewidth=0.9,
                zorder=2.0,
            )
            self.axes.add_patch(arrow)

    def _around(
        self,
        source: int,
        target: int,
        span: int,
    ) -> list[_Point]:
        """Right of all boxes between, the further the longer the way."""
        a = self._at(source)
        b = self._at(target)
        x = max(a[0], b[0]) + _BOX_WIDTH / 2
        bow = x + min(0.12 + 0.08 * span, _AROUND)
        starts = (a[0] + _BOX_WIDTH / 2, a[1])
        ends = (b[0] + _BOX_WIDTH / 2, b[1])
        return [
            starts,
            (bow, a[1]),
            (bow, b[1]),
            ends,
        ]

    def _to_another_column(self, source: int, target: int) -> list[_Point]:
        """Under the columns, up left of the target's, and in from above."""
        a = self._at(source)
        b = self._at(target)
        column, row, _ = self.layout.spots[target]
        below = -self.layout.rows * _ROW
        channel = column * self.column_width - 0.15
        over = (
            b[1]
            + _BOX_HEIGHT / 2
            + (_ROW - _BOX_HEIGHT) * (0.6 if row else 0.9)
        )
        down = [(a[0], a[1] - _BOX_HEIGHT / 2), (a[0], below)]
        if self.layout.spots[source][1] != self.layout.rows - 1:
            right = (
                self.layout.spots[source][0] * self.column_width
                + self.column_width
                - 0.3
            )
            down = [
                (a[0] + _BOX_WIDTH / 2, a[1]),
                (right, a[1]),
                (right, below),
            ]
        return [
            *down,
            (channel, below),
            (channel, over),
            (b[0], over),
            (b[0], b[1] + _BOX_HEIGHT / 2),
        ]

    def _draw_head(self) -> None:
        graph = self.graph
        how = "measured" if graph.origin == "profiled" else "computed"
        how += f" on {graph.device}" if graph.device != "unknown" else ""
        how += f", batch {graph.batch}" if graph.batch else ""
        self._text(
            0.0,
            0.66,
            graph.name,
            size=13,
            ha="left",
            fontweight="bold",
        )
        self._text(
            0.0,
            0.44,
            how,
            size=7,
            ha="left",
        )
        totals = (
            f"{len(graph.operations)} operations: forward {graph.forward_ms:.3f} ms + backward "
            f"{graph.backward_ms:.3f} ms, activations {format_size(graph.activation_bytes)}, "
            f"weights {format_size(graph.parameter_bytes)}; the darker, the longer"
        )
        self._text(
            0.0,
            0.28,
            totals,
            size=7,
            ha="left",
        )

    def _text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 6.5,
        **style: Any,
    ) -> None:
        style = {
            "ha": "center",
            "va": "center",
            "color": _INK,
            **style,
        }
        drawn = self.axes.text(
            x,
            y,
            text,
            fontsize=size,
            **style,
        )
        drawn.set(
            zorder=6.0,
            parse_math=False,
        )
