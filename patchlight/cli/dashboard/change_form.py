"""Planning a change of circuits: written or dragged, shown before it is made, then asked for."""

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from nicegui import run, ui

from patchlight.cli.dashboard.frame import Page, confirmed
from patchlight.cli.dashboard.lab_view import Circuit, LabView
from patchlight.cli.dashboard.words import changes_words
from patchlight.console.rendering import harmless
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.labmaps import Place, check_place, parse_map
from patchlight.testbed.lab.model import Endpoint, OpticalSwitch
from patchlight.testbed.lab.wavelengths import WavelengthSwitch


class ChangeForm:
    """The fields of a change of one switch, and the plan made of them.

    ``carry_out`` is given the change to be made, once it is confirmed.
    """

    def __init__(
        self, page: Page, carry_out: Callable[[Callable[[], Any]], Awaitable[None]]
    ) -> None:
        self._page, self._carry_out = page, carry_out
        self._ocs = ""
        self._asked: dict[str, Any] = {}
        self.planned: Mapping[str, Any] | None = None

    def build(self) -> None:
        """The fields, and below them what the plan says."""
        page = self._page
        ui.label("Change circuits").classes("font-bold").props("role=heading")
        if not page.may_change():
            ui.label(
                f"{page.visitor.user} is a {page.visitor.role} here, and changes are for "
                "operators: an admin gives roles with 'patchlight token create', or with "
                "controller: {access: …} in the lab file."
            ).classes("text-sm")
        with ui.row().classes("gap-2 w-full items-end"):
            self._makes = ui.input("make").classes("grow")
            self._frees = ui.input("free these ports").classes("grow")
        with ui.row().classes("gap-2 w-full items-end"):
            self._why = ui.input("why").classes("grow")
            ui.button("Plan", on_click=self._plan)
        for field in (self._makes, self._frees, self._why):
            field.props("dense").on("keydown.enter", self._plan)
        self._shown = ui.column().classes("w-full gap-1").props("aria-live=polite")

    def begin(self, ocs: str) -> None:
        """Plan a change of this switch from now on."""
        if ocs == self._ocs:
            return
        self._ocs = ocs
        self._makes.value = self._frees.value = ""
        selective = isinstance(self._switch, WavelengthSwitch)
        makes = "1-3@193.100 2>4@193.150-2dB" if selective else "1-7 2>8"
        self._makes.props["label"] = f"make, like {makes}"
        self._frees.props["label"] = "free, like 3@193.100 4" if selective else "free, like 3 15"
        self._forget()

    @property
    def _switch(self) -> OpticalSwitch:
        return self._page.watch.lab.optical_switch(self._ocs)

    def _forget(self) -> None:
        self._asked, self.planned = {}, None
        self._shown.clear()

    async def dropped(self, inp: str, at: str, out: str) -> None:
        """Fill in what was dragged from an input (there at an output, or none) to an output.

        To none: its ports are to be freed.
        """
        view = self._page.watch.view
        try:
            makes, frees = dragged(
                view, self._switch, int(inp), int(at) if at else None, int(out) if out else None
            )
            if makes:
                self._makes.value = joined(self._switch, _words(self._makes.value), makes)
        except BadInput as error:
            ui.notify(error.message, type="warning")
            return
        self._frees.value = " ".join(dict.fromkeys([*_words(self._frees.value), *frees]))
        await self._plan()

    async def _plan(self) -> None:
        self._forget()
        ocs, makes, frees = self._ocs, _words(self._makes.value), _words(self._frees.value)
        if not ocs:
            return
        try:
            if not (makes or frees):
                raise BadInput("nothing to plan: say what to make, or which ports to free")
            asked: dict[str, Any] = {
                "maps": {ocs: makes} if makes else {},
                "disconnect": {ocs: [_place(self._switch, word) for word in frees]},
            }
            ask = partial(self._page.visitor.client.preview_reconfiguration, **asked)
            plan = await run.io_bound(ask)
        except PatchlightError as error:
            with self._shown:
                ui.label(error.message).classes("text-negative")
                ui.label(error.hint or "").classes("text-sm")
            return
        if plan is None:  # the page is being closed
            return
        self._asked = {**asked, "planned_from": plan["planned_from"], "why": self._why.value}
        self.planned = plan["changes"].get(ocs)
        with self._shown:
            for line, is_bad in plan_lines(plan):
                ui.label(line).classes("text-sm" + (" text-negative" if is_bad else ""))
            if plan["changes"] and not plan["objections"]:
                apply = ui.button("Apply …", on_click=partial(self._confirm, plan))
                apply.props("color=negative").set_enabled(self._page.may_change())

    async def _confirm(self, plan: Mapping[str, Any]) -> None:
        words = changes_words(plan["changes"])
        jobs = f" The traffic of {', '.join(plan['jobs'])} pauses." if plan["jobs"] else ""
        asked = self._asked
        if await confirmed(f"Change circuits: {words}?{jobs}", "Change"):
            self._forget()
            self._makes.value = self._frees.value = ""
            await self._carry_out(partial(self._page.visitor.client.reconfigure, **asked))


