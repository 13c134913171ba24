"""Light that follows running jobs by itself in an emulated lab, with packets on their way."""

import pytest

from patchlight import EmulatedLab
from patchlight.testbed.lab.rules import PolicyChoice
from tests.support.lab_jobs import (
    PAIR,
    SPREAD,
    checked_iterations,
    connected,
    ended,
    every_iteration,
    spread_spec,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.ovs]


def test_as_a_job_ends_the_light_of_another_comes_together() -> None:
    # Never on the timer: a busy machine may take longer to start than the lab is to be left alone.
    choice = PolicyChoice(
        defragment=True, defragment_every_s=3600.0, minimum_gain_s=1.0
    )
    with (
        EmulatedLab.from_file(
            "ofc2022",
            scale=1000,
            name="follows",
            workers="process",
            policies=choice,
        ) as lab,
        connected(lab) as client,
    ):
        assert client.status().light.defragment
        long = client.submit([spread_spec("long", SPREAD, 80)], "keep")[0].id
        # Reported by every rank, so that there is something measured before the light moves.
        third = {(rank, 2) for rank in range(len(SPREAD))}
        wait_until(lambda: third <= set(checked_iterations(client, long)))
        short = client.submit([spread_spec("short", PAIR, 4)], "keep")[0].id
        assert ended(client, short).state == "done"
        wait_until(lambda: client.job(long).light_moves)
        done = ended(client, long)
        assert done.state == "done", done.message
        assert done.restarts == 0
        assert checked_iterations(client, long) == every_iteration(
            len(SPREAD), 80
        )
        (move,) = done.light_moves
        assert move.policy == "defragment"
        assert move.predicted_after_s < move.predicted_before_s
        assert 0 < (move.measured_after_s or 0) < (move.measured_before_s or 0)
        assert move.unsettled_before  # the other job had only just ended
        changes = client.reconfigurations()
        assert [(each.id, each.state) for each in changes] == [
            (move.reconfiguration, "committed")
        ]
        wait_until(
            lambda: (
                "light-measured"
                in {event["kind"] for event in client.events()}
            )
        )
