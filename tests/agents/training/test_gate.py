"""The gate before each all-reduce."""

import threading
import time
from collections.abc import Iterator

import pytest

from patchlight.agents.training.gate import Gate, Passed


class Walker:
    """Walks through a gate as a trainer does, and notes what the gate says."""

    def __init__(self, iterations: int) -> None:
        self.states: list[str] = []
        self.done = 0
        self.gate = Gate(iterations, lambda state, _k: self.states.append(state))
        self.thread = threading.Thread(target=self._walk, args=(iterations,), daemon=True)
        self.thread.start()

    def _walk(self, iterations: int) -> None:
        self.gate.wait_for_start()
        for iteration in range(iterations):
            self.gate.pass_through(iteration)
            self.done = iteration + 1

    def until(self, *states: str) -> None:
        end = time.monotonic() + 5
        while self.states != list(states):
            assert time.monotonic() < end, self.states
            time.sleep(0.005)


@pytest.fixture
def walker() -> Iterator[Walker]:
    made = Walker(10)
    yield made
    made.gate.start()
    made.gate.release()
    made.thread.join(5)
    assert not made.thread.is_alive()
    assert made.done == 10


def test_a_hold_stops_before_its_iteration_and_a_release_goes_on(walker: Walker) -> None:
    assert walker.gate.hold(4) == 0
    walker.gate.start()
    walker.until("running", "held")
    assert (walker.done, walker.gate.iteration) == (4, 4)
    # What is past, or never comes, cannot be held.
    with pytest.raises(Passed, match="iteration 3 is past: the next all-reduce is that of 4"):
        walker.gate.hold(3)
    with pytest.raises(Passed, match="will not come"):
        walker.gate.hold(10)
    # The one it is held at can, again.
    assert walker.gate.hold(4) == 4
    walker.gate.release()
    walker.until("running", "held", "running")


def test_a_held_worker_can_be_sent_on_to_a_later_hold(walker: Walker) -> None:
    walker.gate.hold(2)
    walker.gate.start()
    walker.until("running", "held")
    walker.gate.hold(7)
    walker.until("running", "held", "running", "held")
    assert walker.done == 7


def test_nothing_moves_before_the_start(walker: Walker) -> None:
    assert walker.states == []
    assert walker.done == 0
