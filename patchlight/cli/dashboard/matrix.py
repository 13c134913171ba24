"""Draws the map of an optical switch as a matrix with a row per input and a column per output.

Rows and their circuits can be dragged to columns.
"""

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from patchlight.cli.dashboard import picture
from patchlight.cli.dashboard.lab_view import NO_JOB, Circuit, LabView
from patchlight.testbed.lab.model import Endpoint
from patchlight.testbed.lab.wavelengths import WavelengthSwitch
from patchlight.testbed.lab.wiring import parse_map
from patchlight.testbed.wire.rest.circuits import MapChangeAnswer

MOST_NAMED = 40
"""With more ports, names are hidden and dragging is disabled."""
_BAD = ("dark", "degraded", "drifting")
_CELL = 22.0
_NAMES = 112.0
_SMALL = 480.0
_SIZE = 13
_RANGE = re.compile(r"([0-9]{1,7})[-–]([0-9]{1,7})")

STYLE = """
.pl-matrix { touch-action: pan-y; user-select: none; }
.pl-matrix svg { display: block; width: 100%; height: auto; }
.pl-matrix text { font-family: inherit; fill: var(--pl-ink); }
.pl-matrix .pl-grid { stroke: var(--pl-faint); stroke-width: 0.5; }
.pl-matrix .pl-column > rect { fill: transparent; }
.pl-matrix [data-drag] { cursor: grab; touch-action: none; }
.pl-matrix .pl-column.pl-target > rect, .pl-matrix [data-drag].pl-dragged > .pl-row
  { fill: #1976d2; fill-opacity: 0.25; }
.pl-matrix .pl-row { fill: transparent; }
.pl-matrix .pl-dragged text { font-weight: bold; }
.pl-matrix .pl-bad-cell { stroke: #d32f2f; stroke-width: 2.5; }
.pl-matrix .pl-planned { fill: none; stroke: var(--pl-ink); stroke-width: 2;
  stroke-dasharray: 4 2; pointer-events: none; }
.pl-matrix .pl-going { stroke: var(--pl-ink); stroke-width: 2; pointer-events: none; }
.pl-drag-words { position: fixed; z-index: 9999; pointer-events: none; padding: 2px 8px;
  border-radius: 4px; background: #1f4e79; color: white; font-size: 13px; }
"""


class Sides(NamedTuple):
    """The shown inputs and outputs of a switch; ``of``: its number of ports."""

    inputs: list[int]
    outputs: list[int]
    of: int

    @property
    def are_named(self) -> bool:
        """Whether cells are large enough for names and dragging."""
        return max(len(self.inputs), len(self.outputs)) <= MOST_NAMED


def sides(
    view: LabView,
    name: str,
    wanted: str = "",
) -> Sides:
    """The ports of a switch with a fibre or a circuit; with ``wanted`` a selection.

    ``wanted`` has numbers, ranges like ``1-40``, names of connected ports or devices, also with
    ``*``, and ids of jobs; ports connected to these are included.
    """
    switch = view.lab.optical_switch(name)
    circuits = _circuits(view, name)
    if isinstance(switch, WavelengthSwitch):
        inputs = set(range(1, switch.inputs + 1))
        outputs = set(range(1, switch.outputs + 1))
    else:
        inputs = set(view.lab.circuit_fibres[name])
        inputs |= {
            port for c in circuits for port in (c.ports.inp, c.ports.out)
        }
        outputs = inputs
    count = len(inputs | outputs)
    if words := wanted.split():
        picked = {
            p
            for p in inputs | outputs
            if _is_meant(p, _leads_to(view, name, p), words)
        }
        picked |= {
            p
            for c in circuits
            if c.job in words
            for p in (c.ports.inp, c.ports.out)
        }
        ways = [(c.ports.inp, c.ports.out) for c in circuits]
        picked |= {p for way in ways if picked & {*way} for p in way}
        inputs = inputs & picked
        outputs = outputs & picked
    return Sides(sorted(inputs), sorted(outputs), count)


