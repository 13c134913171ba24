"""Blocking, completion times and throughput as the peer's, which was run or published them."""

import pytest

from patchlight.controller.policies.contract import PartitionPolicy
from patchlight.controller.policies.degrees import (
    Constant,
    Maximum,
    Minimum,
    RandomDegree,
    Sufficient,
)
from patchlight.emulation.simulator.ramp.lossnetwork import run_episode
from patchlight.emulation.simulator.ramp.ramp import PlacementRule
from patchlight.emulation.simulator.ramp.scenario import (
    mean_and_interval,
    pac_ml_scenario,
)
from patchlight.emulation.simulator.ramp.workloads import Workloads

# The rates that were measured by running the peer, one seed (0, which makes instance 0 of the
# laws), or that its authors published.
RATES: list[tuple[PartitionPolicy, dict[str, float]]] = [
    (Constant(2), {"D": 0.1049}),
    (Constant(4), {"A": 0.2218, "C": 0.1249}),
    (Constant(8), {"A": 0.2987, "B": 0.2917}),
    (Sufficient(), {"A": 0.3137}),
    (Maximum(), {"A": 0.2624, "B": 0.2631, "C": 0.2674, "D": 0.2631}),
    (Minimum(), {"A": 0.3217, "B": 0.3926, "C": 0.3067, "D": 0.1269}),
    (RandomDegree(0), {"A": 0.5172}),
    (RandomDegree(1), {"B": 0.6011}),
    (RandomDegree(2), {"C": 0.5055}),
    (RandomDegree(3), {"D": 0.4652}),
]
PEER = [
    (law, policy, rate)
    for policy, rates in RATES
    for law, rate in rates.items()
]


@pytest.mark.parametrize(("law", "policy", "peer"), PEER)
def test_first_fit_blocks_as_many_as_the_peer(
    law: str, policy: PartitionPolicy, peer: float, workloads: Workloads
) -> None:
    scenario = pac_ml_scenario(
        workloads, law, PlacementRule.RAMP_FIRST_FIT, law_instance=0
    )
    results = [run_episode(scenario, policy, seed) for seed in range(5)]
    assert results[0].arrivals == 1001
    assert results[0].decisions == 1000
    assert mean_and_interval(
        [each.blocking_rate() for each in results]
    ).mean == pytest.approx(peer, abs=0.02)


def test_whole_blocks_block_fewer(workloads: Workloads) -> None:
    # What a quick study with whole-job blocks found.
    for law, degree, rate in (
        ("A", 8, 0.140),
        ("B", 8, 0.151),
        ("C", 4, 0.122),
    ):
        scenario = pac_ml_scenario(
            workloads, law, PlacementRule.RAMP_BLOCK, law_instance=0
        )
        results = [
            run_episode(scenario, Constant(degree), seed) for seed in range(5)
        ]
        assert mean_and_interval(
            [each.blocking_rate() for each in results]
        ).mean == pytest.approx(rate, abs=0.01)


def test_completion_times_and_throughput_are_the_published_ones(
    workloads: Workloads,
) -> None:
    # Constant degrees are what the published policy came to: JCT 7487 and 14903 s, 24.70 and
    # 28.40 MB/s on laws A and D; the maximum on A 1875 s and 23.25 MB/s.
    for law, policy, jct, throughput in (
        ("A", Constant(4), 7487, 24.70e6),
        ("D", Constant(2), 14903, 28.40e6),
        ("A", Maximum(), 1875, 23.25e6),
    ):
        scenario = pac_ml_scenario(workloads, law, law_instance=0)
        results = [run_episode(scenario, policy, seed) for seed in range(5)]
        assert sum(r.jct_mean_s for r in results) / 5 == pytest.approx(
            jct, rel=0.02
        )
        found = sum(r.throughput_bytes_per_s for r in results) / 5
        assert found == pytest.approx(throughput, rel=0.03)
