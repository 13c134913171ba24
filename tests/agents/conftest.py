"""Builds benches for the tests of agents."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.agent_bench import Bench
from tests.support.nic_spaces import Spaces, made_spaces


@pytest.fixture(
    params=["process", pytest.param("docker", marks=pytest.mark.docker)]
)
def runner(request: pytest.FixtureRequest) -> str:
    """What a worker is: each test with it runs with both."""
    return str(request.param)


@pytest.fixture
def make_bench() -> Iterator[Callable[[int], Bench]]:
    """Builds a bench with so many servers; clears it away afterwards."""
    made: list[Bench] = []
    # A short path: Unix sockets take 107 characters.
    directory = Path(f"/tmp/pl-agents-{os.getpid()}")

    def make(servers: int) -> Bench:
        directory.mkdir(mode=0o700)
        bench = Bench(directory, servers)
        made.append(bench)
        bench.build()
        return bench

    yield make
    try:
        for bench in made:
            bench.clear()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def spaces() -> Iterator[Spaces]:
    """A server with one NIC, what it is plugged into, and a place for a worker."""
    with made_spaces() as made:
        yield made
