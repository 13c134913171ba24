"""The gate before each all-reduce: where training starts, is held and goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .task import TrainingError


class Passed(TrainingError):
    """The iteration to hold at has already gone through the gate."""


class Gate:
    """One worker's gate. The trainer passes it once an iteration; the control socket holds it.

    A worker that is held has computed its gradient and has not sent a byte of it. Every
    worker that reached iteration k has received all of iteration k−1, so when all workers of
    a ring are held at the same k, no payload is on the network.
    """

    def __init__(self, iterations: int, changed: Callable[[str, int], None]) -> None:
        self._iterations = iterations
        self._changed = changed
        self._condition = threading.Condition()
        self._started = False
        self._next = 0
        self._hold_at: int | None = None

    @property
    def iteration(self) -> int:
        """The iteration whose all-reduce has not begun yet."""
        return self._next

    def start(self) -> None:
        """Let training begin; again is harmless."""
        with self._condition:
            self._started = True
            self._condition.notify_all()

    def hold(self, iteration: int) -> int:
        """Hold just before the all-reduce of ``iteration``; gives the iteration it is at.

        ``Passed`` if that all-reduce has begun, or will never come.
        """
        with self._condition:
            if iteration < self._next:
                raise Passed(
                    f"iteration {iteration} is past: the next all-reduce is that of {self._next}"
                )
            if iteration >= self._iterations:
                raise Passed(
                    f"iteration {iteration} will not come: the job has {self._iterations}, the "
                    f"next all-reduce is that of {self._next}"
                )
            self._hold_at = iteration
            self._condition.notify_all()
            return self._next

    def release(self) -> int:
        """Go on, or forget a hold that has not come yet; gives the iteration it is at."""
        with self._condition:
            self._hold_at = None
            self._condition.notify_all()
            return self._next

    def wait_for_start(self) -> None:
        """Return when training may begin."""
        with self._condition:
            while not self._started:
                self._condition.wait(0.5)
        self._changed("running", 0)

    def pass_through(self, iteration: int) -> None:
        """Return when the all-reduce of ``iteration`` may begin."""
        with self._condition:
            held = False
            while self._hold_at == iteration:
                if not held:
                    held = True
                    self._changed("held", iteration)
                self._condition.wait(0.5)
            self._next = iteration + 1
        if held:
            self._changed("running", iteration)
