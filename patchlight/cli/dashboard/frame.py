"""What all pages of the dashboard have: where one is, who one is, and whether it is up to date."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from nicegui import run, ui

from patchlight.cli.dashboard.door import Visitor
from patchlight.cli.dashboard.watching import EVERY_S, LabWatch
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.access import Role

T = TypeVar("T")
PAGES = {"/": "Lab", "/jobs": "Jobs", "/circuits": "Circuits", "/history": "History"}


class Page(ABC):
    """A page that one visitor has open; it is brought up to date twice a second.

    What it shows is sent to the browser only where it differs from what is there.
    """

    def __init__(self, watch: LabWatch, visitor: Visitor, path: str) -> None:
        self.watch, self.visitor, self._path = watch, visitor, path
        self._shown = -1

    def open(self) -> None:
        """Build the page and keep it up to date."""
        self.watch.viewed()
        self._header()
        with ui.element("main").classes("w-full"):
            self.build()
        ui.timer(EVERY_S, self._again)

    @abstractmethod
    def build(self) -> None:
        """Make what the page consists of."""

    @abstractmethod
    def refresh(self) -> None:
        """Bring it up to date with what the controller said last."""

    def may_change(self) -> bool:
        """Whether the visitor may change circuits."""
        return self.visitor.role >= Role.OPERATOR

    async def ask(self, what: Callable[[], T], doing: str) -> T | None:
        """Have the controller do something in the visitor's name; what it answers.

        What it refuses is said on the page, and ``None`` given.
        """
        try:
            return await run.io_bound(what)
        except PatchlightError as error:
            words = f"{doing}: {error.message}" + (f" ({error.hint})" if error.hint else "")
            ui.notify(words, type="negative", multi_line=True, timeout=0, close_button="Close")
            return None
        finally:
            self.watch.look_again()

    def _header(self) -> None:
        ui.colors(primary="#1f4e79")
        with ui.header(elevated=False).classes("items-center gap-4 py-2 px-4"):
            ui.label("Patchlight").classes("font-bold")
            self._lab = ui.label()
            with ui.element("nav").classes("flex gap-4").props('aria-label="Pages"'):
                for path, name in PAGES.items():
                    link = ui.link(name, path).classes("text-white px-2 py-1")
                    if path == self._path:
                        link.classes("font-bold underline").props("aria-current=page")
            ui.space()
            self._heard = ui.label().props("role=status")
            ui.label(f"{self.visitor.user}, {self.visitor.role}").mark("visitor")

    def _again(self) -> None:
        self.watch.viewed()
        if self._shown == self.watch.revision:
            return
        self._shown = self.watch.revision
        self._lab.text = f"lab {self.watch.lab.name}" if self.watch.lab.name else ""
        said = f"no answer: {self.watch.trouble}" if self.watch.trouble else "live"
        self._heard.text = said
        if self.watch.lab.name:
            self.refresh()


async def confirmed(question: str, verb: str) -> bool:
    """Whether the visitor says so."""
    with ui.dialog() as dialog, ui.card():
        ui.label(question)
        with ui.row():
            ui.button("No", on_click=lambda: dialog.submit(False)).props("flat autofocus")
            ui.button(verb, on_click=lambda: dialog.submit(True)).props("color=negative")
    answer = await dialog
    dialog.delete()
    return bool(answer)


def now() -> float:
    """Unix time."""
    return time.time()
