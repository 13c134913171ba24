"""The picture of a lab that lives: SVG in layers, of which only those that differ are sent again.

The lowest layer is the lab itself, which does not change; above it are the light, and what is
measured. Whatever a mouse can click there has the keyboard's focus, too.
"""

import html
from collections.abc import Mapping
from typing import NamedTuple

from patchlight.cli.dashboard.lab_view import NO_JOB, Circuit, LabView
from patchlight.testbed.drawing_layout import Box, Layout
from patchlight.testbed.lab import Endpoint, Host, Lab
from patchlight.testbed.units import format_rate

_INCH = 96.0
_MARGIN = 0.3
_Point = tuple[float, float]
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

    # -- layers --------------------------------------------------------------------------------

    def still(self) -> str:
        """What never changes: boxes with their names, fibres, ports."""
        parts = [self._fibre(f.a, f.b) for f in self._lab.fibres]
        hosts: dict[str, list[Host]] = {}
        for host in self._lab.hosts:
            hosts.setdefault(host.server.name, []).append(host)
        for server in self._lab.servers:
            inside = "".join(map(self._host, hosts.get(server.name, ())))
            parts.append(self._device(server.name, "server", inside))
        for ocs in self._lab.circuit_switches:
            parts.append(self._device(ocs.name, f"circuit switch, {ocs.driver}", ""))
        for device in self._lab.sorting:
            parts.append(self._device(device.name, "sorts light", ""))
        for switch in self._lab.packet_switches:
            parts.append(self._device(switch.name, "packet switch", ""))
        return self._svg("".join(parts))

    def light(self, view: LabView) -> str:
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
        parts = [
            self._lit_fibre(f.a, f.b, *lit[end])
            for f in self._lab.fibres
            if (end := f.a if f.a in lit else f.b) in lit
        ]
        parts += map(self._circuit, _once_each(view), [view] * len(view.circuits))
        for name, words in view.silent.items():
            if box := self._layout.boxes.get(name):
                shape = f'<rect class="pl-bad" rx="6" {self._place(box)}/>'
                parts.append(_about(f"{name} {words}", name, shape, "silent"))
        return self._svg("".join(parts))

    def meters(self, view: LabView, measured: Mapping[str, Measured]) -> str:
        """Hosts in their jobs' colours, how busy their GPUs are, and what their NICs send."""
        return self._svg("".join(self._meter(h, view, measured) for h in self._lab.hosts))

    # -- parts ---------------------------------------------------------------------------------

    def _device(self, name: str, kind: str, inside: str) -> str:
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
        shown = not is_server or self._layout.detailed
        text = _text(*place, name, size, anchor=anchor, bold=True) if shown else ""
        return (
            f'<g tabindex="0" role="button" aria-label="{html.escape(f"{name}, {kind}")}" '
            f'data-device="{html.escape(name)}"><rect class="pl-box" rx="6" {self._place(box)}/>'
            f"{text}{inside}</g>"
        )

    def _host(self, host: Host) -> str:
        box = self._host_box(host)
        shape = f'<rect class="pl-host" rx="4" {self._place(box)}/>'
        if not self._layout.detailed:
            return shape
        x, y = self._at((box.centre, box.y + box.height))
        lines = ""
        if host.gpu is not None:
            lines = _text(x, y + 30, host.gpu.name, 13, bold=True)
            lines += _text(x, y + 45, host.gpu.model, 11, quiet=True)
        return shape + lines + _text(x, y + 15, host.nic.name, 10, quiet=True)

    def _host_box(self, host: Host) -> Box:
        x, _ = self._layout.points[host.endpoint]
        box, slot = self._layout.boxes[host.server.name], self._layout.slot
        inset = slot * 0.06
        return Box("", x - slot * 0.44, box.y + inset, slot * 0.88, box.height - 2 * inset)

    def _meter(self, host: Host, view: LabView, measured: Mapping[str, Measured]) -> str:
        box, job = self._host_box(host), view.job_of_host.get(host.name, "")
        seen, shape = measured.get(host.name, Measured()), ""
        if job:
            colour = view.colours.get(job, NO_JOB)
            fill = f'fill="{colour}" fill-opacity="0.16" stroke="{colour}" stroke-width="2.5"'
            shape = f'<rect rx="4" {fill} {self._place(box)}/>'
        about = f"{host.name}: {f'in {job}' if job else 'free'}"
        if seen.busy is not None:
            about += f", busy {seen.busy:.0%}"
            x, y = self._at((box.x + 0.04, box.y + 0.02))
            width = max(0.0, min(1.0, seen.busy)) * (box.width - 0.08) * _INCH
            height = 5 if self._layout.detailed else 2
            bar = f'x="{x:.1f}" y="{y - height:.1f}" width="{width:.1f}" height="{height}"'
            shape += f'<rect class="pl-busy" {bar}/>'
        if seen.sends_bps is not None:
            sends = format_rate(round(seen.sends_bps))
            about += f", {host.nic.name} sends {sends}"
            if self._layout.detailed:
                x, y = self._at((box.centre, box.y + 0.2))
                shape += _text(x, y, sends, 11)
        return _about(about, host.server.name, shape, "host", host.name)

    def _circuit(self, circuit: Circuit, view: LabView) -> str:
        a, b = (Endpoint(circuit.ocs, str(port)) for port in circuit.ports)
        if a not in self._layout.points or b not in self._layout.points:
            return ""
        box = self._layout.boxes[circuit.ocs]
        start, end = self._layout.points[a], self._layout.points[b]
        # A bow between ports of one side stays inside the OCS.
        inward = 0.6 * box.height * (1 if start[1] == box.y else -1)
        colour = view.colours.get(circuit.job, NO_JOB)
        line = self._curve(start, end, inward)
        css = f"pl-light pl-{circuit.condition}"
        shape = f'<path class="{css}" d="{line}" stroke="{colour}" stroke-width="{self._bold}"/>'
        x, y = self._at(((start[0] + end[0]) / 2, (start[1] + end[1]) / 2))
        if circuit.condition == "locked":
            shape += (
                f'<path class="pl-lock" transform="translate({x:.1f} {y:.1f})" d="{_PADLOCK}"/>'
            )
        if sign := _SIGNS.get(circuit.condition):
            shape += _text(x, y + 5, sign, 15 if self._layout.detailed else 8, bold=True)
        return _about(
            circuit_words(circuit), circuit.ocs, shape, "circuit", f"{circuit.ocs} {circuit.ports}"
        )

    @property
    def _bold(self) -> float:
        return 3.5 if self._layout.detailed else 1.2

    def _fibre(self, a: Endpoint, b: Endpoint) -> str:
        return f'<path class="pl-fibre" d="{self._between(a, b)}"/>'

    def _lit_fibre(self, a: Endpoint, b: Endpoint, colour: str, about: str) -> str:
        line = f'd="{self._between(a, b)}" stroke="{colour}" stroke-width="{self._bold}"'
        words = f"{a} to {b}: {about}"
        return _about(words, b.device, f'<path class="pl-light" {line}/>', "fibre")

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

    def _place(self, box: Box) -> str:
        x, y = self._at((box.x, box.y + box.height))
        size = f'width="{box.width * _INCH:.1f}" height="{box.height * _INCH:.1f}"'
        return f'x="{x:.1f}" y="{y:.1f}" {size}'

    def _svg(self, inside: str) -> str:
        size = f"0 0 {self._width:.0f} {self._height:.0f}"
        return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}">{inside}</svg>'


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


def _about(words: str, device: str, shape: str, kind: str, name: str = "") -> str:
    """A shape that says something of itself when the mouse is on it, and opens a device."""
    data = f'data-device="{html.escape(device)}" data-{kind}="{html.escape(name)}"'
    return f"<g {data}><title>{html.escape(words)}</title>{shape}</g>"


def _text(
    x: float,
    y: float,
    text: str,
    size: float,
    *,
    anchor: str = "middle",
    bold: bool = False,
    quiet: bool = False,
) -> str:
    look = f'font-size="{size:g}" text-anchor="{anchor}"'
    look += ' font-weight="bold"' if bold else ""
    look += ' class="pl-small"' if quiet else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{html.escape(text)}</text>'
