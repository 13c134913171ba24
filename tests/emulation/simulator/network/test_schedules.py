"""Schedules of permutations, traffic of collectives, circuits that change within an iteration."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchlight.emulation.simulator.network.topologies import schedules
from patchlight.emulation.simulator.network.topologies.schedules import birkhoff, stuffed
from patchlight.testbed.errors import BadInput


def demand_of(ports: int, seed: int, density: float = 0.6) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.random((ports, ports)) * (random.random((ports, ports)) < density)


@given(st.integers(1, 7), st.integers(0, 2**32 - 1))
def test_without_a_delay_everything_is_carried_in_the_shortest_time(ports: int, seed: int) -> None:
    seconds = demand_of(ports, seed)
    schedule = birkhoff(seconds)
    carried = np.zeros_like(seconds)
    for slot in schedule.slots:
        assert sorted(slot.to) == list(range(ports))
        carried[np.arange(ports), slot.to] += slot.lasts_s
    assert (carried >= seconds - 1e-9).all()
    assert not schedule.left.any()
    # No schedule is shorter than the busiest port.
    busiest = max(seconds.sum(axis=0).max(), seconds.sum(axis=1).max())
    assert schedule.lasts_s == pytest.approx(busiest, abs=1e-9)
    assert len(schedule.slots) <= ports**2 - 2 * ports + 2


@given(st.integers(2, 7), st.integers(0, 2**32 - 1), st.floats(0.001, 0.5))
def test_a_slot_is_never_shorter_than_its_dark_time(ports: int, seed: int, delay_s: float) -> None:
    seconds = demand_of(ports, seed)
    schedule = birkhoff(seconds, delay_s)
    assert all(slot.lasts_s >= delay_s for slot in schedule.slots)
    carried = np.zeros_like(seconds)
    for slot in schedule.slots:
        carried[np.arange(ports), slot.to] += slot.lasts_s
    assert schedule.left == pytest.approx(np.maximum(0, seconds - carried), abs=1e-9)
    # What is left is less than one more slot would be worth: no permutation of it is that long.
    most = schedule.left.sum(axis=1).max()
    assert most <= seconds.sum(axis=1).max() + 1e-9


def test_a_permutation_is_one_slot_whatever_the_delay() -> None:
    ring = np.roll(np.eye(5), 1, axis=1) * 3.0
    schedule = birkhoff(ring, 1.0)
    assert [(slot.to.tolist(), slot.lasts_s) for slot in schedule.slots] == [([1, 2, 3, 4, 0], 3.0)]
    assert schedule.lasts_s == 4.0
    assert birkhoff(ring, 3.5).slots == ()
    assert birkhoff(ring, 3.5).left.tolist() == ring.tolist()
    assert birkhoff(ring, 3.5, least_duty=0.4).slots != ()
    assert len(birkhoff(1 - np.eye(5), most_slots=2).slots) == 2


@given(st.integers(1, 7), st.integers(0, 2**32 - 1))
def test_stuffing_adds_as_little_as_makes_all_sums_equal(ports: int, seed: int) -> None:
    matrix = demand_of(ports, seed, 0.4)
    found = stuffed(matrix)
    busiest = max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max())
    assert (found >= matrix).all()
    assert found.sum(axis=0) == pytest.approx(busiest, abs=1e-9)
    assert found.sum(axis=1) == pytest.approx(busiest, abs=1e-9)


def test_a_delay_that_is_none_is_refused() -> None:
    with pytest.raises(BadInput, match=r"a delay of -1\.0 s with a duty of 0\.5"):
        birkhoff(np.eye(2), -1.0)


@given(st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_no_permutation_without_light_back_to_its_sender_weighs_more(ports: int, seed: int) -> None:
    weights = demand_of(ports, seed, 0.7)
    to = schedules.assignment(weights)
    rows = np.arange(ports)
    best = max(
        weights[rows, list(each)].sum()
        for each in itertools.permutations(range(ports))
        if all(a != b for a, b in enumerate(each))
    )
    assert (to != rows).all()
    assert weights[rows, to].sum() == pytest.approx(best)


def test_nobody_sends_alone() -> None:
    assert schedules.assignment([[1.0]]).tolist() == []
