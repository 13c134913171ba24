"""The whole experiment: which episodes there are, and what their figures come to."""

import datetime
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from patchlight.emulation.experiments.pac_ml import paper
from patchlight.emulation.experiments.pac_ml.episodes import (
    NAMES,
    ROLL_OUT,
    BoundTask,
    Cell,
    EpisodeTask,
    Task,
    TaskRunner,
    TuningTask,
    check_names,
    made_for,
    shipped,
)
from patchlight.emulation.experiments.pac_ml.results import (
    BoundFigures,
    CellFigures,
    Lowest,
    PolicyFigures,
    Result,
    RollOutFigures,
)
from patchlight.emulation.experiments.pac_ml.variation import Variation
from patchlight.emulation.provenance import policy_files, provenance
from patchlight.emulation.simulator.executors import Engine, run_all
from patchlight.emulation.simulator.ramp.ramp import PlacementRule
from patchlight.emulation.simulator.ramp.requirements import LAW_NAMES
from patchlight.emulation.simulator.ramp.rollout import LookAhead
from patchlight.emulation.simulator.ramp.scenario import PAC_ML_HORIZON_S
from patchlight.testbed.errors import BadInput
from patchlight.testbed.files.issues import nearest
from patchlight.testbed.graphs import ComputationGraph, builtin_graph
from patchlight.testbed.graphs.profiles import SOURCES, profile_cache, profile_in, read_profiles

SEEDS, QUICK_SEEDS = 10, 3
FUTURES, QUICK_FUTURES, AHEAD = 32, 4, 40
_SERIAL = Engine("serial")


@dataclass(frozen=True)
class ExperimentOptions:
    """What the user asked for. ``seeds`` ``None`` is 10, or 3 if ``quick``.

    ``policies`` ``None`` is all built-in ones and the learned ones that are shipped; ``added``
    come beside. A learned one runs only with the placement rule that it was trained for.
    """

    seeds: int | None = None
    first_seed: int = 0
    quick: bool = False
    profiles: Path | None = None
    laws: tuple[str, ...] = LAW_NAMES
    rules: tuple[str, ...] = tuple(PlacementRule)
    policies: tuple[str, ...] | None = None
    added: tuple[str, ...] = ()
    engine: Engine = _SERIAL
    horizon_s: float = PAC_ML_HORIZON_S
    variation: Variation = field(default_factory=Variation)

    def __post_init__(self) -> None:
        if self.seeds is not None and self.seeds < 1:
            raise BadInput(f"cannot run {self.seeds} seeds: expected 1 or more")
        if self.first_seed < 0:
            raise BadInput(f"the first seed is {self.first_seed}: expected 0 or more")
        _check("requirement law", self.laws, LAW_NAMES)
        _check("placement rule", self.rules, [rule.value for rule in PlacementRule])
        named = check_names([*(self.policies or ()), *self.added], self.variation.ramp)
        for what, asked in (
            ("laws", self.laws),
            ("rules", self.rules),
            ("policies", (NAMES if self.policies is None else self.policies) + self.added),
        ):
            if not asked:
                raise BadInput(f"no {what} to run: name at least one")
        for name in named:
            if not any(made_for(name, rule) for rule in self.rules):
                raise BadInput(
                    f"policy {name!r} was not trained for {' or '.join(self.rules)}",
                    hint="'patchlight policy show' says for which placement rule it was",
                )

    @property
    def all_seeds(self) -> range:
        """Those of the episodes of each kind."""
        count = self.seeds or (QUICK_SEEDS if self.quick else SEEDS)
        return range(self.first_seed, self.first_seed + count)

    def names(self, rule: str) -> list[str]:
        """The policies that run with this placement rule."""
        chosen = (*NAMES, *shipped()) if self.policies is None else self.policies
        asked = dict.fromkeys((*chosen, *self.added))
        return [name for name in asked if made_for(name, rule)]

    @property
    def cells(self) -> list[Cell]:
        """All placement rules that a policy runs with, under all laws."""
        rules = [rule for rule in dict.fromkeys(self.rules) if self.names(rule)]
        return [Cell(rule, law) for rule in rules for law in dict.fromkeys(self.laws)]


@dataclass(frozen=True)
class Profiles:
    """The five models: where they come from, and whether they are the published ones."""

    graphs: tuple[ComputationGraph, ...]
    source: str
    published: bool


def find_profiles(folder: Path | None) -> Profiles:
    """PipeDream's profiles from a folder or the user's cache, else the built-in computed ones.

    ``BadInput`` if there are not all five in the folder, or in a cache that has some.
    """
    cache = profile_cache()
    if folder is None and cache.is_dir() and any(profile_in(cache, name) for name in SOURCES):
        folder = cache
    if folder is None:
        graphs = tuple(builtin_graph(name) for name in SOURCES)
        return Profiles(graphs, "built in, computed", published=False)
    found, published = read_profiles(folder)
    kind = "PipeDream's" if published else "the user's"
    return Profiles(tuple(found), f"{kind}, in {folder}", published)


