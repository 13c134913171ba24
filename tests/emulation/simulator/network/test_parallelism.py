"""A mixture of experts, against closed forms on a switch that never blocks."""

import numpy as np
import pytest

from patchlight.emulation.simulator.network.contract import Round
from patchlight.emulation.simulator.network.jobs import (
    PlacedJob,
    expert_exchange,
    run_jobs,
)
from patchlight.emulation.simulator.network.specs import network_of
from patchlight.testbed.errors import BadInput

# Loops are compiled once, where nothing is on the disk yet.
pytestmark = pytest.mark.xdist_group("networks")

B = 100e9
LATENCY_S = 2e-6


def seconds(rounds: list[Round], nodes: int) -> float:
    network = network_of(f"ideal:nodes={nodes},latency=1us")
    return float(
        run_jobs(network, [PlacedJob(np.arange(nodes), 0.0, rounds)]).ends_s[0]
    )


def test_experts_exchange_in_groups() -> None:
    rounds = expert_exchange(64, 16, 1e9)
    assert seconds(rounds, 64) == pytest.approx(
        15 * (8e9 / 16 / B + LATENCY_S), rel=1e-6
    )
    assert all((r.source // 16 == r.destination // 16).all() for r in rounds)
    assert expert_exchange(4, 1, 1e9) == []


def test_groups_that_do_not_divide_the_nodes_are_refused() -> None:
    with pytest.raises(BadInput, match="groups of 7 experts"):
        expert_exchange(64, 7, 1e9)
