"""The part of the controller's client that is about what happens."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx

Answer = dict[str, Any]

_PATIENCE_S, _PAUSE_S = 30.0, 0.5


class EventCalls(ABC):
    """What can be asked about events; ``ControllerClient`` makes the calls."""

    @abstractmethod
    def _call(self, method: str, path: str, body: Any = None, **query: Any) -> Answer: ...

    @abstractmethod
    def _stream(
        self, path: str, headers: dict[str, str], **query: Any
    ) -> AbstractContextManager[httpx.Response]: ...

    def events(self, after: int = 0) -> list[Answer]:
        """What happened, after event number ``after``."""
        return list(self._call("GET", "/events", after=after)["events"])

    def last_event(self) -> int:
        """The number of the latest event."""
        return int(self._call("GET", "/events", after=(1 << 63) - 1)["last"])

    def follow_events(self, after: int | None = None) -> Iterator[Answer]:
        """What happens, without an end: after event number ``after``, or from now on.

        A connection that breaks is made again, and goes on where the other ended; one of kind
        ``skipped`` says which are not kept any more (``first`` to ``last``). ``ControllerError``
        if no controller answers for half a minute.
        """
        reached = self.last_event() if after is None else after
        answered_at = time.monotonic()
        while True:
            try:
                accept = {"Accept": "text/event-stream"}
                with self._stream("/events", accept, after=reached) as answer:
                    for line in answer.iter_lines():
                        answered_at = time.monotonic()
                        if line.startswith("data: "):
                            event = dict(json.loads(line.removeprefix("data: ")))
                            reached = event.get("number", reached)
                            yield event
            except httpx.HTTPError:
                if time.monotonic() - answered_at > _PATIENCE_S:
                    self.last_event()  # says what is wrong
            time.sleep(_PAUSE_S)
