"""The picture of a lab that lives: layers of shapes by name, and only those that differ are sent.

The lowest layer is the lab itself, which does not change; above it are the light, and what is
measured. Whatever a mouse can click there has the keyboard's focus, too.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from patchlight.cli.dashboard.lab_view import NO_JOB, Circuit, LabView
from patchlight.testbed.drawing_layout import Box, Layout
from patchlight.testbed.lab import Endpoint, Host, Lab
from patchlight.testbed.units import format_rate

_INCH = 96.0
_MARGIN = 0.3
_Point = tuple[float, float]
_Look: TypeAlias = dict[str, str | float]
Shape: TypeAlias = "tuple[str, Mapping[str, str | float], str | list[Shape]]"
"""An SVG element as a plain value: its tag, its attributes, and its text or what is inside."""
Shapes = dict[str, Shape]
"""A layer, by names: what is the same thing as before has the same name."""
_SIGNS = {"dark": "✕", "degraded": "!", "drifting": "?", "changing": "~"}
_PADLOCK = "M-6 0h12v9h-12zM-4 0v-3a4 4 0 0 1 8 0v3"

STYLE = """
.pl-picture { position: relative; width: 100%; }
.pl-picture svg { display: block; width: 100%; height: auto; max-height: calc(100vh - 9rem); }
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
@keyframes pl-moves { to { stroke-dashoffset: -16; } }
@media (prefers-reduced-motion: reduce) { .pl-picture .pl-changing { animation: none; } }
body { --pl-ink: #222; --pl-paper: #f3f3f0; --pl-page: #fff; --pl-faint: #c4c4c4;
  --pl-quiet: #666; --pl-busy: #2e7d32; }
body.body--dark { --pl-ink: #eee; --pl-paper: #2a2a2c; --pl-page: #1d1d1d; --pl-faint: #555;
  --pl-quiet: #aaa; --pl-busy: #66bb6a; }
"""


class Measured(NamedTuple):
    """What was measured of a host last: bits per second, and the share its GPU is busy."""

    sends_bps: float | None = None
    gets_bps: float | None = None
    busy: float | None = None


class Picture:
    """Draws the layers of one lab; ``layout`` says where everything is."""

    def __init__(self, lab: Lab, layout: Layout) -> None:
        self._lab, self._layout = lab, layout
        self._width = (layout.width + 2 * _MARGIN) * _INCH
        # Links within a row go over its boxes; under the lowest row are the servers' names.
        lifts = [_lift(*(layout.points[end] for end in (f.a, f.b))) for f in lab.fibres]
        self._top = max([_MARGIN, *(0.75 * lift + 0.1 for lift in lifts)])
        self._height = (layout.height + self._top + 2 * _MARGIN) * _INCH

    @property
    def size(self) -> str:
        """The picture's ``viewBox``."""
        return f"0 0 {self._width:.0f} {self._height:.0f}"

    # -- layers --------------------------------------------------------------------------------

    def still(self) -> Shapes:
        """What never changes: boxes with their names, fibres, ports."""
        lines = (self._between(f.a, f.b) for f in self._lab.fibres)
        fibres = [_shape("path", "", css="pl-fibre", d=line) for line in lines]
        drawn = {"fibres": _shape("g", fibres)}
        hosts: dict[str, list[Host]] = {}
        for host in self._lab.hosts:
            hosts.setdefault(host.server.name, []).append(host)
        for server in self._lab.servers:
            inside = [each for h in hosts.get(server.name, ()) for each in self._host(h)]
            drawn[server.name] = self._device(server.name, "server", inside)
        for ocs in self._lab.circuit_switches:
            drawn[ocs.name] = self._device(ocs.name, f"circuit switch, {ocs.driver}")
        for device in self._lab.sorting:
            drawn[device.name] = self._device(device.name, "sorts light")
        for switch in self._lab.packet_switches:
            drawn[switch.name] = self._device(switch.name, "packet switch")
        return drawn

    def light(self, view: LabView) -> Shapes:
        """Where light is, in the colour of its job; what is dark, locked, drifting or changing."""
        lit: dict[Endpoint, tuple[str, str]] = {}
        for path in view.links.paths.values():
            job = view.job_of_path(path)
            colour, both = view.colours.get(job, NO_JOB), f"{path.source} to {path.sink}"
            rate = "" if path.rate_bps is None else f", {format_rate(path.rate_bps)}"
            about = f"{both}{rate}{f', light of {job}' if job else ''}"
            for end in (path.source, path.sink):
                lit.setdefault(end, (colour, about))
            for ocs, ports in path.through:
                lit.setdefault(Endpoint(ocs, str(ports.inp)), (colour, about))
                lit.setdefault(Endpoint(ocs, str(ports.out)), (colour, about))
        drawn = {
            f"{f.a} {f.b}": self._lit_fibre(f.a, f.b, *lit[end])
            for f in self._lab.fibres
            if (end := f.a if f.a in lit else f.b) in lit
        }
        for circuit in _once_each(view):
            a, b = (Endpoint(circuit.ocs, str(port)) for port in circuit.ports)
            if a in self._layout.points and b in self._layout.points:
                drawn[f"{circuit.ocs} {circuit.ports}"] = self._circuit(circuit, a, b, view)
        for name, words in view.silent.items():
            if box := self._layout.boxes.get(name):
                bad = _shape("rect", "", css="pl-bad", rx=6, **self._place(box))
                drawn[name] = _about(f"{name} {words}", name, [bad], silent=name)
        return drawn

    def meters(self, view: LabView, measured: Mapping[str, Measured]) -> Shapes:
        """Hosts in their jobs' colours, how busy their GPUs are, and what their NICs send."""
        return {h.name: self._meter(h, view, measured) for h in self._lab.hosts}

    # -- parts ---------------------------------------------------------------------------------

    def _device(self, name: str, kind: str, inside: Iterable[Shape] = ()) -> Shape:
        box = self._layout.boxes[name]
        x, y = self._at((box.x, box.y + box.height))
        is_server = kind == "server"
        size = 15 if self._layout.detailed else 8
        place, anchor = (x + 8, y + box.height * _INCH / 2 + 5), "start"
        if is_server:
            place, anchor = (
                (self._at((box.centre, box.y))[0], y + box.height * _INCH + 17),
                "middle",
            )
        parts = [_shape("rect", "", css="pl-box", rx=6, **self._place(box))]
        if not is_server or self._layout.detailed:
            parts.append(_text(*place, name, size, anchor=anchor, bold=True))
        about = {"role": "button", "aria_label": f"{name}, {kind}", "data_device": name}
        return _shape("g", [*parts, *inside], tabindex=0, **about)

    def _host(self, host: Host) -> list[Shape]:
        box = self._host_box(host)
        parts = [_shape("rect", "", css="pl-host", rx=4, **self._place(box))]
        if not self._layout.detailed:
            return parts
        x, y = self._at((box.centre, box.y + box.height))
        if host.gpu is not None:
            parts.append(_text(x, y + 30, host.gpu.name, 13, bold=True))
            parts.append(_text(x, y + 45, host.gpu.model, 11, quiet=True))
        return [*parts, _text(x, y + 15, host.nic.name, 10, quiet=True)]

    def _host_box(self, host: Host) -> Box:
        x, _ = self._layout.points[host.endpoint]
        box, slot = self._layout.boxes[host.server.name], self._layout.slot
        inset = slot * 0.06
        return Box("", x - slot * 0.44, box.y + inset, slot * 0.88, box.height - 2 * inset)

    def _meter(self, host: Host, view: LabView, measured: Mapping[str, Measured]) -> Shape:
        box, job = self._host_box(host), view.job_of_host.get(host.name, "")
        seen, parts = measured.get(host.name, Measured()), list[Shape]()
        if job:
            colour = view.colours.get(job, NO_JOB)
            look: _Look = {
                "fill": colour,
                "fill_opacity": 0.16,
                "stroke": colour,
                "stroke_width": 2.5,
            }
            parts.append(_shape("rect", "", rx=4, **look, **self._place(box)))
        about = f"{host.name}: {f'in {job}' if job else 'free'}"
        if seen.busy is not None:
            about += f", busy {seen.busy:.0%}"
            x, y = self._at((box.x + 0.04, box.y + 0.02))
            width = max(0.0, min(1.0, seen.busy)) * (box.width - 0.08) * _INCH
            height = 5 if self._layout.detailed else 2
            size = {"width": _tenths(width), "height": height}
            parts.append(
                _shape("rect", "", css="pl-busy", x=_tenths(x), y=_tenths(y - height), **size)
            )
        if seen.sends_bps is not None:
            sends = format_rate(round(seen.sends_bps))
            about += f", {host.nic.name} sends {sends}"
            if self._layout.detailed:
                x, y = self._at((box.centre, box.y + 0.2))
                parts.append(_text(x, y, sends, 11))
        return _about(about, host.server.name, parts, host=host.name)

    def _circuit(self, circuit: Circuit, a: Endpoint, b: Endpoint, view: LabView) -> Shape:
        box = self._layout.boxes[circuit.ocs]
        start, end = self._layout.points[a], self._layout.points[b]
        # A bow between ports of one side stays inside the OCS.
        inward = 0.6 * box.height * (1 if start[1] == box.y else -1)
        colour = view.colours.get(circuit.job, NO_JOB)
        line, css = self._curve(start, end, inward), f"pl-light pl-{circuit.condition}"
        parts = [_shape("path", "", css=css, d=line, stroke=colour, stroke_width=self._bold)]
        x, y = self._at(((start[0] + end[0]) / 2, (start[1] + end[1]) / 2))
        if circuit.condition == "locked":
            place = f"translate({x:.1f} {y:.1f})"
            parts.append(_shape("path", "", css="pl-lock", transform=place, d=_PADLOCK))
        if sign := _SIGNS.get(circuit.condition):
            parts.append(_text(x, y + 5, sign, 15 if self._layout.detailed else 8, bold=True))
        name = f"{circuit.ocs} {circuit.ports}"
        return _about(circuit_words(circuit), circuit.ocs, parts, circuit=name)

    @property
    def _bold(self) -> float:
        return 3.5 if self._layout.detailed else 1.2

    def _lit_fibre(self, a: Endpoint, b: Endpoint, colour: str, about: str) -> Shape:
        look: _Look = {"stroke": colour, "stroke_width": self._bold}
        line = _shape("path", "", css="pl-light", d=self._between(a, b), **look)
        return _about(f"{a} to {b}: {about}", b.device, [line], fibre="")

    def _between(self, a: Endpoint, b: Endpoint) -> str:
        start, end = self._layout.points[a], self._layout.points[b]
        return self._curve(start, end, _lift(start, end))

    def _curve(self, a: _Point, b: _Point, lift: float) -> str:
        (ax, ay), (bx, by) = self._at(a), self._at(b)
        if a[1] == b[1]:
            up = self._at((0.0, a[1] + lift))[1]
            return f"M{ax:.1f} {ay:.1f}C{ax:.1f} {up:.1f} {bx:.1f} {up:.1f} {bx:.1f} {by:.1f}"
        half = (ay + by) / 2
        return f"M{ax:.1f} {ay:.1f}C{ax:.1f} {half:.1f} {bx:.1f} {half:.1f} {bx:.1f} {by:.1f}"

    def _at(self, point: _Point) -> _Point:
        """From inches, upwards, to the picture's pixels, downwards."""
        x, y = point
        return (x + _MARGIN) * _INCH, (self._layout.height + self._top - y) * _INCH

    def _place(self, box: Box) -> dict[str, float]:
        x, y = self._at((box.x, box.y + box.height))
        width, height = _tenths(box.width * _INCH), _tenths(box.height * _INCH)
        return {"x": _tenths(x), "y": _tenths(y), "width": width, "height": height}


def _lift(start: _Point, end: _Point) -> float:
    """How high a link within a row goes: else it would run through the boxes between."""
    return 0.3 + 0.05 * abs(start[0] - end[0]) if start[1] == end[1] else 0.0


def circuit_words(circuit: Circuit) -> str:
    """What there is to say of a circuit, in a line."""
    words = [f"{circuit.ocs} {circuit.ports}: {circuit.condition}"]
    if circuit.source is not None:
        words.append(f"{circuit.source} to {circuit.sink}")
    if circuit.rate_bps is not None:
        words.append(format_rate(circuit.rate_bps))
    for power, where in ((circuit.in_dbm, "in"), (circuit.out_dbm, "out")):
        if power is not None:
            words.append(f"{power:.1f} dBm {where}")
    words += [f"light of {circuit.job}"] if circuit.job else []
    words += [circuit.words] if circuit.words else []
    return ", ".join(words)


def _once_each(view: LabView) -> list[Circuit]:
    """Each circuit once, the one of its two directions that is worse."""
    order = ("well", "changing", "locked", "drifting", "degraded", "dark")
    found: dict[tuple[str, int, int], Circuit] = {}
    for circuit in view.circuits:
        key = (circuit.ocs, min(circuit.ports), max(circuit.ports))
        other = found.get(key)
        if other is None or order.index(circuit.condition) > order.index(other.condition):
            found[key] = circuit
    return list(found.values())


def _about(words: str, device: str, parts: list[Shape], **name: str) -> Shape:
    """A thing that says something of itself when the mouse is on it, and opens a device."""
    named = {f"data_{kind}": its for kind, its in name.items()}
    return _shape("g", [_shape("title", words), *parts], data_device=device, **named)


def _text(
    x: float,
    y: float,
    text: str,
    size: float,
    *,
    anchor: str = "middle",
    bold: bool = False,
    quiet: bool = False,
) -> Shape:
    look: _Look = {"font_size": size, "text_anchor": anchor}
    look |= {"font_weight": "bold"} if bold else {}
    look |= {"css": "pl-small"} if quiet else {}
    return _shape("text", text, x=_tenths(x), y=_tenths(y), **look)


def _shape(tag: str, inside: str | list[Shape], /, **attributes: str | float) -> Shape:
    """``css`` is its class; other attributes have dashes where there are underscores."""
    named = {"css": "class"}
    return (tag, {named.get(n, n.replace("_", "-")): v for n, v in attributes.items()}, inside)


def _tenths(pixels: float) -> float:
    return round(pixels, 1)
