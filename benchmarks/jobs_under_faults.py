"""Two jobs in an emulated lab: one that something befalls, and one that it is not to harm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from patchlight import EmulatedLab
from patchlight.client.client import ControllerClient
from patchlight.testbed.jobs import JobSpec
from tests.support.lab_jobs import checked_iterations
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.jobs import JobAnswer

# Both NICs of one server, under one switch: what others do on other hosts is not in its way.
OTHER_HOSTS = ("gpu0", "gpu1")
_COMPUTE = {"Tesla M40": 0.1, "Titan V": 0.1}
_WITHOUT_END = 100_000


def victim_spec(name: str, **changes: Any) -> JobSpec:
    """Two workers on GPUs that are free, one more attempt, and little patience in the dark."""
    usual = {"workers": 2, "retries": 1, "dark_limit_s": 1.0} | changes
    return JobSpec(name, _WITHOUT_END, 4_000_000, _COMPUTE, **usual)


@dataclass(frozen=True)
class OtherJob:
    """The job that nothing is to happen to."""

    client: ControllerClient
    id: str

    def goes_on(self) -> bool:
        """Whether it still makes its iterations, in the attempt that it began with."""
        before = self.client.job(self.id)
        wait_until(
            lambda: (
                self.client.job(self.id).iterations_done
                > before.iterations_done + 2
            )
        )
        now = self.client.job(self.id)
        return (now.state, now.attempt, now.restarts) == (
            "running",
            0,
            0,
        )

    def check_every_iteration(self) -> None:
        """No iteration is missing or came twice, and all sums were right."""
        done = checked_iterations(self.client, self.id)
        for rank in range(len(OTHER_HOSTS)):
            indices = [index for each, index in done if each == rank]
            assert indices == list(range(len(indices)))

    def iteration_s(self, since: float) -> float:
        """How long an iteration took since then (Unix time): the median."""
        reports, _ = self.client.iterations(self.id)
        ends = [
            r.finished_at
            for r in reports
            if r.rank == 0 and r.finished_at > since
        ]
        return float(median(b - a for a, b in pairwise(ends)))


@contextlib.contextmanager
def other_job(lab: EmulatedLab) -> Iterator[OtherJob]:
    """A job of two workers that trains for as long as the block lasts."""
    with ControllerClient(lab.lab.controller_api) as client:
        spec = JobSpec(
            "other", _WITHOUT_END, 4_000_000, _COMPUTE, hosts=OTHER_HOSTS
        )
        other = OtherJob(client, client.submit([spec])[0].id)
        wait_until(lambda: client.job(other.id).iterations_done > 2)
        yield other
        client.stop(other.id)


@contextlib.contextmanager
def victim(
    client: ControllerClient, name: str, **changes: Any
) -> Iterator[str]:
    """A job that trains, by its id; stopped at the end if it has not ended."""
    job_id = client.submit([victim_spec(name, **changes)])[0].id
    wait_until(lambda: client.job(job_id).iterations_done > 2)
    try:
        yield job_id
    finally:
        client.stop(job_id)


def begins_again(client: ControllerClient, job_id: str) -> JobAnswer:
    """Wait until the job trains again in its next attempt; its status then."""

    def is_back() -> JobAnswer | None:
        job = client.job(job_id)
        done = job.iterations_done > job.first_iteration
        return (
            job
            if job.attempt == 1 and job.state == "running" and done
            else None
        )

    found = wait_until(is_back, f"{job_id} to begin again")
    assert found is not None
    return found
