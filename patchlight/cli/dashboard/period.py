"""Which time a page shows: the last minutes or hours up to now, or from one moment to another."""

import time
from collections.abc import Callable, Mapping
from datetime import datetime

from nicegui import ui

FROM_TO = 0
"""The choice of two moments, among those of how many seconds up to now."""

_FORM = "%Y-%m-%dT%H:%M:%S"


class PeriodChoice:
    """A choice of periods by their length in seconds, and of two moments.

    ``given``: two moments as texts (ISO 8601) to begin with. ``on_change`` is called when another
    period is to be shown. Moments are in the local time of the dashboard's machine.
    """

    def __init__(
        self,
        label: str,
        periods: Mapping[int, str],
        value: int,
        given: tuple[str, str],
        on_change: Callable[[], None],
    ) -> None:
        self._on_change = on_change
        chosen = moments(*given)
        with ui.row().classes("items-center gap-2 mt-2"):
            ui.label(label)
            offered = {**periods, FROM_TO: "from … to …"}
            self._length = ui.select(offered, value=FROM_TO if chosen else value)
            self._length.props(f'dense options-dense aria-label="{label}"')
            with ui.row().classes("items-center gap-2") as self._between:
                self._since, self._until = (_moment_input(name) for name in ("from", "to"))
                ui.button("Show", on_click=self._show).props("dense no-caps")
                self._wrong = ui.label().classes("text-negative").props("role=alert")
        self._between.set_visibility(chosen is not None)
        self._bounds = chosen or (0.0, 0.0)
        self._write_down(*self._bounds)
        self._length.on_value_change(self._choose)

    @property
    def length_s(self) -> float | None:
        """How long it is, up to now; ``None`` between two moments."""
        return float(self._length.value) or None

    def bounds(self, now: float) -> tuple[float, float]:
        """From when until when (Unix times)."""
        return self._bounds if self.length_s is None else (now - self.length_s, now)

    def _choose(self) -> None:
        fixed = self.length_s is None
        self._between.set_visibility(fixed)
        if fixed:
            now = time.time()
            self._write_down(now - 3600, now)
            self._show()
        else:
            self._on_change()

    def _write_down(self, since: float, until: float) -> None:
        for field, at in ((self._since, since), (self._until, until)):
            field.value = datetime.fromtimestamp(at).strftime(_FORM)

    def _show(self) -> None:
        chosen = moments(self._since.value, self._until.value)
        self._wrong.text = "" if chosen else "from is to be before to"
        if chosen:
            self._bounds = chosen
            self._on_change()


def _moment_input(name: str) -> ui.input:
    return ui.input(name).props("type=datetime-local step=1 dense stack-label").classes("w-52")


def moments(since: str, until: str) -> tuple[float, float] | None:
    """Two local times (ISO 8601) as Unix times; ``None`` unless one is before the other."""
    try:
        begins, ends = (datetime.fromisoformat(text).timestamp() for text in (since, until))
    except (TypeError, ValueError, OverflowError):
        return None
    return (begins, ends) if 0 <= begins < ends else None