def run_experiment(
    options: ExperimentOptions, say: Callable[[str], None], tell: Callable[[int, int], None]
) -> dict[str, Any]:
    """Everything that ``result.json`` holds. ``tell`` hears (episodes done, episodes in all).

    Of ``options.variation`` only the laws' instance is for this: the rest is other than the paper.
    """
    profiles = find_profiles(options.profiles)
    say(f"models: {profiles.source}")
    if not profiles.published:
        say("these are not the profiles that the paper used: its figures are then no comparison")
    started, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
    named = [name for name in (*(options.policies or ()), *options.added) if name not in NAMES]
    origin = provenance(options.all_seeds, policy_files(named, "partition"))
    runner = TaskRunner(profiles.graphs, options.horizon_s, options.variation)
    cells, seeds = options.cells, options.all_seeds
    looks = _tune(runner, options, say)
    runs = _runs(options, looks)
    tasks: list[Task] = [*runs, *(BoundTask(cell, seed) for cell in cells for seed in seeds)]
    done = itertools.count(1)
    say(f"{len(runs)} episodes of {int(options.horizon_s / 1000) + 1} arrivals")
    done_tasks = run_all(tasks, runner.run, options.engine, lambda: tell(next(done), len(tasks)))
    outcomes: dict[Task, Any] = dict(zip(tasks, done_tasks, strict=True))
    figures: dict[str, dict[str, CellFigures]] = {}
    for cell in cells:
        look = looks.get(cell)
        policies = _policies(options, cell, outcomes, look)
        figures.setdefault(cell.rule, {})[cell.law] = CellFigures(
            policies,
            BoundFigures.of([outcomes[BoundTask(cell, seed)] for seed in seeds]),
            None if look is None else RollOutFigures.of(look),
            Lowest.of(policies),
        )
    result = Result(
        started_at=started.isoformat(timespec="seconds"),
        duration_s=time.monotonic() - clock,
        machine=origin["machine"],
        provenance=origin,
        processes=options.engine.count,
        engine=options.engine.name,
        quick=options.quick,
        profiles={
            "source": profiles.source,
            "published": profiles.published,
            "models": [graph.name for graph in profiles.graphs],
        },
        seeds=list(seeds),
        horizon_s=options.horizon_s,
        law_instance=options.variation.law_instance,
        comparable=profiles.published and options.horizon_s == PAC_ML_HORIZON_S,
        rules=figures,
    )
    return asdict(result)


def run_policies(
    options: ExperimentOptions, tell: Callable[[int, int], None]
) -> dict[Cell, dict[str, PolicyFigures]]:
    """Only the figures of policies: no bound. ``tell`` is as in ``run_experiment``."""
    graphs = find_profiles(options.profiles).graphs
    options.variation.check_models(graphs)
    runner = TaskRunner(graphs, options.horizon_s, options.variation)
    looks = _tune(runner, options, lambda words: None)
    runs = _runs(options, looks)
    done = itertools.count(1)
    made = run_all(runs, runner.run, options.engine, lambda: tell(next(done), len(runs)))
    outcomes = dict(zip(runs, made, strict=True))
    return {cell: _policies(options, cell, outcomes, looks.get(cell)) for cell in options.cells}


def _runs(options: ExperimentOptions, looks: dict[Cell, LookAhead]) -> list[EpisodeTask]:
    runs = [
        EpisodeTask(cell, name, seed, looks[cell] if name == ROLL_OUT else None)
        for cell in options.cells
        for name in options.names(cell.rule)
        for seed in options.all_seeds
    ]
    # The long ones first, so that no process is left with one at the end.
    return sorted(runs, key=lambda run: run.policy != ROLL_OUT)


def _tune(
    runner: TaskRunner, options: ExperimentOptions, say: Callable[[str], None]
) -> dict[Cell, LookAhead]:
    cells = [cell for cell in options.cells if ROLL_OUT in options.names(cell.rule)]
    if not cells:
        return {}
    say("choosing how the roll-out looks ahead, on drawn episodes of its own")
    futures = QUICK_FUTURES if options.quick else FUTURES
    tunings: list[Task] = [TuningTask(cell, futures, AHEAD) for cell in cells]
    chosen = run_all(tunings, runner.run, options.engine)
    return dict(zip(cells, cast(list[LookAhead], chosen), strict=True))


def _policies(
    options: ExperimentOptions, cell: Cell, outcomes: Mapping[Any, Any], look: LookAhead | None
) -> dict[str, PolicyFigures]:
    seeds = options.all_seeds
    return {
        name: PolicyFigures.of(
            seeds,
            [
                outcomes[EpisodeTask(cell, name, seed, look if name == ROLL_OUT else None)]
                for seed in seeds
            ],
            paper.BLOCKING.get(name, {}).get(cell.law),
        )
        for name in options.names(cell.rule)
    }


def _check(what: str, asked: Sequence[str], known: Sequence[str]) -> None:
    for name in asked:
        if name not in known:
            raise BadInput(f"no {what} {name!r}: {nearest(name, known)}")
