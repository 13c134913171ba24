"""Collectives against their closed forms, and against what ASTRA-sim gives for a ring."""

import math

import numpy as np
import pytest

from patchlight.emulation.simulator.network.contract import (
    COLLECTIVES,
    Round,
    collective,
    hierarchical,
    parameter_server,
)
from patchlight.emulation.simulator.network.jobs import (
    Flows,
    PlacedJob,
    completions,
    program_of,
    run_jobs,
    sessions_of,
)
from patchlight.emulation.simulator.network.specs import network_of
from patchlight.testbed.errors import BadInput

# Loops are compiled once, where nothing is on the disk yet.
pytestmark = pytest.mark.xdist_group("networks")

S = 4.597e9 / 8
B = 100e9  # VGG19's gradient in bytes; bit/s.


def seconds(
    spec: str, rounds: list[Round], members: int, compute_s: float = 0.0
) -> float:
    job = PlacedJob(np.arange(members), compute_s, rounds)
    return float(run_jobs(network_of(spec), [job]).ends_s[0])


@pytest.mark.parametrize("n", [2, 16, 64])
def test_closed_forms_on_a_switch_that_never_blocks(n: int) -> None:
    spec = f"ideal:nodes={n},latency=2.5us"
    bits = 8 * S
    latency_s = 5e-6
    expected = {
        "ring": 2 * (n - 1) / n * bits / B + 2 * (n - 1) * latency_s,
        "two-rings": 2 * (n - 1) / n * bits / B + 2 * (n - 1) * latency_s,
        "halving-doubling": 2 * (n - 1) / n * bits / B
        + 2 * math.log2(n) * latency_s,
        "parameter-server": 2 * (n - 1) * bits / B + 2 * latency_s,
        "all-to-all": (n - 1) * (bits / n / B + latency_s),
        "tree": 2
        * (bits / B * min(2, n - 1) + (n - 1).bit_length() * latency_s),
        "pipeline": 2 * (bits / B + latency_s),
    }
    for name, value in expected.items():
        if name == "two-rings" and n == 2:
            continue  # Both ways are one.
        assert seconds(spec, collective(name, n, S), n) == pytest.approx(
            value, rel=1e-3
        ), name


def test_headers_take_their_part_of_each_link_and_acknowledgements_of_the_way_back() -> (
    None
):
    there, back = network_of("ideal:mtu=1500").framing
    # A NIC of a ring sends to the next one, and acknowledges what comes from the one before.
    ring_s = seconds(
        "ideal:nodes=4,mtu=1500,latency=0ns", collective("ring", 4, S), 4
    )
    assert ring_s == pytest.approx(1.5 * 8 * S / B * (there + back), rel=1e-9)
    network = network_of("ideal:nodes=4,mtu=1500,latency=1us")
    flows = Flows(
        np.array([0, 2]), np.array([1, 3]), np.array([S, 2 * S]), np.zeros(2)
    )
    one_s = 8 * S / B * there
    assert completions(network, flows) == pytest.approx(
        [one_s + 2e-6, 2 * one_s + 2e-6], rel=1e-9
    )
    # What comes in is acknowledged on the way out.
    both = Flows(
        np.array([0, 1]), np.array([1, 0]), np.array([S, S]), np.zeros(2)
    )
    assert completions(network, both) == pytest.approx(
        8 * S / B * (there + back) + 2e-6, rel=1e-9
    )


def test_a_hierarchy_over_fast_servers_and_several_parameter_servers() -> None:
    g = 8
    m = 4
    inside = 2.4e12
    spec = f"rail-only:servers={m},gpus={g},latency=0ns"
    expected = 2 * (g - 1) / g * 8 * S / inside + 2 * (m - 1) / m * 8 * S / (
        g * B
    )
    assert seconds(spec, hierarchical(g * m, S, g), g * m) == pytest.approx(
        expected, rel=1e-3
    )
    n = 16
    servers = 4
    expected = 2 * max(8 * S / B, (n - 1) * 8 * S / (servers * B))
    found = seconds("ideal:nodes=16", parameter_server(n, S, servers), n)
    assert found == pytest.approx(expected, rel=1e-3)


