"""The Lab page: its health, a live picture, its jobs and the last change of circuits."""

import time
from functools import partial

from nicegui import events, ui

from patchlight.cli.dashboard import charts, picture, texts
from patchlight.cli.dashboard.lab_view import JOB_COLOURS, NO_JOB, LabView
from patchlight.cli.dashboard.lab_watch import LabWatch
from patchlight.cli.dashboard.page import (
    Layer,
    Page,
    columns,
    draw,
    time_chart,
    titled,
)
from patchlight.testbed.draw.drawing_layout import DrawingLayout
from patchlight.testbed.lab.model import Lab

# The nearest device's shape at the mouse pointer or keyboard focus.
_DEVICE = "(e) => { const found = e.target.closest('[data-device]'); "
_DEVICE += "if (found) { e.preventDefault(); emit(found.dataset.device); } }"
_RECENT_S = 10.0
_MOST_WAITING = 10
_CHART_S = 300.0
_CHART_EVERY_S = 5.0
_JOB = """<q-tr :props="props"><q-td class="pl-block" style="border: 0; padding: 4px 0">
<span aria-hidden="true" class="pl-swatch" :style="{background: props.row.colour}"></span>
<b>{{ props.row.name }}</b> <span class="text-xs opacity-70">{{ props.row.id }}</span>
{{ props.row.state }}
<div v-for="line in props.row.lines" class="break-words">{{ line }}</div></q-td></q-tr>"""

_LINES = (
    ("up", JOB_COLOURS[0], "used by the job of this colour"),
    ("up", NO_JOB, "not used by a job"),
    ("changing", JOB_COLOURS[0], "changing"),
    ("dark", NO_JOB, "no optical power, or circuit missing"),
    ("degraded", NO_JOB, "power too low"),
    ("drifting", NO_JOB, "drift: not committed"),
    ("locked", NO_JOB, "locked"),
)


