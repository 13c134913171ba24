"""Matchings against brute force."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchlight.controller.policies.engineering.traffic import pairs


def weights_of(ports: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.random((ports, ports)) * (
        random.random((ports, ports)) < 0.7
    )


@given(st.integers(0, 7), st.integers(0, 2**32 - 1))
def test_no_other_pairs_weigh_more(ports: int, seed: int) -> None:
    weights = weights_of(ports, seed)
    np.fill_diagonal(weights, 0)
    both = weights + weights.T

    def best(left: tuple[int, ...]) -> Any:
        if len(left) < 2:
            return 0.0
        first, *others = left
        alone = best(tuple(others))
        return max(
            [alone]
            + [
                both[first, o] + best(tuple(x for x in others if x != o))
                for o in others
            ]
        )

    found = pairs(weights)
    ends = [end for pair in found for end in pair]
    assert len(ends) == len(set(ends))
    assert all(both[a, b] > 0 for a, b in found)
    assert sum(both[a, b] for a, b in found) == pytest.approx(
        best(tuple(range(ports)))
    )


def test_nobody_has_a_partner_alone() -> None:
    assert pairs(np.zeros((3, 3))) == []