def dragged(
    view: LabView, switch: OpticalSwitch, inp: int, at: int | None, out: int | None
) -> tuple[list[str], list[str]]:
    """What to make and which places to free, if input ``inp`` is dragged to an output.

    ``at``: the output whose circuit was dragged. ``out`` ``None``: out of the matrix. What goes
    both ways does so where it is dragged to; of a wavelength switch each of its channels goes.
    ``BadInput`` where no light comes in whose channels could be meant.
    """
    there = {c.ports: c for c in view.circuits if c.ocs == switch.name}
    moved = [c for c in there.values() if c.ports.inp == inp and at in (None, c.ports.out)]
    if out is None:
        return [], [_at(inp, circuit) for circuit in moved]
    if inp == out:
        raise BadInput(f"port {inp} cannot be joined to itself by dragging: write {inp}>{inp}")
    if not isinstance(switch, WavelengthSwitch):
        one_way = moved and all(circuit.ports.reverse not in there for circuit in moved)
        return [f"{inp}{'>' if one_way else '-'}{out}"], []
    if at is not None:
        way = {c: "-" if c.ports.reverse in there else ">" for c in moved}
        return [f"{inp}{way[c]}{out}@{str(c.ports).partition('@')[2]}" for c in moved], []
    signals = view.signals_at(Endpoint(switch.name, str(inp)))
    channels = sorted({str(signal.channel) for signal in signals if signal.channel})
    if not channels:
        raise BadInput(f"no channel comes in at {inp}: write which, like {inp}-{out}@193.100")
    return [f"{inp}-{out}@{channel}" for channel in channels], []


def _at(port: int, circuit: Circuit) -> str:
    return f"{port}@{circuit.channel}" if circuit.channel else str(port)


def joined(switch: OpticalSwitch, words: list[str], makes: list[str]) -> str:
    """What is to be made, with ``makes`` in place of what cannot stand beside them."""
    fresh = parse_map(switch, makes)

    def stays(word: str) -> bool:
        try:
            return not len(parse_map(switch, [word]).clashing(fresh))
        except BadInput:
            return True  # not written to its end yet

    return " ".join([*filter(stays, words), *makes])


def plan_lines(plan: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """What a plan says, line by line, and whether it speaks against the change."""
    if not plan["changes"]:
        return [("nothing to change: the map is so already", False)]
    lines = [(changes_words(plan["changes"]), False)]
    for key, words in (("links_down", "links that go down"), ("links_up", "links that come up")):
        if plan[key]:
            lines.append((f"{words}: {', '.join(plan[key])}", False))
    jobs = ", ".join(plan["jobs"])
    lines.append((f"jobs whose traffic rides on it: {jobs or 'none'}", bool(jobs)))
    for ocs, theirs in plan["strangers"].items():
        lines.append((f"nobody committed what would break on {ocs}: {' '.join(theirs)}", True))
    lines += [(f"not possible: {harmless(words)}", True) for words in plan["objections"]]
    return lines


def _words(written: str) -> list[str]:
    return re.findall(r"[^\s,;]+", written)


def _place(switch: OpticalSwitch, word: str) -> int | str:
    """A port, or a channel there, as it is asked for; ``BadInput`` for what is none."""
    place = Place.parse(word)
    check_place(switch, place)
    return place.port if place.channel is None else str(place)