class LabPage(Page):
    """The lab's health, its picture, its jobs, and its last change."""

    def build(self) -> None:
        """Health at the top, the picture on the left, cards on the right."""
        ui.add_css(picture.STYLE)
        self._drawn: tuple[Lab, frozenset[str] | None] | None = None
        self._zoom = 1.0
        self._lines: dict[int, list[str]] = {}
        self._sent: ui.echart | None = None
        self._charted_at = 0.0
        with ui.element("section").classes(
            "pl-status text-sm"
        ) as self._status:
            self._headline = (
                ui.label().classes("text-lg font-bold").mark("health")
            )
            self._problems = ui.column().classes("gap-0 w-full")
            self._summary = ui.label()
            self._latest = ui.label()
        with ui.element("div").classes("pl-aside") as self._aside:
            with ui.column().classes("min-w-0 gap-4"):
                self._build_tools()
                scrolled = ui.element("div").classes("pl-scroll")
                with (
                    scrolled,
                    ui.element("div").classes("pl-picture pl-frame") as frame,
                ):
                    self._still = Layer()
                    self._light = Layer().classes("pl-over").mark("light")
                    self._meters = Layer().classes("pl-over")
                    self._names = Layer().classes("pl-over pl-names")
                self._frame = frame
                frame.on("click", self._open_device, js_handler=_DEVICE)
                frame.on(
                    "keydown.enter", self._open_device, js_handler=_DEVICE
                )
                self._charted = ui.column().classes("w-full")
            with ui.element("div").classes("pl-halves"):
                with ui.card().classes("p-3 gap-1"):
                    titled("Jobs")
                    self._jobs = ui.table(
                        rows=[],
                        columns=columns({"name": "job"}),
                    )
                    self._jobs.props(
                        "dense flat wrap-cells hide-pagination hide-header"
                    )
                    self._jobs.classes("w-full").add_slot("body", _JOB)
                    self._jobs.add_slot(
                        "no-data", "No job is running or waiting."
                    )
                with ui.card().classes("p-3 gap-1"):
                    titled("Last change of circuits")
                    self._change = ui.column().classes("gap-1 w-full")
                with ui.expansion("Key").props("dense").classes("w-full"):
                    key()
        self._dialog = ui.dialog()

    def _build_tools(self) -> None:
        """In a large lab: a choice of what the picture shows, and its zoom."""
        with ui.row().classes("items-center gap-2") as self._tools:
            self._shows = ui.select(
                {"": "whole lab"}, value="", with_input=True
            )
            self._shows.props('dense options-dense aria-label="Show"')
            self._shows.classes("w-64").on_value_change(self.refresh)
            for sign, factor in (("−", 0.5), ("+", 2.0)):
                name = "Zoom in" if factor > 1 else "Zoom out"
                ui.button(sign, on_click=partial(self._zoom_by, factor)).props(
                    f'dense outline aria-label="{name}"'
                )

    def _zoom_by(self, factor: float) -> None:
        self._zoom = min(8.0, max(1.0, self._zoom * factor))
        self._frame.style(f"--pl-zoom: {100 * self._zoom:.0f}%")

    def _draw_still(self, view: LabView) -> None:
        """The lab or its chosen part, if it is another one than before."""
        offered = {"": "whole lab"}
        for group, servers in view.groups.items():
            label = view.labels.get(group, group)
            offered[group] = (
                label
                if servers == {group}
                else f"{label}: {texts.counted(len(servers), 'server')}"
            )
        if self._shows.options != offered:
            shown = self._shows.value if self._shows.value in offered else ""
            self._shows.set_options(offered, value=shown)
        chosen = view.groups.get(self._shows.value)
        part = None if chosen is None else frozenset(chosen)
        if self._drawn == (view.lab, part):
            return
        whole = self._drawn is None or self._drawn[0] is not view.lab
        self._drawn = (view.lab, part)
        lab = view.lab if part is None else view.part(part)
        self._picture = picture.Picture(lab, DrawingLayout(lab))
        self._frame.style(self._picture.text_sizes)
        self._still.show(self._picture.size, self._picture.still())
        self._names.show(self._picture.size, self._picture.names())
        if not whole:
            return
        detailed = self._picture.detailed
        self._aside.classes("pl-wide" if self._picture.wide else "")
        self._tools.set_visibility(not detailed)
        self._charted.clear()
        with (
            self._charted
        ):  # a large lab would take too much memory in the browser
            title = "Sent by each job in the last 5 minutes, Gb/s"
            self._sent = time_chart(title, "h-44") if detailed else None

    def refresh(self) -> None:
        """Send those layers and lines that differ."""
        view = self.watch.view
        watch = self.watch
        now = time.time()
        self._draw_still(view)
        measured = measured_hosts(watch, now)
        self._light.show(self._picture.size, self._picture.light(view))
        self._meters.show(
            self._picture.size, self._picture.meters(view, measured)
        )
        rows = []
        for job in [*view.at_work, *view.waiting[:_MOST_WAITING]]:
            told = [
                measured[name].sends_bps
                for name in job.hosts
                if name in measured
            ]
            sends = (
                sum(bps for bps in told if bps is not None) if told else None
            )
            latest_s = texts.measured_iteration_s(
                watch.iterations.get(job.id, ())
            )
            row = texts.job_row(
                job,
                view,
                latest_s,
                sends,
            )
            rows.append(row | {"lines": texts.job_lines(row, job, view)})
        if self._jobs.rows != rows:
            self._jobs.rows = rows
        self._say_health(now)
        self._say(
            self._change, texts.last_change_lines(view, watch.gains, now)
        )
        if self._sent and now - self._charted_at >= _CHART_EVERY_S:
            self._charted_at = now
            since = now - _CHART_S
            draw(
                self._sent,
                charts.sent(watch, since, now),
                view,
                since,
                now,
            )

    def _say_health(self, now: float) -> None:
        view = self.watch.view
        watch = self.watch
        found = texts.problems(view, watch.stopped, watch.trouble)
        count = f"{len(found)} problem{'' if len(found) == 1 else 's'}"
        wrong = any(is_error for _, is_error in found)
        self._headline.text = f"{count} in the lab" if found else "Lab healthy"
        self._summary.text = texts.summary(view)
        self._status.classes(
            remove="pl-wrong pl-caution",
            add="pl-wrong" if wrong else "pl-caution" if found else "",
        )
        self._say(self._problems, [words for words, _ in found])
        self._latest.text = texts.latest_words(view, now)

    def _say(self, column: ui.column, lines: list[str]) -> None:
        if self._lines.get(column.id) != lines:
            self._lines[column.id] = lines
            column.clear()
            with column:
                for line in lines:
                    ui.label(line).classes("text-sm break-words w-full")

    def _open_device(self, event: events.GenericEventArguments) -> None:
        name = str(event.args)
        view = self.watch.view
        self._dialog.clear()
        with self._dialog, ui.card().classes("pl-device gap-2"):
            titled(name, "text-lg")
            ui.label(view.silent.get(name, "answers"))
            measured = measured_hosts(self.watch, time.time())
            for host in view.lab.hosts:
                if host.server.name == name:
                    job = view.job_of_host.get(host.name)
                    busy = measured[host.name].busy
                    state = "free" if job is None else f"in {job}"
                    share = (
                        "" if busy is None else f", busy {100 * busy:.0f} %"
                    )
                    ui.label(f"{host.name}: {state}{share}")
            rows = texts.device_rows(view, name)
            headings = {
                "id": "port",
                "leads": "fibre to",
                "rate": "rate",
                "light": "circuit",
            }
            if any(row["lock"] for row in rows):
                headings["lock"] = "lock"
            ports = ui.table(
                rows=rows,
                columns=columns(headings),
            )
            ports.props("dense flat wrap-cells virtual-scroll").classes(
                "max-h-96 w-full"
            )
            if name in view.switch_maps:
                ui.link(f"Circuits of {name}", f"/circuits?ocs={name}")
            ui.button("Close", on_click=self._dialog.close).props(
                "flat autofocus"
            )
        self._dialog.open()


