"""Traffic matrices fitted to port counters."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchlight.controller.policies.engineering import traffic
from patchlight.testbed.errors import BadInput


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


def test_a_matrix_that_is_none_is_refused() -> None:
    for wrong in (
        [[1.0, 2.0]],
        [[0.0, -1.0], [0.0, 0.0]],
        [[0.0, np.nan], [0.0, 0.0]],
    ):
        with pytest.raises(BadInput, match="a traffic matrix"):
            traffic.checked(wrong)
    with pytest.raises(BadInput, match="1 and 2 counters of 2 ports"):
        traffic.fitted(np.ones((2, 2)), [1.0], [1.0, 1.0])
