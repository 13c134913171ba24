"""ODDL in flows: how much faster models train than on other networks, and why."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from patchlight.emulation.experiments.oddl import conditions
from patchlight.emulation.experiments.paper import SPEEDUPS
from patchlight.emulation.simulator.executors import Engine, run_all
from patchlight.emulation.simulator.network.jobs import ONCE, PlacedJob
from patchlight.emulation.simulator.network.specs import network_of
from patchlight.emulation.simulator.results import provenance
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs.layers import A100

COMPARED = {
    "fat_tree": ("fat_tree", 1.0),
    "fat_tree_2_1": ("fat_tree", 2.0),
    "sip_ring": ("sip_ring", 1.0),
    "ideal": ("ideal", 1.0),
}
"""The networks that ODDL is compared with, each with its taper."""

HEADLINE = "compute"
"""The step whose speedup is given for the whole: everything but overlap is in it."""


class SpeedupStep(NamedTuple):
    """What is put in, the speedup with it, by what it changed the one before; ODDL's iteration."""

    step: str
    speedup: float
    factor: float
    oddl_s: float


LIMITED = (96, 122)
"""Channels on one coupler: 50 GHz apart in the C band, and those of a laser that tunes in less than
10 ns (arXiv 2002.11640)."""


def decomposed(scene: conditions.Scene, compared: str) -> list[SpeedupStep]:
    """The speedup step by step, beginning with a job that is alone and only communicates."""
    kind, taper = COMPARED[compared]
    now = conditions.Conditions()
    steps = [("bandwidth", now)]
    if taper > 1:
        steps.append(("oversubscription", now := now._replace(taper=taper)))
    steps.append(("placement", now := now._replace(placed=True)))
    if kind == "fat_tree":
        steps.append(("collisions", now := now._replace(ecmp=True)))
    steps.append(("latency", now := now._replace(latency=True)))
    steps.append(("neighbours", now := now._replace(beside=True)))
    steps.append(("compute", now := now._replace(computes=True)))
    steps.append(("overlap", now._replace(overlapped=True)))
    # The factors' product is the last speedup; other orders of the steps give other factors.
    found: list[SpeedupStep] = []
    for step, there in steps:
        other_s, oddl_s = (
            scene.iteration_s(each, there) for each in (kind, "oddl")
        )
        before = found[-1].speedup if found else 1.0
        found.append(
            SpeedupStep(
                step,
                other_s / oddl_s,
                other_s / oddl_s / before,
                oddl_s,
            )
        )
    return found


_SCHEDULERS = ("collective", "first-come")
_CONTROL_S = (0.0, 10e-6, 100e-6, 1e-3, 10e-3)
_TUNING_S = (10e-9, 1e-6, 25e-6, 1e-3)
# 50 GHz apart: in half of the C band, in the C band, and in C and L band.
_CHANNELS = (48, 96, 192)


def sensitivity(
    models: Sequence[str],
    nodes: int,
    light: conditions.LightTimes,
) -> list[dict[str, Any]]:
    """Rows: what is varied, and an iteration's time over that on an ideal switch, by model."""
    base = {
        "scheduler": light.scheduler,
        "control_s": 0.0,
        "tuning_s": light.tuning_s,
    }
    variants: list[dict[str, Any]] = [
        {**base, "scheduler": scheduler, "control_s": control_s}
        for scheduler in _SCHEDULERS
        for control_s in _CONTROL_S
    ]
    variants += [{**base, "tuning_s": tuning_s} for tuning_s in _TUNING_S]
    variants += [{**base, "channels": channels} for channels in _CHANNELS]
    ideal = {
        model: _iteration_s(
            f"ideal:nodes={nodes}",
            model,
            nodes,
            light,
        )
        for model in models
    }
    rows = []
    for each in variants:
        spec = (
            f"oddl:nodes={nodes},setup=0ns,scheduler={each['scheduler']},"
            f"switching={each['tuning_s'] * 1e9:g}ns,control={each['control_s'] * 1e9:g}ns"
        )
        spec += f",channels={each['channels']}" if "channels" in each else ""
        ratios = {
            model: _iteration_s(
                spec,
                model,
                nodes,
                light,
            )
            / ideal[model]
            for model in models
        }
        rows.append({"nodes": nodes, **each, "to_ideal": ratios})
    return rows


def _iteration_s(
    spec: str,
    name: str,
    nodes: int,
    light: conditions.LightTimes,
) -> float:
    model = conditions.workload(name)
    ranks = np.arange(nodes)
    network = network_of(spec)
    rounds = model.rounds(network, ranks)
    job = PlacedJob(
        ranks,
        model.compute_s,
        rounds,
        ONCE,
        messages_s=light.message_s,
    )
    return conditions.mean_iteration_s(network, job)


RADIX = 16
NODES = (16, 64, 256, 512, 1024)


@dataclass(frozen=True)
class FlowOptions:
    """Which models on how many nodes of a cluster of k³/4, k being ``radix``.

    Jobs come as in ``trace``, or by a law; averaged over ``draws`` of them, from ``seed`` on.
    """

    models: tuple[str, ...] = conditions.MODELS
    nodes: tuple[int, ...] = NODES
    radix: int = RADIX
    trace: Path | None = None
    placement: str = "first-fit"
    draws: int = 3
    seed: int = 0
    light: conditions.LightTimes = field(default_factory=conditions.LightTimes)
    engine: Engine = field(default_factory=Engine)

    def __post_init__(self) -> None:
        most = self.radix**3 // 4
        if not self.nodes or not all(
            2 <= nodes <= most for nodes in self.nodes
        ):
            raise BadInput(
                f"jobs of {', '.join(map(str, self.nodes)) or 'no'} nodes: expected 2 to {most}, "
                f"the nodes of a fat-tree of switches with {self.radix} ports"
            )


