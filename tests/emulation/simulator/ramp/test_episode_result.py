from __future__ import annotations

import math

import pytest

from patchlight.emulation.simulator.ramp.episode_result import mean_and_interval
from patchlight.testbed.errors import BadInput


def test_the_interval_is_students() -> None:
    mean, half = mean_and_interval([1.0, 2.0, 3.0, 4.0])
    assert mean == 2.5
    assert half == pytest.approx(3.182 * math.sqrt(5 / 3) / 2, rel=1e-3)
    assert mean_and_interval([0.5] * 40) == (0.5, 0.0)
    assert mean_and_interval([0.5]).half_width == math.inf
    with pytest.raises(BadInput, match="no values"):
        mean_and_interval([])
