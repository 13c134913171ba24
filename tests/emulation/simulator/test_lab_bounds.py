"""What no policy goes below in a lab, beside schedules that are known to be best."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.lab_bounds import Work, bound_s, measured
from patchlight.emulation.simulator.randomlabs import Drawn


def test_on_one_gpu_the_bound_is_the_shortest_first() -> None:
    jobs = [Work(0.0, {1: 3.0}), Work(0.0, {1: 1.0}), Work(0.0, {1: 2.0})]
    assert bound_s(jobs, 1.0, 0.01) == pytest.approx((1 + 3 + 6) / 3, rel=0.01)


def test_with_gpus_for_all_the_bound_is_each_job_alone() -> None:
    jobs = [Work(0.0, {1: 8.0, 2: 5.0, 4: 6.0}), Work(2.0, {1: 4.0})]
    assert bound_s(jobs, 8.0, 0.5) == pytest.approx((5 + 4) / 2)


times = st.floats(0.5, 4.0)


@given(
    st.lists(
        st.tuples(times, times, st.floats(0.5, 1.0)), min_size=1, max_size=4
    )
)
@settings(deadline=None, max_examples=30)
def test_no_order_of_jobs_on_two_gpus_goes_below(
    drawn: list[tuple[float, float, float]],
) -> None:
    jobs = [
        Work(at_s, {1: takes_s, 2: part * takes_s})
        for at_s, takes_s, part in drawn
    ]
    found = bound_s(jobs, 2.0, 0.25)
    for order in itertools.permutations(jobs):
        for wide in itertools.product([1, 2], repeat=len(jobs)):
            free_s = [0.0, 0.0]
            ends_s = 0.0
            for job, workers in zip(order, wide, strict=True):
                free_s.sort()
                end_s = (
                    max(job.arrived_s, free_s[workers - 1])
                    + job.takes_s[workers]
                )
                free_s[:workers] = [end_s] * workers
                ends_s += end_s - job.arrived_s
            assert found <= ends_s / len(jobs) + 1e-6


def test_in_a_lab_the_bound_is_below_hindsight_and_that_not_above_the_built_in_policies() -> (
    None
):
    found = measured(Drawn(jobs=8, load=1.1, largest=12), 7, plays=6)
    assert 0 < found["alone"] <= found["bound"] < found["hindsight"] <= 1.0
    assert min(found["least-delay"], found["constant:4"]) == 1.0
