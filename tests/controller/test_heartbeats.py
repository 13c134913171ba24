"""When an agent counts as suspected, and when as lost."""

import asyncio

import pytest

from patchlight.controller.hosts.agent_client import (
    INTERVAL_S,
    Heartbeat,
    Presence,
)
from patchlight.controller.hosts.on_time import OnTimeClock


@pytest.mark.parametrize(
    ("intervals", "presence"),
    [
        (0, Presence.ANSWERS),
        (2.9, Presence.ANSWERS),
        (3, Presence.SUSPECTED),
        (9.9, Presence.SUSPECTED),
        (10, Presence.LOST),
    ],
)
def test_silence_is_counted_from_the_first_question_without_an_answer(
    intervals: float, presence: Presence
) -> None:
    heartbeat = Heartbeat()
    assert heartbeat.presence(0.0) is Presence.UNHEARD
    heartbeat.answered(0.0)
    # Nobody asked for a long time: that says nothing of who was not asked.
    heartbeat.missed(1000.0)
    heartbeat.missed(1000.5)
    assert heartbeat.presence(1000.0 + intervals * INTERVAL_S) is presence
    heartbeat.answered(2000.0)
    assert heartbeat.presence(2000.0) is Presence.ANSWERS
    assert heartbeat.silence_s(2000.0) == 0.0


def test_an_agent_that_is_polled_rarely_is_silent_for_longer_before_it_is_lost() -> (
    None
):
    heartbeat = Heartbeat(poll_s=10.0)
    heartbeat.answered(900.0)
    heartbeat.missed(1000.0)
    assert heartbeat.presence(1089.0) is Presence.ANSWERS
    assert heartbeat.presence(1090.0) is Presence.SUSPECTED
    assert heartbeat.presence(1300.0) is Presence.LOST


def test_who_never_answered_is_lost_as_well() -> None:
    heartbeat = Heartbeat()
    heartbeat.missed(0.0)
    assert heartbeat.presence(INTERVAL_S) is Presence.UNHEARD
    assert heartbeat.presence(10 * INTERVAL_S) is Presence.LOST


def test_a_late_failure_says_nothing_of_the_time_before_a_later_answer() -> (
    None
):
    heartbeat = Heartbeat()
    heartbeat.answered(29.0)
    # It was given up at 30 s, and another call was answered meanwhile.
    heartbeat.missed(0.0)
    assert heartbeat.silence_s(30.0) == 1.0
    assert heartbeat.presence(30.0) is Presence.ANSWERS


def test_slow_answers_are_an_overloaded_machine_and_stretch_limits() -> None:
    heartbeat = Heartbeat()
    assert (heartbeat.overload, heartbeat.slowness) == ("", 1.0)
    heartbeat.answers_s.append(0.2)
    assert (heartbeat.overload, heartbeat.slowness) == ("", 1.0)
    heartbeat.answers_s += [3.0, 0.5]
    assert heartbeat.overload == "after 3 s: the machine is overloaded"
    assert heartbeat.slowness == 3.0
    heartbeat.answers_s += [0.5] * 10  # it is over
    assert (heartbeat.overload, heartbeat.slowness) == ("", 1.0)


async def test_what_the_controller_was_late_for_is_no_silence_of_others() -> (
    None
):
    now = [1000.0]
    clock = OnTimeClock(lambda: now[0])
    running = asyncio.create_task(clock.run())
    await asyncio.sleep(0)
    began = clock.now()
    heartbeat = Heartbeat()
    heartbeat.answered(clock.now())
    heartbeat.missed(began)
    # Load, or a SIGSTOP: not even the clock was looked at.
    now[0] += 100.0
    assert heartbeat.presence(clock.now()) is Presence.ANSWERS
    await asyncio.sleep(0.5)  # it looks four times a second
    assert heartbeat.presence(clock.now()) is Presence.ANSWERS
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    # Without it, it is a usual clock.
    at = clock.now()
    now[0] += 10 * INTERVAL_S
    assert clock.now() == at + 10 * INTERVAL_S
    assert heartbeat.presence(clock.now()) is Presence.LOST
