"""Max-min fair sharing, against filling everything anew at each moment."""

from collections.abc import Hashable
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.random_flows import network_with_equal_latencies, random_flows
from patchlight.controller.prediction.network import Demand, fair_rates
from patchlight.emulation.simulator.network.contract import (
    NO_LINK,
    Network,
    collective,
)
from patchlight.emulation.simulator.network.engine import run
from patchlight.emulation.simulator.network.jobs import (
    Flows,
    PlacedJob,
    completions,
    program_of,
    sessions_of,
)
from patchlight.emulation.simulator.network.specs import network_of
from patchlight.testbed.errors import BadInput

# Loops are compiled once, where nothing is on the disk yet.
pytestmark = pytest.mark.xdist_group("networks")


def filled_anew(network: Network, flows: Flows) -> list[float]:
    """When flows are complete if at each event all rates are computed from nothing."""
    count = len(flows.source)
    paths = network.paths(
        *flows[:2], np.arange(count), np.arange(network.nodes)
    )
    demands: list[Demand] = [
        {int(link): 1 for link in row if link != NO_LINK} for row in paths
    ]
    latency_s = np.where(paths == NO_LINK, 0.0, network.latency_s[paths]).sum(
        axis=1
    )
    begins_s = (flows.starts_s + latency_s).tolist()
    capacity: dict[Hashable, float] = dict(
        enumerate(network.capacity_bps.tolist())
    )
    left = (8 * flows.nbytes).tolist()
    ends_s = [np.nan] * count
    now_s = 0.0
    while np.isnan(ends_s).any():
        waiting = [
            b
            for b, e in zip(begins_s, ends_s, strict=True)
            if b > now_s and np.isnan(e)
        ]
        here = [
            n
            for n in range(count)
            if begins_s[n] <= now_s and np.isnan(ends_s[n])
        ]
        rates = dict(
            zip(
                here,
                fair_rates([demands[n] for n in here], capacity),
                strict=True,
            )
        )
        times = [now_s + left[n] / rates[n] for n in here]
        next_s = min([*times, *waiting])
        for n in here:
            left[n] -= rates[n] * (next_s - now_s)
        for n, at_s in zip(here, times, strict=True):
            if at_s <= next_s * (1 + 1e-12):
                ends_s[n] = next_s
        now_s = next_s
    return ends_s


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "spec", ["fat-tree:k=4,taper=2", "torus:dims=3x3", "sip-ring:nodes=8"]
)
def test_rates_are_those_of_filling_all_anew(spec: str, seed: int) -> None:
    network = network_with_equal_latencies(spec)
    flows = random_flows(network.nodes, 40, 1e-4, 1e6, seed)
    found = completions(
        network, flows._replace(starts_s=flows.starts_s.round(5))
    )
    expected = filled_anew(
        network, flows._replace(starts_s=flows.starts_s.round(5))
    )
    if network.switching.dark_s:
        found = completions(network, flows._replace(starts_s=flows.starts_s))
        expected = filled_anew(
            network,
            flows._replace(starts_s=flows.starts_s + network.switching.dark_s),
        )
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_equal_flows_end_at_once_and_latency_comes_before_the_bits() -> None:
    network = network_of("ideal:nodes=4,rate=8Gbps,latency=1us")
    to_one = Flows(np.arange(3), np.full(3, 3), np.full(3, 1e6), np.zeros(3))
    assert completions(network, to_one).tolist() == pytest.approx(
        [3e-3 + 2e-6] * 3
    )


@pytest.mark.parametrize(
    ("flows", "said"),
    [
        (
            Flows(np.array([1]), np.array([1]), np.ones(1), np.zeros(1)),
            "node 1 to itself",
        ),
        (
            Flows(np.array([0]), np.array([9]), np.ones(1), np.zeros(1)),
            "no node 9",
        ),
        (
            Flows(np.array([0]), np.array([1]), np.zeros(1), np.zeros(1)),
            "more than 0 bytes",
        ),
        (
            Flows(np.array([0]), np.array([1]), np.ones(2), np.zeros(1)),
            "one length",
        ),
        (
            Flows(
                np.array([0]), np.array([1]), np.ones(1), np.array([np.nan])
            ),
            "no start time",
        ),
    ],
)
def test_flows_that_are_none_are_refused(flows: Flows, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        completions(network_of("ideal:nodes=4"), flows)


@pytest.mark.parametrize(
    "spec", ["fat-tree:k=4,taper=2", "sip-ring:nodes=16", "torus:dims=4x4"]
)
@pytest.mark.parametrize("seed", range(3))
def test_links_that_are_left_out_change_no_completion_time(
    spec: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    network = network_of(spec)
    jobs = []
    free = rng.permutation(16)
    for size, name in (
        (5, "ring"),
        (4, "all-to-all"),
        (3, "tree"),
        (4, "ring"),
    ):
        nodes = free[:size]
        free = free[size:]
        rounds = collective(name, size, 1e8 * (1 + rng.random()))
        jobs.append(PlacedJob(nodes, rng.random() * 0.1, rounds, 3))
    sessions = [sessions_of(network, job) for job in jobs]
    program = program_of(network, jobs, sessions)
    links = [each for one in sessions for each in one.links]
    whole = replace(
        program,
        capacity_bps=network.capacity_bps,
        first=np.cumsum([0, *map(len, links)]),
        links=np.concatenate(links),
        weights=np.concatenate(
            [each for one in sessions for each in one.weights]
        ),
    )
    assert len(program.links) < len(whole.links)
    assert run(program).ends_s == pytest.approx(run(whole).ends_s, rel=1e-9)
