"""One mix of jobs on each architecture, and the figures of all side by side."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from patchlight.emulation.experiments.architectures.mix import MIXTURE, MODELS, mixed_jobs
from patchlight.emulation.experiments.architectures.prices import (
    BUILT_IN,
    Price,
    read_prices,
    totals,
)
from patchlight.emulation.provenance import provenance
from patchlight.emulation.simulator.cluster import NetworkCluster, QueueJob, simulate
from patchlight.emulation.simulator.cluster.networkcluster import Usage
from patchlight.emulation.simulator.cluster.results import summary_of
from patchlight.emulation.simulator.cluster.sweep import load_policies
from patchlight.emulation.simulator.network import Network, network_of
from patchlight.testbed.errors import BadInput

IDEAL = "ideal:nodes=128"
NETWORKS = (
    IDEAL,
    "fat-tree:k=8",
    "fat-tree:k=8,taper=2",
    "leaf-spine:leaves=16,hosts=8,taper=2",
    "rail-only:servers=16,gpus=8",
    "torus:dims=4x4x8",
    "topoopt:nodes=128",
    "sip-ring:nodes=128",
    "sip-ocs:nodes=128",
    "ramp:groups=4,racks=4,channels=8,rate=25Gbps",
    "oddl:nodes=128",
    "rotornet:racks=16,hosts=8",
)
"""Networks of 128 nodes with 100 Gb/s each."""


@dataclass(frozen=True)
class ExperimentOptions:
    """Which networks, how many jobs, drawn with which seed, placed how, and whose prices."""

    networks: tuple[str, ...] = NETWORKS
    jobs: int = 100
    seed: int = 0
    placement: str = "first-fit"
    prices: Path = BUILT_IN
    models: tuple[str, ...] = field(default=(*MODELS, MIXTURE))


def run_experiment(options: ExperimentOptions, tell: Callable[[int, int], None]) -> dict[str, Any]:
    """What ``result.json`` holds. ``tell`` hears of networks that are done, of how many.

    ``BadInput`` for networks of different sizes: the same jobs would not be the same load.
    """
    networks = [network_of(spec) for spec in options.networks]
    if len({network.nodes for network in networks}) > 1:
        sizes = ", ".join(f"{network.spec}: {network.nodes}" for network in networks)
        raise BadInput(f"networks of one size can be compared, not of several ({sizes})")
    prices = read_prices(options.prices)
    nodes = networks[0].nodes
    jobs = mixed_jobs(options.jobs, nodes, options.seed, options.models)
    ideal = network_of(f"ideal:nodes={nodes},rate={max(n.nic_bps for n in networks) / 1e9:g}Gbps")
    origin = provenance([options.seed], [options.prices])
    measured = [_measure(ideal, jobs, options, prices)]
    best_s = measured[0]["iteration_s"]
    for number, network in enumerate(networks):
        measured.append(_measure(network, jobs, options, prices))
        tell(number + 1, len(networks))
    for row in measured:
        ratios = [row["iteration_s"][name] / best_s[name] for name in best_s]
        row["iteration_to_ideal"] = float(np.exp(np.mean(np.log(ratios))))
    return {
        "experiment": "architectures",
        "schema_version": 2,
        "nodes": nodes,
        "jobs": options.jobs,
        "models": list(options.models),
        "placement": options.placement,
        "networks": {
            network.spec: row for network, row in zip(networks, measured[1:], strict=True)
        },
        "prices": {part: price._asdict() for part, price in prices.items()},
        "provenance": origin,
    }


def _measure(
    network: Network,
    jobs: Sequence[QueueJob],
    options: ExperimentOptions,
    prices: Mapping[str, Price],
) -> dict[str, Any]:
    usage = Usage(np.zeros(len(network.capacity_bps)))
    faults: list[str] = []
    policies = load_policies(
        "fifo", options.placement, "keep", options.seed, lambda fault: faults.append(str(fault))
    )
    result = simulate(NetworkCluster(network, usage), jobs, policies)
    summary, table = summary_of(result), result.jobs
    iterations = np.array([job.view.training.iterations for job in jobs if job.view.training])
    lasted_s = (table["ended_s"] - table["started_s"]) / iterations
    models = np.array([job.cluster for job in jobs])
    offered_bits = network.capacity_bps * summary["makespan_s"]
    usd, watts = totals(network.parts, prices)
    return {
        "iteration_s": {
            name: float(lasted_s[models == name].mean()) for name in dict.fromkeys(models.tolist())
        },
        "jct_mean_s": summary["jct_s"]["mean"],
        "jct_p99_s": summary["jct_s"]["p99"],
        "makespan_s": summary["makespan_s"],
        "link_use_mean": float(usage.carried_bits.sum() / offered_bits.sum()),
        "link_use_max": float((usage.carried_bits / offered_bits).max()),
        "dark_s": usage.dark_s,
        "power_w": watts.known,
        "power_unknown": dict(watts.unknown),
        "cost_usd": usd.known,
        "cost_unknown": dict(usd.unknown),
        "parts": dict(network.parts),
        "policy_faults": faults,
    }