def measured_hosts(watch: LabWatch, at: float) -> dict[str, picture.Measured]:
    """The latest measurements of each host, with three digits."""
    found: dict[str, picture.Measured] = {}
    for host in watch.lab.hosts:
        gpu = (
            f"{host.server.name}.{host.gpu.name}"
            if host.gpu is not None
            else ""
        )
        rates = [
            r
            for r in list(watch.rates.get(host.name, ()))[-3:]
            if at - r[0] < _RECENT_S
        ]
        busy = [
            g[1]
            for g in list(watch.gpus.get(gpu, ()))[-1:]
            if at - g[0] < _RECENT_S
        ]
        found[host.name] = picture.Measured(
            float(f"{sum(r[1] for r in rates) / len(rates):.3g}")
            if rates
            else None,
            round(busy[0], 2) if busy else None,
        )
    return found


def key() -> None:
    """Sample lines with their meanings."""
    with ui.element("div").classes("pl-key text-xs"):
        for condition, colour, words in _LINES:
            _sample(_line(condition, colour), words)
        frame: picture.Look = {
            "x": 2,
            "y": 3,
            "width": 28,
            "height": 10,
            "rx": 3,
        }
        _sample(
            [
                picture.shape(
                    "rect",
                    "",
                    css="pl-bad",
                    **frame,
                )
            ],
            "no answer, or no link",
        )
        bar: picture.Look = {
            "x": 2,
            "y": 6,
            "width": 20,
            "height": 5,
        }
        _sample(
            [
                picture.shape(
                    "rect",
                    "",
                    css="pl-busy",
                    **bar,
                )
            ],
            "GPU utilisation",
        )


def _line(condition: str, colour: str) -> list[picture.Shape]:
    look: picture.Look = {"stroke": colour, "stroke_width": 3.5}
    parts = [
        picture.shape(
            "path",
            "",
            css=f"pl-light pl-{condition}",
            d="M0 8h32",
            **look,
        )
    ]
    if condition == "locked":
        parts.append(
            picture.shape(
                "path",
                "",
                css="pl-lock",
                transform="translate(16 7)",
                d=picture.PADLOCK,
            )
        )
    if sign := picture.SIGNS.get(condition):
        parts.append(
            picture.text(
                16,
                13,
                sign,
                15,
                bold=True,
            )
        )
    return parts


def _sample(parts: list[picture.Shape], words: str) -> None:
    with ui.row(wrap=False).classes("items-center gap-1"):
        sample = Layer().classes("pl-picture").props("aria-hidden=true")
        sample.show("0 0 32 16", {"": picture.shape("g", parts)})
        ui.label(words)
