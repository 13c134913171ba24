"""What a lab's scale does to a job: bytes and windows are divided, times are not."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from patchlight.controller.jobs.running_job import scaled_gradient_bytes, scaled_window_bytes
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab import Lab


def lab(scale: float) -> Lab:
    return Lab("scaled", IPv4Network("10.0.0.0/24"), scale=scale)


def test_gradients_are_whole_floats_and_never_empty() -> None:
    spec = JobSpec("job", iterations=1, gradient_bytes=553_440_000, compute_s={})
    assert scaled_gradient_bytes(spec, lab(1)) == 553_440_000
    assert scaled_gradient_bytes(spec, lab(1000)) == 553_440
    assert scaled_gradient_bytes(spec, lab(1e12)) == 4
    assert scaled_gradient_bytes(spec, lab(7)) % 4 == 0


@pytest.mark.parametrize(
    ("scale", "window"), [(1, None), (10, None), (100, 83_886), (1000, 16_384), (1e6, 16_384)]
)
def test_windows_are_left_to_the_kernel_or_small(scale: float, window: int | None) -> None:
    assert scaled_window_bytes(lab(scale)) == window
