import random
from pathlib import Path

import pytest

from patchlight.emulation.simulator.ramp.ramp import (
    PAC_ML_SHAPE,
    PlacementRule,
    Ramp,
    RampShape,
    place,
    place_one_by_one,
    sub_blocks,
)
from patchlight.emulation.simulator.ramp.steps import RampTiming, step_time
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.graphs import (
    ComputationGraph,
    Operation,
    mirror,
    partition,
    read_graph,
)

RAMP = Ramp(PAC_ML_SHAPE)
TIMING = RampTiming()
DEGREES = (1, 2, 4, 6, 8, 16)
# Completion times in seconds, measured by running the peer's own simulator.
PEER = {
    "alexnet": (36061.2, 18031.0, 9016.0, 6010.9, 4508.4, 2254.8),
    "resnet18": (36668.4, 18336.3, 9170.0, 6114.4, 4586.9, 2295.8),
    "squeezenet1_0": (38000.2, 19000.8, 9503.3, 6336.6, 4753.5, 2379.2),
    "vgg16": (34525.4, 17267.7, 8638.7, 5761.8, 4324.161851, 2168.2),
    "gnmt": (4470.8, 2235.6, 1117.9, 745.4, 560.5, 308.4),
}


def test_all_thirty_completion_times_are_the_peers(
    workloads: Workloads,
) -> None:
    worst = 0.0
    for graph, name in enumerate(workloads.names):
        for degree, peer in zip(DEGREES, PEER[name], strict=True):
            ours = workloads.expected_s(
                graph, degree, PlacementRule.RAMP_FIRST_FIT
            )
            worst = max(worst, abs(ours / peer - 1))
            assert ours == pytest.approx(peer, rel=0.005), (name, degree)
    # Asked for are 0.5 %; what remains is the rounding of the peer's figures, and where its
    # first job of a kind happened to lie (SqueezeNet at 2, in one rack).
    assert worst < 2e-4


def test_vgg16_at_8_is_the_peers_to_the_last_digit(
    workloads: Workloads,
) -> None:
    graph = workloads.names.index("vgg16")
    ours = workloads.expected_s(graph, 8, PlacementRule.RAMP_FIRST_FIT)
    assert ours == pytest.approx(4324.161851, abs=5e-7)


def test_squeezenet_at_2_in_one_rack_is_the_peers(
    workloads: Workloads,
) -> None:
    rack = next(b for b in RAMP.blocks(2) if b.servers == (0, 1))
    ours = workloads.completion_s(2, 2, (RAMP.blocks(1)[0], rack))
    assert ours == pytest.approx(19000.8, abs=0.05)


def test_where_in_the_cluster_does_not_matter(workloads: Workloads) -> None:
    plan = workloads.plans[4][8]
    times = set()
    for whole in RAMP.blocks(8)[:6]:
        blocks = {
            len(b.servers): b.servers
            for b in sub_blocks(RAMP, whole, plan.splits)
        }
        placed = [blocks[count] for count in plan.graph.splits]
        times.add(round(step_time(plan.graph, RAMP, TIMING, placed), 9))
    assert len(times) == 1  # six origins of 2×2×2


def simple(*forward_ms: float) -> ComputationGraph:
    operations = tuple(
        Operation(f"op{i}", "Test", ms, 0.0, 4_000_000_000, 0)
        for i, ms in enumerate(forward_ms)
    )
    return ComputationGraph(
        "simple",
        operations,
        tuple((i, i + 1) for i in range(len(operations) - 1)),
    )


def test_transfers_between_servers_are_waited_for() -> None:
    # Two whole operations of 1 s on two servers: 4 GB over a channel of 400 GB/s take 10 ms.
    graph = partition(mirror(simple(1000.0, 1000.0)), 1)
    here = (0,)
    there = (9,)
    together = step_time(graph, RAMP, TIMING, [here] * 4)
    apart = step_time(graph, RAMP, TIMING, [here, there, here, there])
    assert together == pytest.approx(2.0)
    assert apart == pytest.approx(2.0 + 2 * (0.01 + 250e-9))


def test_split_halves_run_at_once_and_then_synchronise() -> None:
    # One operation of 1 s in halves, in two racks: the all-to-all with the twin and the
    # synchronisation are each an all-reduce over two racks.
    graph = partition(mirror(simple(1000.0)), 2)
    pair = (RAMP.server(0, 0, 0), RAMP.server(0, 1, 0))
    edges = TIMING.all_reduce_s(4 * 1e9, 1, 2, 1)
    synchronising = TIMING.all_reduce_s(2 * 2e9, 1, 2, 1)
    took = step_time(graph, RAMP, TIMING, [pair, pair])
    assert took == pytest.approx(0.5 + edges + synchronising)


