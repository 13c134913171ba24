"""Rings on shared links: max-min fair, worked out by hand and by properties."""

import math
from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchlight.controller.policies.contract import JobView
from patchlight.emulation.simulator.cluster import QueueJob, Training, TwoLevel
from patchlight.emulation.simulator.cluster.cluster import Demand
from patchlight.emulation.simulator.cluster.jobs import load_of
from patchlight.emulation.simulator.cluster.sharing import fair_rates
from patchlight.testbed.errors import BadInput


def test_edges_of_a_ring_take_a_share_each() -> None:
    # A ring that crosses twice beside one that crosses once: each edge gets a third.
    assert fair_rates([{"up": 2}, {"up": 1}], {"up": 30.0}) == [10.0, 10.0]


def test_who_is_held_up_elsewhere_leaves_its_share_to_others() -> None:
    demands: list[Demand] = [{"a": 1}, {"a": 1, "b": 1}, {"b": 1}]
    assert fair_rates(demands, {"a": 10.0, "b": 100.0}) == [5.0, 5.0, 95.0]


def test_no_edge_is_faster_than_a_nic() -> None:
    assert fair_rates([{"a": 1}, {}], {"a": 10.0}, 4.0) == [4.0, 4.0]
    assert fair_rates([{}], {}) == [math.inf]


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abcd"), st.integers(1, 4), min_size=1),
        min_size=1,
        max_size=8,
    ),
    st.fixed_dictionaries({link: st.floats(1.0, 1e9) for link in "abcd"}),
)
def test_links_are_not_overloaded_and_every_ring_has_a_full_one(
    demands: list[dict[Hashable, int]], capacity: dict[Hashable, float]
) -> None:
    rates = fair_rates(demands, capacity)
    load = {
        link: sum(d.get(link, 0) * rate for d, rate in zip(demands, rates, strict=True))
        for link in capacity
    }
    assert all(load[link] <= capacity[link] * (1 + 1e-9) for link in capacity)
    for demand, rate in zip(demands, rates, strict=True):
        # Some full link of the ring has nobody faster on it: that is what max-min fair means.
        assert any(
            load[link] >= capacity[link] * (1 - 1e-9)
            and all(
                r <= rate * (1 + 1e-9) for d, r in zip(demands, rates, strict=True) if link in d
            )
            for link in demand
        )


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
    assert load_of(job, 1, (), 40e9).unit_s(1.0) == 1.0  # Alone, it communicates with nobody.


def test_an_iteration_computes_and_moves_its_gradient() -> None:
    training = Training(10, 1e9, {"fast": 0.1, "slow": 0.4})
    job = QueueJob(JobView("j", 4), 1.0, training=training)
    load = load_of(job, 4, ("fast", "slow"), 40e9)
    # 2·3/4 of 8 Gb at 10 Gb/s, after the slowest GPU.
    assert load.unit_s(10e9) == pytest.approx(0.4 + 1.2)
    with pytest.raises(BadInput, match="does not know how long an iteration takes on odd"):
        load_of(job, 4, ("fast", "odd"), 40e9)


@pytest.mark.parametrize("text", ["16x16", "0x1x1", "axbxc", "16x16x8x2", "9999x9999x9999"])
def test_clusters_that_cannot_be(text: str) -> None:
    with pytest.raises(BadInput):
        TwoLevel.parse(text)
