"""Runs one job mix on each architecture, and tabulates times, links, optics, power and cost."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from matplotlib.figure import Figure

from patchlight.controller.policies.contract import JobView
from patchlight.controller.prediction.network import Training
from patchlight.emulation.simulator import figures, results
from patchlight.emulation.simulator.cluster import (
    NetworkCluster,
    QueueJob,
    simulate,
)
from patchlight.emulation.simulator.cluster.networkcluster import Usage
from patchlight.emulation.simulator.cluster.results import summary_of
from patchlight.emulation.simulator.cluster.sweep import load_policies
from patchlight.emulation.simulator.network.contract import Network, Round
from patchlight.emulation.simulator.network.jobs import PlacedJob, run_jobs
from patchlight.emulation.simulator.network.specs import network_of
from patchlight.emulation.simulator.results import provenance
from patchlight.testbed.errors import BadInput, reason
from patchlight.testbed.graphs import builtin_graph
from patchlight.testbed.graphs.layers import A100

MODELS = ("vgg19", "resnet50", "bert-large", "gpt2")
MIXTURE = "mixture-of-experts"
# A layer's tokens go to their experts and back, forward and backward, for each of 12 layers:
# batch 8 of 1,024 tokens, 768 wide, 2 bytes each.
_TOKENS_BYTES = 8 * 1024 * 768 * 2
_EXCHANGES = 4 * 12
_SIZES = (2, 4, 8, 16, 32)
_ITERATIONS = (200, 2000)
_LOAD = 0.7


class _Model(NamedTuple):
    compute_s: float
    gradient_bytes: float
    collectives: tuple[tuple[str, float], ...]


def _model(name: str) -> _Model:
    graph = builtin_graph("gpt2" if name == MIXTURE else name)
    compute_s = (graph.forward_ms + graph.backward_ms) / 1e3
    gradient: tuple[str, float] = ("ring", float(graph.parameter_bytes))
    # One all-to-all of all exchanges' bytes: the same bits and edges in fewer rounds.
    exchange = (
        (("all-to-all", float(_TOKENS_BYTES * _EXCHANGES)),)
        if name == MIXTURE
        else ()
    )
    return _Model(compute_s, graph.parameter_bytes, (*exchange, gradient))


def mixed_jobs(
    count: int,
    nodes: int,
    seed: int,
    models: Sequence[str],
) -> list[QueueJob]:
    """Jobs of these models by turns; sizes, lengths and arrivals by chance, alike for each seed.

    Sizes are powers of two up to a quarter of the nodes; on a network that slows nothing down, 70 %
    of the nodes would be held.
    """
    rng = np.random.default_rng(seed)
    known = {name: _model(name) for name in models}
    sizes = [size for size in _SIZES if size <= max(2, nodes // 4)]
    jobs = []
    at_s = 0.0
    for number in range(count):
        name = models[number % len(models)]
        model = known[name]
        size = int(rng.choice(sizes))
        iterations = int(rng.integers(*_ITERATIONS))
        training = Training(
            iterations, model.gradient_bytes, {"": model.compute_s}
        )
        view = JobView(
            f"{number}-{name}",
            size,
            arrived_s=at_s,
            user=name,
            training=training,
        )
        lasts_s = iterations * model.compute_s
        jobs.append(
            QueueJob(
                view,
                lasts_s,
                training=training,
                collectives=model.collectives,
                cluster=name,
            )
        )
        at_s += float(rng.exponential(lasts_s * size / (_LOAD * nodes)))
    return jobs


BUILT_IN = Path(__file__).with_name("prices.yaml")
_DASHES = ("–", "-")


Range = tuple[float, float]


class PartPrice(NamedTuple):
    """A part's price in US dollars and power in watts, or a dash and why not, and the source."""

    usd: Range | str
    watts: Range | str
    source: str


class Total(NamedTuple):
    """The sum of the known figures (``None`` without any), and by part why others are unknown."""

    known: Range | None
    unknown: Mapping[str, str]


def read_prices(file: Path = BUILT_IN) -> dict[str, PartPrice]:
    """A YAML price list: for each part ``usd``, ``watts``, ``source``; ``BadInput`` for others."""
    try:
        given = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInput(
            f"cannot read the price list {file}: {reason(error)}"
        ) from error
    if not isinstance(given, dict):
        raise BadInput(
            f"{file} is not a price list: expected parts, each with usd, watts and source"
        )
    found = {}
    for part, row in given.items():
        if not isinstance(row, dict) or set(row) != set(PartPrice._fields):
            raise BadInput(
                f"{file}: {part}: expected usd, watts and source, and nothing else"
            )
        usd, watts = (
            _figure(f"{file}: {part}: {key}", row[key])
            for key in ("usd", "watts")
        )
        found[str(part)] = PartPrice(usd, watts, str(row["source"]))
    return found


