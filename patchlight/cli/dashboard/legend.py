"""What lines and signs of the lab's picture mean, each beside a sample of it."""

from nicegui import ui

from patchlight.cli.dashboard.lab_view import COLOURS, NO_JOB
from patchlight.cli.dashboard.layer import Layer
from patchlight.cli.dashboard.picture import PADLOCK, SIGNS
from patchlight.cli.dashboard.shapes import Look, Shape, shape, text

_LINES = (
    ("well", COLOURS[0], "light of the job that has this colour"),
    ("well", NO_JOB, "light that no job uses"),
    ("changing", COLOURS[0], "being changed"),
    ("dark", NO_JOB, "dark"),
    ("degraded", NO_JOB, "weaker than it was"),
    ("drifting", NO_JOB, "on the device, and nobody committed it"),
    ("locked", NO_JOB, "locked"),
)


def legend() -> None:
    """Samples and words, in a row."""
    with ui.row().classes("pl-picture gap-3 text-xs opacity-80"):
        for condition, colour, words in _LINES:
            _sample(_line(condition, colour), words)
        frame: Look = {"x": 2, "y": 3, "width": 28, "height": 10, "rx": 3}
        _sample([shape("rect", "", css="pl-bad", **frame)], "does not answer")
        bar: Look = {"x": 2, "y": 6, "width": 20, "height": 5}
        _sample([shape("rect", "", css="pl-busy", **bar)], "how busy a GPU is")


def _line(condition: str, colour: str) -> list[Shape]:
    look: Look = {"stroke": colour, "stroke_width": 3.5}
    parts = [shape("path", "", css=f"pl-light pl-{condition}", d="M0 8h32", **look)]
    if condition == "locked":
        parts.append(shape("path", "", css="pl-lock", transform="translate(16 7)", d=PADLOCK))
    if sign := SIGNS.get(condition):
        parts.append(text(16, 13, sign, 15, bold=True))
    return parts


def _sample(parts: list[Shape], words: str) -> None:
    with ui.row(wrap=False).classes("items-center gap-1"):
        sample = Layer().style("width: 32px").props("aria-hidden=true")
        sample.show("0 0 32 16", {"": shape("g", parts)})
        ui.label(words)
