from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.change_bench import ChangeBench, change_bench
from tests.support.controller_process import (
    ControllerProcess,
    controller_process,
)


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[ChangeBench]:
    async with change_bench(tmp_path) as made:
        yield made


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[ControllerProcess]:
    with controller_process(tmp_path) as process:
        yield process