def _figure(place: str, value: Any) -> Range | str:
    if (
        isinstance(value, str)
        and value.startswith(_DASHES)
        and value.strip("–- ")
    ):
        return value
    ends = value if isinstance(value, list) else [value, value]
    numbers = all(
        isinstance(n, int | float) and not isinstance(n, bool) for n in ends
    )
    if len(ends) != 2 or not numbers or not 0 <= ends[0] <= ends[1] < math.inf:
        raise BadInput(
            f"{place}: {value!r}: expected a number, 0 or more, two of them as a range, or a dash "
            "and the reason"
        )
    return float(ends[0]), float(ends[1])


def totals(
    parts: Mapping[str, float], prices: Mapping[str, PartPrice]
) -> tuple[Total, Total]:
    """US dollars and watts of so many parts; ``BadInput`` if the list lacks one."""
    if missing := sorted(set(parts) - set(prices)):
        raise BadInput(
            f"the price list has no {', '.join(missing)}",
            hint="copy the built-in one, and add it",
        )
    return (
        _total(parts, {part: prices[part].usd for part in parts}),
        _total(parts, {part: prices[part].watts for part in parts}),
    )


def _total(
    parts: Mapping[str, float], figures: Mapping[str, Range | str]
) -> Total:
    unknown = {
        part: each for part, each in figures.items() if isinstance(each, str)
    }
    known = [
        (parts[part], each)
        for part, each in figures.items()
        if not isinstance(each, str)
    ]
    if not known:
        return Total(None, unknown)
    return Total(
        (sum(n * e[0] for n, e in known), sum(n * e[1] for n, e in known)),
        unknown,
    )


