"""The five models of PAC-ML's experiment on its cluster."""

from pathlib import Path

import pytest

from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.graphs import builtin_graph, read_graph

FIVE = ("alexnet", "resnet18", "squeezenet1_0", "vgg16", "gnmt")


@pytest.fixture(scope="module")
def workloads(pipedream: Path) -> Workloads:
    """With PipeDream's profiles."""
    return Workloads([read_graph(pipedream / f"{name}.txt") for name in FIVE])


@pytest.fixture(scope="module")
def computed() -> Workloads:
    """With the built-in computed profiles."""
    return Workloads([builtin_graph(name) for name in FIVE])
