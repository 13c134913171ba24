"""Traffic of collectives, and matrices fitted to port counters."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchlight.controller.policies.engineering import traffic
from patchlight.testbed.errors import BadInput


@given(st.integers(2, 12), st.floats(0.1, 1e9))
def test_an_all_reduce_moves_the_least_bytes_that_one_can(workers: int, gradient: float) -> None:
    # Patarasuk and Yuan's bound: 2(n−1)/n of the gradient out of each worker.
    least = pytest.approx(2 * (workers - 1) / workers * gradient)
    rings = traffic.ring(workers, gradient)
    assert rings.sum(axis=1) == least
    assert np.count_nonzero(rings) == workers
    if workers & (workers - 1) == 0:
        halves = traffic.halving_doubling(workers, gradient)
        assert halves.sum(axis=1) == least
        assert (halves == halves.T).all()


def test_other_collectives() -> None:
    assert traffic.all_to_all(4, 8.0).tolist() == (2 * (1 - np.eye(4))).tolist()
    assert traffic.pipeline(3, 5.0).tolist() == [[0, 5, 0], [5, 0, 5], [0, 5, 0]]
    assert traffic.ring(1, 5.0).tolist() == [[0.0]]
    with pytest.raises(BadInput, match="over 6 workers: expected a power of two"):
        traffic.halving_doubling(6, 1.0)
    found = traffic.placed(traffic.ring(2, 3.0), [2, 0], 3)
    assert np.argwhere(found).tolist() == [[0, 2], [2, 0]]


@given(st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_a_fitted_matrix_has_the_counted_sums(ports: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    truth = random.random((ports, ports)) + 0.1
    guess = random.random((ports, ports)) + 0.1
    found = traffic.fitted(guess, truth.sum(axis=1), truth.sum(axis=0))
    assert found.sum(axis=1) == pytest.approx(truth.sum(axis=1), rel=1e-6)
    assert found.sum(axis=0) == pytest.approx(truth.sum(axis=0), rel=1e-6)
    # Kruithof's iteration keeps the guess's ratios across each square of entries.
    odds = [m[0, 0] * m[1, 1] / (m[0, 1] * m[1, 0]) for m in (guess, found)]
    assert odds[0] == pytest.approx(odds[1], rel=1e-6)


def test_who_knows_counters_alone_guesses_in_proportion() -> None:
    found = traffic.gravity([4.0, 0.0, 4.0, 0.0], [0.0, 4.0, 0.0, 4.0])
    assert found[0].tolist() == pytest.approx([0, 2, 0, 2])
    assert found[1].sum() == 0


def test_a_matrix_that_is_none_is_refused() -> None:
    for wrong in ([[1.0, 2.0]], [[0.0, -1.0], [0.0, 0.0]], [[0.0, np.nan], [0.0, 0.0]]):
        with pytest.raises(BadInput, match="a traffic matrix"):
            traffic.checked(wrong)
    with pytest.raises(BadInput, match="1 and 2 counters of 2 ports"):
        traffic.fitted(np.ones((2, 2)), [1.0], [1.0, 1.0])
