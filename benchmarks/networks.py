"""How fast the flow simulator of networks is, on one core, beside SimGrid where that is installed.

SimGrid (Debian: ``python3-simgrid``) has the same flows, links and paths in the same run: model
CM02 without TCP's window and cross-traffic; its time is that of the simulation without making the
platform, ours that of paths and simulation. Without Numba (extra ``fast``) nothing here is quick.
"""

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import figure
from benchmarks.random_flows import (
    network_with_equal_latencies,
    random_flows,
    simgrid_completions,
    why_no_simgrid,
)
from patchlight.emulation.simulator.cluster import (
    NetworkCluster,
    queue_jobs,
    simulate,
)
from patchlight.emulation.simulator.cluster.sweep import load_policies
from patchlight.emulation.simulator.network.contract import Round, collective
from patchlight.emulation.simulator.network.jobs import (
    PlacedJob,
    completions,
    run_jobs,
)
from patchlight.emulation.simulator.network.specs import network_of
from patchlight.emulation.simulator.traces.files import load_trace
from tests.support.data import data_set

_GRADIENT = 4.597e9 / 8
_LARGE = "fat-tree:k=64"


def run() -> list[dict[str, Any]]:
    """The figures; those without a peer where SimGrid is not installed."""
    warm = network_of("ideal:nodes=2")
    # Compiled, or read from the disk.
    completions(warm, random_flows(2, 2, 1.0, 1e6, 0))
    found = [_ring(), *_beside_simgrid(), *_large()]
    if (folder := data_set("traces")) is not None:
        found.append(_philly(folder / "philly.csv"))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    name = "networks: peak memory of the benchmarking process, 65,536 nodes included"
    return [*found, figure(name, peak_mib, "MiB", "at most 1024")]


def _cpu_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _ring() -> dict[str, Any]:
    network = network_of("fat-tree:k=16")
    rounds = collective("ring", 1024, _GRADIENT)
    job = PlacedJob(np.arange(1024), 0.0, rounds)
    cpu_s = min(_cpu_s(lambda: run_jobs(network, [job])) for _ in range(5))
    name = "networks: a ring all-reduce of 1,024 nodes on a fat-tree"
    return figure(name, cpu_s * 1e3, "CPU ms", "at most 10")


def _beside_simgrid() -> list[dict[str, Any]]:
    """Flows that come over a while, and fewer that begin at once, which is more to share."""
    network = network_with_equal_latencies("fat-tree:k=16")
    found = []
    for count, span_s, how in (
        (10_000, 0.1, "over 100 ms"),
        (3_000, 0.0, "at once"),
    ):
        flows = random_flows(1024, count, span_s, 10e6, seed=1)
        began = time.process_time()
        ours_s = completions(network, flows)
        cpu_s = time.process_time() - began
        name = f"networks: {count:,} random flows {how} on a fat-tree of 1,024 hosts"
        if why_no_simgrid():
            found.append(figure(name, cpu_s, "CPU s"))
            continue
        simgrid = simgrid_completions(network, flows)
        lasted_s = np.array(simgrid["ends_s"]) - flows.starts_s
        apart = float(np.abs((ours_s - flows.starts_s) / lasted_s - 1).max())
        said = "no slower than SimGrid"
        found += [
            figure(
                name,
                cpu_s,
                "CPU s",
                said,
                peer="SimGrid",
                peer_value=simgrid["cpu_s"],
            ),
            figure(
                "networks: durations, largest difference to SimGrid",
                100 * apart,
                "%",
                "1",
            ),
        ]
    return found


def _large() -> list[dict[str, Any]]:
    network = network_of(_LARGE)
    nodes = 65_536
    ranks = np.arange(nodes)
    step = Round(ranks, (ranks + 12_345) % nodes, 8 * _GRADIENT / nodes)
    whole = {
        "ring all-reduce": collective("ring", nodes, _GRADIENT),
        "all-to-all step": [step],
    }
    found = []
    for what, rounds in whole.items():
        job = PlacedJob(ranks, 0.0, rounds)
        cpu_s = _cpu_s(lambda job=job: run_jobs(network, [job]))  # type: ignore[misc]
        name = f"networks: {what} of 65,536 nodes on a fat-tree"
        found.append(figure(name, cpu_s, "CPU s", "at most 1"))
    return found


def _philly(trace: Path) -> dict[str, Any]:
    jobs = queue_jobs(load_trace(trace).jobs[:1000], 0.25, 20)
    cluster = NetworkCluster(network_of("fat-tree:k=16,taper=2"))
    policies = load_policies("fifo", "random", "keep", 0, print)
    cpu_s = _cpu_s(lambda: simulate(cluster, jobs, policies))
    name = (
        "networks: 1,000 jobs of the Philly trace with phases on 1,024 GPUs, placed at random, "
        "20 times as fast"
    )
    return figure(name, cpu_s, "CPU s", "at most 60")
