"""What operators close to changes: single ports by a lock, everything by the stop button.

Both outlive the controller. They are asked for where a transaction is checked, so nothing gets
past them; undoing a change that failed does.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from patchlight.controller.changes.record import StepFailed
from patchlight.controller.store import Store
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab import Lab
from patchlight.testbed.portmap import PortMapChange

_MARK = "stop"

LockKind = Literal["locked", "kept", "bad"]


@dataclass(frozen=True)
class PortLock:
    """A lock of both sides of a port of one OCS.

    ``locked``: nobody changes it. ``kept``: only ``by`` does. ``bad``: a change that could
    not be undone left it in an unknown state. ``at`` is the Unix time of the lock.
    """

    ocs: str
    port: int
    kind: LockKind
    by: str
    why: str
    at: float

    def stops(self, user: str) -> bool:
        """Whether this user may not change the port."""
        return self.kind != "kept" or not user or user != self.by

    def __str__(self) -> str:
        by, why = f" by {self.by}" if self.by else "", f": {self.why}" if self.why else ""
        return f"{self.ocs}.{self.port} is {self.kind}{by}{why}"


class Locks:
    """The locks of a lab's OCS ports, kept in the store."""

    def __init__(self, lab: Lab, store: Store) -> None:
        self._lab, self._store = lab, store
        self._locks = {(x.ocs, x.port): x for x in (PortLock(**row) for row in store.locks())}

    def all(self) -> list[PortLock]:
        """Every lock, in the order of ports."""
        return [self._locks[key] for key in sorted(self._locks)]

    def lock(
        self, ocs: str, ports: Iterable[int], kind: LockKind, by: str, why: str
    ) -> list[PortLock]:
        """Lock these ports. ``BadInput`` for a port that is none, or that others locked."""
        numbers = self._checked(ocs, ports)
        for number in numbers:
            lock = self._locks.get((ocs, number))
            if lock is not None and lock.by != by:
                raise BadInput(f"{lock}", hint="unlock it first: patchlight ocs unlock")
        return self._save(ocs, numbers, kind, by, why)

    def mark_bad(self, ocs: str, ports: Iterable[int], why: str) -> None:
        """Keep everybody off ports of which nothing certain is known."""
        self._save(ocs, sorted(set(ports)), "bad", "patchlight", why)

    def _save(
        self, ocs: str, numbers: list[int], kind: LockKind, by: str, why: str
    ) -> list[PortLock]:
        new = [PortLock(ocs, number, kind, by, why, time.time()) for number in numbers]
        self._store.save_locks([asdict(lock) for lock in new])
        self._locks.update({(lock.ocs, lock.port): lock for lock in new})
        event = {"ocs": ocs, "ports": numbers, "lock": kind, "by": by, "why": why}
        self._store.add_event(time.time(), "locked", event)
        return new

    def unlock(self, ocs: str, ports: Iterable[int], by: str, why: str) -> list[PortLock]:
        """Take the locks of these ports away, whoever made them; which there were."""
        numbers = self._checked(ocs, ports)
        gone = [self._locks[ocs, number] for number in numbers if (ocs, number) in self._locks]
        self._store.delete_locks([(lock.ocs, lock.port) for lock in gone])
        for lock in gone:
            del self._locks[lock.ocs, lock.port]
        if gone:
            event = {"ocs": ocs, "ports": [lock.port for lock in gone], "by": by, "why": why}
            self._store.add_event(time.time(), "unlocked", event)
        return gone

    def objections(self, changes: Mapping[str, PortMapChange], user: str) -> list[str]:
        """In words, each lock that these changes of ``user`` would run against."""
        if not self._locks:
            return []
        return [
            str(lock)
            for name, change in changes.items()
            for port in sorted(change.ports)
            if (lock := self._locks.get((name, port))) is not None and lock.stops(user)
        ]

    def _checked(self, ocs: str, ports: Iterable[int]) -> list[int]:
        last, numbers = self._lab.circuit_switch(ocs).ports, sorted(set(ports))
        for number in numbers:
            if not 1 <= number <= last:
                raise BadInput(f"{ocs} has ports 1–{last}, not {number}")
        return numbers


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
    def message(self) -> str:
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
        if message := self.message:
            raise StepFailed(message)