def _circuits(view: LabView, name: str) -> list[Circuit]:
    return [circuit for circuit in view.circuits if circuit.ocs == name]


def _is_meant(
    port: int,
    leads: str,
    words: Iterable[str],
) -> bool:
    names = (str(port), leads, leads.rpartition(".")[0])
    for word in words:
        if any(fnmatchcase(each, word) for each in names):
            return True
        if (ends := _RANGE.fullmatch(word)) and int(ends[1]) <= port <= int(
            ends[2]
        ):
            return True
    return False


def _leads_to(
    view: LabView,
    name: str,
    port: int,
) -> str:
    other = view.lab.fibre_ends.get(Endpoint(name, str(port)))
    return "" if other is None else str(other[0])


def matrix_size(shown: Sides) -> tuple[float, float]:
    """Width and height of the picture, in pixels."""
    if not shown.are_named:
        return _SMALL, _SMALL
    return _NAMES + _CELL * len(shown.outputs) + 1, _NAMES + _CELL * len(
        shown.inputs
    ) + 1


def draw_matrix(
    view: LabView,
    name: str,
    shown: Sides,
    planned: MapChangeAnswer | None = None,
) -> picture.Shapes:
    """The matrix of these ports; ``planned``: what a change would break and make."""
    row = {port: n for n, port in enumerate(shown.inputs)}
    column = {port: n for n, port in enumerate(shown.outputs)}
    cells: dict[tuple[int, int], list[Circuit]] = {}
    for circuit in _circuits(view, name):
        at = circuit.ports.inp, circuit.ports.out
        if at[0] in row and at[1] in column:
            cells.setdefault(at, []).append(circuit)
    if not shown.are_named:
        return _small(
            view,
            cells,
            row,
            column,
        )
    drawn = _columns(view, name, shown) | _rows(view, name, shown)
    for (inp, out), circuits in cells.items():
        drawn[f"{inp}>{out}"] = _cell(
            view,
            circuits,
            row[inp],
            column[out],
        )
    switch = view.lab.optical_switch(name)
    for key, css in (("breaks", "pl-going"), ("makes", "pl-planned")):
        for entry in parse_map(switch, getattr(planned, key, ())):
            if entry.inp in row and entry.out in column:
                x = _NAMES + _CELL * column[entry.out]
                y = _NAMES + _CELL * row[entry.inp]
                drawn[f"{key} {entry.inp}>{entry.out}"] = _mark(css, x, y)
    return drawn


def _columns(
    view: LabView,
    name: str,
    shown: Sides,
) -> picture.Shapes:
    drawn = {}
    height = _CELL * len(shown.inputs)
    for n, port in enumerate(shown.outputs):
        x = _NAMES + _CELL * n
        leads = _leads_to(view, name, port)
        words = f"{port} {leads}"
        parts = [
            picture.shape("title", f"output {words}"),
            picture.shape(
                "rect",
                "",
                x=x,
                y=0,
                width=_CELL,
                height=_NAMES + height,
            ),
            picture.shape(
                "line",
                "",
                css="pl-grid",
                x1=x,
                x2=x,
                y1=_NAMES,
                y2=_NAMES + height,
            ),
            picture.text(
                x + 16,
                _NAMES - 5,
                _cut(words),
                _SIZE,
                anchor="start",
                upwards=True,
            ),
        ]
        drawn[f"out {port}"] = picture.shape(
            "g",
            parts,
            css="pl-column",
            data_drop=port,
            data_to=f"out {words}",
        )
    return drawn


def _rows(
    view: LabView,
    name: str,
    shown: Sides,
) -> picture.Shapes:
    drawn = {}
    width = _CELL * len(shown.outputs)
    for n, port in enumerate(shown.inputs):
        y = _NAMES + _CELL * n
        words = f"{port} {_leads_to(view, name, port)}"
        parts = [
            picture.shape("title", f"input {words}"),
            picture.shape(
                "rect",
                "",
                css="pl-row",
                x=0,
                y=y,
                width=_NAMES,
                height=_CELL,
            ),
            picture.shape(
                "line",
                "",
                css="pl-grid",
                x1=_NAMES,
                x2=_NAMES + width,
                y1=y,
                y2=y,
            ),
            picture.text(
                _NAMES - 5,
                y + 16,
                _cut(words),
                _SIZE,
                anchor="end",
            ),
        ]
        drawn[f"in {port}"] = picture.shape(
            "g",
            parts,
            data_drag=port,
            data_name=f"in {words}",
        )
    return drawn


