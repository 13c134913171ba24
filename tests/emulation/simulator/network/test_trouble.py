"""Slow nodes, and links and nodes that fail: what it costs jobs, against closed forms."""

from dataclasses import replace

import numpy as np
import pytest

from patchlight.emulation.simulator.network.contract import collective
from patchlight.emulation.simulator.network.jobs import PlacedJob, run_jobs
from patchlight.emulation.simulator.network.specs import (
    Failure,
    Slowness,
    Trouble,
    network_of,
)
from patchlight.testbed.errors import BadInput, PatchlightError

# Loops are compiled once, where nothing is on the disk yet.
pytestmark = pytest.mark.xdist_group("networks")

IDEAL = network_of("ideal:nodes=8,rate=8Gbps,latency=0ns")
# 1.5 s on a ring of four, behind 0.5 s of computing.
JOB = PlacedJob(np.arange(4), 0.5, collective("ring", 4, 1e9), iterations=10)
OTHER = replace(JOB, nodes=np.arange(4, 8))


def test_a_job_waits_for_its_slowest_node_in_each_iteration() -> None:
    trouble = Trouble([Slowness(2, 3.0), Slowness(1, 2.0)])
    outcome = run_jobs(IDEAL, [JOB, OTHER], trouble)
    assert outcome.ends_s.tolist() == pytest.approx(
        [10 * (1.5 + 1.5), 10 * 2.0]
    )


def test_drawn_factors_are_the_same_for_a_seed_and_the_slowest_is_waited_for() -> (
    None
):
    alone = replace(JOB, rounds=[], compute_s=1.0, iterations=1000)
    ends_s = [
        run_jobs(
            IDEAL,
            [replace(alone, nodes=np.arange(count))],
            Trouble([Slowness.parse("all:exponential:0.5")], seed=seed),
        ).ends_s[0]
        for count, seed in ((1, 3), (1, 3), (1, 4), (4, 3))
    ]
    assert ends_s[0] == ends_s[1] != ends_s[2]
    # The mean of the largest of four exponential numbers is 1 + 1/2 + 1/3 + 1/4 of one's.
    assert ends_s[0] == pytest.approx(1000 * 1.5, rel=0.05)
    assert ends_s[3] == pytest.approx(1000 * (1 + 0.5 * 25 / 12), rel=0.05)


def test_flows_stall_on_a_failed_link_and_go_on_with_the_bits_that_are_left() -> (
    None
):
    leaves = Failure.parse("link:1@1s+3s")
    # Until then it is failed anyway: 4 s in all.
    again = Failure("link", 1, 3.5, 5.0)
    outcome = run_jobs(IDEAL, [JOB, OTHER], Trouble(failures=[leaves, again]))
    assert outcome.ends_s.tolist() == pytest.approx([20.0 + 4.0, 20.0])
    assert outcome.stalled_s.tolist() == pytest.approx([4.0, 0.0])
    assert outcome.restarts.tolist() == outcome.repeated.tolist() == [0, 0]


def test_who_shares_with_a_stalled_flow_has_the_link_to_itself_meanwhile() -> (
    None
):
    network = network_of(
        "leaf-spine:leaves=2,hosts=2,spines=1,taper=2,rate=8Gbps,latency=0ns"
    )
    one, two = (
        PlacedJob(np.array(nodes), 0.0, collective("pipeline", 2, 1e9)[:1])
        for nodes in ([0, 2], [1, 3])
    )
    assert run_jobs(network, [one, two]).ends_s.tolist() == pytest.approx(
        [2.0, 2.0]
    )
    first, second = network.paths(
        np.array([0, 1]), np.array([2, 2]), np.zeros(2, np.int64), np.arange(4)
    ).tolist()
    [nic] = set(first) - set(second)
    outcome = run_jobs(
        network, [one, two], Trouble(failures=[Failure("link", nic, 0.5, 1.0)])
    )
    # Bits sent by 1 s: 1/4 and 3/4; so the second ends at 1.5 s, and the first is alone then.
    assert outcome.ends_s.tolist() == pytest.approx([2.0, 1.5])


def test_a_job_begins_again_behind_its_checkpoint_when_its_node_is_back() -> (
    None
):
    job = replace(JOB, checkpoint_every=4, restart_s=7.0)
    # In its tenth iteration; eight are kept. A second node fails meanwhile, and is back later.
    failures = [
        Failure.parse("node:1@19s+10s"),
        Failure.parse("node:3@20s+11s"),
    ]
    outcome = run_jobs(IDEAL, [job, OTHER], Trouble(failures=failures))
    assert outcome.ends_s.tolist() == pytest.approx(
        [31.0 + 7.0 + 2 * 2.0, 20.0]
    )
    assert outcome.restarts.tolist() == [1, 0]
    assert outcome.repeated.tolist() == [1, 0]


def test_a_node_that_fails_while_a_job_has_not_begun_or_is_done_changes_nothing() -> (
    None
):
    job = replace(JOB, begins_s=10.0)
    failures = [Failure("node", 0, 1.0, 5.0), Failure("node", 0, 35.0, 40.0)]
    outcome = run_jobs(IDEAL, [job], Trouble(failures=failures))
    assert (outcome.ends_s[0], outcome.restarts[0]) == (pytest.approx(30.0), 0)
    late = run_jobs(
        IDEAL, [job], Trouble(failures=[Failure("node", 0, 1.0, 15.0)])
    )
    assert (late.ends_s[0], late.restarts[0]) == (pytest.approx(35.0), 0)


@pytest.mark.parametrize("seed", range(4))
def test_failures_in_a_crowd_delay_nobody_for_ever_and_leave_all_links_as_they_were(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    network = network_of("fat-tree:k=4,taper=2")
    nodes = rng.permutation(16).reshape(4, 4)
    jobs = [
        PlacedJob(each, 0.01, collective("ring", 4, 1e8), 20, restart_s=0.1)
        for each in nodes
    ]
    calm = run_jobs(network, jobs)
    times = rng.random(12).round(2)
    failures = [
        Failure("link", int(n), t, t + 0.1)
        for n, t in zip(range(12), times, strict=True)
    ]
    failures += [Failure("node", int(nodes[0][0]), 0.1, 0.3)]
    outcome = run_jobs(network, jobs, Trouble(failures=failures))
    assert outcome.done.tolist() == [20] * 4
    assert (outcome.ends_s >= calm.ends_s.min() - 1e-9).all()
    assert outcome.restarts.tolist() == [1, 0, 0, 0]
    after = [replace(job, begins_s=1.0 + max(times)) for job in jobs]
    later = run_jobs(network, after, Trouble(failures=failures[:12]))
    assert later.ends_s - 1.0 - max(times) == pytest.approx(calm.ends_s)


def test_a_link_that_never_works_is_named_and_a_job_needs_sound_checkpoints() -> (
    None
):
    dead = replace(IDEAL, capacity_bps=np.zeros(len(IDEAL.capacity_bps)))
    with pytest.raises(PatchlightError, match="never ends"):
        run_jobs(dead, [JOB])
    with pytest.raises(BadInput, match="checkpoint"):
        replace(JOB, checkpoint_every=0)
