"""The page with a live picture of the lab, a legend, jobs, the last change and faults."""

import time

from nicegui import events, ui

from patchlight.cli.dashboard import picture, texts
from patchlight.cli.dashboard.lab_view import JOB_COLOURS, NO_JOB
from patchlight.cli.dashboard.lab_watch import LabWatch
from patchlight.cli.dashboard.page import JOB_CELL, Layer, Page, columns, titled
from patchlight.testbed.draw.drawing_layout import DrawingLayout
from patchlight.testbed.lab.model import Lab

# The nearest shape of a device around the mouse, or with the keyboard's focus.
_DEVICE = "(e) => { const found = e.target.closest('[data-device]'); "
_DEVICE += "if (found) { e.preventDefault(); emit(found.dataset.device); } }"
_RECENT_S = 10.0
_JOB_COLUMNS = {"name": "job", "gpus": "GPUs", "light": "light to", "iteration": "iteration"}
_JOB_COLUMNS |= {"sends": "sends"}

_LINES = (
    ("well", JOB_COLOURS[0], "light of the job that has this colour"),
    ("well", NO_JOB, "light that no job uses"),
    ("changing", JOB_COLOURS[0], "being changed"),
    ("dark", NO_JOB, "dark"),
    ("degraded", NO_JOB, "weaker than it was"),
    ("drifting", NO_JOB, "on the device, and nobody committed it"),
    ("locked", NO_JOB, "locked"),
)


class LabPage(Page):
    """The lab, its jobs, its last change, and faults."""

    def build(self) -> None:
        """The picture at the left, the rest at the right."""
        ui.add_css(picture.COLOURS + picture.STYLE)
        self._lab_drawn: Lab | None = None
        self._lines: dict[int, list[str]] = {}
        with ui.row(wrap=False).classes("w-full gap-4"):
            with ui.column().classes("grow min-w-0 gap-1"):
                scrolled = ui.element("div").classes("pl-scroll")
                with scrolled, ui.element("div").classes("pl-picture") as frame:
                    self._still = Layer()
                    self._light = Layer().classes("pl-over").mark("light")
                    self._meters = Layer().classes("pl-over")
                self._frame = frame
                frame.on("click", self._open_device, js_handler=_DEVICE)
                frame.on("keydown.enter", self._open_device, js_handler=_DEVICE)
                legend()
            with ui.column().classes("w-[26rem] shrink-0 gap-2"):
                self._worries = _card("Not well")
                self._change = _card("Last change of circuits")
                with ui.card().classes("w-full p-3 gap-1"):
                    titled("Jobs at work")
                    self._jobs = ui.table(rows=[], columns=columns(_JOB_COLUMNS))
                    self._jobs.props("dense flat wrap-cells hide-pagination")
                    self._jobs.props('no-data-label="none"')
                    self._jobs.classes("w-full").add_slot("body-cell-name", JOB_CELL)
        self._dialog = ui.dialog()

    def refresh(self) -> None:
        """Send those layers and lines that differ."""
        view, watch = self.watch.view, self.watch
        if self._lab_drawn is not view.lab:
            self._lab_drawn = view.lab
            self._picture = picture.Picture(view.lab, DrawingLayout(view.lab))
            self._frame.style(f"min-width: {self._picture.least_width}px")
            self._still.show(self._picture.size, self._picture.still())
        measured = measured_hosts(watch, time.time())
        self._light.show(self._picture.size, self._picture.light(view))
        self._meters.show(self._picture.size, self._picture.meters(view, measured))
        rows = []
        for job in view.at_work:
            told = [measured[name].sends_bps for name in job["hosts"] if name in measured]
            sends = sum(bps for bps in told if bps is not None) if told else None
            took = texts.measured_iteration_s(watch.iterations.get(job["id"], ()))
            more = {"light": texts.light_words(job, view), "note": job["state"]}
            rows.append(texts.job_row(job, view, took, sends) | more)
        if self._jobs.rows != rows:
            self._jobs.rows = rows
        self._say(
            self._worries, texts.worries(view, watch.stopped, watch.trouble) or ["all is well"]
        )
        self._say(self._change, texts.last_change_lines(view, time.time()))

    def _say(self, card: ui.column, lines: list[str]) -> None:
        if self._lines.get(card.id) != lines:
            self._lines[card.id] = lines
            card.clear()
            with card:
                for line in lines:
                    ui.label(line).classes("text-sm break-words w-full")

    def _open_device(self, event: events.GenericEventArguments) -> None:
        name, view = str(event.args), self.watch.view
        self._dialog.clear()
        with self._dialog, ui.card().classes("min-w-[36rem] max-w-none"):
            titled(name, "text-lg")
            ui.label(view.silent.get(name, "answers"))
            measured = measured_hosts(self.watch, time.time())
            for host in view.lab.hosts:
                if host.server.name == name:
                    job, busy = view.job_of_host.get(host.name), measured[host.name].busy
                    state = "free" if job is None else f"in {job}"
                    share = "" if busy is None else f", busy {busy:.0%}"
                    ui.label(f"{host.name}: {state}{share}")
            rows = texts.device_rows(view, name)
            headings = {"id": "port", "leads": "fibre to", "rate": "rate", "light": "light"}
            if any(row["lock"] for row in rows):
                headings["lock"] = "lock"
            ports = ui.table(rows=rows, columns=columns(headings))
            ports.props("dense flat virtual-scroll").classes("max-h-96 w-full")
            if name in view.switch_maps:
                ui.link(f"Circuits of {name}", f"/circuits?ocs={name}")
            ui.button("Close", on_click=self._dialog.close).props("flat autofocus")
        self._dialog.open()