def test_packets_over_all_paths_meet_only_where_a_tree_is_oversubscribed() -> (
    None
):
    """A shift by half of a k=8 tree: no collisions at full bisection, and twice as long at 2:1."""
    ranks = np.arange(128)
    rounds = [Round(ranks, (ranks + 64) % 128, 8 * S)]
    full_s = 8 * S / B
    sprayed = "fat-tree:k=8,spread=packets,latency=0ns"
    assert seconds(sprayed, rounds, 128) == pytest.approx(full_s, rel=1e-9)
    assert seconds(f"{sprayed},taper=2", rounds, 128) == pytest.approx(
        2 * full_s, rel=1e-9
    )
    assert seconds("fat-tree:k=8,latency=0ns", rounds, 128) >= 2 * full_s


@pytest.mark.parametrize("tuning_s", [100e-9, 25e-6])
def test_circuits_that_change_are_dark_at_each_shift(tuning_s: float) -> None:
    """T = 2(n−1)(S/(nB) + t): as an all-to-all there and another back."""
    n = 64
    there = collective("all-to-all", n, S)
    spec = (
        f"oddl:nodes={n},latency=0ns,setup=0ns,switching={tuning_s * 1e9:g}ns"
    )
    job = PlacedJob(np.arange(n), 0.0, [*there, *there])
    begins_s = tuning_s  # The first circuits are lit before the job begins.
    expected = 2 * (n - 1) * (8 * S / (n * B) + tuning_s) + begins_s
    assert run_jobs(network_of(spec), [job]).ends_s[0] == pytest.approx(
        expected, rel=1e-3
    )


def test_fewer_channels_than_nodes_make_turns_and_requests_take_time() -> None:
    """n nodes on k channels of a coupler: ⌈n/k⌉ turns, each of them tuned."""
    n = 64
    k = 24
    tuning_s = 1e-3
    control_s = 5e-3
    setup_s = 0.1
    job = PlacedJob(np.arange(n), 0.0, collective("ring", n, S))
    light = f"oddl:nodes={n},latency=0ns,switching=1ms,control=5ms"
    edge_s = 2 * (n - 1) / n * 8 * S / B
    told = {"collective": 1, "first-come": 3, "matching": 3}
    for scheduler, requests in told.items():
        network = network_of(f"{light},channels={k},scheduler={scheduler}")
        expected = (
            setup_s
            + tuning_s
            + 3 * (edge_s + tuning_s)
            + requests * 2 * control_s
        )
        assert run_jobs(network, [job]).ends_s[0] == pytest.approx(
            expected, rel=1e-9
        )
    enough_s = run_jobs(network_of(f"{light},channels={n}"), [job]).ends_s[0]
    assert enough_s == pytest.approx(
        setup_s + tuning_s + edge_s + 2 * control_s, rel=1e-9
    )
    assert run_jobs(network_of(light), [job]).ends_s[0] == enough_s


def test_jobs_of_neighbours_on_a_ring_of_fibre_share_it_all() -> None:
    """The last edge of each goes all the way round: J jobs are J on each segment."""
    rounds = collective("ring", 16, S)
    network = network_of("sip-ring:nodes=64,latency=0ns,switching=0ns")
    alone = run_jobs(network, [PlacedJob(np.arange(16), 0.0, rounds)]).ends_s[
        0
    ]
    assert alone == pytest.approx(2 * 15 / 16 * 8 * S / B, rel=1e-9)
    jobs = [
        PlacedJob(np.arange(16) + 16 * number, 0.0, rounds)
        for number in range(4)
    ]
    assert run_jobs(network, jobs).ends_s == pytest.approx(4 * alone, rel=1e-9)