def test_a_collective_in_one_rack_is_free_as_in_the_peer() -> None:
    assert TIMING.all_reduce_s(1e9, 1, 1, 2) == 0.0
    assert TIMING.all_reduce_s(1e9, 2, 1, 1) > TIMING.latency_s
    assert TIMING.one_to_one_s(0) == 0.0


def test_a_server_takes_the_shortest_first_and_is_interrupted_by_a_shorter() -> (
    None
):
    # a feeds b (5 s) and, over another server, c (1 s) after 2 s: c goes before the rest of b,
    # so that d on the other server, which c feeds, starts early.
    operations = tuple(
        Operation(name, "Test", ms, 0.0, 0, 0)
        for name, ms in [
            ("a", 1e3),
            ("b", 5e3),
            ("x", 2e3),
            ("c", 1e3),
            ("d", 4e3),
            ("e", 0.0),
        ]
    )
    edges = ((0, 1), (0, 2), (2, 3), (3, 4), (1, 5), (4, 5))
    graph = partition(mirror(ComputationGraph("fork", operations, edges)), 1)
    one = (0,)
    two = (9,)
    servers = [one, one, two, one, two, one]
    # a until 1, b 1–3, c 3–4, d 4–8, b 4–7: the end is at 8, not at 11 as without interruption.
    assert step_time(graph, RAMP, TIMING, servers * 2) == pytest.approx(8.0)
    # By given turns b, whose turn is first, goes on: c 6–7, d 7–11.
    turns = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0] * 2
    assert step_time(
        graph, RAMP, TIMING, servers * 2, turns=turns
    ) == pytest.approx(11.0)


@pytest.mark.parametrize("degree", DEGREES)
def test_one_by_one_comes_to_a_block_for_each_number_of_parts(
    degree: int, workloads: Workloads
) -> None:
    rng = random.Random(degree)
    for graph in range(5):
        plan = workloads.plans[graph][degree]
        assert plan.fits_memory
        for _ in range(12):
            occupied = sum(
                1 << s for s in rng.sample(range(32), rng.randrange(0, 20))
            )
            slow = place_one_by_one(RAMP, plan.graph, occupied, 80e9)
            fast = place(
                RAMP, PlacementRule.RAMP_FIRST_FIT, plan.splits, occupied
            )
            if fast is None:
                assert slow is None
                continue
            assert slow is not None
            blocks = {len(block.servers): block.servers for block in fast}
            assert slow == [
                blocks[count] for count in plan.graph.splits[: len(slow)]
            ]


def test_one_by_one_looks_further_when_memory_is_short() -> None:
    graph = partition(mirror(simple(1.0, 1.0, 1.0)), 1)
    spread = place_one_by_one(RAMP, graph, 0b10, memory_bytes=8e9)
    assert spread == [(0,), (0,), (2,)]
    assert place_one_by_one(RAMP, graph, 0, memory_bytes=3e9) is None


def test_a_job_keeps_within_its_block(workloads: Workloads) -> None:
    for plans in workloads.plans:
        for plan in plans.values():
            blocks = place(RAMP, PlacementRule.RAMP_BLOCK, plan.splits, 0b101)
            assert blocks is not None
            assert all(block.mask & ~blocks[-1].mask == 0 for block in blocks)
            assert [len(block.servers) for block in blocks] == list(
                plan.splits
            )


@pytest.mark.parametrize(
    "shape", [RampShape(1, 5, 3), RampShape(2, 1, 4), RampShape(1, 1, 1)]
)
def test_odd_clusters(shape: RampShape) -> None:
    workloads = Workloads([simple(1000.0, 2000.0)], shape)
    for degree in workloads.degrees:
        took = workloads.expected_s(0, degree, PlacementRule.RAMP_FIRST_FIT)
        assert took >= workloads.sequential_s[0] / degree


def test_a_larger_cluster(pipedream: Path) -> None:
    large = Workloads(
        [read_graph(pipedream / "vgg16.txt")],
        RampShape(8, 8, 2),
        max_degree=64,
    )
    assert {16, 32, 64} <= set(large.degrees)
    times = [
        large.expected_s(0, degree, PlacementRule.RAMP_BLOCK)
        for degree in large.degrees
    ]
    assert times == sorted(times, reverse=True)
