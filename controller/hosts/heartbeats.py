"""Whether somebody is there, by when they last answered. Pure: the time is an argument."""

from dataclasses import dataclass
from enum import StrEnum

INTERVAL_S = 3.0
"""The heart of an agent should beat once in so long. It is looked at every second."""

SUSPECTED_AFTER = 3
"""Silent for so many intervals, nothing new is begun with it."""

LOST_AFTER = 10
"""Silent for so many, what it had is taken for lost."""


class Presence(StrEnum):
    """What is to be made of an agent's silence, if it is silent."""

    UNHEARD = "not heard of yet"
    ANSWERS = "answers"
    SUSPECTED = "suspected"
    LOST = "lost"

    @property
    def is_silent(self) -> bool:
        """Whether nothing new is to be begun with it."""
        return self in (Presence.SUSPECTED, Presence.LOST)


@dataclass(slots=True)
class Heartbeat:
    """Since when somebody who was asked has not answered; ``None``: they did the last time.

    Times are those of one monotonic clock, in seconds. Only questions count: who is not asked for
    a while, because whoever asks was busy, is not silent for that.
    """

    silent_since: float | None = None
    heard: bool = False

    def answered(self) -> None:
        """They answered."""
        self.silent_since, self.heard = None, True

    def missed(self, asked_at: float) -> None:
        """What they were asked then has had no answer."""
        if self.silent_since is None:
            self.silent_since = asked_at

    def silence_s(self, now: float) -> float:
        """For how long they have been silent."""
        return 0.0 if self.silent_since is None else now - self.silent_since

    def presence(self, now: float) -> Presence:
        """Whether they are there, suspected or lost."""
        intervals = self.silence_s(now) / INTERVAL_S
        if intervals >= LOST_AFTER:
            return Presence.LOST
        if intervals >= SUSPECTED_AFTER:
            return Presence.SUSPECTED
        return Presence.ANSWERS if self.heard else Presence.UNHEARD
