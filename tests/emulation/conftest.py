"""What tests of simulators and of learning share."""

import importlib.util
import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def one_ray() -> Iterator[None]:
    """One Ray of two cores for all tests of this process that use it: it takes seconds to start.

    Mark them with ``xdist_group("a Ray of its own")``.
    """
    if importlib.util.find_spec("ray") is None:
        yield
        return
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
