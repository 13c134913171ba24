"""A scheduler at work for each test that asks for one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from patchlight.controller.jobs.policy_set import PolicyChoice
from tests.support.job_cluster import Cluster, at_work


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """With the default policies."""
    async with at_work(PolicyChoice()) as made:
        yield made
