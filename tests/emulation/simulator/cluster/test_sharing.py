"""Which links a ring uses on a plain cluster, and how much work a job is."""

import pytest

from patchlight.controller.policies.contract import JobView
from patchlight.controller.prediction.network import Training
from patchlight.emulation.simulator.cluster import QueueJob, TwoLevel
from patchlight.emulation.simulator.cluster.jobs import load_of
from patchlight.testbed.errors import BadInput


def test_a_ring_leaves_a_rack_as_often_as_its_order_says() -> None:
    cluster = TwoLevel(2, 2, 2)
    assert cluster.demand([0, 1, 4, 5]) == {0: 1, 1: 1}
    assert cluster.demand([0, 4, 1, 5]) == {0: 2, 1: 2}
    assert cluster.demand([0, 1, 2, 3]) == {}


def test_a_job_of_a_trace_is_stretched_by_what_it_communicates() -> None:
    job = QueueJob(JobView("j", 8), 100.0, communication=0.25)
    load = load_of(job, 8, (), nic_bps=40e9)
    assert load.units * load.unit_s(40e9) == pytest.approx(100)
    assert load.units * load.unit_s(10e9) == pytest.approx(75 + 4 * 25)
    # Alone, it communicates with nobody.
    assert load_of(job, 1, (), 40e9).unit_s(1.0) == 1.0


def test_an_iteration_computes_and_moves_its_gradient() -> None:
    training = Training(10, 1e9, {"fast": 0.1, "slow": 0.4})
    job = QueueJob(JobView("j", 4), 1.0, training=training)
    load = load_of(job, 4, ("fast", "slow"), 40e9)
    # 2·3/4 of 8 Gb at 10 Gb/s, after the slowest GPU.
    assert load.unit_s(10e9) == pytest.approx(0.4 + 1.2)
    with pytest.raises(BadInput, match="the compute time on odd is unknown"):
        load_of(job, 4, ("fast", "odd"), 40e9)
