"""The part of the controller's client that is about what happens."""

import json
import time
from collections.abc import Sequence
from typing import Any

from patchlight.client.calls import PAGE, Answer, Asked, Call, Calls, call

PAUSE_S = 0.5
"""How long a listener waits before it connects again."""
_PATIENCE_S = 30.0
_AS_A_STREAM = {"Accept": "text/event-stream"}


class EventCalls(Calls):
    """What can be asked about events; ``ControllerClient`` makes the calls."""

    @call
    def events(self, after: int = 0) -> Call[list[Answer]]:
        """What happened, after event number ``after``."""
        return list((yield from self._call("GET", "/events", after=after))["events"])

    @call
    def past_events(
        self,
        since: float,
        until: float,
        *,
        last: int = PAGE,
        before: int | None = None,
        kinds: Sequence[str] = (),
    ) -> Call[list[Answer]]:
        """The ``last`` events between these times, oldest first: of these ``kinds``, if any.

        With ``before``, of those with lower numbers.
        """
        wanted: dict[str, Any] = {"kind": list(kinds)} if kinds else {}
        wanted |= {} if before is None else {"before": before}
        asked = self._call("GET", "/events", last=last, since=since, until=until, **wanted)
        return list((yield from asked)["events"])

    @call
    def last_event(self) -> Call[int]:
        """The number of the latest event."""
        return int((yield from self._call("GET", "/events", after=(1 << 63) - 1))["last"])


class Listening:
    """How far a listener to events is, over connections that break."""

    def __init__(self, after: int) -> None:
        self._heard = after
        self._answered_at = time.monotonic()

    @property
    def asked(self) -> Asked:
        """What to ask for next."""
        return Asked("GET", "/events", None, {"after": self._heard}, dict(_AS_A_STREAM))

    @property
    def is_in_vain(self) -> bool:
        """Whether nothing was heard for half a minute."""
        return time.monotonic() - self._answered_at > _PATIENCE_S

    def told(self, line: str) -> Answer | None:
        """The event on a line of the stream; ``None`` for one without."""
        self._answered_at = time.monotonic()
        if not line.startswith("data: "):
            return None
        event: Answer = json.loads(line.removeprefix("data: "))
        self._heard = event.get("number", self._heard)
        return event
