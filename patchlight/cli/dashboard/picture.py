"""Draws a lab as layers of named shapes; only changed shapes are sent to a browser.

The lowest layer is the lab, which never changes; above it are the circuits, then the measurements.
What can be clicked can also have the keyboard's focus.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from patchlight.cli.dashboard.lab_view import NO_JOB, Circuit, LabView
from patchlight.cli.dashboard.texts import rate
from patchlight.testbed.draw.drawing_layout import Box, DrawingLayout
from patchlight.testbed.lab.model import Endpoint, Fibre, Host, Lab
from patchlight.testbed.lab.optical_links import Signal

Look: TypeAlias = dict[str, str | float]
Shape: TypeAlias = "tuple[str, Mapping[str, str | float], str | list[Shape]]"
"""An SVG element as a plain value: its tag, its attributes, and its text or children."""
Shapes = dict[str, Shape]
"""A layer: shapes by name; a shape keeps its name over time."""

_INCH = 96.0
_WIDE_IN = 12.0
# The widths that a picture has on a desk, a tablet and a phone, in pixels.
_BESIDE_CARDS = 992
_DESK = 1408
_TABLET = 788
_PHONE = 374
_LEAST_TEXT = 8.5  # pixels; smaller texts are hidden
_NAME = 10.5  # pixels
_LETTER = 0.6  # width of a bold letter, of its height
_MARGIN = 0.3
_Point = tuple[float, float]
SIGNS = {
    "dark": "✕",
    "degraded": "!",
    "drifting": "?",
    "changing": "~",
}
_MOST_SIGNALS = 8  # signals named per fibre
PADLOCK = "M-6 0h12v9h-12zM-4 0v-3a4 4 0 0 1 8 0v3"

STYLE = """
.pl-picture { position: relative; width: 100%; }
.pl-picture svg { display: block; width: 100%; height: auto; }
.pl-scroll { width: 100%; overflow-x: auto; }
.pl-frame { --pl-name: var(--pl-name0); --pl-text: var(--pl-text0); width: var(--pl-zoom, 100%); }
.pl-frame text { font-size: var(--pl-text); }
.pl-frame text[font-weight] { font-size: var(--pl-name); }
.pl-names text { paint-order: stroke; stroke: var(--pl-paper); stroke-width: 0.3em; }
.pl-names text[text-anchor="middle"] { stroke: none; }
@media (max-width: 1099px) {
  .pl-frame { --pl-name: var(--pl-name1); --pl-text: var(--pl-text1); }
}
@media (max-width: 599px) {
  .pl-frame { --pl-name: var(--pl-name2); --pl-text: var(--pl-text2); }
}
.pl-picture .pl-over { position: absolute; inset: 0; pointer-events: none; }
.pl-picture .pl-over [data-device] { pointer-events: auto; cursor: pointer; }
.pl-picture text { font-family: inherit; fill: var(--pl-ink); }
.pl-picture [tabindex] { cursor: pointer; outline: none; }
.pl-picture [tabindex]:focus-visible > rect:first-of-type { stroke: #1976d2; stroke-width: 4; }
.pl-picture .pl-box { fill: var(--pl-paper); stroke: var(--pl-ink); }
.pl-picture .pl-host { fill: var(--pl-page); stroke: var(--pl-faint); }
.pl-picture .pl-fibre { stroke: var(--pl-faint); fill: none; }
.pl-picture .pl-small { fill: var(--pl-quiet); }
.pl-picture .pl-light { fill: none; }
.pl-picture .pl-bad { stroke: #d32f2f; fill: none; stroke-width: 4; }
.pl-picture .pl-dark { stroke: #d32f2f; stroke-dasharray: 3 5; }
.pl-picture .pl-drifting { stroke-dasharray: 9 4; }
.pl-picture .pl-degraded { stroke-dasharray: 14 3; }
.pl-picture .pl-changing { stroke-dasharray: 8 8; animation: pl-moves 0.6s linear infinite; }
.pl-picture .pl-lock { fill: var(--pl-page); stroke: var(--pl-ink); stroke-width: 2; }
.pl-picture .pl-busy { fill: var(--pl-busy); }
.pl-key { display: grid; gap: 0.25rem 1rem;
  grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); }
.pl-key .pl-picture { width: 32px; flex-shrink: 0; }
@keyframes pl-moves { to { stroke-dashoffset: -16; } }
@media (prefers-reduced-motion: reduce) { .pl-picture .pl-changing { animation: none; } }
"""


class Measured(NamedTuple):
    """The latest measurements of a host: bits per second, and GPU utilisation."""

    sends_bps: float | None = None
    busy: float | None = None


class Picture:
    """Draws the layers of one lab; ``layout`` has the positions."""

    def __init__(self, lab: Lab, layout: DrawingLayout) -> None:
        self._lab = lab
        self._layout = layout
        self._width = (layout.width + 2 * _MARGIN) * _INCH
        # Links within a row are above its boxes; the servers' names are below the lowest row.
        lifts = [
            _lift(*(layout.points[end] for end in (f.a, f.b)))
            for f in lab.fibres
        ]
        self._top = max([_MARGIN, *(0.75 * lift + 0.1 for lift in lifts)])
        self._height = (layout.height + self._top + 1.7 * _MARGIN) * _INCH

    @property
    def size(self) -> str:
        """The picture's ``viewBox``."""
        return f"0 0 {self._width:.0f} {self._height:.0f}"

    @property
    def detailed(self) -> bool:
        """Whether hosts have labels."""
        return self._layout.detailed

    @property
    def wide(self) -> bool:
        """Whether it needs the whole width of a page."""
        return self._layout.width > _WIDE_IN

    @property
    def text_sizes(self) -> str:
        """CSS variables: the sizes of names and of other texts on a desk, a tablet and a phone.

        Texts that would be too small to read are hidden.
        """
        found = []
        for number, scale in enumerate(self._scales):
            name = min(
                self._room, max(_NAME / scale, 16 if self.detailed else 8)
            )
            small = 13.0 if 13 * scale >= _LEAST_TEXT else 0.0
            if not self.detailed:
                small = 0.0 if number else _NAME / scale
            found.append(
                f"--pl-name{number}: {name:.1f}px; --pl-text{number}: {small:.1f}px"
            )
        return "; ".join(found)

    @property
    def _scales(self) -> list[float]:
        """Pixels for a unit of the picture, on a desk, a tablet and a phone."""
        desk = _DESK if self.wide else _BESIDE_CARDS
        return [pixels / self._width for pixels in (desk, _TABLET, _PHONE)]

    @property
    def _room(self) -> float:
        """The size at which no name is longer than its place; infinite without names."""
        gap = self._layout.sizes.gap
        sizes = [
            _INCH * (box.width + gap) / _LETTER / len(name)
            for name, box in self._layout.boxes.items()
            if self._layout.detailed or box.y > 0
        ]
        return min(sizes, default=math.inf)

    # -- layers --------------------------------------------------------------------------------

    def still(self) -> Shapes:
        """The constant part: boxes with their names, fibres, ports."""
        lines = (self._between(f.a, f.b) for f in self._lab.fibres)
        fibres = [
            shape(
                "path",
                "",
                css="pl-fibre",
                d=line,
            )
            for line in lines
        ]
        drawn = {"fibres": shape("g", fibres)}
        hosts: dict[str, list[Host]] = {}
        for host in self._lab.hosts:
            hosts.setdefault(host.server.name, []).append(host)
        for server in self._lab.servers:
            inside = [
                each
                for h in hosts.get(server.name, ())
                for each in self._host(h)
            ]
            drawn[server.name] = self._device(server.name, "server", inside)
        return drawn | {
            name: self._device(name, kind)
            for name, kind in self._kinds.items()
        }

    def names(self) -> Shapes:
        """The names of devices, above all lines. In a large lab some servers have none."""
        drawn = {
            name: shape("g", self._name(name, kind))
            for name, kind in self._kinds.items()
        }
        servers = self._lab.servers
        every = 1
        if not self.detailed and servers:
            longest = max(len(server.name) for server in servers)
            name_in = longest * _LETTER * _NAME / self._scales[0] / _INCH
            every = math.ceil(name_in * len(servers) / self._layout.width)
        for server in servers[::every]:
            box = self._layout.boxes[server.name]
            x, y = self._at((box.centre, box.y - 0.05))
            label = text(
                x,
                y,
                server.name,
                16,
                bold=self.detailed,
                hanging=True,
            )
            drawn[server.name] = shape("g", [label])
        return drawn

    def light(self, view: LabView) -> Shapes:
        """Circuits and links in their jobs' colours, with faults marked."""
        lit = (
            self._lit_by_channels(view)
            if self._lab.coloured
            else self._lit_by_paths(view)
        )
        drawn = {
            f"{f.a} {f.b}": self._lit_fibre(f, *lit[end])
            for f in self._lab.fibres
            if (end := f.a if f.a in lit else f.b) in lit
        }
        for group in _by_ports(view):
            name = group[0].ocs
            ports = group[0].ports
            a, b = (
                Endpoint(name, str(port)) for port in (ports.inp, ports.out)
            )
            if a in self._layout.points and b in self._layout.points:
                drawn[f"{name} {ports.inp}>{ports.out}"] = self._circuits(
                    group,
                    a,
                    b,
                    view,
                )
        for name, words in view.silent.items():
            if box := self._layout.boxes.get(name):
                bad = shape(
                    "rect",
                    "",
                    css="pl-bad",
                    rx=6,
                    **self._place(box),
                )
                drawn[name] = about(
                    f"{name} {words}",
                    name,
                    [bad],
                    silent=name,
                )
        return drawn

    def meters(
        self, view: LabView, measured: Mapping[str, Measured]
    ) -> Shapes:
        """Hosts in their jobs' colours, with GPU utilisation and rates."""
        return {
            h.name: self._meter(h, view, measured) for h in self._lab.hosts
        }

    # -- parts ---------------------------------------------------------------------------------

    def _lit_by_paths(self, view: LabView) -> dict[Endpoint, tuple[str, str]]:
        """The colour of the path at a fibre's end, and a text about it."""
        lit: dict[Endpoint, tuple[str, str]] = {}
        for path in view.links.paths.values():
            job = view.job_of_path(path)
            colour = view.colours.get(job, NO_JOB)
            words = f"{path.source} to {path.sink}"
            words += (
                "" if path.rate_bps is None else f", {rate(path.rate_bps)}"
            )
            words += f", used by {job}" if job else ""
            for end in (path.source, path.sink):
                lit.setdefault(end, (colour, words))
            for ocs, passed in path.through:
                for port in (passed.inp, passed.out):
                    lit.setdefault(Endpoint(ocs, str(port)), (colour, words))
        return lit

    def _lit_by_channels(
        self, view: LabView
    ) -> dict[Endpoint, tuple[str, str]]:
        """The same by fibre end in labs with wavelengths, with several signals on a fibre."""
        lit = {}
        for fibre in self._lab.fibres:
            there = view.signals_at(fibre.b)
            back = view.signals_at(fibre.a)
            if there or back:
                colour = view.colours.get(
                    view.job_of_signals([*there, *back]), NO_JOB
                )
                ways = ((f"to {fibre.b}", there), (f"to {fibre.a}", back))
                words = "; ".join(
                    f"{way} {_signals(found)}" for way, found in ways if found
                )
                lit[fibre.a] = (colour, words)
        return lit

    @property
    def _kinds(self) -> dict[str, str]:
        """The kind of each device but servers."""
        lab = self._lab
        kinds = {ocs.name: "circuit switch" for ocs in lab.circuit_switches}
        kinds |= {
            wss.name: "wavelength switch" for wss in lab.wavelength_switches
        }
        kinds |= {part.name: part.kind for part in lab.passive_parts}
        return kinds | {
            switch.name: "packet switch" for switch in lab.packet_switches
        }

    def _name(self, name: str, kind: str) -> list[Shape]:
        """The name of a device in its box, and its kind below."""
        box = self._layout.boxes[name]
        x, y = self._at((box.x, box.y + box.height))
        x += 8
        y += {
            "circuit switch": 8,
            "wavelength switch": box.height * _INCH - 42,
        }.get(kind, box.height * _INCH / 2 - 12)
        anchor = "start"
        if kind == "packet switch":
            x = self._at((box.centre, 0))[0]
            anchor = "middle"
        label = text(
            x,
            y,
            name,
            16,
            anchor=anchor,
            bold=True,
            hanging=True,
        )
        if not self.detailed:
            return [label]
        about_it = text(
            x,
            y + 19,
            kind,
            13,
            anchor=anchor,
            quiet=True,
            hanging=True,
        )
        return [label, about_it]

    def _device(
        self,
        name: str,
        kind: str,
        inside: Iterable[Shape] = (),
    ) -> Shape:
        box = self._layout.boxes[name]
        drawn = shape(
            "rect",
            "",
            css="pl-box",
            rx=6,
            **self._place(box),
        )
        what = {
            "role": "button",
            "aria_label": f"{name}, {kind}",
            "data_device": name,
        }
        return shape(
            "g",
            [drawn, *inside],
            tabindex=0,
            **what,
        )

    def _host(self, host: Host) -> list[Shape]:
        box = self._host_box(host)
        parts = [
            shape(
                "rect",
                "",
                css="pl-host",
                rx=4,
                **self._place(box),
            )
        ]
        if not self._layout.detailed:
            return parts
        x, y = self._at((box.centre, box.y + box.height))
        if host.gpu is not None:
            parts.append(
                text(
                    x,
                    y + 33,
                    host.gpu.name,
                    14,
                    bold=True,
                )
            )
            parts.append(
                text(
                    x,
                    y + 49,
                    cut(host.gpu.model, box.width * _INCH, 13),
                    13,
                    quiet=True,
                )
            )
        sends = host.nic.transceiver
        nic = (
            f"{host.nic.name} {sends.channel} THz"
            if sends is not None
            else host.nic.name
        )
        return [
            *parts,
            text(
                x,
                y + 16,
                cut(nic, box.width * _INCH, 13),
                13,
                quiet=True,
            ),
        ]

    def _host_box(self, host: Host) -> Box:
        x, _ = self._layout.points[host.endpoint]
        box = self._layout.boxes[host.server.name]
        slot = self._layout.slot
        inset = slot * 0.06
        return Box(
            "",
            x - slot * 0.44,
            box.y + inset,
            slot * 0.88,
            box.height - 2 * inset,
        )

    def _meter(
        self,
        host: Host,
        view: LabView,
        measured: Mapping[str, Measured],
    ) -> Shape:
        box = self._host_box(host)
        job = view.job_of_host.get(host.name, "")
        seen = measured.get(host.name, Measured())
        parts = list[Shape]()
        if job:
            colour = view.colours.get(job, NO_JOB)
            look: Look = {
                "fill": colour,
                "stroke": colour,
                "stroke_width": 2.5,
            }
            look["fill_opacity"] = 0.16
            parts.append(
                shape(
                    "rect",
                    "",
                    rx=4,
                    **look,
                    **self._place(box),
                )
            )
        words = f"{host.name}: {f'in {job}' if job else 'free'}"
        if seen.busy is not None:
            words += f", busy {seen.busy:.0%}".replace("%", " %")
            x, y = self._at((box.x + 0.04, box.y + 0.02))
            width = max(0.0, min(1.0, seen.busy)) * (box.width - 0.08) * _INCH
            height = 5 if self._layout.detailed else 2
            size = {"width": tenths(width), "height": height}
            place = {"x": tenths(x), "y": tenths(y - height)}
            parts.append(
                shape(
                    "rect",
                    "",
                    css="pl-busy",
                    **place,
                    **size,
                )
            )
        if reason := view.without_link.get(host.name):
            words += f", no link: {reason}"
            parts.append(
                shape(
                    "rect",
                    "",
                    css="pl-bad",
                    rx=4,
                    **self._place(box),
                )
            )
        if seen.sends_bps is not None:
            sends = rate(seen.sends_bps)
            words += f", {host.nic.name} sends {sends}"
            if self._layout.detailed:
                x, y = self._at((box.centre, box.y + 0.16))
                parts.append(
                    text(
                        x,
                        y,
                        sends,
                        13,
                    )
                )
        return about(
            words,
            host.server.name,
            parts,
            host=host.name,
        )

    def _circuits(
        self,
        group: list[Circuit],
        a: Endpoint,
        b: Endpoint,
        view: LabView,
    ) -> Shape:
        worst = group[0]
        box = self._layout.boxes[worst.ocs]
        start = self._layout.points[a]
        end = self._layout.points[b]
        # A curve between ports on one side stays inside the switch.
        inward = 0.6 * box.height * (1 if start[1] == box.y else -1)
        jobs = {circuit.job for circuit in group} - {""}
        colour = view.colours.get(jobs.pop() if len(jobs) == 1 else "", NO_JOB)
        line = self._curve(start, end, inward)
        css = f"pl-light pl-{worst.condition}"
        parts = [
            shape(
                "path",
                "",
                css=css,
                d=line,
                stroke=colour,
                stroke_width=self._bold,
            )
        ]
        x, y = self._at(((start[0] + end[0]) / 2, (start[1] + end[1]) / 2))
        if worst.condition == "locked":
            place = f"translate({x:.1f} {y:.1f})"
            parts.append(
                shape(
                    "path",
                    "",
                    css="pl-lock",
                    transform=place,
                    d=PADLOCK,
                )
            )
        if sign := SIGNS.get(worst.condition):
            parts.append(
                text(
                    x,
                    y + 5,
                    sign,
                    15 if self._layout.detailed else 8,
                    bold=True,
                )
            )
        if worst.channel and self._layout.detailed:
            parts.append(
                text(
                    x + 10,
                    y - 4,
                    channels_words(group),
                    11,
                    anchor="start",
                )
            )
        words = "\n".join(
            map(circuit_words, group if worst.channel else group[:1])
        )
        name = f"{worst.ocs} {worst.ports.inp}>{worst.ports.out}"
        return about(
            words,
            worst.ocs,
            parts,
            circuit=name,
        )

    @property
    def _bold(self) -> float:
        return 3.5 if self._layout.detailed else 1.2

    def _lit_fibre(
        self,
        fibre: Fibre,
        colour: str,
        words: str,
    ) -> Shape:
        look: Look = {"stroke": colour, "stroke_width": self._bold}
        line = shape(
            "path",
            "",
            css="pl-light",
            d=self._between(fibre.a, fibre.b),
            **look,
        )
        return about(
            f"{fibre.a} to {fibre.b}: {words}",
            fibre.b.device,
            [line],
            fibre="",
        )

    def _between(self, a: Endpoint, b: Endpoint) -> str:
        start = self._layout.points[a]
        end = self._layout.points[b]
        return self._curve(start, end, _lift(start, end))

    def _curve(
        self,
        a: _Point,
        b: _Point,
        lift: float,
    ) -> str:
        ax, ay = self._at(a)
        bx, by = self._at(b)
        if a[1] == b[1]:
            up = self._at((0.0, a[1] + lift))[1]
            return f"M{ax:.1f} {ay:.1f}C{ax:.1f} {up:.1f} {bx:.1f} {up:.1f} {bx:.1f} {by:.1f}"
        half = (ay + by) / 2
        return f"M{ax:.1f} {ay:.1f}C{ax:.1f} {half:.1f} {bx:.1f} {half:.1f} {bx:.1f} {by:.1f}"

    def _at(self, point: _Point) -> _Point:
        x, y = point
        return (x + _MARGIN) * _INCH, (
            self._layout.height + self._top - y
        ) * _INCH

    def _place(self, box: Box) -> dict[str, float]:
        x, y = self._at((box.x, box.y + box.height))
        width = tenths(box.width * _INCH)
        height = tenths(box.height * _INCH)
        return {
            "x": tenths(x),
            "y": tenths(y),
            "width": width,
            "height": height,
        }


def cut(
    words: str,
    width: float,
    size: float,
) -> str:
    """The text if it fits in ``width`` pixels, else its beginning."""
    most = int(width / (0.53 * size))
    return words if len(words) <= most else f"{words[: most - 1]}…"


def _lift(start: _Point, end: _Point) -> float:
    """How high a link within a row is drawn, so that it avoids the boxes between."""
    return 0.3 + 0.05 * abs(start[0] - end[0]) if start[1] == end[1] else 0.0


def circuit_words(circuit: Circuit) -> str:
    """A line about a circuit."""
    words = [f"{circuit.ocs} {circuit.ports}: {circuit.said}"]
    if circuit.source is not None:
        words.append(f"{circuit.source} to {circuit.sink}")
    if circuit.rate_bps is not None:
        words.append(rate(circuit.rate_bps))
    for power, where in ((circuit.in_dbm, "in"), (circuit.out_dbm, "out")):
        if power is not None:
            words.append(f"{power:.1f} dBm {where}")
    words += [f"used by {circuit.job}"] if circuit.job else []
    words += [circuit.words] if circuit.words else []
    return ", ".join(words)


def channels_words(circuits: Sequence[Circuit]) -> str:
    """The channel of these circuits, or their number."""
    channels = sorted({circuit.channel for circuit in circuits})
    return channels[0] if len(channels) == 1 else f"{len(channels)} channels"


def _signals(signals: Sequence[Signal]) -> str:
    more = (
        f" and {len(signals) - _MOST_SIGNALS} more"
        if len(signals) > _MOST_SIGNALS
        else ""
    )
    return ", ".join(map(str, signals[:_MOST_SIGNALS])) + more


def _by_ports(view: LabView) -> list[list[Circuit]]:
    order = ("dark", "degraded", "drifting", "locked", "changing", "up")
    found: dict[tuple[str, int, int], list[Circuit]] = {}
    for circuit in view.circuits:
        ports = sorted((circuit.ports.inp, circuit.ports.out))
        found.setdefault((circuit.ocs, ports[0], ports[1]), []).append(circuit)
    return [
        sorted(group, key=lambda c: order.index(c.condition))
        for group in found.values()
    ]


def about(
    words: str,
    device: str,
    parts: list[Shape],
    **name: str,
) -> Shape:
    """A group with a tooltip; clicking it opens a device."""
    named = {f"data_{kind}": its for kind, its in name.items()}
    return shape(
        "g",
        [shape("title", words), *parts],
        data_device=device,
        **named,
    )


def text(
    x: float,
    y: float,
    words: str,
    size: float,
    *,
    anchor: str = "middle",
    bold: bool = False,
    quiet: bool = False,
    upwards: bool = False,
    hanging: bool = False,
) -> Shape:
    """A text, ``size`` pixels high."""
    look: Look = {"font_size": size, "text_anchor": anchor}
    look |= {"font_weight": "bold"} if bold else {}
    look |= {"css": "pl-small"} if quiet else {}
    look |= {"dominant_baseline": "hanging"} if hanging else {}
    look |= (
        {"transform": f"rotate(-90 {tenths(x)} {tenths(y)})"}
        if upwards
        else {}
    )
    return shape(
        "text",
        words,
        x=tenths(x),
        y=tenths(y),
        **look,
    )


def shape(
    tag: str,
    inside: str | list[Shape],
    /,
    **attributes: str | float,
) -> Shape:
    """An element; ``css`` is its class, underscores in attributes become dashes."""
    named = {"css": "class"}
    return (
        tag,
        {named.get(n, n.replace("_", "-")): v for n, v in attributes.items()},
        inside,
    )


def tenths(pixels: float) -> float:
    """Rounded to the precision that a picture needs."""
    return round(pixels, 1)