class Task(NamedTuple):
    """A job of so many nodes, among the jobs of one seed."""

    nodes: int
    seed: int


Steps = dict[str, list[SpeedupStep]]
"""The steps by what is compared."""


class Compared(NamedTuple):
    """The steps, and how much longer an iteration takes with so many channels on a coupler."""

    steps: Steps
    limited: dict[int, float]


@dataclass(frozen=True)
class FlowWorker:
    """Does tasks, in another process too."""

    options: FlowOptions

    def __call__(self, task: Task) -> dict[str, Compared]:
        """The figures of each model."""
        options = self.options
        around = arrivals_of(options, task.seed).around(task.nodes)
        found = {}
        for model in options.models:
            scene = conditions.Scene(
                options.radix,
                model,
                around,
                options.light,
                task.seed,
            )
            steps = {
                compared: decomposed(scene, compared) for compared in COMPARED
            }
            whole = conditions.Conditions(
                placed=True,
                latency=True,
                beside=True,
                computes=True,
            )
            routed_s = scene.iteration_s("oddl", whole)
            limited = {
                channels: scene.iteration_s("oddl", whole, channels) / routed_s
                for channels in LIMITED
            }
            found[model] = Compared(steps, limited)
        return found


def arrivals_of(options: FlowOptions, seed: int) -> conditions.JobArrivals:
    """The jobs that come with a seed."""
    network = f"fat-tree:k={options.radix}"
    return conditions.JobArrivals(
        network,
        options.trace,
        options.placement,
        seed,
    )


def run_flows(
    options: FlowOptions, tell: Callable[[int, int], None]
) -> dict[str, Any]:
    """The content of ``result.json``; ``tell`` gets (done, all). ``BadInput`` for bad options."""
    models = {
        name: conditions.workload(name)._asdict() for name in options.models
    }
    origin = provenance(
        range(options.seed, options.seed + options.draws),
        [] if options.trace is None else [options.trace],
    )
    tasks = [
        Task(nodes, options.seed + draw)
        for nodes in sorted(set(options.nodes))
        for draw in range(options.draws)
    ]
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        tell(done, len(tasks))

    results = run_all(
        tasks,
        FlowWorker(options),
        options.engine,
        count,
    )
    found: dict[str, dict[str, list[Steps]]] = {
        model: {} for model in options.models
    }
    slower: dict[str, dict[str, list[dict[int, float]]]] = {
        model: {} for model in options.models
    }
    for task, result in zip(tasks, results, strict=True):
        for model, (steps, limited) in result.items():
            found[model].setdefault(str(task.nodes), []).append(steps)
            slower[model].setdefault(str(task.nodes), []).append(limited)
    shown = next(
        (model for model, _ in SPEEDUPS if model in options.models),
        options.models[0],
    )
    light = options.light
    return {
        "experiment": "oddl",
        "form": "flows",
        "schema_version": 1,
        "cluster_nodes": options.radix**3 // 4,
        "arrivals": arrivals_of(options, options.seed).source,
        "placement": options.placement,
        "draws": options.draws,
        "light": light._asdict(),
        "models": models,
        "speedups": _each(
            found, lambda steps: _mean([_headline(each) for each in steps])
        ),
        "speedup_ranges": _each(
            found,
            lambda steps: [
                f([_headline(each) for each in steps]) for f in (min, max)
            ],
        ),
        "speedups_limited": {
            str(channels): _limited(found, slower, channels)
            for channels in LIMITED
        },
        "paper": {
            model: {str(nodes): dict(row)}
            for (model, nodes), row in SPEEDUPS.items()
        },
        "decomposition": _each(found, _steps),
        "shown_model": shown,
        "gpu": A100.statement,
        "sensitivity": sensitivity(
            options.models, min(256, max(options.nodes)), light
        ),
        "provenance": origin,
    }


def _headline(steps: Sequence[SpeedupStep]) -> float:
    return next(each.speedup for each in steps if each.step == HEADLINE)


def _mean(values: Sequence[float]) -> float:
    """The geometric mean: these are ratios."""
    return float(np.exp(np.mean(np.log(values))))


def _limited(
    found: dict[str, dict[str, list[Steps]]],
    slower: dict[str, dict[str, list[dict[int, float]]]],
    channels: int,
) -> dict[str, Any]:
    """Mean, least and most of the speedup with so many channels on a coupler."""
    rows: dict[str, Any] = {}
    for model, by_nodes in found.items():
        for nodes, draws in by_nodes.items():
            factors = [each[channels] for each in slower[model][nodes]]
            for name in COMPARED:
                headline = [_headline(draw[name]) for draw in draws]
                each = [h / f for h, f in zip(headline, factors, strict=True)]
                row = rows.setdefault(model, {}).setdefault(nodes, {})
                row[name] = [_mean(each), min(each), max(each)]
    return rows


def _steps(draws: Sequence[Sequence[SpeedupStep]]) -> list[dict[str, Any]]:
    """Steps averaged over the draws."""
    return [
        {
            "step": same[0].step,
            "speedup": _mean([each.speedup for each in same]),
            "factor": _mean([each.factor for each in same]),
            "oddl_s": float(np.mean([each.oddl_s for each in same])),
        }
        for same in zip(*draws, strict=True)
    ]


def _each(
    found: dict[str, dict[str, list[Steps]]],
    made: Callable[[list[list[SpeedupStep]]], Any],
) -> dict[str, Any]:
    """By model, nodes and what is compared."""
    return {
        model: {
            nodes: {
                name: made([draw[name] for draw in draws]) for name in COMPARED
            }
            for nodes, draws in by_nodes.items()
        }
        for model, by_nodes in found.items()
    }
