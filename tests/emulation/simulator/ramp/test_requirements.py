import numpy as np
import pytest

from patchlight.emulation.simulator.ramp.workloads import (
    LAW_NAMES,
    Choice,
    fixed,
    law,
    uniform,
)
from patchlight.testbed.errors import BadInput


def sample(name: str, instance: int | None = 0, seed: int = 0) -> np.ndarray:
    return law(name, instance).sample(np.random.default_rng(seed), 100_000)


@pytest.mark.parametrize("name", LAW_NAMES)
def test_hundredths_between_a_tenth_and_one(name: str) -> None:
    drawn = sample(name)
    assert drawn.min() >= 0.1
    assert drawn.max() <= 1.0
    assert np.allclose(drawn * 100, np.round(drawn * 100))
    assert np.array_equal(drawn, sample(name))
    assert not np.array_equal(drawn, sample(name, seed=1))


def test_law_a_has_the_published_moments() -> None:
    drawn = sample("A")
    assert drawn.mean() == pytest.approx(0.55, abs=0.005)
    assert drawn.std() == pytest.approx(0.263, abs=0.005)
    assert (drawn <= 0.25).mean() == pytest.approx(0.176, abs=0.01)
    assert (drawn <= 0.5).mean() == pytest.approx(0.45, abs=0.01)


def test_law_b_has_the_moments_measured_of_the_peer() -> None:
    drawn = sample("B")
    assert drawn.mean() == pytest.approx(0.285, abs=0.003)
    assert drawn.std() == pytest.approx(0.120, abs=0.003)
    assert np.quantile(drawn, [0.1, 0.5, 0.9]).tolist() == pytest.approx(
        [0.15, 0.26, 0.45]
    )
    assert (drawn <= 0.25).mean() == pytest.approx(0.470, abs=0.01)
    assert (drawn <= 0.5).mean() == pytest.approx(0.946, abs=0.005)


def test_instances_of_c_and_d_lie_about_what_was_measured_of_the_peer() -> (
    None
):
    # One instance of each was measured: C .526 and .433, D .696 and .090 (mean, P(β ≤ 1/2)).
    for name, mean, half in (("C", 0.526, 0.433), ("D", 0.696, 0.090)):
        drawn = [sample(name, instance) for instance in range(20)]
        means = [each.mean() for each in drawn]
        halves = [(each <= 0.5).mean() for each in drawn]
        assert min(means) - 0.01 < mean < max(means) + 0.01
        assert min(halves) - 0.01 < half < max(halves) + 0.01


def test_a_new_instance_at_each_call_still_follows_the_seed() -> None:
    assert np.array_equal(sample("D", None, seed=3), sample("D", None, seed=3))
    assert sample("D", None, seed=3).mean() != pytest.approx(
        sample("D").mean(), abs=1e-4
    )


def test_laws_of_ones_own_and_wrong_ones() -> None:
    drawn = fixed([0.25, 0.75]).sample(np.random.default_rng(0), 1000)
    assert set(drawn) == {0.25, 0.75}
    assert uniform("half", 0.5, 0.52).values == (0.5, 0.51, 0.52)
    with pytest.raises(BadInput, match="over 0 and up to 1"):
        Choice("wrong", (0.5, 1.5))
    with pytest.raises(BadInput, match="'E': expected one of A, B, C, D"):
        law("E")
