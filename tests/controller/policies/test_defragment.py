"""Light that moves under running jobs: what is proposed, and what it is worth in the simulator."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from patchlight.controller.jobs.cluster_view import WiredLab
from patchlight.controller.policies.cheapest import defragment
from patchlight.controller.policies.contract import (
    ClusterView,
    Frozen,
    JobView,
    RingOfJob,
)
from patchlight.controller.policies.order import Fifo
from patchlight.controller.policies.placement import Consolidated
from patchlight.controller.prediction.framing import tcp
from patchlight.controller.prediction.network import Load
from patchlight.emulation.simulator.cluster import (
    LabCluster,
    Policies,
    QueueJob,
    Settings,
    simulate,
)
from patchlight.emulation.simulator.cluster.jobs import SyntheticJobs
from patchlight.emulation.simulator.cluster.results import summary_of
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.labfile.reader import load_lab

# Bits on links for each bit of a ring.
WIRE = sum(tcp(1500))
LOAD = Load(100, 0.5, 4e9 / WIRE)
FIRST = RingOfJob("first", (0, 2), LOAD)
SECOND = RingOfJob("second", (4, 5), LOAD)


@pytest.fixture(scope="module")
def lab() -> Lab:
    return load_lab("ofc2022")


def view_of(
    lab: Lab, *jobs: RingOfJob, maps: Mapping[str, PortMap] | None = None
) -> ClusterView:
    wired = WiredLab(lab, lab.initial_maps if maps is None else maps)
    running = {job.name: wired.hosts(job.ring) for job in jobs}
    return wired.view(0.0, running)._replace(rings=jobs)


def test_spread_jobs_come_under_one_switch_and_every_gain_and_cost_is_told(
    lab: Lab,
) -> None:
    found = defragment(view_of(lab, FIRST, SECOND))
    assert found is not None
    assert set(found.jobs) == {"first", "second"}
    # From 1.3 s an iteration to 0.6 s, less the iteration and the dark time that it costs.
    assert found.gains_s == pytest.approx(
        dict.fromkeys(("first", "second"), 70 - 1.325)
    )
    assert found.costs_s == pytest.approx(
        dict.fromkeys(("first", "second"), 1.325)
    )
    assert found.gain_s == pytest.approx(2 * 68.675)
    assert (found.dark_s, found.cross_connects) == (0.025, 4)
    wired = WiredLab(lab, {**lab.initial_maps, **found.maps}).shape.gpus
    assert wired[0].rack == wired[2].rack
    assert wired[4].rack == wired[5].rack
    assert defragment(view_of(lab, FIRST, SECOND, maps=found.maps)) is None


def test_too_little_gain_is_left_alone(lab: Lab) -> None:
    short = [
        job._replace(load=LOAD._replace(units=5)) for job in (FIRST, SECOND)
    ]
    assert defragment(view_of(lab, *short)) is None  # 2 × (5 × 0.7 − 1.325) s
    assert defragment(view_of(lab, *short), minimum_gain_s=4.0) is not None
    (ocs,) = lab.circuit_switches
    slow = lab.with_changes(
        circuit_switches=(replace(ocs, switching_time_s=200.0),)
    )
    assert defragment(view_of(slow, FIRST, SECOND)) is None
    assert defragment(view_of(lab)) is None


def test_what_a_change_takes_beside_its_dark_time_is_a_cost(lab: Lab) -> None:
    found = defragment(view_of(lab, FIRST, SECOND), overhead_s=5.0)
    assert found is not None
    assert found.gains_s == pytest.approx(
        dict.fromkeys(("first", "second"), 70 - 6.325)
    )
    assert found.costs_s == pytest.approx(
        dict.fromkeys(("first", "second"), 6.325)
    )
    assert defragment(view_of(lab, FIRST, SECOND), overhead_s=200.0) is None


def test_who_is_not_known_or_locked_keeps_its_light(lab: Lab) -> None:
    foreign = SECOND._replace(load=None)
    found = defragment(view_of(lab, FIRST, foreign))
    assert found is not None
    assert found.jobs == ("first",)
    assert not {5, 6} & {
        c.inp for c in lab.initial_maps["ocs1"].diff(found.maps["ocs1"]).breaks
    }
    locked = view_of(lab, FIRST)._replace(
        barred=Frozen({"ocs1": frozenset({1, 3})})
    )
    assert defragment(locked) is None
    waiting = view_of(lab, FIRST._replace(waits=True))
    assert defragment(waiting) is None


def test_a_job_without_an_end_counts_for_an_hour(lab: Lab) -> None:
    endless = FIRST._replace(load=LOAD._replace(units=math.inf))
    found = defragment(view_of(lab, endless))
    assert found is not None
    assert found.gain_s == pytest.approx(3600 * (1 - 0.6 / 0.9) - 0.925)


class Spread:
    """As the experiment does: over both ToRs."""

    def place(
        self, cluster: ClusterView, job: JobView, workers: int
    ) -> Sequence[int]:
        return [0, 2] if job.name == "long" else [4, 5]


def test_light_follows_jobs_at_ends_and_on_a_timer(lab: Lab) -> None:
    jobs = [
        QueueJob(JobView("long", 2), 1000.0, 0.4),
        QueueJob(JobView("short", 2, arrived_s=100.0), 100.0, 0.4),
    ]
    policies = Policies(Fifo(), Spread())
    plain = simulate(LabCluster(lab), jobs, policies).records
    ends_s = {}
    for every_s in (math.inf, 20.0):
        result = simulate(
            LabCluster(lab), jobs, policies, Settings(defragment_s=every_s)
        )
        ends_s[every_s] = [record.ended_s for record in result.records]
        assert result.reconfigurations >= 1
    # The first is regrouped as it starts, the second only where somebody looks after it began.
    assert ends_s[math.inf][0] < plain[0].ended_s
    assert ends_s[20.0][1] < ends_s[math.inf][1]
    with pytest.raises(BadInput, match="expected more than 0"):
        Settings(defragment_s=0.0)


def test_a_queue_on_static_circuits_is_served_a_quarter_faster(
    lab: Lab,
) -> None:
    drawn = SyntheticJobs(
        count=120, load=0.9, communication=0.4, sizes={2: 1, 3: 1, 4: 1}
    )
    jobs = drawn.draw(np.random.default_rng(0), 6)
    policies = Policies(Fifo(), Consolidated())
    means = [
        summary_of(
            simulate(
                LabCluster(lab), jobs, policies, Settings(defragment_s=every_s)
            )
        )
        for every_s in (None, 600.0)
    ]
    assert means[1]["jct_s"]["mean"] < 0.75 * means[0]["jct_s"]["mean"]
    assert means[1]["racks_mean"] <= means[0]["racks_mean"]