def _card(title: str) -> ui.column:
    with ui.card().classes("w-full p-3 gap-1"):
        titled(title)
        return ui.column().classes("gap-1 w-full")


def measured_hosts(watch: LabWatch, at: float) -> dict[str, picture.Measured]:
    """The latest measurements of each host, rates to three digits."""
    found: dict[str, picture.Measured] = {}
    for host in watch.lab.hosts:
        gpu = f"{host.server.name}.{host.gpu.name}" if host.gpu is not None else ""
        rates = [r for r in list(watch.rates.get(host.name, ()))[-3:] if at - r[0] < _RECENT_S]
        busy = [g[1] for g in list(watch.gpus.get(gpu, ()))[-1:] if at - g[0] < _RECENT_S]
        found[host.name] = picture.Measured(
            float(f"{sum(r[1] for r in rates) / len(rates):.3g}") if rates else None,
            round(busy[0], 2) if busy else None,
        )
    return found


def legend() -> None:
    """Samples of lines with their meanings, in a row."""
    with ui.row().classes("pl-picture gap-3 text-xs opacity-80"):
        for condition, colour, words in _LINES:
            _sample(_line(condition, colour), words)
        frame: picture.Look = {"x": 2, "y": 3, "width": 28, "height": 10, "rx": 3}
        _sample([picture.shape("rect", "", css="pl-bad", **frame)], "does not answer")
        bar: picture.Look = {"x": 2, "y": 6, "width": 20, "height": 5}
        _sample([picture.shape("rect", "", css="pl-busy", **bar)], "how busy a GPU is")


def _line(condition: str, colour: str) -> list[picture.Shape]:
    look: picture.Look = {"stroke": colour, "stroke_width": 3.5}
    parts = [picture.shape("path", "", css=f"pl-light pl-{condition}", d="M0 8h32", **look)]
    if condition == "locked":
        parts.append(
            picture.shape("path", "", css="pl-lock", transform="translate(16 7)", d=picture.PADLOCK)
        )
    if sign := picture.SIGNS.get(condition):
        parts.append(picture.text(16, 13, sign, 15, bold=True))
    return parts


def _sample(parts: list[picture.Shape], words: str) -> None:
    with ui.row(wrap=False).classes("items-center gap-1"):
        sample = Layer().style("width: 32px").props("aria-hidden=true")
        sample.show("0 0 32 16", {"": picture.shape("g", parts)})
        ui.label(words)