def _cut(words: str) -> str:
    return picture.cut(words, _NAMES - 5, _SIZE)


def _cell(
    view: LabView,
    circuits: list[Circuit],
    row: int,
    column: int,
) -> picture.Shape:
    worst = next((c for c in circuits if c.condition != "up"), circuits[0])
    x = _NAMES + _CELL * column + 3
    y = _NAMES + _CELL * row + 3
    look: picture.Look = (
        {"css": "pl-bad-cell"} if worst.condition in _BAD else {}
    )
    colour = view.colours.get(worst.job, NO_JOB)
    size = {"width": _CELL - 6, "height": _CELL - 6, "rx": 2}
    words = "\n".join(map(picture.circuit_words, circuits))
    parts = [
        picture.shape("title", words),
        picture.shape(
            "rect",
            "",
            x=x,
            y=y,
            fill=colour,
            **size,
            **look,
        ),
    ]
    sign = picture.SIGNS.get(
        worst.condition, "🔒" if worst.condition == "locked" else ""
    )
    if not sign and len(circuits) > 1:
        sign = str(len(circuits))
    if sign:
        parts.append(
            picture.text(
                x + 8,
                y + 13,
                sign,
                12,
                bold=True,
            )
        )
    inp = worst.ports.inp
    out = worst.ports.out
    name = f"in {inp}" + (
        f" {picture.channels_words(circuits)}" if worst.channel else ""
    )
    way: picture.Look = {
        "data_drag": inp,
        "data_drop": out,
        "data_entry": f"{inp}>{out}",
    }
    said: picture.Look = {
        "data_name": name,
        "data_to": f"out {out}",
        "data_out": f"free {inp}",
    }
    return picture.shape(
        "g",
        parts,
        **way,
        **said,
    )


def _mark(
    css: str,
    x: float,
    y: float,
) -> picture.Shape:
    if css == "pl-planned":
        return picture.shape(
            "rect",
            "",
            css=css,
            x=x + 2,
            y=y + 2,
            width=_CELL - 4,
            height=_CELL - 4,
            rx=2,
        )
    line = (
        f"M{x + 3} {y + 3}l{_CELL - 6}"
        f" {_CELL - 6}M{x + 3} {y + _CELL - 3}l{_CELL - 6} {6 - _CELL}"
    )
    return picture.shape(
        "path",
        "",
        css=css,
        d=line,
    )


def _small(
    view: LabView,
    cells: Mapping[tuple[int, int], list[Circuit]],
    row: Mapping[int, int],
    column: Mapping[int, int],
) -> picture.Shapes:
    """A large switch: a dot for each circuit, in one path per colour."""
    pitch = _SMALL / max(len(row), len(column))
    size = picture.tenths(max(2.0, pitch))
    paths: dict[str, str] = {}
    for (inp, out), circuits in cells.items():
        is_bad = any(circuit.condition in _BAD for circuit in circuits)
        colour = (
            "#d32f2f" if is_bad else view.colours.get(circuits[0].job, NO_JOB)
        )
        at = f"M{picture.tenths(column[out] * pitch)} {picture.tenths(row[inp] * pitch)}"
        paths[colour] = paths.get(colour, "") + f"{at}h{size}v{size}h-{size}z"
    frame: picture.Look = {"fill": "none", "width": _SMALL, "height": _SMALL}
    drawn = {
        "frame": picture.shape(
            "rect",
            "",
            css="pl-grid",
            x=0,
            y=0,
            **frame,
        )
    }
    return drawn | {
        colour: picture.shape(
            "path",
            "",
            fill=colour,
            d=d,
        )
        for colour, d in paths.items()
    }
