"""What agents are asked for; a lab's scale divides bytes and windows, and no times."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from patchlight.controller.jobs.running_job import (
    JobFailed,
    scaled_gradient_bytes,
    scaled_window_bytes,
    worker_specs,
)
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab import Lab
from patchlight.testbed.labfile.reader import builtin_lab, read_lab


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


def test_what_goes_over_the_wire_for_a_worker() -> None:
    ofc2022 = read_lab(builtin_lab("ofc2022")).with_changes(scale=1000)
    hosts = [ofc2022.host("gpu1"), ofc2022.host("gpu2")]
    spec = JobSpec("job", 3, 4_000_000, {"Titan V": 0.2, "Tesla M40": 0.4}, seed=7)
    first, _ = worker_specs("job-1", spec, hosts, ofc2022)
    assert first.model_dump(mode="json", exclude_unset=True) == {
        "id": "job-1-0",
        "job": "job-1",
        "rank": 0,
        "gpu": "gpu1",
        "nic": "nic1",
        "ring": [
            {"rank": 0, "address": "192.168.10.12", "port": 29500},
            {"rank": 1, "address": "192.168.10.13", "port": 29500},
        ],
        "neighbours": [{"address": "192.168.10.13", "mac": hosts[1].nic.mac}],
        "task": {
            "iterations": 3,
            "gradient_bytes": 4000,
            "window_bytes": 16384,
            "compute_s": 0.2,
            "seed": 7,
        },
    }


def test_a_job_that_no_agent_would_take_fails() -> None:
    ofc2022 = read_lab(builtin_lab("ofc2022"))
    spec = JobSpec("job", 3, 400, {"Tesla M40": 0.4}, seed=-1)
    with pytest.raises(JobFailed, match="seed"):
        worker_specs("job-1", spec, [ofc2022.host("gpu0")], ofc2022)
