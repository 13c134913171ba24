"""ODDL in flows: how much faster models train than on other networks, and why."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from patchlight.emulation.experiments.oddl.arrivals import Arrivals
from patchlight.emulation.experiments.oddl.conditions import Light, Scene
from patchlight.emulation.experiments.oddl.decomposition import COMPARED, HEADLINE, Step, decomposed
from patchlight.emulation.experiments.oddl.paper import SPEEDUPS
from patchlight.emulation.experiments.oddl.scenarios import scenarios
from patchlight.emulation.experiments.oddl.sensitivity import sensitivity
from patchlight.emulation.experiments.oddl.workloads import MODELS, descriptions, workload
from patchlight.emulation.provenance import provenance
from patchlight.emulation.simulator.executors import Engine, run_all
from patchlight.testbed.errors import BadInput

RADIX = 16
NODES = (16, 64, 256, 512, 1024)


@dataclass(frozen=True)
class FlowOptions:
    """Which models on how many nodes of a cluster of k³/4, k being ``radix``.

    Jobs come as in ``trace``, or by a law. Everything is done for ``draws`` of them, beginning with
    ``seed``, and averaged.
    """

    models: tuple[str, ...] = MODELS
    nodes: tuple[int, ...] = NODES
    radix: int = RADIX
    trace: Path | None = None
    placement: str = "first-fit"
    draws: int = 3
    seed: int = 0
    light: Light = field(default_factory=Light)
    engine: Engine = field(default_factory=Engine)

    def __post_init__(self) -> None:
        most = self.radix**3 // 4
        if not self.nodes or not all(2 <= nodes <= most for nodes in self.nodes):
            raise BadInput(
                f"jobs of {', '.join(map(str, self.nodes)) or 'no'} nodes: expected 2 to {most}, "
                f"the nodes of a fat-tree of switches with {self.radix} ports"
            )


class Task(NamedTuple):
    """A job of so many nodes, among the jobs of one seed."""

    nodes: int
    seed: int


Steps = dict[str, list[Step]]
"""The steps by what is compared."""


@dataclass(frozen=True)
class Worker:
    """Does tasks, in another process too."""

    options: FlowOptions

    def __call__(self, task: Task) -> dict[str, Steps]:
        """The steps of each model."""
        options = self.options
        around = arrivals_of(options, task.seed).around(task.nodes)
        found = {}
        for model in options.models:
            scene = Scene(options.radix, model, around, options.light, task.seed)
            found[model] = {compared: decomposed(scene, compared) for compared in COMPARED}
        return found


def arrivals_of(options: FlowOptions, seed: int) -> Arrivals:
    """The jobs that come with a seed."""
    network = f"fat-tree:k={options.radix}"
    return Arrivals(network, options.trace, options.placement, seed)


def run_flows(options: FlowOptions, tell: Callable[[int, int], None]) -> dict[str, Any]:
    """What ``result.json`` holds. ``tell`` hears of parts that are done, of how many.

    ``BadInput`` for a model that there is not, a trace that cannot be read, and the like.
    """
    models = descriptions(options.models)
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

    results = run_all(tasks, Worker(options), options.engine, count)
    found: dict[str, dict[str, list[Steps]]] = {model: {} for model in options.models}
    for task, result in zip(tasks, results, strict=True):
        for model, steps in result.items():
            found[model].setdefault(str(task.nodes), []).append(steps)
    shown = next((model for model, _ in SPEEDUPS if model in options.models), options.models[0])
    published = SPEEDUPS.get((shown, options.radix**3 // 4), {})
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
        "speedups": _each(found, lambda steps: _mean([_headline(each) for each in steps])),
        "speedup_ranges": _each(
            found, lambda steps: [f([_headline(each) for each in steps]) for f in (min, max)]
        ),
        "paper": {model: {str(nodes): dict(row)} for (model, nodes), row in SPEEDUPS.items()},
        "decomposition": _each(found, _steps),
        "scenarios_model": shown,
        "scenarios": [
            each._asdict()
            for each in scenarios(
                options.radix, workload(shown), published, light.message_s, options.seed
            )
        ],
        "sensitivity": sensitivity(options.models, min(256, max(options.nodes)), light),
        "provenance": origin,
    }


def _headline(steps: Sequence[Step]) -> float:
    return next(each.speedup for each in steps if each.step == HEADLINE)


def _mean(values: Sequence[float]) -> float:
    """The geometric mean: these are ratios."""
    return float(np.exp(np.mean(np.log(values))))


def _steps(draws: Sequence[Sequence[Step]]) -> list[dict[str, Any]]:
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
    found: dict[str, dict[str, list[Steps]]], made: Callable[[list[list[Step]]], Any]
) -> dict[str, Any]:
    """By model, nodes and what is compared."""
    return {
        model: {
            nodes: {name: made([draw[name] for draw in draws]) for name in COMPARED}
            for nodes, draws in by_nodes.items()
        }
        for model, by_nodes in found.items()
    }
