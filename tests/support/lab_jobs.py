"""Jobs in an emulated lab: submitting them, and waiting for what comes of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from patchlight import EmulatedLab
from patchlight.client.client import ControllerClient
from patchlight.controller.hosts.fleet import Fleet
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.wire.agent_status import AgentStatus
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.jobs import JobAnswer

# Two jobs that share the GPUs of the ofc2022 lab, each spread over both ToRs at first.
SPREAD = ("gpu0", "gpu2", "gpu4", "gpu5")
PAIR = ("gpu1", "gpu3")


@contextlib.contextmanager
def connected(lab: EmulatedLab) -> Iterator[ControllerClient]:
    """A client of the lab's controller, once all switches are there; stops what still runs."""
    with ControllerClient(lab.lab.controller_api) as client:
        wait_until(
            lambda: all(
                s.connected is not False for s in client.status().switches
            )
        )
        yield client
        for job in client.jobs():
            if job.finished_at is None:
                client.stop(job.id)


def spread_spec(name: str, hosts: tuple[str, ...], iterations: int) -> JobSpec:
    """A job on these hosts of the ofc2022 lab."""
    return JobSpec(
        name,
        iterations,
        40_000_000,
        {"Tesla M40": 0.2, "Titan V": 0.1},
        hosts=hosts,
        seed=7,
    )


def ended(client: ControllerClient, job_id: str) -> JobAnswer:
    """The job once it has come to its end."""
    wait_until(lambda: client.job(job_id).finished_at)
    return client.job(job_id)


def checked_iterations(
    client: ControllerClient, job_id: str
) -> list[tuple[int, int]]:
    """The (rank, index) of each iteration that the job reported, sorted; all sums were right."""
    reports, _ = client.iterations(job_id)
    assert {report.check for report in reports} <= {"ok"}
    return sorted((report.rank, report.index) for report in reports)


def every_iteration(ranks: int, count: int) -> list[tuple[int, int]]:
    """What ``checked_iterations`` gives for a job that trained to its end."""
    return [(rank, index) for rank in range(ranks) for index in range(count)]


def agent_statuses(lab: Lab) -> list[AgentStatus]:
    """What the agents of a lab say of their servers, asked at their sockets."""

    async def ask() -> list[AgentStatus]:
        fleet = Fleet(lab)
        try:
            return [await client.status() for client in fleet.clients.values()]
        finally:
            await fleet.close()

    return asyncio.run(ask())