def test_waves_split_over_two_ways_and_fibres_carry_less_each_way() -> None:
    rounds = collective("ring", 64, S)
    job = PlacedJob(np.arange(64), 0.0, rounds)
    there = "sip-ring:nodes=64,latency=0ns,switching=0ns"
    one_way_s = run_jobs(network_of(there), [job]).ends_s[0]
    for more, slower in (
        ("directions=2", 2.0),
        # 64 waves are 6 for each way of each of 5 fibres.
        ("directions=2,fibres=5", 64 / 30),
        ("fibres=5", 64 / 60),
    ):
        split = network_of(f"{there},{more}")
        assert run_jobs(split, [job]).ends_s[0] == pytest.approx(
            slower * one_way_s, rel=1e-9
        )
    # Both ways at once, and the closing edges of jobs beside each other go back where they came.
    both = network_of(f"{there},directions=2")
    around = PlacedJob(np.arange(64), 0.0, collective("two-rings", 64, S))
    assert run_jobs(both, [around]).ends_s[0] == pytest.approx(
        one_way_s, rel=1e-9
    )
    part = collective("ring", 16, S)
    jobs = [PlacedJob(np.arange(16) + at, 0.0, part) for at in (0, 16, 32, 48)]
    assert run_jobs(both, jobs).ends_s == pytest.approx(
        run_jobs(both, jobs[:1]).ends_s[0], rel=1e-9
    )
    dark = "sip-ring:nodes=64,latency=0ns,switching=20us,slot=100us"
    kept_s = run_jobs(network_of(dark), [job]).ends_s[0]
    assert kept_s == pytest.approx(one_way_s / 0.8 + 20e-6, rel=1e-9)
    for wrong in ("directions=3", "fibres=65", "slot=10us"):
        with pytest.raises(BadInput, match="expected 1 or 2 directions"):
            network_of(f"sip-ring:nodes=64,{wrong}")


def test_regrouped_jobs_share_no_uplink_whatever_nodes_they_have() -> None:
    nbytes = 1e9
    mixed = np.arange(32).reshape(8, 4).T  # each job has a node of every ToR
    jobs = [
        PlacedJob(nodes, 0.0, collective("ring", 8, nbytes)) for nodes in mixed
    ]
    least_s = 2 * 7 / 8 * 8 * nbytes / B
    given = "hosts=8,spines=1,taper=4,latency=0ns"
    static = network_of(f"leaf-spine:leaves=4,{given}")
    rewired = network_of(f"tor-ocs:tors=4,{given},switching=25ms")
    ends_s = run_jobs(rewired, jobs).ends_s
    assert ends_s == pytest.approx(least_s + 25e-3, rel=1e-9)
    assert (run_jobs(static, jobs).ends_s > 1.5 * least_s).all()
    # A job of two ToRs crosses between them once each way.
    large = PlacedJob(np.arange(16), 0.0, collective("ring", 16, nbytes))
    assert run_jobs(rewired, [large]).ends_s[0] == pytest.approx(
        2 * 15 / 16 * 8 * nbytes / B + 25e-3, rel=1e-9
    )


def test_topoopt_splits_a_ring_over_all_ports_and_relays_the_rest() -> None:
    network = network_of("topoopt:nodes=16,degree=4,latency=0ns,switching=0ns")
    assert len(set(network.strides(16))) == 4
    rounds = collective("ring", 16, S, network.strides(16))
    ring_s = run_jobs(network, [PlacedJob(np.arange(16), 0.0, rounds)]).ends_s[
        0
    ]
    assert ring_s == pytest.approx(2 * 15 / 16 * 8 * S / B, rel=1e-9)
    two_jobs = [
        PlacedJob(np.arange(8) + base, 0.0, collective("ring", 8, S))
        for base in (0, 8)
    ]
    first, second = run_jobs(network, two_jobs).ends_s
    assert (
        first == second == pytest.approx(2 * 7 / 8 * 8 * S / (B / 4), rel=1e-9)
    )