IDEAL = "ideal:nodes=128"
NETWORKS = (
    IDEAL,
    "fat-tree:k=8",
    "fat-tree:k=8,taper=2",
    "leaf-spine:leaves=16,hosts=8,taper=2",
    "leaf-spine:leaves=16,hosts=8,spines=1,taper=4",
    "tor-ocs:tors=16,hosts=8,taper=4",
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
class ArchitectureOptions:
    """Which networks, how many jobs, drawn with which seed, placed how, and whose prices."""

    networks: tuple[str, ...] = NETWORKS
    jobs: int = 100
    seed: int = 0
    placement: str = "first-fit"
    prices: Path = BUILT_IN
    models: tuple[str, ...] = field(default=(*MODELS, MIXTURE))


def run_experiment(
    options: ArchitectureOptions, tell: Callable[[int, int], None]
) -> dict[str, Any]:
    """The content of ``result.json``; ``tell`` gets (done, all). ``BadInput`` for unlike sizes."""
    networks = [network_of(spec) for spec in options.networks]
    if len({network.nodes for network in networks}) > 1:
        sizes = ", ".join(
            f"{network.spec}: {network.nodes}" for network in networks
        )
        raise BadInput(
            f"networks of one size can be compared, not of several ({sizes})"
        )
    prices = read_prices(options.prices)
    nodes = networks[0].nodes
    jobs = mixed_jobs(
        options.jobs,
        nodes,
        options.seed,
        options.models,
    )
    ideal = network_of(
        f"ideal:nodes={nodes},rate={max(n.nic_bps for n in networks) / 1e9:g}Gbps"
    )
    origin = provenance([options.seed], [options.prices])
    measured = [
        _measure(
            ideal,
            jobs,
            options,
            prices,
        )
    ]
    best_s = measured[0]["iteration_s"]
    for number, network in enumerate(networks):
        measured.append(
            _measure(
                network,
                jobs,
                options,
                prices,
            )
        )
        tell(number + 1, len(networks))
    for row in measured:
        ratios = [row["iteration_s"][name] / best_s[name] for name in best_s]
        row["iteration_to_ideal"] = float(np.exp(np.mean(np.log(ratios))))
    return {
        "experiment": "architectures",
        "schema_version": 3,
        "nodes": nodes,
        "jobs": options.jobs,
        "models": list(options.models),
        "gpu": A100.statement,
        "placement": options.placement,
        "networks": {
            network.spec: row
            for network, row in zip(networks, measured[1:], strict=True)
        },
        "prices": {part: price._asdict() for part, price in prices.items()},
        "provenance": origin,
    }


_BYTES = 1e9
_REDUCE = ("ring", "two-rings", "hierarchical", "halving-doubling", "tree")


def collectives_on(network: Network) -> dict[str, Any]:
    """Times of collectives of all nodes, alone, over what no network of such links can beat.

    1 GB each: 2(n − 1)/n of it through a NIC for an all-reduce, (n − 1)/n for an all-to-all, and
    less where servers have links inside (``Network.least_s``). Each is a second iteration, which
    has the circuits that the first one left.
    """
    nodes = np.arange(network.nodes)

    def takes_s(rounds: Sequence[Round]) -> float:
        jobs = [
            [
                PlacedJob(
                    nodes,
                    0.0,
                    rounds,
                    iterations,
                )
            ]
            for iterations in (1, 2)
        ]
        first_s, both_s = (
            float(run_jobs(network, each).ends_s[0]) for each in jobs
        )
        return both_s - first_s

    odd = network.nodes & (network.nodes - 1)
    names = [name for name in _REDUCE if name != "halving-doubling" or not odd]
    reduces = {
        name: takes_s(network.collective(name, nodes, _BYTES))
        / network.least_s(_BYTES, reduces=True)
        for name in names
    }
    exchange_s = takes_s(network.collective("all-to-all", nodes, _BYTES))
    return {
        "all_reduce": reduces,
        "best": min(reduces, key=lambda name: reduces[name]),
        "all_to_all": exchange_s / network.least_s(_BYTES, reduces=False),
    }


def _measure(
    network: Network,
    jobs: Sequence[QueueJob],
    options: ArchitectureOptions,
    prices: Mapping[str, PartPrice],
) -> dict[str, Any]:
    usage = Usage(np.zeros(len(network.capacity_bps)))
    faults: list[str] = []
    policies = load_policies(
        "fifo",
        options.placement,
        "keep",
        options.seed,
        lambda fault: faults.append(str(fault)),
    )
    result = simulate(NetworkCluster(network, usage), jobs, policies)
    summary = summary_of(result)
    table = result.jobs
    iterations = np.array(
        [job.view.training.iterations for job in jobs if job.view.training]
    )
    lasted_s = (table["ended_s"] - table["started_s"]) / iterations
    models = np.array([job.cluster for job in jobs])
    offered_bits = network.capacity_bps * summary["makespan_s"]
    usd, watts = totals(network.parts, prices)
    return {
        "collectives": collectives_on(network),
        "iteration_s": {
            name: float(lasted_s[models == name].mean())
            for name in dict.fromkeys(models.tolist())
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


def write_report(result: dict[str, Any], output: Path) -> list[Path]:
    """Write ``result.json`` and the plot into ``output``; the files."""
    return results.write_report(
        result, output, {"architectures": lambda: architectures_figure(result)}
    )


def architectures_figure(result: dict[str, Any]) -> Figure:
    """A row for each network; shorter bars are better. Power and cost only where all is known."""
    networks: dict[str, dict[str, Any]] = result["networks"]
    panels = {"iteration_to_ideal": ("iteration time / ideal switch", 1.0)}
    for key, label in (
        ("power_w", "power (kW)"),
        ("cost_usd", "cost (1,000 $)"),
    ):
        if any(complete(row, key) is not None for row in networks.values()):
            panels[key] = label, 1e3
    figure = figures.new(0.7 + 0.2 * len(networks))
    axes = figure.subplots(
        1,
        len(panels),
        sharey=True,
        squeeze=False,
    )[0]
    for axis, (number, (key, (label, unit))) in zip(
        axes, enumerate(panels.items()), strict=True
    ):
        values = [complete(row, key) for row in networks.values()]
        widths = [max(value or (0.0,)) / unit for value in values]
        bars = axis.barh(list(networks), widths, color=figures.COLOURS[number])
        labels = [
            "unknown" if value is None else shown(value, unit)
            for value in values
        ]
        axis.bar_label(bars, labels, padding=2)
        axis.set_xlabel(label)
        axis.margins(x=0.2)
        axis.grid(visible=False)
    axes[0].invert_yaxis()
    return figure


def shown(
    value: Range,
    unit: float = 1e3,
    digits: str = ".2f",
) -> str:
    """A range in its unit, or one number where it is none."""
    least, most = (f"{each / unit:{digits}}" for each in value)
    return least if least == most else f"{least}–{most}"


def complete(row: Mapping[str, Any], key: str) -> Range | None:
    """Least and most of a figure of a network; ``None`` where parts of it are unknown."""
    value: float | Range | None = row[key]
    if value is None or row.get(key.split("_")[0] + "_unknown"):
        return None
    return (value, value) if isinstance(value, float) else (value[0], value[1])
