"""Topologies of circuits between sites: degrees and rings."""

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchlight.controller.policies.engineering.traffic import (
    degree_constrained,
    ring_of,
    spread_steps,
    totient,
    totient_steps,
)
from patchlight.testbed.errors import BadInput


def ring(sites: int) -> np.ndarray:
    return np.roll(np.eye(sites), 1, axis=1)


@given(
    st.integers(2, 8),
    st.lists(st.integers(0, 4), min_size=8, max_size=8),
    st.integers(0, 99),
)
def test_no_site_has_more_circuits_than_ports(
    sites: int, ports: list[int], seed: int
) -> None:
    demand = np.random.default_rng(seed).random((sites, sites))
    found = degree_constrained(demand, ports[:sites])
    assert (found == found.T).all()
    assert not found.diagonal().any()
    used = found.sum(axis=1)
    assert (used <= ports[:sites]).all()
    # Nobody with a port left could have been joined to somebody else who has one.
    assert np.count_nonzero(used < ports[:sites]) <= 1


def test_a_ring_of_traffic_becomes_a_ring_of_circuits() -> None:
    for sites in (2, 3, 4, 7, 16):
        found = degree_constrained(
            ring(sites), [1 if sites == 2 else 2] * sites
        )
        assert found.tolist() == ring_of(range(sites), sites).tolist()


def test_a_heavy_pair_gets_more_circuits_and_a_light_one_is_not_forgotten() -> (
    None
):
    demand = np.array([[0.0, 9.0, 2.5], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert degree_constrained(demand, [4, 4, 4])[0].tolist() == [0, 3, 1]


@given(st.integers(2, 60))
def test_each_totient_step_visits_all_sites(sites: int) -> None:
    steps = totient_steps(sites)
    coprime = sum(math.gcd(step, sites) == 1 for step in range(1, sites + 1))
    assert len(steps) == (coprime + 1) // 2  # Euler's φ, each way counted once
    for step in steps:
        graph = nx.from_numpy_array(ring_of(range(sites), sites, step))
        assert nx.is_connected(graph)
        assert {degree for _, degree in graph.degree()} == {
            1 if sites == 2 else 2
        }


def test_rings_are_far_apart_so_that_everybody_is_near() -> None:
    assert spread_steps(16, 2) == [1, 3]
    assert spread_steps(64, 3) == [1, 3, 15]
    assert spread_steps(4, 3) == [1]
    near = totient(range(16), np.zeros((16, 16)), [4] * 16, rings=2)
    assert nx.diameter(nx.from_numpy_array(near)) == 4
    assert nx.diameter(nx.from_numpy_array(ring_of(range(16), 16))) == 8


def test_ports_that_no_ring_needs_go_to_the_other_traffic() -> None:
    demand = ring(6)
    demand[0, 3] = demand[1, 4] = 5.0
    found = totient(range(6), demand, [3] * 6, rings=1)
    assert found[0].tolist() == [0, 1, 0, 1, 0, 1]
    assert found[1].tolist() == [1, 0, 1, 0, 1, 0]
    with pytest.raises(BadInput, match="needs 2 OCS ports of each: one has 1"):
        totient(range(3), np.zeros((3, 3)), [2, 1, 2])
