from collections.abc import AsyncIterator

import pytest_asyncio

from patchlight.testbed.lab.rules import PolicyChoice
from tests.support.job_api import JobCommand, job_command
from tests.support.job_cluster import Cluster, at_work


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with at_work(PolicyChoice()) as made:
        yield made


@pytest_asyncio.fixture
async def job(cluster: Cluster) -> AsyncIterator[JobCommand]:
    async with job_command(cluster) as command:
        yield command
