"""Draws a lab: servers below, circuit switches in the middle, packet switches on top.

Circuits have the colour of the packet switch they lead to; unused fibres are grey; one-way circuits
are dashed with an arrow.
"""

from collections.abc import Collection, Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path as Curve

from patchlight.testbed.draw.drawing_layout import Box, DrawingLayout
from patchlight.testbed.lab.model import Endpoint, Host, Lab
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from patchlight.testbed.lab.wiring import LightPath, Links, trace_links
from patchlight.testbed.units import format_rate

FORMATS = ("svg", "png", "pdf")
# Okabe and Ito's colours, distinguishable with colour blindness.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_INK = "#222222"
_DARK = "#c4c4c4"
_PAPER = "#f7f7f5"
_NO_SWITCH = "#6a3d9a"
_LARGEST_IN = 40.0
_Point = tuple[float, float]


def draw_lab(lab: Lab, maps: Mapping[str, PortMap]) -> Figure:
    """The picture of a lab with these port maps; save it with ``figure.savefig``."""
    return _Drawing(lab, maps).figure


class _Drawing:
    def __init__(self, lab: Lab, maps: Mapping[str, PortMap]) -> None:
        self.lab = lab
        self.maps = maps
        self.links: Links = trace_links(lab, maps)
        self.layout = DrawingLayout(lab)
        self.colour_of_switch = self._switch_colours()
        self.colour_at: dict[Endpoint, str] = {}
        self.one_way: set[Endpoint] = set()
        margin = 0.5
        head = 0.85
        foot = 0.65
        width = self.layout.width + 2 * margin
        height = self.layout.height + head + foot
        shrink = min(1.0, _LARGEST_IN / width)
        self.figure = Figure(
            figsize=(max(4.0, width * shrink), max(2.5, height * shrink)),
            dpi=150,
        )
        self.axes = self.figure.add_axes((0.0, 0.0, 1.0, 1.0))
        self.axes.set_xlim(-margin, self.layout.width + margin)
        self.axes.set_ylim(-foot, self.layout.height + head)
        self.axes.set_axis_off()
        self._light()
        self._draw_fibres()
        self._draw_boxes()
        self._draw_circuits()
        self._draw_ports()
        self._draw_legend(-foot)

    def _switch_colours(self) -> dict[str, str]:
        near = {
            self.links.switch_of(self.lab, host.endpoint)
            for host in self.lab.hosts
        }
        fibred = {end.device for f in self.lab.fibres for end in (f.a, f.b)}
        # With an OCS any of them may get hosts later; the colour must not change then.
        near |= (
            fibred if self.lab.circuit_switches or self.lab.sorting else set()
        )
        names = [
            switch.name
            for switch in self.lab.packet_switches
            if switch.name in near
        ]
        colours = {
            name: _COLOURS[n % len(_COLOURS)] for n, name in enumerate(names)
        }
        return {
            s.name: colours.get(s.name, _INK) for s in self.lab.packet_switches
        }

    def _light(self) -> None:
        for source, path in self.links.paths.items():
            both_ways = self.links.peer(source) is not None
            colour = self._colour_of(path)
            for end in _passed(path):
                self.colour_at.setdefault(end, colour)
                if not both_ways:
                    self.one_way.add(end)

    def _colour_of(self, path: LightPath) -> str:
        ends = (path.source.device, path.sink.device)
        switches = [name for name in ends if name in self.colour_of_switch]
        if len(switches) == 1:
            return self.colour_of_switch[switches[0]]
        return _INK if switches else _NO_SWITCH

    def _draw_fibres(self) -> None:
        bold, thin = (1.8, 1.0) if self.layout.detailed else (0.5, 0.4)
        for fibre in self.lab.fibres:
            a = self.layout.points[fibre.a]
            b = self.layout.points[fibre.b]
            colour = self.colour_at.get(fibre.a, _DARK)
            lit = colour != _DARK
            style = "--" if {fibre.a, fibre.b} & self.one_way else "-"
            rows = {
                self.layout.boxes[end.device].y for end in (fibre.a, fibre.b)
            }
            beside = len(rows) == 1
            # A link within a row is drawn over the boxes between its ends.
            lift = 0.3 + 0.05 * abs(a[0] - b[0]) if beside else 0.0
            curve = _curve(a, b, lift)
            self._stroke(
                curve,
                colour,
                bold if lit else thin,
                style,
                z=2.0 if lit else 1.0,
            )
            if beside and self.layout.detailed and fibre.rate_bps is not None:
                x = (a[0] + b[0]) / 2
                y = max(a[1], b[1]) + lift * 0.75
                self._text(
                    x,
                    y + 0.05,
                    format_rate(fibre.rate_bps),
                    8,
                    va="bottom",
                )

    def _draw_boxes(self) -> None:
        for server in self.lab.servers:
            self._box(self.layout.boxes[server.name], _PAPER, _INK)
        for ocs in self.lab.circuit_switches:
            box = self.layout.boxes[ocs.name]
            self._box(box, "#ffffff", _INK)
            self._text(
                box.x + 0.08,
                box.y + box.height / 2,
                ocs.name,
                11,
                ha="left",
                bold=True,
            )
            under = box.y + box.height / 2 - 0.22
            self._text(
                box.x + 0.08,
                under,
                ocs.driver,
                7,
                ha="left",
            )
        for device in self.lab.sorting:
            box = self.layout.boxes[device.name]
            self._box(box, "#ffffff", _INK)
            middle = box.y + box.height / 2
            self._text(
                box.x + 0.08,
                middle,
                device.name,
                11,
                ha="left",
                bold=True,
            )
        for switch in self.lab.packet_switches:
            box = self.layout.boxes[switch.name]
            colour = self.colour_of_switch[switch.name]
            self._box(box, colour, colour)
            size = 11 if self.layout.detailed else 5
            middle = box.y + box.height / 2
            self._text(
                box.centre,
                middle,
                switch.name,
                size,
                color="white",
                bold=True,
            )
        for host in self.lab.hosts:
            self._draw_host(host)
        if self.layout.detailed:
            for server in self.lab.servers:
                box = self.layout.boxes[server.name]
                self._text(
                    box.centre,
                    box.y - 0.06,
                    server.name,
                    10,
                    va="top",
                    bold=True,
                )

    def _draw_host(self, host: Host) -> None:
        x, top = self.layout.points[host.endpoint]
        box = self.layout.boxes[host.server.name]
        colour = self.colour_at.get(host.endpoint, _DARK)
        inset = self.layout.slot * 0.06
        width = self.layout.slot * 0.88
        inner = Box(
            "",
            x - width / 2,
            box.y + inset,
            width,
            box.height - 2 * inset,
        )
        self._box(
            inner,
            "white",
            colour,
            rounding=0.04,
        )
        if not self.layout.detailed:
            return
        if host.gpu is not None:
            self._text(
                x,
                top - 0.34,
                host.gpu.name,
                9,
                bold=True,
            )
            self._text(
                x,
                top - 0.52,
                host.gpu.model,
                8,
            )
        self._text(
            x,
            top - 0.76,
            f"{host.nic.name}  {host.nic.address}",
            6.5,
            color="#555555",
        )

    def _draw_circuits(self) -> None:
        width = 2.2 if self.layout.detailed else 0.6
        joined: dict[str, Collection[CrossConnect]] = {
            wss.name: {way.ports for way in wss.initial}
            for wss in self.lab.wavelength_switches
        }
        joined |= {name: set(port_map) for name, port_map in self.maps.items()}
        for name, port_map in joined.items():
            for circuit in port_map:
                a = Endpoint(name, str(circuit.inp))
                b = Endpoint(name, str(circuit.out))
                if a not in self.layout.points or b not in self.layout.points:
                    continue
                duplex = circuit.reverse in port_map
                if duplex and circuit.inp > circuit.out:
                    continue
                colour = self.colour_at.get(a, self.colour_at.get(b, _DARK))
                box = self.layout.boxes[name]
                start = self.layout.points[a]
                # A curve between ports on one side stays inside the OCS.
                inward = 1 if start[1] == box.y else -1
                curve = _curve(
                    start, self.layout.points[b], inward * 0.6 * box.height
                )
                style, arrow = ("-", "-") if duplex else ("--", "-|>")
                self._stroke(
                    curve,
                    colour,
                    width,
                    style,
                    z=4.0,
                    arrow=arrow,
                )

    def _draw_ports(self) -> None:
        if not self.layout.detailed:
            return
        circuit = {
            ocs.name for ocs in (*self.lab.circuit_switches, *self.lab.sorting)
        }
        packet = {switch.name for switch in self.lab.packet_switches}
        for end, (x, y) in self.layout.points.items():
            colour = self.colour_at.get(end, _DARK)
            self.axes.plot(
                [x],
                [y],
                "o",
                markersize=4,
                color=colour,
                zorder=5.0,
            )
            if end.device in circuit | packet:
                box = self.layout.boxes[end.device]
                inward = 0.11 if y <= box.y else -0.11
                ink = "white" if end.device in packet else "#555555"
                aside = 0.1 if end.device in circuit else 0
                self._text(
                    x + aside,
                    y + inward,
                    end.port,
                    6,
                    color=ink,
                )

    def _draw_legend(self, bottom: float) -> None:
        named = (
            self.colour_of_switch
            if len(self.colour_of_switch) <= len(_COLOURS)
            else {}
        )
        handles = [
            Line2D(
                [],
                [],
                color=colour,
                linewidth=2,
                label=f"connected to {name}",
            )
            for name, colour in named.items()
            if colour != _INK
        ]
        if any(f.a not in self.colour_at for f in self.lab.fibres):
            handles.append(
                Line2D(
                    [],
                    [],
                    color=_DARK,
                    linewidth=1,
                    label="unused fibre",
                )
            )
        if self.one_way:
            handles.append(
                Line2D(
                    [],
                    [],
                    color=_INK,
                    linestyle="--",
                    label="one-way circuit",
                )
            )
        top = self.layout.height + 0.68
        self._text(
            0.0,
            top,
            self.lab.name,
            13,
            ha="left",
            va="top",
            bold=True,
        )
        if handles:
            self.axes.legend(
                handles=handles,
                loc="lower right",
                bbox_to_anchor=(self.layout.width, bottom),
                bbox_transform=self.axes.transData,
                ncols=len(handles),
                frameon=False,
                fontsize=8,
                borderpad=0,
            )

    def _box(
        self,
        box: Box,
        fill: str,
        edge: str,
        rounding: float = 0.06,
    ) -> None:
        shape = f"round,pad=0,rounding_size={min(rounding, box.height / 4)}"
        corner = (box.x, box.y)
        width = 1.1 if self.layout.detailed else 0.5
        patch = FancyBboxPatch(
            corner,
            box.width,
            box.height,
            shape,
            zorder=3.0,
        )
        patch.set(
            facecolor=fill,
            edgecolor=edge,
            linewidth=width,
        )
        self.axes.add_patch(patch)

    def _stroke(
        self,
        curve: Curve,
        colour: str,
        width: float,
        style: str,
        z: float,
        arrow: str = "-",
    ) -> None:
        line = FancyArrowPatch(
            path=curve,
            arrowstyle=arrow,
            mutation_scale=10,
            fill=False,
        )
        line.set(
            color=colour,
            linewidth=width,
            linestyle=style,
            zorder=z,
        )
        self.axes.add_patch(line)

    def _text(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        *,
        bold: bool = False,
        **style: Any,
    ) -> None:
        style = {
            "color": _INK,
            "ha": "center",
            "va": "center",
            **style,
        }
        weight = "bold" if bold else "normal"
        drawn = self.axes.text(
            x,
            y,
            text,
            fontsize=size,
            fontweight=weight,
            **style,
        )
        drawn.set(
            zorder=6.0,
            parse_math=False,
        )


def _passed(path: LightPath) -> list[Endpoint]:
    inside = [
        Endpoint(name, str(port))
        for name, c in path.through
        for port in (c.inp, c.out)
    ]
    return [path.source, *inside, path.sink]


def _curve(
    a: _Point,
    b: _Point,
    lift: float,
) -> Curve:
    if a[1] == b[1] and lift:
        points = [
            a,
            (a[0], a[1] + lift),
            (b[0], b[1] + lift),
            b,
        ]
    elif a[0] == b[0] or not lift:
        return Curve([a, b])
    else:
        middle = (a[1] + b[1]) / 2
        points = [
            a,
            (a[0], middle),
            (b[0], middle),
            b,
        ]
    return Curve(
        points,
        [
            Curve.MOVETO,
            Curve.CURVE4,
            Curve.CURVE4,
            Curve.CURVE4,
        ],
    )