@pytest.mark.parametrize(
    ("n", "published_s"),
    [
        (64, 85.60e-3),
        (128, 86.54e-3),
        (256, 87.40e-3),
        (512, 88.61e-3),
        (1024, 90.78e-3),
    ],
)
def test_the_ring_of_astra_sim(n: int, published_s: float) -> None:
    """548 MiB in 4 chunks, 12.5 GB/s of 2³⁰ B, 500 ns, ASTRA-sim's analytical back end.

    Its example systems give endpoints 10 ns for each message and let memory of 1.6 TB/s read twice
    and write once what is added up.
    """
    nbytes = 548 * 2**20
    rate_bps = 12.5 * 2**30 * 8
    [edges] = collective("ring", n, nbytes)
    chunks = [
        edges._replace(
            bits=edges.bits / 4, reduced_bits=edges.reduced_bits / 4
        )
    ] * 4
    network = network_of(
        f"ideal:nodes={n},rate={rate_bps / 1e9:.6f}Gbps,latency=250ns"
    )
    job = PlacedJob(
        np.arange(n), 0.0, chunks, messages_s=10e-9, reduce_bps=1.6e12 * 8 / 3
    )
    assert run_jobs(network, [job]).ends_s[0] == pytest.approx(
        published_s, rel=0.01
    )


def test_equal_jobs_in_step_share_and_others_interleave() -> None:
    """Two jobs on an uplink: in step each takes C + 2M, out of step they send in turn."""
    network = network_of(
        "leaf-spine:leaves=2,hosts=2,spines=1,taper=2,rate=10Gbps,latency=0ns"
    )
    rounds = collective("ring", 2, 125e6)  # 0.1 s over an uplink of 10 Gbps.
    iterations = 400

    def iteration_s(compute_s: float) -> float:
        jobs = [
            PlacedJob(np.array([0, 2]), 0.3, rounds, iterations),
            PlacedJob(np.array([1, 3]), compute_s, rounds, iterations),
        ]
        return float(run_jobs(network, jobs).ends_s[0]) / iterations

    assert iteration_s(0.3) == pytest.approx(0.3 + 0.2, rel=1e-9)
    assert iteration_s(0.303) < 0.3 + 0.125


def test_communication_may_overlap_computation() -> None:
    rounds = collective("ring", 4, S)
    network = network_of("ideal:nodes=4,latency=0ns")
    all_s = seconds("ideal:nodes=4,latency=0ns", rounds, 4)
    job = PlacedJob(np.arange(4), 1.0, rounds, 3, overlap=0.05)
    assert run_jobs(network, [job]).ends_s[0] == pytest.approx(
        3 * (0.95 + all_s), rel=1e-9
    )
    hidden = PlacedJob(np.arange(4), 1.0, rounds, 3, overlap=1.0)
    assert run_jobs(network, [hidden]).ends_s[0] == pytest.approx(
        3.0, rel=1e-9
    )


def test_memory_is_linear_in_flows() -> None:
    network = network_of("ideal:nodes=64")
    job = PlacedJob(np.arange(64), 0.0, collective("all-to-all", 64, S))
    sessions = sessions_of(network, job)
    assert sum(map(len, sessions.links)) == 63 * 2 * 64
    assert len(program_of(network, [job], [sessions]).links) == 63
    assert (
        len(program_of(network, [job, job], [sessions, sessions]).links)
        == 2 * 63
    )


def test_collectives_that_make_no_sense_are_refused() -> None:
    with pytest.raises(BadInput, match="power of two"):
        collective("halving-doubling", 12, 1.0)
    with pytest.raises(BadInput, match="no collective 'rong'"):
        collective("rong", 4, 1.0)
    with pytest.raises(BadInput, match="0 bytes or more"):
        collective("ring", 4, -1.0)
    assert [name for name in COLLECTIVES if collective(name, 1, 1e6)] == []


def test_a_row_of_a_torus_uses_its_ring_both_ways() -> None:
    network = network_of("torus:dims=4x4x8,rate=600Gbps,latency=0ns")
    row = np.arange(4)
    rounds = network.collective("ring", row, S)
    took_s = run_jobs(network, [PlacedJob(row, 0.0, rounds)]).ends_s[0]
    assert took_s == pytest.approx(2 * 3 / 4 * 8 * S / 200e9, rel=1e-6)
    # Nodes that are no block have the ring of their ranks.
    assert (
        len(network.collective("ring", np.array([0, 2, 7]), S)[0].source) == 3
    )
