"""What a device has reported, and which of it stands still."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from patchlight.controller.circuits.contract import Alarm, Severity

_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Standing:
    """One line of a device's own list of alarms.

    ``reported``: a text that an earlier report about the same subject has in it, if it is
    about this alarm; empty if the device reports nothing unasked.
    """

    severity: Severity
    subject: str
    words: str
    reported: str = ""


class AlarmLog:
    """The last 1000 alarms of a device, oldest first."""

    def __init__(self) -> None:
        self._log: deque[Alarm] = deque(maxlen=_KEPT)
        self._standing: dict[Standing, Alarm] = {}

    @property
    def all(self) -> tuple[Alarm, ...]:
        """All of them; ``standing`` is set on those that stood when last asked for."""
        stand = {id(alarm) for alarm in self._standing.values()}
        return tuple(
            replace(alarm, standing=True) if id(alarm) in stand else alarm for alarm in self._log
        )

    def note(self, severity: Severity, subject: str, words: str) -> None:
        """The device reports something now."""
        self._log.append(Alarm(time.time(), severity, subject, words))

    def stands(self, found: Iterable[Standing]) -> None:
        """This is all that stands now; what was not reported before counts as reported now."""
        kept = {id(alarm) for alarm in self._log}
        standing: dict[Standing, Alarm] = {}
        for one in found:
            alarm = self._standing.get(one)
            if alarm is None or id(alarm) not in kept:
                alarm = self._reported(one)
            if alarm is None:
                self.note(one.severity, one.subject, one.words)
                alarm = self._log[-1]
            standing[one] = alarm
        self._standing = standing

    def _reported(self, one: Standing) -> Alarm | None:
        if not one.reported:
            return None
        same = (a for a in reversed(self._log) if a.subject == one.subject)
        return next((a for a in same if one.reported in a.words), None)
