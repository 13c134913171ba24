"""A change of circuits as it is made: its stages, and what can be done about it."""

from collections.abc import Callable
from functools import partial
from typing import Any

from nicegui import ui

from patchlight.cli.dashboard.frame import Page, confirmed, now
from patchlight.cli.dashboard.words import change_row, stage_rows

_MARKS = {"done": "✓", "now": "▶", "next": "·"}
_LOOKS = {"done": "", "now": "font-bold", "next": "opacity-60"}


class ChangePanel:
    """The change that is under way, whoever began it; else the one that was last."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._number = 0
        self._stages_shown: list[tuple[str, str]] = []

    def build(self) -> None:
        """What it is, its stages, and buttons."""
        self._title = ui.label().classes("font-bold").props("role=heading aria-live=polite")
        self._about = ui.label().classes("text-sm")
        stages = ui.element("ol").classes("flex list-none gap-3 text-sm")
        self._stages = stages.props('aria-label="Stages of the change"')
        self._message = ui.label().classes("text-sm")
        with ui.row().classes("gap-2"):
            self._cancel = ui.button(on_click=self._cancel_it).props("color=negative outline")
            self._undo = ui.button(on_click=self._undo_it).props("outline")
        for button in (self._cancel, self._undo):
            button.set_visibility(False)

    def refresh(self) -> None:
        """How far it is."""
        view = self._page.watch.view
        known = {change["id"]: change for change in view.changes}
        going = [c["id"] for c in view.under_way if "progress" in c]
        if going and self._number not in going:
            self._number = going[0]
        elif view.last_change is not None and not going:
            self._number = max(self._number, view.last_change["id"])
        change = known.get(self._number)
        if change is None:
            self._title.text = "No circuit was changed yet"
            return
        row, progress = change_row(change), change.get("progress")
        self._title.text = f"Change {row['id']}: {row['state']}"
        by = f"by {row['by']}" if row["by"] else ""
        took = f"took {row['took']}, light away {row['dark'] or '0s'}" if row["took"] else ""
        self._about.text = "; ".join(filter(None, (by, row["why"], row["changes"], took)))
        self._message.text = "" if row["message"] == "done" else row["message"]
        stages = stage_rows(change, now())
        if stages != self._stages_shown:
            self._stages_shown = stages
            self._stages.clear()
            with self._stages:
                for words, state in stages:
                    with ui.element("li").classes(_LOOKS[state]) as item:
                        ui.label(f"{_MARKS[state]} {words}")
                    if state == "now":
                        item.props("aria-current=step")
        may = self._page.may_change()
        self._cancel.text = f"Cancel change {row['id']} …"
        self._cancel.set_visibility(bool(may and progress and progress["may_cancel"]))
        self._undo.text = f"Roll back change {row['id']} …"
        self._undo.set_visibility(may and row["can_undo"])

    async def carry_out(self, change: Callable[..., Any]) -> None:
        """Have a change begun, and follow it."""
        begun = await self._page.ask(partial(change, detach=True), "changing circuits")
        if begun is not None:
            self._number = begun["id"]

    async def _cancel_it(self) -> None:
        number = self._number
        if await confirmed(f"Halt change {number}, and undo what it did?", "Halt and undo"):
            cancel = partial(self._page.visitor.client.cancel_change, number)
            await self._page.ask(cancel, f"cancelling change {number}")

    async def _undo_it(self) -> None:
        number = self._number
        if await confirmed(f"Undo change {number}, and nothing that others did?", "Roll back"):
            await self.carry_out(partial(self._page.visitor.client.roll_back, number))
