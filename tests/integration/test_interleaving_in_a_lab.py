"""Two jobs of an emulated lab that share an uplink send in turns, and no longer once one ends."""

from itertools import pairwise

import pytest

from patchlight import EmulatedLab
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab.rules import PolicyChoice
from tests.support.lab_jobs import (
    checked_iterations,
    connected,
    ended,
    every_iteration,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.ovs]

# Computes for 1 s, and sends for 0.5 s if the link between the ToRs is its own.
GRADIENT_BYTES = 560_000_000
COMPUTE_S = dict.fromkeys(("Tesla M40", "Titan V"), 1.0)


def test_jobs_on_one_uplink_send_while_the_other_computes() -> None:
    with (
        EmulatedLab.from_file(
            "ofc2022",
            scale=1000,
            name="turns",
            workers="process",
            real_time=True,
            policies=PolicyChoice(interleave=True),
        ) as lab,
        connected(lab) as client,
    ):
        assert client.policies()["interleave"]
        specs = [
            JobSpec(
                name,
                iterations,
                GRADIENT_BYTES,
                COMPUTE_S,
                hosts=hosts,
                seed=3,
            )
            for name, iterations, hosts in (
                ("long", 30, ("gpu0", "gpu2")),
                ("short", 20, ("gpu1", "gpu3")),
            )
        ]
        ids = [row.id for row in client.submit(specs, "keep")]
        wait_until(
            lambda: (
                "interleaved" in {event["kind"] for event in client.events()}
            )
        )
        (event,) = [e for e in client.events() if e["kind"] == "interleaved"][
            :1
        ]
        assert set(event["jobs"]) == {*ids}
        assert 1.5 < event["period_s"] < 1.7
        for job_id, spec in zip(ids, specs, strict=True):
            done = ended(client, job_id)
            assert done.state == "done", done.message
            assert done.restarts == 0
            assert checked_iterations(client, job_id) == every_iteration(
                2, spec.iterations
            )
        begins: dict[str, dict[int, float]] = {}
        for job_id in ids:
            mine = begins[job_id] = {}
            for each in client.iterations(job_id)[0]:
                began = each.finished_at - each.communication_s
                mine[each.index] = max(mine.get(each.index, 0.0), began)
        # Both begin once a period, and some half of it after each other.
        long, short = (
            [each[index] for index in sorted(each)][8:18]
            for each in begins.values()
        )
        gaps = sorted(
            after - before
            for each in (long, short)
            for before, after in pairwise(each)
        )
        assert gaps[len(gaps) // 2] == pytest.approx(
            event["period_s"], rel=0.06
        )
        apart = sorted(
            min(abs(one - other) for other in long) for one in short[1:-1]
        )
        assert apart[len(apart) // 2] > 0.3
