"""Models split over nodes, against closed forms on a switch that never blocks."""

import numpy as np
import pytest

from patchlight.emulation.simulator.network.contract import Round
from patchlight.emulation.simulator.network.jobs import PlacedJob, Split, expert_exchange, run_jobs
from patchlight.emulation.simulator.network.specs import network_of
from patchlight.testbed.errors import BadInput

# Loops are compiled once, where nothing is on the disk yet.
pytestmark = pytest.mark.xdist_group("networks")

B, LATENCY_S = 100e9, 2e-6


def seconds(rounds: list[Round], nodes: int) -> float:
    network = network_of(f"ideal:nodes={nodes},latency=1us")
    return float(run_jobs(network, [PlacedJob(np.arange(nodes), 0.0, rounds)]).ends_s[0])


@pytest.mark.parametrize(("d", "t", "p"), [(4, 4, 4), (8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 4, 1)])
def test_data_tensor_and_pipeline_parallelism(d: int, t: int, p: int) -> None:
    gradient, activation, layers, m = 1e9, 4e6, 24, 8
    split = Split(d, t, p, gradient, activation, layers, m)
    assert split.nodes == d * t * p

    def ring_s(n: int, nbytes: float) -> float:
        return 2 * (n - 1) / n * 8 * nbytes / B + 2 * (n - 1) * LATENCY_S

    expected = 4 * layers / p * m * ring_s(t, activation) + ring_s(d, gradient / t / p)
    if p > 1:
        expected += 2 * m * (8 * activation / t / B + LATENCY_S)
    assert seconds(split.rounds(), split.nodes) == pytest.approx(expected, rel=1e-6)


def test_tensor_groups_are_neighbours_and_stages_far_apart() -> None:
    inside, forward, _, across = Split(2, 4, 2, 1e9, 1e6, 2).rounds()
    assert set((inside.source // 4 - inside.destination // 4).tolist()) == {0}
    assert set((forward.destination - forward.source).tolist()) == {8}
    assert set(np.abs(across.destination - across.source).tolist()) == {4}


def test_experts_exchange_in_groups() -> None:
    rounds = expert_exchange(64, 16, 1e9)
    assert seconds(rounds, 64) == pytest.approx(15 * (8e9 / 16 / B + LATENCY_S), rel=1e-6)
    assert all((r.source // 16 == r.destination // 16).all() for r in rounds)
    assert expert_exchange(4, 1, 1e9) == []


def test_splits_of_nonsense_are_refused() -> None:
    with pytest.raises(BadInput, match="stages of equally many layers"):
        Split(pipeline=5, layers=24)
    with pytest.raises(BadInput, match="expected 1 or more"):
        Split(data=0)
    with pytest.raises(BadInput, match="groups of 7 experts"):
        expert_exchange(64, 7, 1e9)
