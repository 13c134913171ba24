"""Whether something that may take long still goes on: judged by signs of work, not by the clock."""

import time
from collections.abc import Callable

_LOOK_S = 1.0
_TELL_S = 5.0


class Progress:
    """Watches a ``sign``: anything that changes as long as there is progress.

    It is looked at once a second at most.
    """

    def __init__(self, sign: Callable[[], object]) -> None:
        self._sign, self._last = sign, sign()
        self._began = self._changed = self._looked = self._told = time.monotonic()

    def quiet_s(self) -> float:
        """For how many seconds nothing has changed."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_S:
            self._looked = now
            if (sign := self._sign()) != self._last:
                self._last, self._changed = sign, now
        return now - self._changed

    def to_tell(self) -> float | None:
        """How many seconds it has taken, every five of them: time to tell the user."""
        now = time.monotonic()
        if now - self._told < _TELL_S:
            return None
        self._told = now
        return now - self._began
