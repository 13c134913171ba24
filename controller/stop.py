"""The stop button: halts a change between two steps and keeps new ones from beginning.

Pressed, it stays pressed, also over a restart of the controller, until somebody clears it.
The change under way rolls back; circuits that stand are not touched.
"""

from __future__ import annotations

import time
from typing import Any

from controller.record import StepFailed
from controller.store import Store

_MARK = "stop"


class StopButton:
    """Whether changes may go on; kept in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.pressed: dict[str, Any] | None = store.mark(_MARK)

    @property
    def words(self) -> str:
        """Who pressed it and why; empty while it is not pressed."""
        if self.pressed is None:
            return ""
        who = self.pressed["by"] or "somebody"
        why = f": {self.pressed['why']}" if self.pressed["why"] else ""
        return f"the stop button was pressed by {who}{why}"

    def press(self, by: str, why: str) -> None:
        """Halt what is under way and refuse what comes."""
        self.pressed = {"by": by, "why": why, "at": time.time()}
        self._store.set_mark(_MARK, self.pressed)
        self._store.add_event(time.time(), "stopped", self.pressed)

    def clear(self, by: str, why: str) -> None:
        """Let changes begin again; no error if it was not pressed."""
        if self.pressed is not None:
            self._store.set_mark(_MARK, None)
            self.pressed = None
            self._store.add_event(time.time(), "stop-cleared", {"by": by, "why": why})

    def check(self) -> None:
        """``StepFailed`` if it is pressed: called between the steps of a change."""
        if self.pressed is not None:
            raise StepFailed(self.words)
