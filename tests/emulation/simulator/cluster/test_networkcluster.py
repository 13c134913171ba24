"""Jobs with phases on a network of flows, under the simulator's queue and policies."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.controller.policies.contract import JobView
from patchlight.controller.prediction.network import Training
from patchlight.emulation.simulator.cluster import (
    NetworkCluster,
    QueueJob,
    simulate,
)
from patchlight.emulation.simulator.cluster.networkcluster import Usage
from patchlight.emulation.simulator.cluster.sweep import load_policies
from patchlight.emulation.simulator.network.specs import (
    Failure,
    Slowness,
    Trouble,
    network_of,
)
from patchlight.testbed.errors import BadInput

# Loops are compiled once, where nothing is on the disk yet.
pytestmark = pytest.mark.xdist_group("networks")


def job(
    name: str, workers: int, compute_s: float, iterations: int = 1000
) -> QueueJob:
    """A job whose all-reduce takes 0.1 s between two nodes with 10 Gb/s."""
    training = Training(iterations, 125e6, {"": compute_s})
    return QueueJob(
        JobView(name, workers, training=training), 1.0, training=training
    )


def completion_s(
    spec: str,
    jobs: list[QueueJob],
    usage: Usage | None = None,
    trouble: Trouble | None = None,
) -> list[float]:
    policies = load_policies("fifo", "first-fit", "keep", 0, print)
    cluster = NetworkCluster(network_of(spec), usage, trouble or Trouble())
    result = simulate(cluster, jobs, policies)
    return [float(each) for each in result.jobs["ended_s"]]


def test_a_job_alone_takes_what_the_formula_says() -> None:
    spec = "fat-tree:k=4,rate=10Gbps,latency=0ns"
    [ended_s] = completion_s(spec, [job("a", 2, 0.3)])
    assert ended_s == pytest.approx(1000 * 0.4, rel=1e-9)


def test_collectives_dark_time_and_link_use_are_counted() -> None:
    spec = "oddl:nodes=4,rate=10Gbps,latency=0ns,switching=1ms,setup=0ns"
    usage = Usage(np.zeros(8))
    shuffles = job("a", 4, 0.3, 10)._replace(
        collectives=(("all-to-all", 125e6),)
    )
    [ended_s] = completion_s(spec, [shuffles], usage)
    # Three shifts of a quarter, each of which is dark first; the first circuits come before.
    assert ended_s == pytest.approx(
        10 * (0.3 + 3 * (0.025 + 1e-3)) + 1e-3, rel=1e-9
    )
    assert usage.dark_s == pytest.approx(10 * 3e-3 + 1e-3)
    assert usage.carried_bits == pytest.approx(10 * 3 * 0.25e9)


def test_slow_nodes_and_failures_under_the_queue() -> None:
    spec = "ideal:nodes=4,rate=10Gbps,latency=0ns"
    jobs = [job("a", 2, 0.3), job("b", 2, 0.3)]
    slow = completion_s(spec, jobs, trouble=Trouble([Slowness(3, 2.0)]))
    assert slow == pytest.approx([400.0, 700.0])
    drawn = Trouble([Slowness.parse("0:exponential:0.5")])
    assert completion_s(spec, jobs, trouble=drawn) == pytest.approx(
        [550.0, 400.0], rel=0.1
    )
    stalled = Trouble(failures=[Failure.parse("path:0-1@100s+50s")])
    assert completion_s(spec, jobs, trouble=stalled) == pytest.approx(
        [450.0, 400.0]
    )
    # Without node 3 its job waits for another two; 100 s of work are behind the checkpoint at 0 s.
    broken = Trouble(failures=[Failure.parse("node:3@100s+50s")])
    assert completion_s(spec, jobs, trouble=broken) == pytest.approx(
        [400.0, 150.0 + 60 + 400]
    )


@pytest.mark.usefixtures("undrawn")
def test_the_command_takes_a_network(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [
        f"2017-10-03 00:{n:02}:00,{600 + n},{n % 4 + 1},0,a" for n in range(12)
    ]
    trace.write_text(
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        + "\n".join(rows)
        + "\n"
    )
    run = CliRunner().invoke
    simulated = [
        "simulate",
        "--trace",
        str(trace),
        "--output",
        str(tmp_path / "out"),
        "--json",
    ]
    done = run(cli, [*simulated, "--network", "fat-tree:k=4,taper=2"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["cluster"]["name"] == "fat-tree:k=4,taper=2"
    assert result["cluster"]["gpus"] == 16
    trouble = [
        "--slow",
        "all:lognormal:0.2",
        "--failures",
        "node:3@10min+5min",
    ]
    worse = run(
        cli, [*simulated, "--network", "fat-tree:k=4,taper=2", *trouble]
    )
    assert worse.exit_code == 0, worse.output
    assert json.loads(worse.stdout)["cluster"]["fail"] == ["node:3@10min+5min"]
    nowhere = run(cli, [*simulated, "--cluster", "1x1x8", *trouble])
    assert isinstance(nowhere.exception, BadInput)
    assert "of a --network" in nowhere.exception.message
    refused = run(cli, [*simulated, "--network", "fat-tree:k=3"])
    assert isinstance(refused.exception, BadInput)
    assert "even number of ports" in refused.exception.message
    both = run(cli, [*simulated, "--network", "ideal", "--cluster", "1x1x8"])
    assert isinstance(both.exception, BadInput)
    assert (
        "--network and --cluster exclude each other" in both.exception.message
    )
