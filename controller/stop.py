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

    @property
    def pressed(self) -> dict[str, Any] | None:
        """Who pressed it, when and why; ``None`` if it is not pressed.

        Read each time: with ``--direct`` somebody else presses it, in another process.
        """
        return self._store.mark(_MARK)

    @property
    def words(self) -> str:
        """Who pressed it and why; empty while it is not pressed."""
        if (pressed := self.pressed) is None:
            return ""
        who = pressed["by"] or "somebody"
        why = f": {pressed['why']}" if pressed["why"] else ""
        return f"the stop button was pressed by {who}{why}"

    def press(self, by: str, why: str) -> None:
        """Halt what is under way and refuse what comes."""
        pressed = {"by": by, "why": why, "at": time.time()}
        self._store.set_mark(_MARK, pressed)
        self._store.add_event(time.time(), "stopped", pressed)

    def clear(self, by: str, why: str) -> None:
        """Let changes begin again; no error if it was not pressed."""
        if self.pressed is not None:
            self._store.set_mark(_MARK, None)
            self._store.add_event(time.time(), "stop-cleared", {"by": by, "why": why})

    def check(self) -> None:
        """``StepFailed`` if it is pressed: called between the steps of a change."""
        if words := self.words:
            raise StepFailed(words)
