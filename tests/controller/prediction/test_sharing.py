"""Rings on shared links: max-min fair, worked out by hand and by properties."""

import math
from collections.abc import Hashable

from hypothesis import given
from hypothesis import strategies as st

from patchlight.controller.prediction.network import Demand, fair_rates


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
        st.dictionaries(
            st.sampled_from("abcd"), st.integers(1, 4), min_size=1
        ),
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
        link: sum(
            d.get(link, 0) * rate
            for d, rate in zip(demands, rates, strict=True)
        )
        for link in capacity
    }
    assert all(load[link] <= capacity[link] * (1 + 1e-9) for link in capacity)
    for demand, rate in zip(demands, rates, strict=True):
        # Some full link of the ring has nobody faster on it: that is what max-min fair means.
        assert any(
            load[link] >= capacity[link] * (1 - 1e-9)
            and all(
                r <= rate * (1 + 1e-9)
                for d, r in zip(demands, rates, strict=True)
                if link in d
            )
            for link in demand
        )
